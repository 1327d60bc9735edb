"""The control plane: composition of store, protocol, front and pages over the pure rooms. It executes no job itself."""
