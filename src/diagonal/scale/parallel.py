"""One token world on several GPUs: tensor parallelism, one process for each GPU.

    with ranks_of(torch.device("cuda")) as ranks:           # under torchrun --nproc-per-node 2
        world = load_sharded("cosmos/12b", "Cosmos-Predict1-12B", ranks, dtype=torch.bfloat16)
        clip = world.generate(prompt)                       # in every process alike

Every process runs the same program on the same arguments and gets the same tokens; the first one writes. A group of one
gives the world of `diagonal.load`, and costs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch

from diagonal.catalog.names import HF, find
from diagonal.catalog.variants import diffusion_variant, token_variant
from diagonal.engine.chunks.protocols import DiffusionModel
from diagonal.engine.chunks.sequence import SequenceParallel
from diagonal.engine.ranks import Ranks
from diagonal.engine.ranks import ranks_of as ranks_of
from diagonal.generation.checks import check_shared
from diagonal.generation.components import Weights
from diagonal.generation.load import Place, load_world
from diagonal.generation.world import World
from diagonal.models.sharding import check_divides, table_of


def check_tensor_parallel(name: str, world: int) -> None:
    """Refuse a model that so many GPUs cannot share, before anything is loaded. A checkpoint that decides on sizes is
    asked again when its shapes are known, still before its weights are read."""
    if world == 1:
        return
    if name.startswith(HF):
        raise ValueError(f"{name} is a model of transformers, which is not divided among GPUs; run it on one")
    variant = token_variant(find("models", name), name)
    with torch.device("meta"):
        model = variant.config.build()
    check_divides(variant.config, table_of(model, name), name, world)


def check_sequence_parallel(name: str, world: int) -> None:
    """Refuse a diffusion model whose heads so many GPUs cannot share."""
    if world == 1:
        return
    variant = diffusion_variant(find("models", name), name)
    check_shared(name, variant)
    with torch.device("meta"):
        SequenceParallel(cast(DiffusionModel, variant.config.build()), Ranks(0, world, torch.device("meta")))


def load_sharded(
    name: str,
    weights: str | Path | None,
    ranks: Ranks,
    *,
    tokenizer: str | Path | None = None,
    dtype: torch.dtype | None = torch.float32,
    seed: int = 0,
) -> World:
    """A token world by name, of which this process reads and holds its shard alone; the tokenizer is whole. The
    arguments are those of `diagonal.load`."""
    check_tensor_parallel(name, ranks.world)
    variant = token_variant(find("models", name), name)
    return load_world(name, variant, (Weights(weights), tokenizer), Place(ranks.device, dtype, ranks), seed)
