"""A real model, computed here: PyTorch on a CPU or a CUDA device."""
