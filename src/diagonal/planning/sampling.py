"""How tokens are drawn, as data. What draws them is `engine.sampler`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn from logits. temperature=0 takes the most likely one."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    # True keeps the token that crosses top_p (the usual rule); False drops it unless it is the first (WHAM).
    keep_crossing: bool = True

    def __post_init__(self) -> None:
        if self.temperature != 0 and not 1e-4 <= self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature} given; it must be 0 (greedy) or from 0.0001 up")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} given; it must be at least 1, or left out")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} given; it must be above 0 and at most 1, or left out")
