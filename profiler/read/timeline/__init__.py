"""Kernels and blocks of memory, each on its own clock -> operators and storages (docs/why/readers.md)."""
