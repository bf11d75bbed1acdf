"""Where a model computes, in which numbers, and how its kernels lie there."""

from __future__ import annotations

import torch
from torch import nn

from diagonal.engine.kernels.cpu import on_cpu


def find_dtype(name: str, device: torch.device | str, int8_rows: bool = False) -> torch.dtype:
    """float32, bfloat16, or for 'auto' the one that the device computes fastest. `int8_rows`: for a token model whose
    weights are rows of int8."""
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name in known:
        return known[name]
    if name != "auto":
        raise ValueError(f"dtype {name!r} is not known; write {', '.join(known)} or auto")
    if check_device(device).type == "cuda":
        return torch.bfloat16
    if int8_rows and on_cpu(torch.device(device)):
        return torch.float32  # the C++ library reads such weights as int8, without loss: half the bytes of bfloat16
    try:
        abilities = torch.cpu.get_capabilities()
    except AttributeError:  # PyTorch before 2.10
        return torch.float32
    return torch.bfloat16 if abilities.get("avx512_bf16") or abilities.get("amx_bf16") else torch.float32


def check_device(name: torch.device | str) -> torch.device:
    """A device that this machine has."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r} is not known; write cpu, cuda, cuda:1 or mps") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} asked for, but this PyTorch sees no CUDA GPU; use cpu")
    return device


def kernels_last(codec: nn.Module) -> None:
    """Lay the kernels of convolutions out as the frames are, channels last: or each call would do it anew."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for parameter in codec.parameters():
        if parameter.ndim in formats:
            parameter.data = parameter.data.contiguous(memory_format=formats[parameter.ndim])
