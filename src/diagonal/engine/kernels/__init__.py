"""GPU kernels. Modules that import Triton are imported only where a CUDA device and Triton exist."""
