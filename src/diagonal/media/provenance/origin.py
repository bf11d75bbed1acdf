"""How a video was made, as its credentials say it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import diagonal

LONGEST = 4096  # characters of a text that credentials repeat; of longer ones they have the hash


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What made a video. `told` are texts of whoever asked for it: prompts, actions, where it began."""

    model: str
    weights: str  # 'embedded', 'random', a hub id, or the name of a file: never a path of the machine
    sha256: Mapping[str, str] = field(default_factory=dict)  # of the files of these weights, by name
    quantize: str | None = None
    schedule: str = ""
    seed: int | str = 0
    told: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)  # all else that it depends on
    mark: str = ""  # text that is to be seen in every frame

    def statement(self, private: bool) -> dict[str, Any]:
        """What credentials say of it, as JSON. With `private` what it was told is there as salted hashes alone."""
        said: dict[str, Any] = {
            "generator": {"name": "diagonal", "version": diagonal.__version__},
            "model": self.model,
            "weights": {"source": self.weights, "sha256": dict(self.sha256)},
            "quantize": self.quantize or "none",
            "schedule": self.schedule,
            "seed": str(self.seed),  # JSON's readers keep 53 bits of a number
            "settings": dict(self.settings),
            "visible_mark": self.mark or "none",
        }
        return said | ({"told_hashed": _hashed(self.told)} if private else {"told": _shortened(self.told)})


def hash_told(salt: str, text: str) -> str:
    """SHA-256 of a salt (hexadecimal) and a text behind it: whoever knows the text can show that it was this one."""
    return hashlib.sha256(bytes.fromhex(salt) + text.encode()).hexdigest()


def _hashed(told: Mapping[str, str]) -> dict[str, Any]:
    salt = secrets.token_hex(16)  # so that equal prompts of two files are not seen to be equal
    return {"salt": salt, "sha256": {name: hash_told(salt, text) for name, text in told.items()}}


def _shortened(told: Mapping[str, str]) -> dict[str, Any]:
    return {name: text if len(text) <= LONGEST else _digest(text) for name, text in told.items()}


def _digest(text: str) -> dict[str, Any]:
    return {"characters": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
