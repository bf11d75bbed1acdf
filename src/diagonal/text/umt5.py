"""The text encoder of Wan2.1 as its authors publish it (`models_t5_umt5-xxl-enc-bf16.pth`), as transformers' UMT5.

The sizes come from the tensors themselves. Nothing in the file is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diagonal import checkpoints

FILE = "models_t5_umt5-xxl-enc-bf16.pth"
TOKENIZER = "google/umt5-xxl"  # a folder beside the file, and the same on the hub
_BLOCK, _ATTENTION, _MLP = "encoder.block.{}.", "layer.0.SelfAttention.", "layer.1.DenseReluDense."
# transformers' names: those of the file
KEYS = {
    "shared.weight": ("token_embedding.weight",),
    **{f"{_BLOCK}{_ATTENTION}{one}.weight": ("blocks.{}.attn." + f"{one}.weight",) for one in "qkvo"},
    f"{_BLOCK}{_ATTENTION}relative_attention_bias.weight": ("blocks.{}.pos_embedding.embedding.weight",),
    f"{_BLOCK}layer.0.layer_norm.weight": ("blocks.{}.norm1.weight",),
    f"{_BLOCK}{_MLP}wi_0.weight": ("blocks.{}.ffn.gate.0.weight",),
    f"{_BLOCK}{_MLP}wi_1.weight": ("blocks.{}.ffn.fc1.weight",),
    f"{_BLOCK}{_MLP}wo.weight": ("blocks.{}.ffn.fc2.weight",),
    f"{_BLOCK}layer.1.layer_norm.weight": ("blocks.{}.norm2.weight",),
    "encoder.final_layer_norm.weight": ("norm.weight",),
}


def find(source: str) -> Path | None:
    """The file in its authors' form that a path means: itself, or the one in their folder."""
    path = Path(source).expanduser()
    if path.is_file():
        return path
    return path / FILE if (path / FILE).is_file() else None


def tokenizer(file: Path) -> str:
    """Where the file's tokenizer is: in the folder beside it, as its authors publish it, or on the hub."""
    beside = file.parent / TOKENIZER
    return str(beside.resolve()) if beside.is_dir() else TOKENIZER


def load(file: Path, dtype: torch.dtype) -> Any:
    """transformers' UMT5EncoderModel with the weights of the file."""
    return build(checkpoints.read(file), dtype)


def build(state: Mapping[str, Tensor], dtype: torch.dtype) -> Any:
    """transformers' UMT5EncoderModel from tensors of the authors' names; every key and shape must match."""
    import transformers

    renamed = checkpoints.rename(state, KEYS)
    lacking = [names[0] for ours, names in KEYS.items() if ours.format(0) not in renamed]
    if lacking:
        raise ValueError(f"it lacks {checkpoints.some(lacking)}: it is no UMT5 encoder of Wan's naming")
    vocab, width = renamed["shared.weight"].shape
    first = _BLOCK.format(0)
    buckets, heads = renamed[f"{first}{_ATTENTION}relative_attention_bias.weight"].shape
    config = transformers.UMT5Config(
        vocab_size=vocab,
        d_model=width,
        d_kv=len(renamed[f"{first}{_ATTENTION}q.weight"]) // heads,
        d_ff=len(renamed[f"{first}{_MLP}wi_0.weight"]),
        num_layers=sum(key.endswith("wi_0.weight") for key in renamed),
        num_heads=heads,
        relative_attention_num_buckets=buckets,
    )
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model: Any = transformers.UMT5EncoderModel(config)  # type: ignore[no-untyped-call]
    renamed["encoder.embed_tokens.weight"] = renamed["shared.weight"]  # one tensor under two names
    model.load_state_dict({key: value.to(dtype) for key, value in renamed.items()}, strict=True, assign=True)
    model.tie_weights()
    return model.eval().requires_grad_(False)
