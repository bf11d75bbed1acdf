"""Kernels of the GPU's fast path. Those in Triton are imported when a CUDA device is used, and not before."""
