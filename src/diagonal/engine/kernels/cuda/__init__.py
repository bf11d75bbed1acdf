"""Kernels in CUDA C++ (*.cu, *.cuh) and what launches each; `nvrtc` compiles them when they are first used."""
