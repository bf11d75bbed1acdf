"""How fast a diffusion model makes videos, beside how fast it could: `diagonal bench` for models of latents.

A call of the transformer multiplies thousands of tokens with every weight, so here operations decide, not bytes. The
floor is their number over the rate of a large matrix product in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal.catalog.names import find
from diagonal.engine.chunks.denoise import Gaussian
from diagonal.engine.kernels import select
from diagonal.evaluation.speed import pipelined
from diagonal.evaluation.speed.machine import check_timed, describe
from diagonal.generation.chunk_session import DECODED
from diagonal.generation.clock import Clock
from diagonal.generation.request import Prompts, Request, latent_frames, latent_size, texts
from diagonal.generation.video import VideoModel
from diagonal.planning.denoising import spec
from diagonal.planning.presets import Preset
from diagonal.planning.work import calls
from diagonal.text.encoders import embed

DEFINITION = """\
step                one call of the transformer with the noise before it; batch 1; text embeddings are there already.
                    The preset wan makes all frames at once, one chunk. Presets with guidance make two calls at each
                    noise level, one with the prompt and one with the negative prompt. Under a lag a call takes several
                    chunks, and counts for the first of them that is done. Of MAGI-1 each pass of a call is one here
text_rows           rows of the prompt's embeddings. The padding behind them is attended to as well; as it is the same
                    row again and again, all of it is one key in floor_ms. A negative prompt that is not given has one.
                    MAGI-1 sees no padding
ms_per_step         milliseconds of a chunk over its calls, median over all chunks and repeats; by_chunk_ms: mean of
                    each chunk; mean_ms: mean of all calls. Nothing is decoded meanwhile
floor_ms            operations of a call (products and attention), on average, over tflops
floor_ratio         mean_ms / floor_ms
tflops              10^12 operations per second of the best of several products of large matrices in the same run
fps                 frames / (steps * mean_ms): latents alone
fps_with_tokenizer  the same frames as pixels in the host's memory, streamed: chunks are decoded while the next one is
                    denoised (where all are made at once, after that); from the start to the last frame; median over
                    repeats
first_frame_ms      the calls of the first chunk and the decoding of its first latent frame, one after the other;
                    where these are not decoded by themselves, of its first three
warmup_s            the first run, with all that is set up or compiled once; in no other number
peak_gb             most memory in use at once on the GPU, weights, cache and decoder
units               ms: milliseconds; GB: 10^9 bytes; one video is made at a time
kernels             operation -> what computed it in the first run, which is not measured (engine/kernels/README.md)"""

TEXT_ROWS, NEGATIVE_ROWS = 128, 1  # of a typical prompt, at most what the model takes, and of an empty one
SIDE = {"cuda": 8192, "cpu": 1024}
PRODUCTS = 10


@dataclass(frozen=True, slots=True)
class VideoSettings:
    """How it is measured: the request, and how often."""

    request: Request
    repeat: int = 3
    warmup: int = 1


def measure(model: VideoModel, settings: VideoSettings, on_run: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """The numbers of a request, as JSON takes them. `on_run` is called after every video."""
    settings = replace(settings, request=_with_negative(model, settings.request.named(model.variant.preset)))
    request, device = settings.request, model.device
    clock, rate = Clock(device), tflops(model.device, next(model.model.parameters()).dtype)
    if clock.cuda:
        torch.cuda.reset_peak_memory_stats(device)
    latents, began = replace(request, decoder="none"), time.perf_counter()
    runs = []
    for index in range(settings.warmup + settings.repeat):
        with select.recorded() if index == 0 else nullcontext(dict[str, str]()) as chosen:
            runs.append(_denoised(model, latents))
        on_run()
        if index == 0:
            kernels, warmup_s = chosen, time.perf_counter() - began
    made = np.array([[1e3 * seconds / calls for seconds, calls in run] for run in runs[settings.warmup :]])
    calls = np.array([calls for _, calls in runs[0]])
    mean_ms = float((made * calls).sum() / calls.sum() / len(made))
    text_rows = _text_rows(model, request)
    floor_ms = 1e-9 * _operations(model, request, text_rows) / int(calls.sum()) / rate
    frames, parameters = request.num_frames or 0, list(model.model.parameters())
    decoded, (height, width) = request.decoder != "none", request.size(model.variant.size)
    return {
        "model": model.name,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "weights": model.weights,
        "preset": str(request.preset),
        "schedule": spec(request.how().schedule),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "quantize": model.quantized or "none",
        "decoder": request.decoder,
        "height": height,
        "width": width,
        "frames": frames,
        "text_rows": text_rows,
        "steps": int(calls.sum()),
        "repeat": settings.repeat,
        "ms_per_step": float(np.median(made)),
        "mean_ms": mean_ms,
        "by_chunk_ms": made.mean(0).tolist(),
        "floor_ms": floor_ms,
        "floor_ratio": mean_ms / floor_ms,
        "fps": 1e3 * frames / (int(calls.sum()) * mean_ms),
        "fps_with_tokenizer": frames / _streamed(model, settings, on_run) if decoded else None,
        "first_frame_ms": float(made[:, 0].mean() * calls[0]) + (_first_decode_ms(model, settings) if decoded else 0.0),
        "warmup_s": warmup_s,
        "peak_gb": torch.cuda.max_memory_allocated(device) / 1e9 if clock.cuda else None,
        "tflops": rate,
        "kernels": kernels,
    } | describe(device)


def prompt(model: VideoModel, rows: int = TEXT_ROWS) -> Tensor:
    """Embeddings (rows, width) of noise, as long as a typical prompt: speed does not ask what it says."""
    config = model.variant.config
    shape = (min(rows, config.text_length), config.text_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _with_negative(model: VideoModel, request: Request) -> Request:
    """A request with all that is guided away from: it needs no text encoder."""
    if not request.how().guided or request.negative_prompt is not None:
        return request
    return replace(request, negative_prompt=prompt(model, NEGATIVE_ROWS))


def _denoised(model: VideoModel, request: Request) -> list[tuple[float, int]]:
    """Seconds and calls of each chunk of a video. Frames that come without a call, as all but the first do where all
    are made at once, belong to the chunk before."""
    found: list[tuple[float, int]] = []
    for piece in model.stream(request):
        if piece.calls:
            found.append((piece.model_seconds, piece.calls))
        else:
            seconds, calls = found[-1]
            found[-1] = (seconds + piece.model_seconds, calls)
    return found


def tflops(device: torch.device, dtype: torch.dtype) -> float:
    """10^12 operations per second of the best of several large matrix products."""
    side, clock = SIDE[check_timed(device).type], Clock(device)
    one = torch.randn(side, side, device=device, dtype=dtype)
    one @ one
    marks = [clock.mark()]
    for _ in range(PRODUCTS):
        one @ one
        marks.append(clock.mark())
    return 2e-9 * side**3 / min(clock.milliseconds(marks))


def _streamed(model: VideoModel, settings: VideoSettings, on_run: Callable[[], object]) -> float:
    """Seconds of a whole streamed video, decoded: the median."""
    times = []
    for _ in range(settings.warmup + settings.repeat):
        began = time.perf_counter()
        for _chunk in model.stream(settings.request):
            pass
        times.append(time.perf_counter() - began)
        on_run()
    return statistics.median(times[settings.warmup :])


def _first_decode_ms(model: VideoModel, settings: VideoSettings) -> float:
    """Milliseconds to decode the first latent frame of a video, to the host."""
    request = settings.request
    codec: Any = model.vae if request.decoder == "vae" else model.preview
    size = latent_size(*request.size(model.variant.size), codec.patch, model.variant.config.patch)
    least = 1 if codec.first == 1 else DECODED  # a tile, where the first latent frame is not decoded by itself
    latent = Gaussian((0,), model.device)(0, 0, (1, least, model.variant.config.channels, *size))
    clock, times = Clock(model.device), []
    for _ in range(settings.warmup + settings.repeat):
        marks = [clock.mark()]
        codec.decode(latent, {}).cpu()
        times += clock.milliseconds([*marks, clock.mark()])
    return statistics.median(times[settings.warmup :])


def _text_rows(model: VideoModel, request: Request) -> int:
    """Rows of the prompt without its padding, as the model counts them."""
    return _rows(model, request.prompt_embeds if request.prompt_embeds is not None else request.prompt or "")


def _rows(model: VideoModel, text: Prompts) -> int:
    """A text ends with its last row that is not zero."""
    rows = text if isinstance(text, Tensor) else embed(texts(text), model.encoder, device=model.device)
    return 1 + int(rows.reshape(-1, rows.shape[-1]).ne(0).any(-1).nonzero().max())


def _operations(model: VideoModel, request: Request, text_rows: int) -> float:
    """Operations of all calls of a video: twice for every weight of a block and token, and four times for every number
    of a head, query and key. Guidance calls the model a second time at each level, with the negative prompt."""
    how, config = request.how(), model.variant.config
    if how.pipeline:
        return pipelined.operations(model, request, text_rows)
    codec = find("tokenizers", model.variant.vae)
    rows, cols = latent_size(*request.size(model.variant.size), codec.patch, config.patch)
    frame = (rows // config.patch) * (cols // config.patch)
    total = latent_frames(request.num_frames or 0, how, codec)
    works = [_work(model, text_rows)]
    if how.guided:
        assert request.negative_prompt is not None
        works.append(_work(model, _rows(model, request.negative_prompt)))
    parts = [part for call in calls(how, total) for part in call.parts]
    return sum(work(part.frames * frame, part.seen * frame) for part in parts for work in works)


def _work(model: VideoModel, text_rows: int) -> Callable[[int, int], float]:
    """Operations of a call with so many tokens that see so many, and a text."""
    config: Any = model.variant.config
    words = min(text_rows + 1, config.text_length)  # one key for all of its padding
    weights = sum(p.numel() for name, p in model.model.named_parameters() if p.ndim == 2 and "blocks" in name)
    # Keys and values of the text are made once a prompt.
    weights -= sum(p.numel() for name, p in model.model.named_parameters() if name.endswith("cross_attn.kv.weight"))
    attention = 4 * config.layers * config.dim

    def work(tokens: int, seen: int) -> float:
        return float(2 * weights * tokens + attention * tokens * (seen + words))

    return work


def check(preset: Preset, request: Request) -> None:
    """Refuse what cannot be measured."""
    if request.num_frames is None:
        raise ValueError("num_frames is needed: a video without end is not measured")
