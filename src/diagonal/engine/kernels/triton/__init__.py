"""Kernels in Triton. Triton is optional: only `select` imports these modules, and only where they can run."""
