"""Ascend's profilers: torch_npu, MindSpore and msprof, as text and as sqlite."""
