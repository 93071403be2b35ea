"""Kernels that only pay on a CPU."""
