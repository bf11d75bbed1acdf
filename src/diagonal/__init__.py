"""diagonal: fast autoregressive video generation.

    video -> tokenizer -> token grid -> schedule -> plan -> engine(model, cache, sampler) -> tokens -> video

The order in which a video is computed is data. A schedule maps each cell of the (frame, row, column) grid to a
step; `make_plan` derives what is fed and sampled when; one loop runs every plan on every model.

    import diagonal
    world = diagonal.load("mcar/tiny")
    for piece in world.stream(prompt, actions, schedule="diagonal:k=1"): ...
    session = world.play(prompt)
    piece = session.step(action)

Causal diffusion does the same with chunks of frames and their denoising steps:

    model = diagonal.load("wan/tiny")
    for piece in model.stream("a red cat", num_frames=81, schedule="4322222"): ...
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
SPINS = 3_000  # looks at a barrier before a thread sleeps; GNU OpenMP alone: 300,000 (docs/performance.md)

if TYPE_CHECKING:
    from diagonal.generation.arena import Arena as Arena
    from diagonal.generation.components import Weights as Weights
    from diagonal.generation.live import LiveSession as LiveSession
    from diagonal.generation.load import load as load
    from diagonal.generation.request import Request as Request
    from diagonal.generation.session import Clip as Clip
    from diagonal.generation.session import Piece as Piece
    from diagonal.generation.session import Session as Session
    from diagonal.generation.snapshot import Snapshot as Snapshot
    from diagonal.generation.video import VideoModel as VideoModel
    from diagonal.generation.world import World as World
    from diagonal.planning.decoding.diagonal import Diagonal as Diagonal
    from diagonal.planning.decoding.raster import Raster as Raster
    from diagonal.planning.decoding.window import Window as Window
    from diagonal.planning.grid import Grid as Grid
    from diagonal.planning.grid import Layout as Layout
    from diagonal.planning.plan import Order as Order
    from diagonal.planning.plan import Plan as Plan
    from diagonal.planning.plan import StandIn as StandIn
    from diagonal.planning.plan import Step as Step
    from diagonal.planning.plan import make_plan as make_plan
    from diagonal.planning.sampling import Sampling as Sampling
    from diagonal.worlds.protocols import Free as Free

# Where each public name lives. Imported on first use, so that plans work without torch.
_HOMES = {
    **dict.fromkeys(("Grid", "Layout"), "planning.grid"),
    **dict.fromkeys(("Order", "Plan", "StandIn", "Step", "make_plan"), "planning.plan"),
    "Arena": "generation.arena",
    "LiveSession": "generation.live",
    "Snapshot": "generation.snapshot",
    "World": "generation.world",
    "Free": "worlds.protocols",
    "load": "generation.load",
    **dict.fromkeys(("Clip", "Piece", "Session"), "generation.session"),
    "Request": "generation.request",
    "VideoModel": "generation.video",
    "Weights": "generation.components",
    "Sampling": "planning.sampling",
    "Diagonal": "planning.decoding.diagonal",
    "Raster": "planning.decoding.raster",
    "Window": "planning.decoding.window",
}
__all__ = [
    "Arena",
    "Clip",
    "Diagonal",
    "Free",
    "Grid",
    "Layout",
    "LiveSession",
    "Order",
    "Piece",
    "Plan",
    "Raster",
    "Request",
    "Sampling",
    "Session",
    "Snapshot",
    "StandIn",
    "Step",
    "VideoModel",
    "Weights",
    "Window",
    "World",
    "load",
    "make_plan",
]


def _spin_less() -> None:
    """Let OpenMP threads that wait sleep soon, where the user says nothing of it and PyTorch is not imported yet.

    GNU OpenMP, which PyTorch uses on Linux, reads this once, when it is loaded. By default a thread spins for
    milliseconds at a barrier; beside another busy process it so keeps the core from the very thread it waits for.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)


_spin_less()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diagonal' has no attribute {name!r}")
    return vars(importlib.import_module(f"diagonal.{_HOMES[name]}"))[name]
