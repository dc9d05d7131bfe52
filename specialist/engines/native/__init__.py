"""A real model: C++ kernels on a CPU, PyTorch on any device."""
