"""GPU kernels in Triton. Each has a twin in plain torch with the same call, which runs everywhere else.

Triton is optional: the engine imports a module of this package only where there is a CUDA device and Triton.
"""
