"""What torch and its relatives write: memory snapshots, Chrome traces, execution traces, HyperOffload's traces."""
