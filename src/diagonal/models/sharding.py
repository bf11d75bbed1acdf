"""Tensor parallelism from outside: cuts a model that knows nothing of it into the shard of one rank.

    shard = divide(model, "cosmos/12b", ranks)     # fewer rows and columns in the layers that its table names
    checkpoints.load(model, state, name, shard)    # reads no more than the shard
    connect(model, ranks)                          # the sums over all ranks, one for each row-parallel layer

Every rank has some heads, with their keys and values, and some columns of the MLP; embedding, norms and head are whole
everywhere, so that all ranks draw the same tokens from the same logits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from diagonal.catalog.variants import TensorParallel
from diagonal.engine.ranks import Ranks
from diagonal.models.layers import RowParallel


class Piece(Protocol):
    """A matrix, or what lies in a file, of which parts can be taken."""

    @property
    def shape(self) -> torch.Size: ...

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Cut:
    """A dimension of a parameter, and the matrices along it: of each, every rank has the same share."""

    dim: int
    sizes: tuple[int, ...]

    def spans(self, rank: int, world: int) -> Iterator[tuple[int, int]]:
        """What a rank has of each of them."""
        start = 0
        for size in self.sizes:
            part = size // world
            yield start + rank * part, start + (rank + 1) * part
            start += size


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a model that one rank has. Parameters without a cut are whole."""

    cuts: Mapping[str, Cut]
    rank: int
    world: int

    def cut(self, name: str, pieces: Sequence[Piece]) -> Tensor:
        """This rank's part of the parameter that the pieces are, one below the other: a tensor of its own."""
        cut = self.cuts.get(name)
        length = sum(piece.shape[0] for piece in pieces) if cut is None or not cut.dim else pieces[0].shape[cut.dim]
        if cut is None or length != sum(cut.sizes):  # a checkpoint of another size is whole, and refused as that
            return torch.cat([piece[(slice(None),)] for piece in pieces]) if len(pieces) > 1 else _whole(pieces[0])
        found = []
        for low, high in cut.spans(self.rank, self.world):
            if cut.dim:
                found += [piece[:, low:high] for piece in pieces]
                continue
            start = 0
            for piece in pieces:
                first, last = max(low - start, 0), min(high - start, piece.shape[0])
                if first < last:
                    found.append(piece[(slice(first, last),)])
                start += piece.shape[0]
        return (
            torch.cat(found).contiguous() if len(found) > 1 else found[0].clone(memory_format=torch.contiguous_format)
        )

    def whole_shape(self, name: str, part: Tensor) -> list[int]:
        """The shape of the parameter that a part is of."""
        cut, shape = self.cuts.get(name), [*part.shape]
        return shape if cut is None else [*shape[: cut.dim], sum(cut.sizes), *shape[cut.dim + 1 :]]

    def picked(self, name: str, part: Tensor, chosen_N: Tensor) -> Tensor:
        """Those of the chosen numbers of the flat whole parameter that this rank has, and zeros for the others'."""
        cut = self.cuts.get(name)
        if cut is None:
            return part.flatten()[chosen_N] if self.rank == 0 else part.new_zeros(len(chosen_N))
        places = list(torch.unravel_index(chosen_N, self.whole_shape(name, part)))
        own = torch.full_like(chosen_N, -1)
        start = 0
        for low, high in cut.spans(self.rank, self.world):
            inside = (places[cut.dim] >= low) & (places[cut.dim] < high)
            own = torch.where(inside, places[cut.dim] - low + start, own)
            start += high - low
        places[cut.dim] = own.clamp(min=0)
        return torch.where(own >= 0, part[tuple(places)], 0)


def _whole(piece: Piece) -> Tensor:
    return piece if isinstance(piece, Tensor) else piece[(slice(None),) * len(piece.shape)]


def table_of(model: Any, name: str) -> TensorParallel:
    """How a model is divided among GPUs; refused where its family does not say."""
    table = vars(type(model)).get("tensor_parallel")
    if not isinstance(table, TensorParallel):
        raise ValueError(f"{name} is of a family that is not divided among GPUs; run it on one")
    return table


def check_divides(config: Any, table: TensorParallel, name: str, world: int) -> None:
    """Refuse a number of GPUs that cannot share a model's heads and columns evenly."""
    fields = dict.fromkeys(field for parts in table.column_parallel.values() for field in parts)
    counts = {field: int(_number(config, field)) for field in fields}
    if any(count % world for count in counts.values()):
        common = math.gcd(*counts.values())
        fit = [str(one) for one in range(2, common + 1) if common % one == 0]
        listed = ", ".join(f"{field}={count}" for field, count in counts.items())
        raise ValueError(
            f"{name} has {listed}, which {world} GPUs cannot share evenly; "
            + (f"tensor parallelism takes {' or '.join(fit)} of them" if fit else "run it on one")
        )


def divide(model: nn.Module, name: str, ranks: Ranks) -> Shard:
    """Cut a model's layers, with values or on the meta device, down to those of a rank."""
    table, config = table_of(model, name), cast(Any, model).config
    check_divides(config, table, name, ranks.world)
    cuts: dict[str, Cut] = {}
    for pattern, fields in table.column_parallel.items():
        units = [_number(config, field) for field in fields]
        for path, layer in _layers(model, pattern):
            each = layer.out_features // sum(units)
            sizes = tuple(unit * each for unit in units)
            cuts |= {f"{path}.{own}": Cut(0, sizes) for own, _ in layer.named_parameters()}
    for pattern in table.row_parallel:
        cuts |= {f"{path}.weight": Cut(1, (layer.in_features,)) for path, layer in _layers(model, pattern)}
    shard = Shard(cuts, ranks.rank, ranks.world)
    for key, cut in cuts.items():
        path, _, own = key.rpartition(".")
        layer = cast(nn.Linear, model.get_submodule(path))
        part = shard.cut(key, [layer.get_parameter(own).detach()])
        setattr(layer, own, nn.Parameter(part))
        layer.out_features, layer.in_features = layer.weight.shape
        assert cut.dim < part.ndim, "a bias is cut with its rows alone"
    for pattern in table.counts:
        inside, _, count = pattern.rpartition(".")
        for _, module in _modules(model, inside):
            setattr(module, count, _number(module, count) // ranks.world)
    return shard


def row_parallel(model: nn.Module, name: str) -> list[str]:
    """The names of the layers whose results are summed, one sum each in a call."""
    return [path for pattern in table_of(model, name).row_parallel for path, _ in _layers(model, pattern)]


def connect(model: nn.Module, name: str, ranks: Ranks) -> None:
    """Let a shard's row-parallel layers sum over all ranks: called once its weights are there."""
    for path in row_parallel(model, name):
        model.set_submodule(path, RowParallel(cast(nn.Linear, model.get_submodule(path)), ranks))


def sampled(
    model: nn.Module, shard: Shard, ranks: Ranks, few: Callable[[Tensor], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """A few numbers of every whole parameter, by its name, gathered from all ranks; before `connect`."""
    for name, part in model.state_dict().items():
        count = torch.Size(shard.whole_shape(name, part)).numel()
        yield name, ranks.reduce(shard.picked(name, part, few(torch.arange(count, device=part.device))).float())


def _number(holder: Any, field: str) -> int:
    return int(getattr(holder, field))


def _modules(model: nn.Module, pattern: str) -> Iterator[tuple[str, nn.Module]]:
    form = re.compile(re.escape(pattern).replace(r"\{\}", r"\d+"))
    yield from ((path, module) for path, module in model.named_modules() if form.fullmatch(path))


def _layers(model: nn.Module, pattern: str) -> Iterator[tuple[str, nn.Linear]]:
    yield from ((path, cast(nn.Linear, module)) for path, module in _modules(model, pattern))
