"""GPU kernels, in Triton and in CUDA C++, with twins in plain torch (`reference`) that run everywhere else.

Callers ask `select`, the only module that chooses. See README.md in this folder.
"""
