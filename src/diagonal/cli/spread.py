"""Options of the commands that make many files: in a loop, or over actors of a Ray cluster (docs/scale.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

import typer

from diagonal.cli import err
from diagonal.cli.options import given, refuse

Item = TypeVar("Item")
Open = Callable[[], Callable[[Any], Any]]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Who does it."""

    panel: ClassVar[str] = "Ray"

    ray: Annotated[bool, typer.Option("--ray", help="Over actors of Ray, with a model each.")] = False
    actors: Annotated[int | None, typer.Option(min=1, help="How many. Default: one for each GPU.")] = None
    gpus_per_actor: Annotated[float | None, typer.Option(min=0, help="0.5: two share one. Default: 1 on cuda.")] = None
    cpus_per_actor: Annotated[float | None, typer.Option(min=0, help="Default: 1.")] = None
    ray_address: Annotated[str | None, typer.Option(help="HOST:PORT or 'auto'. Default: this machine.")] = None

    def __post_init__(self) -> None:
        if not self.ray:
            refuse(given(self), "a loop, without --ray")

    def each(
        self, open_: Open, items: Sequence[Item], name: Callable[[Item], str], device: str = "cpu"
    ) -> Iterator[tuple[Item, Any]]:
        """Do all items with what `open_` gives; yields each with its result. On Ray, items that fail are told at the
        end; in a loop the first one ends it. An actor that computes on a GPU has one, if nothing else was asked for.
        """
        if not self.ray:
            do = open_()
            for item in items:
                yield item, do(item)
            return
        from diagonal.scale.cluster import connected
        from diagonal.scale.pool import Actors, each

        cpus = 1.0 if self.cpus_per_actor is None else self.cpus_per_actor
        gpus = 0.0 if self.gpus_per_actor is None and not device.startswith("cuda") else self.gpus_per_actor
        failed = []
        with connected(self.ray_address) as ray:
            for done in each(ray, Actors(count=self.actors, gpus=gpus, cpus=cpus), open_, items):
                if done.error is None:
                    yield done.item, done.result
                else:
                    failed.append(name(done.item))
                    err.print(f"[red]failed:[/] {name(done.item)}: ", end="")
                    err.print(done.error, markup=False)
        if failed:
            raise ValueError(
                f"{len(failed)} of {len(items)} failed, {failed[0]!r} first; the others are there. The same command "
                "again makes what is missing"
            )
