"""What a folder says of its transformer in config.json, before its weights are read: whether it can be the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Our sizes, and what they are called by diffusers and by the authors of Wan and of SkyReels.
NAMES = {
    "layers": ("num_layers",),
    "heads": ("num_attention_heads", "num_heads"),
    "ffn": ("ffn_dim",),
    "channels": ("in_channels", "in_dim"),
    "text_dim": ("text_dim",),
}
LARGEST = 2**20  # bytes of a config.json


def check_described(folder: Path, sizes: Mapping[str, int], name: str) -> None:
    """Refuse a folder whose config.json is of another size of model. One without says nothing, and nor does one that
    cannot be read: the weights decide."""
    said = _said(folder / "config.json")
    other = []
    for ours, theirs in NAMES.items():
        found = next((said[key] for key in theirs if key in said), None)
        if ours in sizes and type(found) is int and found != sizes[ours]:
            other.append(f"{ours} is {found}, not {sizes[ours]}")
    if other:
        pictures = said.get("in_channels", said.get("in_dim")) == 36
        why = ": an image-to-video model, which is none that runs here" if pictures else ""
        raise ValueError(f"{folder} is not {name} by its config.json{why}: {'; '.join(other)}")


def _said(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return {}
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
