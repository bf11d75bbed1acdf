"""What distillation takes of GPUs: memory and time, predicted from sizes or carried over from a measurement.

With P parameters, G GPUs, and for a sample of n tokens (all frames), width C, layers L, feed-forward width F:

    state         4 P (2 weights + 4 moments + 1 gradient + 2 EMA) + t P, sharded over G; t bytes per weight of the
                  teacher. Generator and critic alternate, so one of them has gradients
    activations   recomputed: the input of every block, 4 n C L, and what one block holds, n (44 C + 4 F) bytes
    cache         4 C L for each of the window's tokens; and again what every chunk with gradient saw of it

A forward of m tokens that see k keys is 2 m (weights of a block that meet tokens) L + 4 m (k + text) C L operations.
A generator step is a rollout (a chunk of s steps goes (s + 1) / 2 of them on average, and one more call fills its cache
where its last step is not reached or the schedule asks for it), then twice the teacher and once the critic; a critic
step is a rollout and one forward of the critic. Where there is gradient, the backward pass is two forwards, and
recomputing is one more. The update is not counted: it is a hundredth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from diagonal.catalog.variants import DiffusionVariant
from diagonal.engine.protocols import CacheSpec
from diagonal.planning.denoising import calls
from diagonal.training.latents.methods import DIFFUSION, Distillation

GB = 10**9
TFLOPS = 300.0  # a second, of bfloat16: what the released code reaches on an H200 when it generates (1.33 s for 400)
WEIGHTS, MOMENTS, GRADIENTS, EMAS = (
    2,
    4,
    1,
    2,
)  # float32 values for each parameter of a model: generator and critic together


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step with one sample on one GPU."""

    sample_s: float  # loss and backward pass
    update_s: float  # clip and optimizer
    peak_gb: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A turn (one step of the generator, `critic_steps` of the critic) of a batch on several GPUs."""

    gpus: int
    batch: int
    turn_s: float
    state_gb: float  # of each GPU
    peak_gb: float  # of each GPU


def state_bytes(parameters: int, ema: int = EMAS, teacher: int = 2) -> int:
    """Weights, moments, gradient and EMA of generator and critic, and the teacher's weights of so many bytes."""
    return parameters * (4 * (WEIGHTS + MOMENTS + GRADIENTS + ema) + teacher)


def spread(steps: Mapping[str, StepCost], state: int, critic_steps: int, batch: int, gpus: int) -> Spread:
    """Steps of one sample on one GPU, of a generator and a critic, on several: the samples of a shard one
    by one, the state sharded. Communication is not counted."""
    own = -(-batch // gpus)
    seconds = {name: own * one.sample_s + one.update_s / gpus for name, one in steps.items()}
    rest = max(one.peak_gb for one in steps.values()) - state / GB
    turn = seconds["generator"] + critic_steps * seconds["critic"]
    return Spread(gpus, batch, turn, state / GB / gpus, rest + state / GB / gpus)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One sample on one GPU, from sizes alone."""

    parameters: int
    tokens: int  # of a video
    state_gb: float
    activations_gb: float
    cache_gb: float
    generator_tflop: float
    critic_tflop: float
    steps: dict[str, StepCost]

    def numbers(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "steps"}


def predict(
    variant: DiffusionVariant, method: Distillation, frame_tokens: int, part: int = 1, tflops: float = TFLOPS
) -> Prediction:
    """A step of `part` samples at a time: the memory of all of them, the time of one."""
    with torch.device("meta"):
        model: Any = variant.config.build()
    sizes = _Sizes.of(model, variant.config.text_length)
    tokens, parameters = method.scored * frame_tokens, sum(one.numel() for one in model.parameters())
    kept = 4 * sizes.width * sizes.layers if method.recompute else sizes.block * sizes.layers
    activations = part * tokens * (kept + sizes.block)
    cache = part * _cached(method) * frame_tokens * 4 * sizes.width * sizes.layers
    rolled, taught = _rollout(method, frame_tokens, sizes)
    again = 3.0 if method.recompute else 2.0
    whole = sizes.forward(tokens, tokens)
    work = {"generator": rolled + again * taught + 3 * whole, "critic": rolled + (1 + again) * whole}
    state = state_bytes(parameters)
    peak = (state + activations + cache) / GB
    return Prediction(
        parameters,
        tokens,
        state / GB,
        activations / GB,
        cache / GB,
        work["generator"] / 1e12,
        work["critic"] / 1e12,
        {name: StepCost(one / tflops / 1e12, 0.0, peak) for name, one in work.items()},
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What a diffusion transformer's layers multiply."""

    layers: int
    width: int
    hidden: int
    matrix: int  # weights of all blocks that meet the tokens; those for the text's keys meet the text alone
    text: int

    @classmethod
    def of(cls, model: Any, text: int) -> _Sizes:
        spec: CacheSpec = model.cache_spec
        inner = [(name, one) for name, one in model.blocks.named_modules() if isinstance(one, nn.Linear)]
        matrix = sum(one.weight.numel() for name, one in inner if not name.endswith("cross_attn.kv"))
        hidden = max(one.in_features for _, one in inner)
        return cls(spec.layers, spec.kv_heads * spec.head_dim * spec.group, hidden, matrix, text)

    @property
    def block(self) -> int:
        """Bytes of a token inside one block: about ten tensors of the width and two of the hidden one in bfloat16,
        and six of the width in float32."""
        return 44 * self.width + 4 * self.hidden

    def forward(self, tokens: int, keys: int) -> float:
        return 2.0 * tokens * self.matrix + 4.0 * tokens * (keys + self.text) * self.width * self.layers


def _seen(method: Distillation, chunk: int) -> int:
    """Latent frames in a chunk's window, itself included."""
    frames = (chunk + 1) * (method.preset.chunk_frames or 1)
    return min(frames, method.preset.window_frames or frames)


def _cached(method: Distillation) -> int:
    """Latent frames of keys and values: the window, and what every chunk with gradient saw of it."""
    if method.forcing == DIFFUSION:
        return 0
    size = method.preset.chunk_frames or 1
    last = method.longest // size
    seen = [_seen(method, chunk) for chunk in range(last - method.scored // size, last)]
    return max(seen) + sum(seen)


def _rollout(method: Distillation, frame_tokens: int, sizes: _Sizes) -> tuple[float, float]:
    """Operations of a rollout of the longest kind, without gradient, and of one call of every chunk that has it."""
    if method.forcing == DIFFUSION:
        whole = sizes.forward(method.scored * frame_tokens, method.scored * frame_tokens)
        return whole, whole
    size = method.preset.chunk_frames or 1
    last, rolled, taught = method.longest // size, 0.0, 0.0
    for chunk in range(last):
        call = sizes.forward(size * frame_tokens, _seen(method, chunk) * frame_tokens)
        whole, steps = calls(method.preset.schedule, chunk), len(method.preset.schedule.levels(chunk))
        if chunk < last - method.scored // size:
            rolled += call * whole
        else:
            extra = 1.0 if whole > steps else 1 - 1 / steps
            rolled, taught = rolled + call * ((steps + 1) / 2 + extra), taught + call
    return rolled, taught
