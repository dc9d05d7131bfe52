"""Kernels for the CPU, in C++ and from PyTorch."""
