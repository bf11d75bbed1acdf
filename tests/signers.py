"""Certificates and small videos for tests of provenance."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from diagonal.media.provenance.certificates import make_pair
from diagonal.media.provenance.origin import Origin
from diagonal.media.video import VideoArray

SECRET = "PRIVATE KEY"
ORIGIN = Origin(
    model="doom-t2v",
    weights="embedded",
    sha256={"world.safetensors": "00" * 32},
    schedule="4322222",
    seed=2**60,
    told={"prompt": "a red corridor", "actions": "forward*8"},
    settings={"decoder": "vae"},
)


def pem(chain: Sequence[Any]) -> str:
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in chain)


def pem_of_key(key: Any) -> bytes:
    data: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return data


def write_pair(folder: Path, name: str = "signer", valid: timedelta = timedelta(days=9)) -> tuple[Path, Path, Path]:
    """A key, its chain, and the certificate of its root alone, as files."""
    key, chain = make_pair(name, valid)
    paths = folder / f"{name}.key", folder / f"{name}.pem", folder / f"{name}-root.pem"
    paths[0].write_bytes(pem_of_key(key))
    paths[1].write_text(pem(chain))
    paths[2].write_text(pem(chain[1:]))
    return paths


def noise(count: int = 6, height: int = 48, width: int = 64) -> VideoArray:
    """Frames that a codec cannot make small."""
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def scene(count: int, height: int, width: int) -> VideoArray:
    """A picture with edges and shades that moves a little."""
    y, x = np.mgrid[:height, : width + count]
    waves = np.stack([np.sin(x / 9 + y / 23), np.cos(x / 31 - y / 13), np.sin((x + y) / 17)], axis=-1)
    blocks = ((x // 16 + y // 12) % 3)[..., None] * 40
    whole = (128 + 50 * waves + blocks - 40).clip(0, 255).astype(np.uint8)
    return np.stack([whole[:, shift : shift + width] for shift in range(count)])
