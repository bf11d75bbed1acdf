"""What a file says of itself: its credentials, and the watermark in its frames."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diagonal.media.provenance.credentials import INVALID, NOT_PRESENT, TRUSTED, VALID, Credentials
from diagonal.media.provenance.credentials import read as read_credentials
from diagonal.media.provenance.payload import FALSE_ALARM
from diagonal.media.provenance.watermark import LOOKED_AT, find
from diagonal.media.video import spread

FOUND, NOT_FOUND, UNREADABLE = "found", "not_found", "unreadable"
GOOD, CHANGED, UNSIGNED, STRANGER = 0, 1, 3, 4  # exit codes of `diagonal verify`; 2 is an error of use


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read from the frames. `state`: found, not_found, or unreadable where they cannot be decoded."""

    state: str
    family: str = ""
    run: int | None = None
    frames: int = 0  # that were looked at
    why: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a file says of itself."""

    path: str
    credentials: Credentials
    watermark: Seen

    @property
    def agrees(self) -> bool | None:
        """Whether the watermark is the one that the credentials speak of; None: one of the two says nothing."""
        said = self.credentials.statement.get("watermark")
        if self.watermark.state != FOUND or not isinstance(said, dict):
            return None
        return bool((said.get("family"), said.get("run")) == (self.watermark.family, self.watermark.run))

    def code(self, trusting: bool) -> int:
        """The exit code that stands for it. `trusting`: certificates to trust were named, so that others do not do."""
        state = self.credentials.state
        if state == VALID:
            return STRANGER if trusting else GOOD
        return {TRUSTED: GOOD, INVALID: CHANGED, NOT_PRESENT: UNSIGNED}[state]

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        watermark = asdict(self.watermark) | {"agrees": self.agrees, "false_alarm": FALSE_ALARM}
        return {"file": self.path, "credentials": asdict(self.credentials), "watermark": watermark}


def verify(path: str | Path, trust: str = "") -> Verdict:
    """What a file says of itself. `trust`: certificates in PEM; see `credentials.read`."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; name videos to look at")
    return Verdict(str(path), read_credentials(path, trust), look(path))


def look(path: Path) -> Seen:
    """The watermark in frames from all over a file."""
    try:
        frames = spread(path, LOOKED_AT)
    except ValueError as error:
        return Seen(UNREADABLE, why=str(error))
    payload = find(frames)
    if payload is None:
        return Seen(NOT_FOUND, frames=len(frames))
    return Seen(FOUND, payload.name, payload.run, len(frames))


def worst(verdicts: list[Verdict], trusting: bool) -> int:
    """One exit code for several files: changed before unsigned before signed by a stranger."""
    codes = {one.code(trusting) for one in verdicts}
    return next((code for code in (CHANGED, UNSIGNED, STRANGER) if code in codes), GOOD)
