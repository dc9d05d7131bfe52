"""A real model, computed here: by C++ kernels on a CPU, by PyTorch on any device."""
