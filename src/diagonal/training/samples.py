"""Samples of a teacher and of students while they are trained, as pictures: a row for each video, time to the right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal.engine.denoise import Gaussian
from diagonal.engine.teacher import trajectory
from diagonal.engine.window import Window, WindowCache
from diagonal.training.diffusion import autocast
from diagonal.training.distill import Roll, rollout
from diagonal.training.latents import Solving
from diagonal.training.methods import Distillation
from diagonal.video import write_picture

FRAMES = 10  # of a row
LAST = 1 - 1e-9  # the exit of a rollout that goes all the way


def teacher_videos(teacher: Any, texts: tuple[Tensor, Tensor], solving: Solving) -> Tensor:
    """Latents (B, F, C, H, W) of the prompts, which come with what stands for none."""
    noise = _noise(len(texts[0]), texts[0].device)(0, 0, (len(texts[0]), *solving.shape))
    with autocast(noise.device):
        *_, clean = trajectory(teacher, solving.sigmas(), texts, solving.guidance_scale, noise)
    return clean


@torch.no_grad()
def student_videos(student: Any, text_BLC: Tensor, method: Distillation, shape: tuple[int, int, int, int]) -> Tensor:
    """The same by a student, chunk by chunk as it is used."""
    count, device, preset = len(text_BLC), text_BLC.device, method.preset
    frames, _, *size = shape
    side = student.config.patch
    window = Window(preset.window_frames or frames, preset.sink_frames, preset.relative_rope)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tokens = size[0] // side * (size[1] // side)
    cache = WindowCache(student.cache_spec, window, tokens, count, device, dtype)
    roll = Roll(frames, LAST, None, text_BLC, text_BLC, _noise(count, device), (size[0], size[1]))
    with autocast(device):
        return rollout(student, cache, method, roll)


def _noise(count: int, device: torch.device) -> Gaussian:
    return Gaussian(range(count), device)


def write_sheet(latents_BFCHW: Tensor, codec: Any, path: Path) -> None:
    """Decode videos and write frames of each, evenly spaced."""
    video_BTCHW = codec.decode(latents_BFCHW.float(), {}).cpu()
    chosen = np.linspace(0, video_BTCHW.shape[1] - 1, min(FRAMES, video_BTCHW.shape[1])).round().astype(int)
    rows = [torch.cat(list(video[chosen]), dim=-1) for video in video_BTCHW]
    write_picture(path, torch.cat(rows, dim=-2).permute(1, 2, 0).contiguous().numpy())
