"""What the calls of MAGI-1's pipeline compute, for the floor of `speed.video`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diagonal.catalog.names import find
from diagonal.generation.request import Request, latent_frames, latent_size
from diagonal.models.magi import NULL_ROWS
from diagonal.planning.passes import GUIDED, is_late
from diagonal.planning.work import Worked, calls

FEW = ("text_kv.weight", "gates.weight")  # of one row a chunk, or made once a text


def operations(model: Any, request: Request, text_rows: int) -> float:
    """Operations of all passes of a video: twice for every weight of a block and token, and four times for every number
    of a head, query and key; keys are those of latents and of texts."""
    how, config, schedule = request.how(), model.variant.config, request.how().schedule
    codec = find("tokenizers", model.variant.vae)
    rows, cols = latent_size(*request.size(model.variant.size), codec.patch, config.patch)
    frame, steps = rows * cols // config.patch**2, len(schedule.levels(0))
    named = model.model.named_parameters()
    weights = sum(one.numel() for name, one in named if one.ndim == 2 and "blocks" in name and not name.endswith(FEW))
    words = text_rows + 2 * (model.special is not None)

    def work(parts: Iterable[Worked], told: bool, alone: bool = False) -> float:
        total = 0.0
        for one in parts:
            keys = (one.frames if alone else one.seen) * frame
            keys += words if told and one.step is not None else min(NULL_ROWS, config.text_length)
            total += one.frames * frame * (2 * weights + 4 * config.layers * config.dim * keys)
        return total

    total = 0.0
    for call in calls(how, latent_frames(request.num_frames or 0, how, codec)):
        early = [one for one in call.parts if one.step is not None and not is_late(one.step, steps)]
        late = [one for one in call.parts if one.step is not None and is_late(one.step, steps)]
        if how.pipeline == GUIDED:
            total += work(call.parts, told=False)
            total += work(call.parts, told=True) + work(early, told=False, alone=True) if early else 0.0
        else:
            total += work(call.parts, told=True) + work(late[:1], told=True, alone=True)
    return total
