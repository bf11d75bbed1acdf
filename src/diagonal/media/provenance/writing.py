"""Writing a video with its marks: the one way in which commands and the server write what a model made.

with marked_writer("out.mp4", fps, origin, marking) as video:
    video.write(frames)
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from diagonal.media.files import atomic
from diagonal.media.provenance import certificates, credentials
from diagonal.media.provenance.certificates import Identity
from diagonal.media.provenance.origin import Origin
from diagonal.media.provenance.payload import RUN_BITS, Payload
from diagonal.media.provenance.watermark import EVERY, Watermark, check_installed
from diagonal.media.video import VideoArray, Writer, check_target, writer


@dataclass(frozen=True, slots=True)
class Marking:
    """How videos are marked. `identity` signs them; None: they have no credentials. `watermark`: whether videos that
    models make from texts have one. `private`: credentials hold hashes of prompts and actions."""

    identity: Identity | None = None
    watermark: bool = True
    private: bool = False

    def check(self, path: str | Path) -> None:
        """Refuse now a name under which the marks could not be written."""
        check_target(path)
        if self.identity is None:
            return
        if str(path) == "-":
            raise ValueError(
                "a stream has no credentials: they are a signature of the whole file. Name a file, or give --unsigned"
            )
        if Path(path).suffix.lower() not in credentials.FORMATS:
            raise ValueError(f"{path} cannot hold credentials: name a .mp4 or .mov file, or give --unsigned")

    @property
    def words(self) -> str:
        """What to say of it beside a file."""
        if self.identity is None:
            return "none"
        return "local certificate, untrusted" if self.identity.local else self.identity.who

    def watermark_for(self, origin: Origin, from_text: bool, every: int = EVERY) -> Watermark | None:
        """The watermark of a new video; None: it has none."""
        if not (self.watermark and from_text):
            return None
        check_installed(", or give --no-watermark")
        return Watermark(Payload.of(origin.model, secrets.randbelow(2**RUN_BITS)), every)


UNMARKED = Marking(watermark=False)  # for what is not given to anybody


class MarkedWriter:
    """Encodes frames as they come, with their watermark. Made by `marked_writer`."""

    def __init__(self, output: Writer, origin: Origin, watermark: Watermark | None) -> None:
        self._output, self.origin, self.watermark = output, origin, watermark

    @property
    def count(self) -> int:
        """Frames written."""
        return self._output.count

    def write(self, frames: VideoArray) -> None:
        """Append frames (T, H, W, 3) or one frame (H, W, 3)."""
        self._output.write(frames if self.watermark is None else self.watermark.mark(frames))

    def tell(self, name: str, text: str) -> None:
        """What is known only now that frames are made, such as the actions of a player."""
        self.origin = replace(self.origin, told={**self.origin.told, name: text})


@contextmanager
def marked_writer(
    path: str | Path, fps: int | Fraction, origin: Origin, marking: Marking, from_text: bool = False
) -> Iterator[MarkedWriter]:
    """Write a video frame by frame; the file appears when all is written and signed. `from_text`: the model made it
    from a text, so that it has a watermark, unless that is switched off."""
    marking.check(path)
    watermark = marking.watermark_for(origin, from_text)
    if marking.identity is None:
        with writer(path, fps) as output:
            yield MarkedWriter(output, origin, watermark)
        return
    path = Path(path)
    with (
        atomic(path) as signed,
        tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as folder,
    ):
        plain = Path(folder) / path.name
        with writer(plain, fps) as output:
            marked = MarkedWriter(output, origin, watermark)
            yield marked
        credentials.sign(plain, signed, statement(marked, marking, from_text), marking.identity)


def statement(marked: MarkedWriter, marking: Marking, from_text: bool) -> dict[str, Any]:
    """What the credentials of a video say: its origin, how many frames, and its watermark, or why it has none."""
    about = watermark_statement(marked.watermark, from_text)
    return marked.origin.statement(marking.private) | {"frames": marked.count, "watermark": about}


def watermark_statement(watermark: Watermark | None, from_text: bool) -> dict[str, Any] | str:
    """The watermark of a video, or why it has none."""
    if watermark is None:
        return "switched off" if from_text else "none: only videos from texts have one"
    return watermark.statement()


def signed_by(key: str | Path | None, certificate: str | Path | None) -> tuple[Identity, bool]:
    """Who signs: the holder of this key and certificate, or the local pair; and whether that was made just now."""
    if (key is None) != (certificate is None):
        given, missing = ("key", "certificate") if certificate is None else ("certificate", "key")
        raise ValueError(f"a {given} to sign with was given, and no {missing}; give both")
    credentials.check_installed(", or give --unsigned for a file without them")
    if key is None or certificate is None:
        return certificates.local()
    identity = certificates.own(key, certificate)
    credentials.check(identity)
    return identity, False
