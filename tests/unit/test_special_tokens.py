"""Special tokens from files, and what is refused as such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from diagonal.text import special_tokens
from tests.conftest import GOLDEN, golden

WIDTH = 16


def _released(path: Path, rows: int = 16, width: int = WIDTH) -> np.ndarray:
    table = np.arange(rows * width, dtype=np.float32).reshape(rows, 1, width)
    np.savez(path, other_tokens=table, caption_token=table[:1])
    return table[:, 0]


def test_the_release_s_file_is_read(tmp_path: Path) -> None:
    table = _released(tmp_path / "special_tokens.npz")
    tokens = special_tokens.read(tmp_path / "special_tokens.npz", WIDTH)
    assert torch.equal(tokens.quality_C, torch.from_numpy(table[1]))
    assert torch.equal(tokens.duration_8C, torch.from_numpy(table[7:15]))


def test_safetensors_are_read() -> None:
    tokens = special_tokens.read(GOLDEN / "magi" / "special_tokens.safetensors", WIDTH)
    recorded = golden("magi/special_tokens.safetensors")
    assert torch.equal(tokens.duration_8C, recorded["duration"]) and torch.equal(tokens.quality_C, recorded["hq"][0])


@pytest.mark.parametrize(("following", "row"), [(0, 0), (3, 3), (7, 7), (40, 7), (None, 7)])
def test_a_caption_stands_behind_its_duration_and_the_quality(following: int | None, row: int) -> None:
    tokens = special_tokens.read(GOLDEN / "magi" / "special_tokens.safetensors", WIDTH)
    caption = torch.randn(5, WIDTH)
    rows = tokens.before(caption, following)
    assert torch.equal(rows[2:], caption)
    assert torch.equal(rows[0], tokens.duration_8C[row]) and torch.equal(rows[1], tokens.quality_C)


def test_what_holds_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="do not exist"):
        special_tokens.read(tmp_path / "none.npz", WIDTH)
    (tmp_path / "tokens.pt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"must end in \.npz, \.safetensors"):
        special_tokens.read(tmp_path / "tokens.pt", WIDTH)
    (tmp_path / "damaged.npz").write_bytes(b"PK no archive")
    with pytest.raises(ValueError, match="holds no special tokens"):
        special_tokens.read(tmp_path / "damaged.npz", WIDTH)
    save_file({"hq": torch.zeros(1, WIDTH)}, tmp_path / "half.safetensors")
    with pytest.raises(ValueError, match="KeyError"):
        special_tokens.read(tmp_path / "half.safetensors", WIDTH)
    _released(tmp_path / "few.npz", rows=9)
    with pytest.raises(ValueError, match=r"\(2, 16\)"):
        special_tokens.read(tmp_path / "few.npz", WIDTH)
    _released(tmp_path / "other.npz", width=8)
    with pytest.raises(ValueError, match=r"this model takes \(16,\)"):
        special_tokens.read(tmp_path / "other.npz", WIDTH)
    save_file(
        {"hq": torch.full((1, WIDTH), torch.nan), "duration": torch.zeros(8, WIDTH)}, tmp_path / "nan.safetensors"
    )
    with pytest.raises(ValueError, match="not a number"):
        special_tokens.read(tmp_path / "nan.safetensors", WIDTH)


def test_code_in_a_file_is_never_run_and_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(tmp_path / "sprung"),)

    np.savez(tmp_path / "trap.npz", other_tokens=np.array([Trap()], dtype=object))
    with pytest.raises(ValueError, match="was refused"):
        special_tokens.read(tmp_path / "trap.npz", WIDTH)
    assert not (tmp_path / "sprung").exists()
    _released(tmp_path / "large.npz")
    monkeypatch.setattr(special_tokens, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="of 100 at most"):
        special_tokens.read(tmp_path / "large.npz", WIDTH)
