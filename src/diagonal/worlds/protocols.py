"""What a world has: its actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Free:
    """Actions that the model chooses itself, after those `given`; for models that were trained to act (WHAM)."""

    given: Sequence[Any] | None = None


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

    @property
    def CONTROLS(self) -> Mapping[str, str]:  # noqa: N802
        """What each key of a keyboard adds to the action, in the short text form; other keys do nothing."""
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
