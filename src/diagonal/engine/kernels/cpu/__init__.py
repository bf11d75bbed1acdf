"""Kernels for a CPU: a small C++ library, compiled at first use by the compiler that is there."""

from diagonal.engine.kernels.cpu import attention, linear, sampling, steps
from diagonal.engine.kernels.cpu.library import on_cpu, ready, serves

__all__ = ["attention", "linear", "on_cpu", "ready", "sampling", "serves", "steps"]
