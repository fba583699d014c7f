"""The demonstration: a small language model, its data, and its training step."""
