"""Where diffusion models are wired together: a transformer, its VAE and its text encoder, under a request.

    model = load("wan/1.3b", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", device="cuda", dtype=torch.bfloat16)
    for chunk in model.stream("a cat on a skateboard", num_frames=81, schedule="4322222"): ...

`stream` gives a session that yields chunks of frames as they are ready; `generate` collects them. `pipeline` does the
same for models of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from diagonal.engine.chunks.bidirectional import sample_whole, unipc
from diagonal.engine.chunks.cache import Window, WindowCache
from diagonal.engine.chunks.denoise import Chunk, Gaussian, Settings, Text, denoise
from diagonal.engine.chunks.graphs import Captured
from diagonal.generation.components import NONE, VAE, VAE_FILE, Parts, Weights, published, untrained
from diagonal.generation.devices import check_device, kernels_last
from diagonal.generation.request import Prompt, Request, latent_frames, latent_size
from diagonal.generation.session import PIECE, Pixels, Prompts, Session, Source, VideoClip
from diagonal.media.video import VideoArray
from diagonal.planning.denoising.noise import FlowTable
from diagonal.planning.presets import Preset
from diagonal.text.encoders import embed

OUTPUTS = ("np", "pt", "latent")


class VideoModel:
    """A diffusion model that makes videos from prompts. Made by `load`."""

    def __init__(self, name: str, variant: DiffusionVariant, weights: str, parts: Parts) -> None:
        self.name, self.variant, self.weights, self.encoder = name, variant, weights, parts.encoder
        # Modules have the protocols DiffusionModel and VideoCodec; torch's own typing cannot say so.
        self.model, self.vae, self.preview = parts.transformer, parts.vae, parts.preview
        self._idle: list[tuple[WindowCache, Captured]] = []  # of the last video, on a GPU
        self.quantized: str | None = None  # of quantize.VIDEO_KINDS

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
            self.quantized, self._idle = kind, []
        return self

    def stream(
        self,
        prompt: str | Request,
        *,
        num_frames: int | None = None,
        preset: str | Path | Preset | None = None,
        schedule: str | None = None,
        seed: int | None = None,
        decoder: str | None = None,
    ) -> Session:
        """Begin a video: a session that yields chunks of frames as soon as they are ready.

        A `Request` in place of the prompt says all that can be said; what is given beside it counts more.
        """
        given = {"num_frames": num_frames, "preset": preset, "schedule": schedule, "seed": seed, "decoder": decoder}
        request = _request(prompt, given)
        how, (height, width) = request.how(), request.size(self.variant.size)
        codec, config = self._codec(request.decoder), find("tokenizers", self.variant.vae)
        size = latent_size(height, width, config.patch, self.variant.config.patch)
        known = self._given(request)
        frames = self._frames(request, how, known)
        pixels = Pixels(codec, (height, width), self.device)
        planned = {0: request.prompt if request.prompt is not None else request.prompt_embeds, **request.prompt_at}
        prompts = Prompts({chunk: one for chunk, one in planned.items() if one is not None}, self._embed)
        shape = (1, frames, self.variant.config.channels, *size)
        make = self._chunked if how.chunk_frames is not None else self._whole
        return Session(make(request, how, known, shape), prompts, pixels, request.num_frames)

    def generate(
        self,
        prompt: str | Request,
        *,
        num_frames: int | None = None,
        preset: str | Path | Preset | None = None,
        schedule: str | None = None,
        seed: int | None = None,
        output_type: str = "np",
    ) -> VideoClip:
        """The whole video at once; the arguments are those of `stream`, but without `num_frames` it is as long as the
        model's videos usually are. `output_type`: frames as an array (T, H, W, 3) ('np'), as a tensor (T, C, H, W)
        ('pt'), both uint8, or the latents in their place ('latent')."""
        if output_type not in OUTPUTS:
            raise ValueError(f"output_type {output_type!r} is not known; known: {', '.join(OUTPUTS)}")
        given = {"num_frames": num_frames, "preset": preset, "schedule": schedule, "seed": seed}
        request = _request(prompt, given | ({"decoder": NONE} if output_type == "latent" else {}))
        if request.num_frames is None:
            request = replace(request, num_frames=self.variant.frames)
        made = list(self.stream(request))
        latents = torch.cat([chunk.latents for chunk in made])
        frames = np.concatenate([chunk.frames for chunk in made])
        forwards = sum(chunk.forwards for chunk in made)
        if output_type == "np":
            return VideoClip(frames, latents, forwards)
        return VideoClip(
            latents if output_type == "latent" else torch.from_numpy(frames).permute(0, 3, 1, 2), latents, forwards
        )

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
            what = f"the file {VAE_FILE}, or a folder with it" if decoder == VAE else "TAEHV's file, taew2_1.pth"
            raise ValueError(f"{self.weights} came without {decoder!r}; name it in Weights({decoder}=...): {what}")
        return codec

    def _given(self, request: Request) -> Tensor | None:
        """Latents (1, F, C, rows, cols) of the picture or clip that the video begins with."""
        clip = request.image[None] if request.image is not None else request.video
        if clip is None:
            return None
        self._check_clip(clip, *request.size(self.variant.size))
        vae, state = self._codec(VAE), dict[str, Tensor]()
        frames_BTCHW = torch.from_numpy(np.ascontiguousarray(clip)).to(self.device).permute(0, 3, 1, 2)[None]
        later = frames_BTCHW[:, 1:].split(PIECE * vae.stride, dim=1) if len(clip) > 1 else ()
        return torch.cat([vae.encode(part, state) for part in (frames_BTCHW[:, :1], *later)], dim=1).float()

    def _check_clip(self, clip: VideoArray, height: int, width: int) -> None:
        if clip.dtype != np.uint8 or clip.ndim != 4 or clip.shape[1:] != (height, width, 3):
            raise ValueError(
                f"frames of {clip.dtype} and shape {clip.shape} given to begin with; uint8 RGB of height {height} and "
                f"width {width} is needed. Resize them: diagonal.media.video.resize or cover, --resize or --crop"
            )
        stride, count = self.vae.stride if self.vae is not None else 1, len(clip)
        if not count or (count - 1) % stride:
            below = max(1, 1 + (count - 1) // stride * stride)
            raise ValueError(
                f"{count} frames given to begin with; 1 + {stride}n are needed: {below} or {below + stride}"
            )

    def _frames(self, request: Request, how: Preset, known: Tensor | None) -> int | None:
        """Latent frames of the whole video; None: without end."""
        given, stride = 0 if known is None else known.shape[1], find("tokenizers", self.variant.vae).stride
        if request.num_frames is None:
            return None
        frames = latent_frames(request.num_frames, how, stride, given)
        chunks = (frames - given) // (how.chunk_frames or frames)
        late = [chunk for chunk in request.prompt_at if not 1 <= chunk < chunks]
        if late:
            raise ValueError(
                f"a prompt at chunk {late[0]} given; this video has the chunks 0 to {chunks - 1}, and the first prompt "
                "is that of chunk 0"
            )
        return frames

    def _embed(self, prompts: list[Prompt]) -> list[Tensor]:
        """Embeddings (1, rows, width) of each, as tensors of their own."""
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        encoded = iter(embed(texts, self.encoder, device=self.device).split(1) if texts else ())
        return [next(encoded).clone() if isinstance(one, str) else self._checked(one) for one in prompts]

    def _checked(self, rows: Tensor) -> Tensor:
        config = self.variant.config
        shape, rows = tuple(rows.shape), rows[None] if rows.ndim == 2 else rows
        fits = rows.ndim == 3 and len(rows) == 1 and rows.shape[2] == config.text_dim
        if not fits or not 1 <= rows.shape[1] <= config.text_length:
            raise ValueError(
                f"prompt_embeds of shape {shape} given; {self.name} takes (rows, {config.text_dim}) with 1 to "
                f"{config.text_length} rows"
            )
        return rows.to(self.device, copy=True)

    def _chunked(self, request: Request, how: Preset, known: Tensor | None, shape: tuple[Any, ...]) -> Source:
        """A causal video. `shape` is that of all latents; None in it: without end."""
        _, frames, channels, *size = shape
        chunk_frames, given = how.chunk_frames or 1, 0 if known is None else known.shape[1]
        noise: Any = Gaussian((request.draw_seed(),), self.device)
        if request.latents is not None:
            noise = _Start(self._noise(request.latents, (1, frames and frames - given, channels, *size)), noise)
        settings = Settings(
            how.schedule,
            FlowTable(how.shift).sigma,
            noise,
            (size[0], size[1]),
            chunk_frames,
            keep_sink=request.keep_sink,
        )

        def chunks(text: Text) -> Iterator[Chunk]:
            cache = self._cache(how, frames, size)
            model = self._captured(cache) if request.capture and self.device.type == "cuda" else self.model
            try:
                yield from denoise(model, cache, settings, text, frames, known)
            finally:
                self._idle = [(cache, model)] if isinstance(model, Captured) else []

        def forwards(chunk: Chunk) -> int:
            calls = len(how.schedule.levels(chunk.index)) + (how.schedule.context_level(chunk.index) is not None)
            return calls + chunk.changed + (0 if chunk.index else -(-given // chunk_frames))

        return Source(chunks, forwards, known)

    def _cache(self, how: Preset, frames: int | None, size: Sequence[int]) -> WindowCache:
        rolls = how.window_frames is not None and (frames is None or frames > how.window_frames)
        if rolls:
            assert how.window_frames is not None
            window = Window(how.window_frames, how.sink_frames, how.relative_rope)
        else:
            assert frames is not None
            window = Window(frames)  # nothing ever leaves it
        side = self.variant.config.patch
        # On a CPU attention is quicker in float32, whatever the weights are.
        dtype = torch.float32 if self.device.type == "cpu" else next(self.model.parameters()).dtype
        tokens = (size[0] // side) * (size[1] // side)
        for kept, _ in self._idle:
            if (kept.window, kept.frame_tokens, kept.k.dtype) == (window, tokens, dtype):
                return kept
        self._idle = []  # its memory, before more is asked for
        return WindowCache(self.model.cache_spec, window, tokens, 1, self.device, dtype)

    def _captured(self, cache: WindowCache) -> Captured:
        """The model with its calls on a cache recorded: those of the last video, if they were on the same."""
        kept = [model for used, model in self._idle if used is cache]
        self._idle = []  # out while it is used: another video gets another cache
        return kept[0] if kept else Captured(self.model, cache)

    def _whole(self, request: Request, how: Preset, known: Tensor | None, shape: tuple[Any, ...]) -> Source:
        """All frames at once, with guidance; then handed on in pieces."""
        steps = len(how.schedule.levels(0))
        noise = Gaussian((request.draw_seed(),), self.device)(0, 0, shape)
        if request.latents is not None:
            noise = self._noise(request.latents, shape)
        (negative,) = self._embed(["" if request.negative_prompt is None else request.negative_prompt])

        def chunks(text: Text) -> Iterator[Chunk]:
            solver = unipc(steps, how.shift, self.device)
            latents = sample_whole(self.model, solver, text(0), negative, how.guidance_scale, noise)
            for index, part in enumerate(latents.split(PIECE, dim=1)):
                yield Chunk(index, PIECE * index, part, changed=False)

        return Source(chunks, lambda chunk: 0 if chunk.index else 2 * steps, changeable=False)

    def _noise(self, latents_FCHW: Tensor, shape: tuple[Any, ...]) -> Tensor:
        if latents_FCHW.shape != shape[1:]:
            wanted = "a video without end, which takes none" if shape[1] is None else f"{shape[1:]} is needed"
            raise ValueError(f"latents of shape {tuple(latents_FCHW.shape)} given to start from; {wanted}")
        return latents_FCHW[None].to(self.device, torch.float32)


@dataclass(frozen=True, slots=True)
class _Start:
    """The random numbers of `then`, but for those that chunks start from."""

    first_BFCHW: Tensor
    then: Gaussian

    def __call__(self, chunk: int, step: int, shape: tuple[int, ...]) -> Tensor:
        return self.then(chunk, step, shape) if step else self.first_BFCHW[:, chunk * shape[1] :][:, : shape[1]]


def _request(prompt: str | Request, given: dict[str, Any]) -> Request:
    """A request with what is given beside it."""
    chosen = {key: value for key, value in given.items() if value is not None}
    return replace(prompt, **chosen) if isinstance(prompt, Request) else Request(prompt=prompt, **chosen)


def load(
    name: str,
    weights: str | Path | Weights | None = None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = torch.float32,
    seed: int = 0,
) -> VideoModel:
    """A diffusion model by name; `pipeline.load` says what the arguments mean. `Weights` names its parts one by one."""
    variant, device = find("models", name), check_device(device)
    source = weights if isinstance(weights, Weights) else Weights(weights)
    label = str(source.transformer)
    if source.transformer is None and variant.embedded:
        label, source = checkpoints.EMBEDDED, replace(source, transformer=checkpoints.ASSETS / variant.embedded)
    if source.transformer is None and not variant.random:
        raise ValueError(
            f"{name} needs weights: give a file, a folder or a hub id. Source: {variant.source}. "
            'weights="random" runs it untrained, for speed only'
        )
    if source.random:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            parts = untrained(variant, source, device, dtype)
    else:
        parts = published(name, variant, source)
    for module in filter(None, (parts.transformer, parts.vae, parts.preview)):
        module.to(device=device, dtype=dtype).eval().requires_grad_(False)
    if device.type == "cuda":
        for codec in filter(None, (parts.vae, parts.preview)):
            kernels_last(codec)
    return VideoModel(name, variant, checkpoints.RANDOM if source.random else label, parts)
