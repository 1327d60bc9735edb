"""Actions: manifests, store, mirror, lock, node, native adapters."""
