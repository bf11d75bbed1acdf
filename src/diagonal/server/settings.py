"""What a server is told before it starts: where it listens, who may come, and how much anybody may ask for."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from diagonal.media.provenance.writing import UNMARKED, Marking
from diagonal.server.store import StoreLimits

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most of everything that comes from outside."""

    start_seconds: float = 10.0  # until a socket's first message
    idle_seconds: float = 120.0  # between two messages of a client
    stall_seconds: float = 60.0  # until a client takes what is sent
    connections: int = 1000  # that are open, with those that only ask
    start_bytes: int = 4 * 2**20  # of the first message, which may hold a snapshot
    message_bytes: int = 128 * 2**10  # of any other message
    errors: int = 20  # wrong messages of one client before its session ends
    timeline: int = 4096  # newest frames of a session that can be gone back to
    prompt: int = 2000  # characters
    video_frames: int = 2000  # of a video of a diffusion model
    prompts: int = 1000  # that may follow each other while a video is made
    jobs: int = 16  # that may wait
    records: int = 10_000  # jobs that are kept, those that ended too
    upload_bytes: int = 32 * 2**20  # of a request with a picture or clip
    uploads: int = 4  # times as much may be on its way to the server
    upload_seconds: float = 60.0
    keep_seconds: float = 7 * 24 * 3600.0  # that a finished video is kept
    disk_bytes: int = 8 * 2**30  # of all files of jobs


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that a server is told. `origins` are pages of other hosts that may use it, such as 'https://example.org'."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    origins: tuple[str, ...] = ()
    seats: int = 8  # sessions of each world at a time
    data: Path | None = None  # the folder of all that is written; None: one that goes with the server
    snapshots: str | None = None  # folder or address where sessions are kept; None: in `data`, if that is given
    marking: Marking = UNMARKED  # of all videos that are written; the command has them signed
    jobs: bool = True  # whether videos are made in the background; servers that share their clients do not share jobs
    limits: Limits = field(default_factory=Limits)
    keep: StoreLimits = field(default_factory=StoreLimits)  # of the snapshots of sessions

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port {self.port} given; a port is a number from 0 (any that is free) to 65535")
        if self.seats < 1:
            raise ValueError(f"{self.seats} seats given; at least 1 is needed")
        if self.token is not None and (len(self.token) < 8 or not self.token.isascii() or not self.token.isprintable()):
            raise ValueError("the token must be at least 8 printable ASCII characters")
        if self.token is None and not self.local:
            raise ValueError(
                f"host {self.host} can be reached by others, and no token is given; give one (--token), or stay on "
                "127.0.0.1"
            )

    @property
    def store(self) -> str | None:
        """Where sessions are kept while they are played; None: nowhere, and they end with the server."""
        if self.snapshots is None and self.data is not None:
            return str(self.data / "sessions")
        return self.snapshots

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host, as it is written in addresses, is this machine."""
    name = host.strip("[]").lower()
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name in LOOPBACK
