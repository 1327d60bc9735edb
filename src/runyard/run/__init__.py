"""The life of a run: one pure advance from a RunPlan, a state and a happening."""
