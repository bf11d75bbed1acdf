"""LoRA files merged into a checkpoint's weights: W + scale * (alpha / rank) * B @ A, for every matrix that has a pair.

Understood are the names of PEFT (`base_model.model.blocks.0.self_attn.q.lora_A.default.weight`), of diffusers
(`transformer.blocks.0.attn1.to_q.lora_A.weight`) and of kohya (`lora_unet_blocks_0_self_attn_q.lora_down.weight`). Both
states are as `weights.read` gives them, and their modules have the same names: original ones, or those of diffusers.
`checkpoints.rename` brings a checkpoint from one to the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from diagonal.checkpoints.state import State, some

KEY = re.compile(r"(.+?)\.(?:(lora_A|lora_down|lora_B|lora_up)(?:\.\w+)?\.weight|(alpha))")
KINDS = {"lora_A": "down", "lora_down": "down", "lora_B": "up", "lora_up": "up", "alpha": "alpha"}
PREFIX = re.compile(r"^(base_model\.model\.|base_model\.|transformer\.|diffusion_model\.|model\.|lora_unet_)+")


def merge_lora(state: Mapping[str, Tensor], lora_state: Mapping[str, Tensor], scale: float = 1.0) -> State:
    """A checkpoint with a LoRA in it, of the checkpoint's dtype; computed in single precision.

    Where the file gives no alpha, alpha is the rank, so that B @ A is added as it is: put another alpha into `scale`.
    """
    targets: dict[str, list[str]] = {}
    for key in state:
        if key.endswith(".weight"):
            targets.setdefault(_plain(key.removesuffix(".weight")), []).append(key)
    pairs = _pairs(lora_state)
    lost = [name for name in pairs if len(targets.get(_plain(name), ())) != 1]
    _refuse(lost, "fit no weight of the checkpoint (checkpoints.rename gives it other names)")
    merged = dict(state)
    for name, pair in pairs.items():
        (key,) = targets[_plain(name)]
        merged[key] = _merged(merged[key], pair, scale, name)
    return merged


def _pairs(lora_state: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors `down`, `up` and perhaps `alpha` of each module, by its name."""
    if not lora_state:
        raise ValueError("the LoRA file holds nothing; give one with lora_A and lora_B, or lora_down and lora_up")
    pairs: dict[str, dict[str, Tensor]] = {}
    unknown, twice = [], []
    for key, value in lora_state.items():
        match = KEY.fullmatch(key)
        if match is None:
            unknown.append(key)
        elif pairs.setdefault(match[1], {}).setdefault(KINDS[match[2] or match[3]], value) is not value:
            twice.append(key)
    _refuse(unknown, "are neither lora_A, lora_B, lora_down, lora_up nor alpha")
    _refuse(twice, "come twice, as of several adapters")
    _refuse([name for name, pair in pairs.items() if not {"down", "up"} <= pair.keys()], "lack one of two matrices")
    return pairs


def _merged(weight: Tensor, pair: Mapping[str, Tensor], scale: float, name: str) -> Tensor:
    down, up = pair["down"], pair["up"]
    rank = len(down) if down.ndim > 1 else 0
    # Convolutions have their kernel in A, and ones behind B's two sizes.
    fits = rank and up.numel() == len(weight) * rank and up.shape[1:2] == (rank,)
    if not fits or len(weight) * down[0].numel() != weight.numel():
        given = f"{tuple(up.shape)} and {tuple(down.shape)}"
        raise ValueError(f"the LoRA does not fit: {name} has {given}, and the weight is {tuple(weight.shape)}")
    alpha = float(pair["alpha"]) if "alpha" in pair else rank
    change = (scale * alpha / rank) * (up.float().flatten(1) @ down.float().flatten(1))
    return (weight.float() + change.view(weight.shape).to(weight.device)).to(weight.dtype)


def _plain(name: str) -> str:
    """A module's name without what wraps the model, and with one kind of separator: kohya's has no dots."""
    return PREFIX.sub("", name).replace(".", "_")


def _refuse(names: list[str], why: str) -> None:
    if names:
        raise ValueError(f"the LoRA does not fit: {len(names)} of its keys {why}: {some(sorted(names))}")
