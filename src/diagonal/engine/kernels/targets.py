"""Where the tokens of a step go: what sampling is told besides logits, by everything that samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Targets:
    """Where the sampled tokens of a step go, what they may be, and what their noise depends on. Slots and positions
    have one more dimension in front, (B, S), where samples differ."""

    slots_S: Tensor  # int64: the place of each token in its row of tokens; valid ids are found by it too
    positions_S: Tensor  # int64: its number in the video: with the sample's seed its noise
    seeds_B: Tensor  # int64
    ids_2L: Tensor  # int64: valid ids [low, high) by slot
    rows_B: Tensor | None = None  # int64: the row of `tokens_NL` of each sample; None: sample b has row b

    start: Tensor | None = None  # int64, (): added to all positions

    @property
    def batch(self) -> int:
        return len(self.seeds_B)

    @property
    def inputs(self) -> int:
        """Tokens of a sample."""
        return self.slots_S.shape[-1]

    @property
    def counted(self) -> Tensor:
        """The positions, with what is added to them."""
        return self.positions_S if self.start is None else self.positions_S + self.start

    @property
    def where(self) -> tuple[Tensor, Tensor]:
        """The row and the slot of each token, to index `tokens_NL` with: (B, 1) and (B, S)."""
        rows_B = torch.arange(self.batch, device=self.slots_S.device) if self.rows_B is None else self.rows_B
        return rows_B[:, None], self.slots_S.expand(self.batch, self.inputs)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """What a kernel reads: slots, positions, seeds, the first valid ids, their ends, and rows."""
        return self.slots_S, self.counted, self.seeds_B, self.ids_2L[0], self.ids_2L[1], self.rows_B

    @property
    def strides(self) -> tuple[int, int]:
        """From one sample to the next, of slots and of positions."""
        slots, positions = (one.stride(0) if one.ndim == 2 else 0 for one in (self.slots_S, self.positions_S))
        return slots, positions

    def by_row(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For each row of logits the valid ids, the first and the end, the seed, and the position; R = B * S."""
        shape = self.batch, self.inputs
        low_R, high_R = self.ids_2L[:, self.slots_S.expand(shape)].flatten(1)
        return low_R, high_R, self.seeds_B.repeat_interleave(self.inputs), self.counted.expand(shape).flatten()
