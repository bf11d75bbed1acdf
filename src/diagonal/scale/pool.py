"""A list of items over actors, each with a model of its own: Ray Data as a loop.

    for done in each(ray, Actors(count=2), open, items): ...

`open` is called once in every actor and gives the function that does an item; a loop calls the very same. What an item
makes it writes itself, whole or not at all, so that it may be done twice: an actor that dies is replaced, and its item
begun again. An item that fails is told with its error, and the others are done. What goes through Ray is small: numbers
of items, and what the function returns, as JSON.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from diagonal.scale.cluster import check_gpus, gpus_of

Item = TypeVar("Item")
AGAIN = 2  # times that an actor that died is replaced, and its item begun again


@dataclass(frozen=True, kw_only=True)
class Actors:
    """How many, and what each of them has. None: one for each GPU, or one for each of two cores."""

    count: int | None = None
    gpus: float | None = None
    cpus: float = 1.0

    def of(self, ray: Any, items: int) -> Actors:
        """In numbers, for so many items on this cluster; what does not fit is refused."""
        gpus = float(any(gpus_of(ray))) if self.gpus is None else self.gpus
        cores = ray.cluster_resources().get("CPU", 0.0)
        usual = int(sum(gpus_of(ray)) / gpus) if gpus else int(cores // 2 // max(self.cpus, 1.0))
        count = min(self.count or max(1, usual), max(1, items))
        check_gpus(ray, count, gpus, "actors")
        if count * self.cpus > cores:
            raise ValueError(
                f"{count} actors with {self.cpus:g} CPUs each do not fit: the cluster has {cores:g}. Ask for fewer "
                "(--actors), or for less of a CPU each (--cpus-per-actor 0.5)"
            )
        return Actors(count=count, gpus=gpus, cpus=self.cpus)


class Done(NamedTuple, Generic[Item]):
    """An item that was done, or that failed."""

    item: Item
    result: Any
    error: str | None = None


Open = Callable[[], Callable[[Any], Any]]


class OpeningError(ValueError):
    """What would do the items cannot be had; none was done."""


class Worker:
    """What an actor is. A model that cannot be loaded is told with the first item, not by an actor that dies again and
    again."""

    def __init__(self, open_: Open, items: Sequence[Any]) -> None:
        self._items, self._wrong = items, ""
        self._do: Callable[[Any], Any] | None = None
        try:
            self._do = open_()
        except Exception as error:  # whatever it is, it is told
            self._wrong = _said(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """One item, by its number."""
        number = int(batch["number"][0])
        told: dict[str, Any] = {"result": None, "error": None, "opened": self._do is not None}
        if self._do is None:
            told["error"] = self._wrong
        elif number < len(self._items):
            try:
                told["result"] = self._do(self._items[number])
            except Exception as error:  # of one item: the others go on
                told["error"] = _said(error)
        return {"number": [number], "told": [json.dumps(told)]}


def each(ray: Any, actors: Actors, open_: Open, items: Sequence[Item]) -> Generator[Done[Item], None, None]:
    """Do all items, in any order. Where there is none, one actor opens all the same, for what is checked then."""
    count = len(items) or 1
    asked = actors.of(ray, len(items))
    with warnings.catch_warnings():  # Ray 2.60 has no other way yet to say how often to try again
        warnings.simplefilter("ignore")
        _be_quiet()
        rows = ray.data.from_items([{"number": number} for number in range(count)], override_num_blocks=count)
        told = rows.map_batches(
            Worker,
            fn_constructor_args=(open_, [*items]),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=asked.count),
            num_gpus=asked.gpus or None,
            num_cpus=asked.cpus,
            ray_remote_args_fn=_with_another_try,
        )
    try:
        for row in told.iter_rows():
            found = json.loads(row["told"])
            if not found["opened"]:
                raise OpeningError(found["error"])
            if items:
                yield Done(items[row["number"]], found["result"], found["error"])
    except ray.exceptions.RayError as error:
        raise ValueError(
            f"the actors ended before all was done ({_said(error)}); the same command again does what is missing"
        ) from error


def _with_another_try() -> dict[str, int]:
    """Without it Ray would replace an actor for ever that an item makes run out of memory."""
    return {"max_restarts": AGAIN, "max_task_retries": AGAIN}


def _said(error: Exception) -> str:
    plain = isinstance(error, ValueError | OSError)
    return str(error) if plain and str(error) else f"{type(error).__name__}: {error}"


def _be_quiet() -> None:
    """Ray Data has progress bars and plans to show; commands have their own bar."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    for name in ("ray.data", "ray.data._internal"):
        logging.getLogger(name).setLevel(logging.ERROR)
