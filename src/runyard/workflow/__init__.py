"""Reads workflows: positioned YAML, schema, triggers, inputs, calls; compiles a RunPlan."""
