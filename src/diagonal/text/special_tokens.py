"""MAGI-1's special tokens: learned rows that stand before a caption, from the file that its authors publish.

    tokens = read("special_tokens.npz", width=4096)

Understood are `special_tokens.npz` of the release, whose `other_tokens` hold the row of high quality and those of eight
durations among others, and safetensors with `hq` (1, width) and `duration` (8, width).
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from diagonal.engine.pipeline.texts import DURATIONS, SpecialTokens

TABLE, QUALITY, FIRST_DURATION = "other_tokens", 1, 7  # of the release: its name, and rows in it
SUFFIXES = (".npz", ".safetensors")
MAX_BYTES = 2**26


def read(path: str | Path, width: int) -> SpecialTokens:
    """The special tokens in a file, for a model whose texts have this width."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"special tokens {str(path)!r} do not exist; give a file of {', '.join(SUFFIXES)}")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} cannot hold special tokens: its name must end in {', '.join(SUFFIXES)}")
    try:
        quality, duration = _released(path) if path.suffix == ".npz" else _plain(path)
    except MemoryError:
        raise
    except Exception as error:  # a damaged or hostile file can fail in any way
        raise ValueError(
            f"{path} was refused: it holds no special tokens ({type(error).__name__}: {error}); take the "
            "special_tokens.npz of MAGI-1's release. Code in it is never run"
        ) from error
    if quality.shape != (width,) or duration.shape != (DURATIONS, width):
        raise ValueError(
            f"{path} holds tokens of shapes {tuple(quality.shape)} and {tuple(duration.shape)}; this model takes "
            f"{(width,)} and {(DURATIONS, width)}"
        )
    if not (quality.isfinite().all() and duration.isfinite().all()):
        raise ValueError(f"{path} holds values that are infinite or not a number; fetch it anew")
    return SpecialTokens(duration, quality)


def _released(path: Path) -> tuple[Tensor, Tensor]:
    with zipfile.ZipFile(path) as archive:
        _check_size(sum(entry.file_size for entry in archive.infolist()))
    with np.load(path, allow_pickle=False) as content:
        rows = torch.from_numpy(np.asarray(content[TABLE], dtype=np.float32))
    rows = rows.reshape(len(rows), -1)
    return rows[QUALITY], rows[FIRST_DURATION : FIRST_DURATION + DURATIONS]


def _plain(path: Path) -> tuple[Tensor, Tensor]:
    _check_size(path.stat().st_size)
    content = load_file(path)
    return content["hq"].float().flatten(), content["duration"].float()


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise ValueError(f"it holds {size} bytes, of {MAX_BYTES} at most")
