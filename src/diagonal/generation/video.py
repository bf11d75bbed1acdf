"""A diffusion model: a transformer, its VAE and its text encoder, wired together under a request.

    model = load("wan/1.3b", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", device="cuda", dtype=torch.bfloat16)
    for piece in model.stream("a cat on a skateboard", num_frames=81, schedule="4322222"): ...

`stream` gives a session that yields pieces, chunks of frames, as they are ready; `generate` collects them. `world` does
the same for models of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.catalog.variants import DiffusionVariant
from diagonal.checkpoints.quantize import VIDEO_KINDS, quantize_blocks
from diagonal.checkpoints.quantize import check as check_kind
from diagonal.engine.chunks.cache import WindowCache
from diagonal.engine.chunks.denoise import Chunk, Gaussian, Text, windowed
from diagonal.engine.chunks.denoisers import Guidance, Whole
from diagonal.engine.chunks.graphs import ChunkGraphs
from diagonal.engine.chunks.protocols import Denoiser, DiffusionModel
from diagonal.engine.chunks.rollout import cache_of, frame_tokens, settings_of, window_of
from diagonal.engine.chunks.segments import segmented
from diagonal.engine.chunks.sequence import SequenceParallel
from diagonal.engine.ranks import Ranks
from diagonal.engine.warm import Warm
from diagonal.generation import checks
from diagonal.generation.chunk_session import DECODED, ChunkSession, ChunkSource, PixelDecoder
from diagonal.generation.components import NONE, VAE, Components
from diagonal.generation.pipelined import Beginning, Piped, pipelined
from diagonal.generation.prompts import PromptTrack
from diagonal.generation.request import Prompts, Request, frames_of, latent_size, texts
from diagonal.generation.session import Clip, collect
from diagonal.planning.presets import Preset
from diagonal.text.encoders import embed
from diagonal.tokenizers.by_rows import DecoderByRows
from diagonal.tokenizers.wan_vae import WanVAE

OUTPUTS = ("np", "pt", "latent")


class VideoModel:
    """A diffusion model that makes videos from prompts. Made by `load`."""

    def __init__(self, name: str, variant: DiffusionVariant, weights: str, parts: Components) -> None:
        self.name, self.variant, self.weights, self.encoder = name, variant, weights, parts.encoder
        # Modules have the protocols DiffusionModel or ChunkModel, and VideoCodec; torch's own typing cannot say so.
        self.model, self.vae, self.preview = parts.transformer, parts.vae, parts.preview
        self.runner: Any = self.model  # what the engine calls: the model, or it and others on other GPUs
        self.special = parts.special  # tokens before a caption
        self.warm = Warm[tuple[tuple[WindowCache, ...], DiffusionModel]]()  # of the last video, on a GPU
        self.quantized: str | None = None  # of quantize.VIDEO_KINDS
        self.sources: tuple[str | Path, ...] = ()  # the checkpoints that its weights were read from

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def quantize(self, kind: str = "fp8") -> VideoModel:
        """Round the matrices of the blocks to fp8 rows, for good, and give the model: see `diagonal.quantize`."""
        check_kind(kind, VIDEO_KINDS)
        if not self.quantized:
            quantize_blocks(self.model)
            self.quantized = kind
            self.warm.clear()
        return self

    def shared_by(self, ranks: Ranks) -> VideoModel:
        """The same model, computed by all ranks together: chunks by sequence parallelism, frames by rows. A group of
        one has the model itself."""
        if ranks.world == 1:
            return self
        checks.check_shared(self.name, self.variant)
        other = copy(self)
        other.runner = SequenceParallel(self.model, ranks)
        other.warm = Warm[tuple[tuple[WindowCache, ...], DiffusionModel]]()
        if isinstance(self.vae, WanVAE):
            other.vae = DecoderByRows(self.vae, ranks)
        return other

    def stream(
        self,
        prompt: str | Sequence[str] | Request,
        *,
        num_frames: int | None = None,
        preset: str | Path | Preset | None = None,
        schedule: str | None = None,
        seed: int | Sequence[int] | None = None,
        decoder: str | None = None,
    ) -> ChunkSession:
        """Begin a video: a session that yields its pieces, chunks of frames, as soon as they are ready.

        A list of prompts makes a batch of videos. A `Request` in place of the prompt says all that can be said; what is
        given beside it counts more.
        """
        given = {"num_frames": num_frames, "preset": preset, "schedule": schedule, "seed": seed, "decoder": decoder}
        request = _request(prompt, given).named(self.variant.preset)
        how, (height, width) = request.how(), request.size(self.variant.size)
        checks.check_preset(self.name, self.variant, request)
        codec, config = self._codec(request.decoder), find("tokenizers", self.variant.vae)
        size = latent_size(height, width, config.patch, self.variant.config.patch)
        known = self._given(request)
        frames = checks.total_latents(request, how, config, 0 if known is None else known.shape[1])
        pixels = PixelDecoder(codec, (height, width), self.device, request.batch is not None)
        planned = {0: request.prompt if request.prompt is not None else request.prompt_embeds, **request.prompt_at}
        prompts = PromptTrack({chunk: one for chunk, one in planned.items() if one is not None}, self._embed)
        shape = (request.batch or 1, frames, self.variant.config.channels, *size)
        source = self._pipelined if how.pipeline else self._source
        fresh = how.pipeline and request.image is not None  # a picture is made anew with its chunk
        given_frames = 0 if known is None or fresh else frames_of(known.shape[1], config)
        return ChunkSession(source(request, how, known, shape), prompts, pixels, request.num_frames, given_frames)

    def generate(
        self,
        prompt: str | Sequence[str] | Request,
        *,
        num_frames: int | None = None,
        preset: str | Path | Preset | None = None,
        schedule: str | None = None,
        seed: int | Sequence[int] | None = None,
        output_type: str = "np",
    ) -> Clip:
        """The whole video at once; the arguments are those of `stream`, but without `num_frames` it is as long as the
        model's videos usually are. `output_type`: frames as an array ([B,] T, H, W, 3) ('np'), as a tensor ([B,] T, C,
        H, W) ('pt'), both uint8, or the latents in their place ('latent')."""
        if output_type not in OUTPUTS:
            raise ValueError(f"output_type {output_type!r} is not known; known: {', '.join(OUTPUTS)}")
        given = {"num_frames": num_frames, "preset": preset, "schedule": schedule, "seed": seed}
        request = _request(prompt, given | ({"decoder": NONE} if output_type == "latent" else {}))
        if request.num_frames is None:
            request = replace(request, num_frames=self.variant.frames)
        clip = collect(self.stream(request), request.batch is not None)
        if output_type == "np":
            return clip
        frames = clip.code if output_type == "latent" else torch.as_tensor(clip.frames).movedim(-1, -3)
        return replace(clip, frames=frames)

    def save_pretrained(
        self,
        folder: str | Path,
        dtype: torch.dtype | None = None,
        on_file: Callable[[int, int], object] = lambda done, total: None,
    ) -> Path:
        """Write transformer and VAE, where there is one, as safetensors that `load(name, folder)` reads.

        Not the preview and the text encoder, which stay files of their own.
        """
        if self.quantized:
            raise ValueError(f"{self.name} has weights of {self.quantized}, which are not saved; do not quantise it")
        if self.runner is not self.model:
            raise ValueError(f"{self.name} is shared by {self.runner.ranks.world} processes; save the model of one")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        modules = {"transformer": self.model} | ({} if self.vae is None else {"tokenizer": self.vae})
        checkpoints.save(modules, folder / "model.safetensors", {"model": self.name}, dtype, on_file)
        return folder

    def _codec(self, decoder: str) -> Any:
        """The module that a request decodes with; None decodes nothing."""
        if decoder == NONE:
            return None
        codec = self.vae if decoder == VAE else self.preview
        if decoder != VAE and not self.variant.preview:
            raise ValueError(f"{self.name} has no {decoder}: its VAE is small; take {VAE!r}")
        if codec is None:
            raise ValueError(checks.without_decoder(self.name, self.variant, decoder))
        return codec

    def _given(self, request: Request) -> Tensor | None:
        """Latents (B, F, C, rows, cols) of the picture or clip that the video begins with."""
        clip = checks.begins_with(request)
        if clip is None:
            return None
        vae, state = self._codec(VAE), dict[str, Tensor]()
        checks.check_clip(clip, request.size(self.variant.size), vae, request.batch)
        frames = torch.from_numpy(np.ascontiguousarray(clip)).to(self.device).movedim(-1, -3)
        frames_BTCHW = frames if frames.ndim == 5 else frames[None]
        if vae.first > 1:  # not causal
            latents: Tensor = vae.encode(frames_BTCHW).float()
        else:
            later = frames_BTCHW[:, 1:].split(DECODED * vae.stride, dim=1) if frames_BTCHW.shape[1] > 1 else ()
            latents = torch.cat([vae.encode(part, state) for part in (frames_BTCHW[:, :1], *later)], dim=1).float()
        return latents.expand(request.batch or 1, -1, -1, -1, -1)

    def _embed(self, prompts: list[Prompts]) -> list[Tensor]:
        """Embeddings (1 or B, rows, width) of each, as tensors of their own."""
        said = [text for one in prompts for text in texts(one)]
        encoded = embed(said, self.encoder, device=self.device) if said else torch.empty(0)
        found, start = [], 0
        for one in prompts:
            count = len(texts(one))
            found.append(self._checked(one) if isinstance(one, Tensor) else encoded[start : start + count].clone())
            start += count
        return found

    def _checked(self, rows: Tensor) -> Tensor:
        checks.check_embeds(self.name, self.variant, rows)
        rows = rows if rows.ndim == 3 else rows[None]
        return rows.to(self.device, copy=True)

    def _source(self, request: Request, how: Preset, known: Tensor | None, shape: tuple[Any, ...]) -> ChunkSource:
        """A video under a preset. `shape` is that of all latents; None in it: without end."""
        batch, frames, channels, *size = shape
        given, split = 0 if known is None else known.shape[1], how.chunk_frames is None
        how = how.for_frames(frames)
        noise: Any = Gaussian(request.draw_seeds(), self.device)
        if request.latents is not None:
            noise = _Start(self._noise(request, (batch, frames and frames - given, channels, *size)), noise)
        settings = replace(settings_of(how, noise, size), keep_sink=request.keep_sink)
        negative = self._negative(request) if how.guided else None

        def chunks(text: Text) -> Iterator[Chunk]:
            capture = request.capture and self.device.type == "cuda" and how.schedule.lag is None and not how.guided
            kind, kept = self._caches(how, shape, capture)
            caches, model = kept
            guidance = (
                None if negative is None else Guidance(how.guidance_scale, negative, caches[1] if caches else None)
            )

            def begin() -> Denoiser:
                if how.sees.whole:
                    return Whole(model, settings.size, batch, self.device, guidance)
                return windowed(model, caches[0], settings, guidance)

            made = segmented(begin, settings, text, how.cut.segments(frames, given), how.overlap_level, known)
            try:
                yield from _few(made) if split else made
            finally:
                if isinstance(model, ChunkGraphs):
                    self.warm.give(kind, kept)

        total = None if frames is None else sum(how.calls(frames, given))
        return ChunkSource(chunks, total, known, not how.sees.whole, 1 + how.guided)

    def _pipelined(self, request: Request, how: Preset, known: Tensor | None, shape: tuple[Any, ...]) -> ChunkSource:
        """A video whose chunks are denoised together. `shape` is that of all latents; None in it: without end."""
        batch, frames, channels, *size = shape
        begins = Beginning(known, request.image is not None)
        noise: Any = Gaussian(request.draw_seeds(), self.device)
        if request.latents is not None:
            new = frames and frames - begins.whole(how.chunk_frames or 1)
            noise = _Start(self._noise(request, (batch, new, channels, *size)), noise)
        return pipelined(self.model, Piped(how, frames, (size[0], size[1]), self.special), noise, begins)

    def _negative(self, request: Request) -> Tensor:
        """Embeddings of what a video is guided away from."""
        (negative,) = self._embed(["" if request.negative_prompt is None else request.negative_prompt])
        return negative

    def _caches(
        self, how: Preset, shape: tuple[Any, ...], capture: bool
    ) -> tuple[Hashable, tuple[tuple[WindowCache, ...], DiffusionModel]]:
        """Caches, one for each call of a level, and the model with its calls captured if asked for: those of the last
        video, if they fit."""
        batch, frames, _, *size = shape
        if how.sees.whole:
            return None, ((), self.runner)
        window = window_of(how, frames)
        # On a CPU attention is quicker in float32, whatever the weights are.
        dtype = torch.float32 if self.device.type == "cpu" else next(self.model.parameters()).dtype
        kind = (window, frame_tokens(self.runner, size), batch, dtype)

        def make() -> tuple[tuple[WindowCache, ...], DiffusionModel]:
            caches = [cache_of(self.runner, window, size, batch, self.device, dtype) for _ in range(1 + how.guided)]
            return tuple(caches), ChunkGraphs(self.runner, caches[0]) if capture else self.runner

        return (kind, self.warm.take(kind, make)) if capture else (kind, make())

    def _noise(self, request: Request, shape: tuple[Any, ...]) -> Tensor:
        """The latents that a request starts from, (B, F, C, rows, cols): one for all, or one each."""
        given = request.latents
        assert given is not None
        latents = given if given.ndim == 5 else given[None]
        if latents.shape[1:] != shape[1:] or (given.ndim == 5 and len(given) != request.batch):
            wanted = "a video without end, which takes none" if shape[1] is None else f"{shape[1:]} is needed"
            raise ValueError(f"latents of shape {tuple(given.shape)} given to start from; {wanted}")
        return latents.to(self.device, torch.float32).expand(*shape)


@dataclass(frozen=True, slots=True)
class _Start:
    """The random numbers of `then`, but for those that chunks start from."""

    first_BFCHW: Tensor
    then: Gaussian

    def __call__(self, chunk: int, step: int, shape: tuple[int, ...]) -> Tensor:
        return self.then(chunk, step, shape) if step else self.first_BFCHW[:, chunk * shape[1] :][:, : shape[1]]


def _few(made: Iterator[Chunk]) -> Iterator[Chunk]:
    """A whole video that was made at once, a few latent frames at a time: so many are decoded together."""
    for chunk in made:
        for index, part in enumerate(chunk.latents.split(DECODED, dim=1)):
            calls = 0 if index else chunk.calls
            yield Chunk(index, chunk.start + DECODED * index, part, changed=False, calls=calls)


def _request(prompt: str | Sequence[str] | Request, given: dict[str, Any]) -> Request:
    """A request with what is given beside it."""
    chosen = {key: value for key, value in given.items() if value is not None}
    return replace(prompt, **chosen) if isinstance(prompt, Request) else Request(prompt=prompt, **chosen)
