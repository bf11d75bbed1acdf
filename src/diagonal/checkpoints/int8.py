"""Matrices as rows of int8 with one scale each: a quarter of the size of float32, for weights that are shipped."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from diagonal.checkpoints.state import State

SCALE = ".scale"


def shrink(state: Mapping[str, Tensor]) -> State:
    """Weights for shipping: matrices as int8 with one float16 scale per row (`key.scale`), all else as float16."""
    small: State = {}
    for key, value in state.items():
        if value.ndim == 2:
            small[key], scale_N = int8_rows(value)
            small[key + SCALE] = scale_N[:, None].half()
        else:
            small[key] = value.half()
    return small


def int8_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as int8 numbers and one float32 scale for each row, of which they are multiples: the nearest ones, where
    the largest number of a row is 127 or -127 times its scale."""
    scale_N = (matrix.float().abs().amax(1) / 127).clamp(min=1e-8)
    return (matrix / scale_N[:, None]).round().to(torch.int8), scale_N


def restore(state: State) -> State:
    """Undo `shrink`; a state that was never shrunk stays as it is."""
    scales = {key for key in state if key.endswith(SCALE) and key.removesuffix(SCALE) in state}
    return {
        key: value.float() * state[key + SCALE].float() if key + SCALE in scales else value
        for key, value in state.items()
        if key not in scales
    }
