"""Kernels for NVIDIA GPUs, in Triton. Their results are defined by `ops/reference`."""
