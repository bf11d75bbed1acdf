"""What a world has: its actions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol


class ActionSpace(Protocol):
    """The actions of a world: a module of `worlds`. An action is an object of its own, opaque outside."""

    @property
    def NOOP(self) -> Any:  # noqa: N802
        """The action of doing nothing."""
        ...

    @property
    def STARTS(self) -> Sequence[str]:  # noqa: N802
        """Names of the start views that the package ships."""
        ...

    @property
    def SCRIPT(self) -> str:  # noqa: N802
        """Actions worth showing, in the short text form."""
        ...

    def start(self, name: str) -> tuple[Any, list[Any]]:
        """A start view: frames (T, H, W, 3) and the actions between them."""
        ...

    def parse(self, text: str) -> list[Any]:
        """Actions from the short text form, such as 'forward*8,left*4'."""
        ...

    def read(self, path: str | Path) -> list[Any]:
        """Actions recorded in a file, one per frame."""
        ...

    def tokens(self, actions: Sequence[Any], first_id: int) -> list[list[int]]:
        """Token ids, one row per action, counted from `first_id`."""
        ...
