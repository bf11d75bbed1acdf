"""Any token model of transformers whose attention goes through its attention interface, as the engine takes one.

Queries, keys and values are handed to our memory, so that slots, masks and the order of decoding are ours; embeddings,
norms and linear layers stay theirs, and so does the speed of a step. What differs between families are a few hooks
(`Family`); transformers itself is imported where a model is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.engine.protocols import CacheSpec
from diagonal.engine.tokens.protocols import SparseMemory, TokenLayerMemory, TokenMemory

ATTENTION = "diagonal"  # the name under which transformers finds our attention


class Family(Protocol):
    """What a family does in its own way."""

    def base(self, model: Any) -> Any:
        """The part with the layers."""
        ...

    def embed(self, model: Any, tokens_BS: Tensor, pictures_S: Tensor) -> Tensor:
        """Inputs of the layers; `pictures_S` says which are of the picture, not of the text."""
        ...

    def head(self, model: Any, hidden_BSM: Tensor) -> Tensor:
        """Logits."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """A text as tokens, up to where the picture begins, and those of what it is guided away from."""

    ids: list[int]
    other: list[int]  # as many: padded at the left with -1, which nobody sees


@dataclass(frozen=True, slots=True)
class Config:
    """One picture of a model of transformers, behind a text."""

    family: Family
    settings: Any = field(compare=False)  # the model's configuration, as transformers has it
    rows: int
    cols: int  # row ends included, where there are any
    ids: tuple[int, int]  # of pictures, [low, high)
    row_end: int | None = None
    write: Callable[[Config, str, str], Written] | None = field(default=None, compare=False)
    guidance: float = 1.0  # away from another text, where nobody says how much; 1: none
    prefix_ids: tuple[int, ...] = ()  # the text, up to where the picture begins
    suffix: int = 0
    frames: int = 2  # a window that never slides: pictures are made one at a time
    reference_frames: int = 1

    @property
    def codebook(self) -> int:
        """Ids of pictures lie below it."""
        return self.ids[1]

    def valid_ids(self) -> list[tuple[int, int]]:
        """Ids of pictures in every cell; that of a row's end at its end, where it is never drawn."""
        end = [] if self.row_end is None else [(self.row_end, self.row_end + 1)]
        return ([self.ids] * (self.cols - len(end)) + end) * self.rows

    def build(self) -> HFTokenModel:
        from transformers import AutoModelForImageTextToText

        made: Any = AutoModelForImageTextToText  # transformers leaves many methods unannotated
        return HFTokenModel(self, made.from_config(self.settings))


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, memory: Any = None, **rest: Any
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: rotated heads go to the memory's layer of that number."""
    if memory is None:
        raise ValueError("this model was prepared for decoding by slots; load it anew with transformers for other uses")
    if abs(float(module.scaling) * query.shape[-1] ** 0.5 - 1) > 1e-6:
        raise ValueError(f"attention scaled by {module.scaling} is not supported; only 1 / sqrt(head width) is")
    mixed = memory.layer(module.layer_idx).attend(query, key, value)
    return mixed.transpose(1, 2).contiguous(), None


class HFTokenModel(nn.Module):
    """The transformer. `slots_S` are sequence positions, in any order and number."""

    relative_positions = True
    weight_map = WeightMap(prefixes=("transformer.", ""))

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__()
        from transformers import AttentionInterface

        AttentionInterface.register(ATTENTION, attention)
        self.config, self.model = config, model
        base = config.family.base(model)
        base.config._attn_implementation = ATTENTION
        self._text = base.config

    @property
    def cache_spec(self) -> CacheSpec:
        return self._spec(1)

    def _spec(self, times: int, sparse: bool = False) -> CacheSpec:
        text = self._text
        heads, kv_heads = int(text.num_attention_heads), int(text.num_key_value_heads)
        width = int(vars(text).get("head_dim") or int(text.hidden_size) // heads)
        return CacheSpec(times * int(text.num_hidden_layers), kv_heads, width, heads // kv_heads, sparse)

    def forward(self, tokens_BS: Tensor, slots_S: Tensor, memory: TokenMemory, keep: Tensor | None = None) -> Tensor:
        family = self.config.family
        inputs = family.embed(self.model, tokens_BS, slots_S >= len(self.config.prefix_ids))
        base = family.base(self.model)
        hidden = base(
            inputs_embeds=inputs, position_ids=slots_S[None], use_cache=False, memory=memory
        ).last_hidden_state
        return family.head(self.model, hidden if keep is None else hidden[:, keep])

    def sized(self, config: Config) -> HFTokenModel:
        """The same weights for pictures of another size."""
        return HFTokenModel(config, self.model)

    def behind(self, text: str, negative: str, scale: float | None) -> tuple[Config, HFTokenModel | Guided]:
        """The config with a text as prefix, and this model behind it, guided away from another text."""
        assert self.config.write is not None, "families say how texts are written"
        written = self.config.write(self.config, text, negative)
        config = replace(self.config, prefix_ids=tuple(written.ids))
        model = HFTokenModel(config, self.model)
        scale = config.guidance if scale is None else scale
        if scale == 1:
            return config, model
        return config, Guided(model, torch.tensor(written.other, device=next(self.parameters()).device), scale)


@dataclass(frozen=True, slots=True, eq=False)
class _Behind:
    """The layers of a memory from some number on."""

    memory: TokenMemory
    first: int

    def layer(self, index: int) -> TokenLayerMemory:
        return self.memory.layer(self.first + index)

    def by_slot(self, make: Callable[[Tensor], tuple[Tensor, ...]], slots_S: Tensor) -> tuple[Tensor, ...]:
        return self.memory.by_slot(make, slots_S)


@dataclass(frozen=True, slots=True, eq=False)
class Guided:
    """logits = u + scale (c - u), with c behind the text and u behind another one, or none. Both read the same picture:
    the layers of u are those behind the layers of c. A shorter text is padded at its left, and nobody sees that."""

    model: HFTokenModel
    other_P: Tensor  # its tokens; negative ones are padding
    scale: float

    @property
    def cache_spec(self) -> CacheSpec:
        return self.model._spec(2, sparse=True)

    def __call__(self, tokens_BS: Tensor, slots_S: Tensor, memory: TokenMemory, keep: Tensor | None = None) -> Tensor:
        own = self.model.cache_spec.layers
        with_text: Tensor = self.model(tokens_BS, slots_S, memory, keep)
        first = int((self.other_P < 0).sum())
        shown = cast(SparseMemory, memory).restricted(lambda query, key: (key >= first) | (key == query), slots_S)
        length = len(self.other_P)
        other_S = self.other_P.clamp(min=0)[slots_S.clamp(max=length - 1)]
        tokens = torch.where(slots_S < length, other_S, tokens_BS)
        without: Tensor = self.model(tokens, slots_S, _Behind(shown, own), keep)
        return without + self.scale * (with_text - without)
