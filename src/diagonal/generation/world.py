"""A world: a token model, its tokenizer and its actions, wired together.

    world = load("mcar/700m", weights="700M_16f.ckpt")
    for piece in world.stream(prompt, actions, schedule="diagonal:k=1"): ...

`stream` yields pieces, frames with their tokens, as they complete; `generate` collects them.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.catalog.variants import Variant
from diagonal.checkpoints.quantize import quantize as quantize_model
from diagonal.engine.ranks import Ranks
from diagonal.engine.sampler import Sampler, seeds
from diagonal.engine.tokens.decode import Video, plans, spans
from diagonal.engine.tokens.live import LiveDecoder
from diagonal.engine.tokens.runner import Runner
from diagonal.engine.warm import Warm
from diagonal.generation import checks
from diagonal.generation.arena import Arena, play_alone
from diagonal.generation.live import LiveSession
from diagonal.generation.session import Clip, collect
from diagonal.generation.snapshot import Snapshot, a_few, checksum, fingerprint
from diagonal.generation.token_session import TokenSession
from diagonal.media.video import VideoArray
from diagonal.models.sharding import Shard, connect, divide, sampled
from diagonal.planning.decoding import Schedule
from diagonal.planning.grid import Layout
from diagonal.planning.plan import Order
from diagonal.planning.sampling import Sampling
from diagonal.worlds.protocols import ActionSpace, Free

UNKNOWN = -1  # a cell that is not decoded yet


class World:
    """A token world model that continues videos. Made by `load`."""

    def __init__(self, name: str, variant: Variant, tokenizer: Any, weights: str, device: torch.device | str) -> None:
        self.name, self.variant, self.weights = name, variant, weights
        # Modules have the protocols TokenModel and VideoTokenizer; torch's own typing cannot say so.
        with torch.device(device):
            self.model: Any = variant.config.build()
            self.tokenizer: Any = tokenizer.build()
        self.quantized: str | None = None  # of quantize.KINDS
        self.sources: tuple[str | Path, ...] = ()  # the checkpoints that its weights were read from
        self.warm, self.live = Warm[Runner](), Warm[LiveDecoder]()
        self.call_inputs: int | None = None  # the same for every call, in a strict world
        self.ranks: Ranks | None = None  # the processes that have a shard of the model each
        self.shard: Shard | None = None  # this one's
        self._fingerprint: str | None = None  # of the whole, where this is a shard
        self.runner: Any = self.model  # what the engine calls: the model, or the model under a text
        self.actions = cast(ActionSpace, importlib.import_module(f"diagonal.worlds.{variant.actions}"))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the frames."""
        return checks.frame_size(self)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def cache_dtype(self) -> torch.dtype:
        """Of keys and values. On a CPU attention is quicker in float32, whatever the weights are."""
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return torch.float32 if self.device.type == "cpu" else dtype

    def divide(self, ranks: Ranks | None) -> Shard | None:
        """Cut the model down to the shard of a rank; alone it stays as it is. Its weights may come afterwards."""
        if ranks is None or ranks.world == 1:
            return None
        self.ranks, self.shard = ranks, divide(self.model, self.name, ranks)
        return self.shard

    def connect(self) -> None:
        """Let the shards of a divided model sum their parts, once the weights are there."""
        if self.ranks is not None and self.shard is not None:
            # Now, as all ranks are asked: later one alone may want to know.
            self._fingerprint = checksum(sampled(self.model, self.shard, self.ranks, a_few))
            connect(self.model, self.name, self.ranks)

    def fingerprint(self) -> str:
        """Tells its weights from others: the same on one GPU and on several."""
        return fingerprint(self.model) if self._fingerprint is None else self._fingerprint

    def layout(self, frames: int) -> Layout:
        """The token sequence of a video of so many frames."""
        return self.variant.layout(frames)

    def at(self, height: int, width: int) -> World:
        """The same weights for frames of another size in pixels, where the model's positions allow it."""
        other = copy(self)
        other.variant = checks.resized(self, height, width)
        if self.variant.written:
            other.model = other.runner = self.model.sized(other.variant.config)
            return other
        with torch.device("meta"):
            other.model = other.runner = other.variant.config.build()
            if self.ranks is not None:
                divide(other.model, self.name, self.ranks)
                connect(other.model, self.name, self.ranks)
            if self.quantized:
                quantize_model(other.model, self.quantized)
        other.model.load_state_dict(self.model.state_dict(), assign=True)
        other.model.eval().requires_grad_(False)
        return other

    def guided(self, text: str | Tensor, negative: str = "", guidance_scale: float | None = None) -> World:
        """The same world under a text, or under its embeddings (rows, width), from which the model attends. Where texts
        are tokens of the sequence it is led away from `negative`, by the model's own scale if none is given."""
        checks.check_text(self)
        if self.variant.written:
            if not isinstance(text, str):
                raise ValueError(f"embeddings given; {self.name} reads texts as tokens: give the text")
            other = copy(self)
            config, other.runner = self.model.behind(text, negative, guidance_scale)
            other.variant = replace(self.variant, config=config)
            return other
        if negative or guidance_scale is not None:
            raise ValueError(f"{self.name} has no guidance; leave negative and guidance_scale out")
        device = next(self.model.parameters()).device
        if isinstance(text, str):
            from diagonal.text.encoders import ENCODERS, embed

            rows: Tensor = embed([text], ENCODERS[self.variant.text], device=device)
        else:
            rows = text if text.ndim == 3 else text[None]
        other = copy(self)
        with torch.inference_mode():
            other.runner = self.model.bind(rows.to(device))
        return other

    def steered(self, label: int | Sequence[int] | None = None, pictures: VideoArray | None = None) -> World:
        """The same world for videos of a class, or of one each, or steered by pictures (T, H, W, 3): of models that
        begin with nothing and go by these."""
        other = copy(self)
        checks.check_steering(self, label, pictures)
        with torch.inference_mode():
            if pictures is None:
                labels = [label] if isinstance(label, int) else list(label or ())
                other.runner = self.model.bind_class(torch.tensor(labels, device=self.device))
            else:
                given = torch.from_numpy(np.ascontiguousarray(pictures)).to(self.device)
                other.runner = self.model.bind_pictures(given[None].permute(0, 1, 4, 2, 3))
        return other

    def quantize(self, kind: str = "int8") -> World:
        """Round the model's matrices to rows of a kind, for good, and give the world: see `diagonal.quantize`."""
        if self.quantized not in (None, kind):
            raise ValueError(f"{self.name} has weights of {self.quantized}, not to be rounded again; load it anew")
        if not self.quantized:
            quantize_model(self.model, kind)
            self.model.eval().requires_grad_(False)
            if self._fingerprint is not None:
                self._fingerprint = f"{zlib.crc32(f'{self._fingerprint} {kind}'.encode()):08x}"
            self.quantized, self.warm, self.live = kind, Warm[Runner](), Warm[LiveDecoder]()
        return self

    def strict(self, inputs: int = 64) -> World:
        """The same world in calls of so many inputs each, filled up where a step has fewer: raster and lossless frames,
        and all frames of live sessions. The order of sums is then always the same, so that lossless tokens are those of
        its raster in bfloat16 too, and a seat of an arena makes what it makes whoever else is there."""
        checks.check_strict(self, inputs)
        other = copy(self)
        other.call_inputs = inputs
        return other

    def compile_tokenizer(self) -> None:
        """Compile what makes pixels of tokens (torch.compile): a minute for the first frame, less for all others."""
        decoder = next(part for name, part in self.tokenizer.named_modules() if name.split(".")[-1] == "decoder")
        decoder.compile(dynamic=False)

    def stream(
        self,
        prompt: VideoArray | Tensor | None,
        actions: Sequence[Any] | Free | None = None,
        *,
        frames: int | None = None,
        schedule: str | Schedule | Order = "diagonal:k=1",
        sampling: Sampling | None = None,
        seed: int | Sequence[int] = 0,
    ) -> TokenSession:
        """Continue `prompt`: uint8 frames (T, H, W, 3), one picture (H, W, 3), or token ids (T, rows, cols). A model of
        clips that begin with nothing takes None, and then several seeds are a batch.

        `actions` has one action per frame but the last: those between prompt frames first, then one that leads
        to each new frame; None means doing nothing, and `Free` lets the model choose. `frames` defaults to what the
        actions lead to, or else to what the model's window holds; longer videos slide past it, keeping the newest
        reference frames, and so does a prompt that fills it. A batch of prompts has one more dimension in front;
        sample b then uses seed + b, or the b-th of several seeds, and `actions` may be one list for all or one each.
        """
        config, order = self.variant.config, Order.of(schedule)
        known_BTHW, batched = self._nothing(seed) if prompt is None else self.encode(prompt)
        batch, known = known_BTHW.shape[:2]
        free = isinstance(actions, Free)
        lists = _per_sample(actions.given if isinstance(actions, Free) else actions, batch)
        taken = None if lists is None or free else len(lists[0])
        new = _new_frames(None if frames is None else checks.token_frames(self, frames), known, taken, config.frames)
        checks.check_whole(self, known, known + new, order)
        checks.check_window(order, self.call_inputs)
        layout = self.layout(known + new)
        units = torch.full((batch, known + new, layout.unit), UNKNOWN, device=known_BTHW.device)
        units[:, :known, : layout.grid.frame_tokens] = known_BTHW.flatten(2)
        if self.variant.row_end is not None:
            units[:, :, : layout.grid.frame_tokens].unflatten(2, (config.rows, config.cols))[..., -1] = (
                self.variant.row_end
            )
        acts = self._given(lists, known, new) if free else known + new - 1
        units[:, :acts, layout.grid.frame_tokens :] = self._action_ids(lists, batch, acts).to(units)
        prefix = torch.tensor(config.prefix_ids, dtype=units.dtype, device=units.device).expand(batch, -1)
        windows = spans(new, known, config.frames, config.reference_frames)
        sampler = Sampler(
            self.variant.sampling if sampling is None else sampling,
            torch.tensor(config.valid_ids(), device=units.device),
            layout.prefix,
            seeds(seed, batch, units.device),
        )
        paired = list(zip(windows, plans(layout, windows, order, acts), strict=True))
        dtype = self.cache_dtype
        video = Video(layout, prefix, units)
        return TokenSession(
            self.runner,
            self.tokenizer,
            video,
            known,
            paired,
            sampler,
            batched,
            dtype,
            self.warm,
            self.live,
            self.call_inputs,
        )

    def generate(
        self,
        prompt: VideoArray | Tensor | None,
        actions: Sequence[Any] | Free | None = None,
        *,
        frames: int | None = None,
        schedule: str | Schedule | Order = "diagonal:k=1",
        sampling: Sampling | None = None,
        seed: int | Sequence[int] = 0,
    ) -> Clip:
        """The whole clip at once; the arguments are those of `stream`."""
        stream = self.stream(prompt, actions, frames=frames, schedule=schedule, sampling=sampling, seed=seed)
        clip = collect(stream, stream.batched)
        if self.ranks is not None:
            self.ranks.agree(clip.tokens, "the tokens that were drawn")
        return clip

    def play(
        self,
        prompt: str | VideoArray | Tensor,
        actions: Sequence[Any] | None = None,
        *,
        schedule: str | Schedule | Order = "diagonal:k=1",
        sampling: Sampling | None = None,
        seed: int = 0,
        context: str | None = None,
    ) -> LiveSession:
        """Play from `prompt` on: the name of a start view, frames or token ids as `stream` takes them. `actions` are
        those between prompt frames; None means doing nothing.

        `session.step(action)` gives the frame that an action leads to. When the window is full, `context` says how it
        goes on: "roll", the oldest frame makes room (the default where positions are rotary), or "refill", the newest
        reference frames are fed again, as `stream` does.
        """
        return play_alone(self, prompt, actions, (schedule, sampling, seed), context)

    def arena(self, seats: int, context: str | None = None) -> Arena:
        """Room for so many sessions that share model calls."""
        return Arena(self, seats, context)

    def resume(self, saved: Snapshot | str | Path) -> LiveSession:
        """Go on where a snapshot, or its file, was made: the same frames follow."""
        saved = saved if isinstance(saved, Snapshot) else Snapshot.load(saved)
        return Arena(self, 1, saved.context).resume(saved, alone=True)

    def encode(self, prompt: VideoArray | Tensor) -> tuple[Tensor, bool]:
        """Token ids (B, frames, rows, cols) of a prompt, and whether it came as a batch."""
        config, device = self.variant.config, next(self.model.parameters()).device
        if isinstance(prompt, Tensor):
            expected = (config.rows, config.cols)
            if prompt.ndim not in (3, 4) or tuple(prompt.shape[-2:]) != expected:
                shape = ("T", *expected)
                raise ValueError(f"prompt tokens have shape {tuple(prompt.shape)}; {self.name} takes {shape}")
            if not prompt.numel():
                raise ValueError("the prompt holds no frames; at least one is needed")
            if prompt.is_floating_point() or int(prompt.min()) < 0 or int(prompt.max()) >= config.codebook:
                raise ValueError(f"prompt tokens must be whole numbers from 0 to {config.codebook - 1}")
            batched = prompt.ndim == 4
            return (prompt if batched else prompt[None]).long().to(device), batched
        checks.check_prompt(self, prompt)
        video = prompt[None] if prompt.ndim == 3 else prompt
        batched = video.ndim == 5
        pixels_BTHWC = torch.from_numpy(np.ascontiguousarray(video if batched else video[None])).to(device)
        tokens: Tensor = self.tokenizer.encode(pixels_BTHWC.permute(0, 1, 4, 2, 3))
        return tokens, batched

    def _nothing(self, seed: int | Sequence[int]) -> tuple[Tensor, bool]:
        """No frames (B, 0, rows, cols) of a clip for each seed, and whether they are a batch."""
        config = self.variant.config
        checks.check_begins_with_nothing(self)
        if self.variant.written and not config.prefix_ids:
            raise ValueError(f"no text given; say what {self.name} is to draw: world.guided('...')")
        batched = not isinstance(seed, int)
        batch = len(seed) if isinstance(seed, Sequence) else 1
        return torch.zeros(batch, 0, config.rows, config.cols, dtype=torch.long, device=self.device), batched

    def save_pretrained(
        self,
        folder: str | Path,
        dtype: torch.dtype | None = None,
        on_file: Callable[[int, int], object] = lambda done, total: None,
    ) -> Path:
        """Write model and tokenizer as safetensors that `load(name, weights=folder)` reads, and give the folder.

        They are one file, or shards; `dtype` and `on_file` are those of `weights.save`. The whole numbers of the
        tokenizer's config are noted beside the tensors, for no shape may tell them.
        """
        if self.quantized:
            raise ValueError(f"{self.name} has weights of {self.quantized}, which are not saved; do not quantise it")
        if self.ranks is not None:
            raise ValueError(f"{self.name} is divided among {self.ranks.world} processes; load it whole to save it")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        modules = {"transformer": self.model, "tokenizer": self.tokenizer}
        numbers = {key: value for key, value in asdict(self.tokenizer.config).items() if type(value) is int}
        notes = {"model": self.name} | {f"tokenizer.{key}": str(value) for key, value in numbers.items()}
        checkpoints.save(modules, folder / "model.safetensors", notes, dtype, on_file)
        return folder

    def _given(self, lists: list[Sequence[Any]] | None, known: int, new: int) -> int:
        """How many actions are given where the model chooses the rest."""
        checks.check_chooses(self)
        given = known - 1 if lists is None else len(lists[0])
        if not known - 1 <= given < known + new:
            raise ValueError(
                f"{given} actions given to begin with; {known} prompt frames have {known - 1} between them, and "
                f"{new} new frames need at most {known + new - 1}"
            )
        return given

    def _action_ids(self, lists: list[Sequence[Any]] | None, batch: int, count: int) -> Tensor:
        """Ids (B, count, suffix) of the actions after each frame but the last."""
        config = self.variant.config
        lists = [[self.actions.NOOP] * count] * batch if lists is None else lists
        for given in lists:
            if len(given) != count:
                raise ValueError(
                    f"{len(given)} actions given for a video of {count + 1} frames, which needs {count}: one after "
                    "each frame but the last, prompt frames included"
                )
        ids = torch.tensor([self.actions.tokens(given, config.codebook) for given in lists], dtype=torch.long)
        return ids.reshape(batch, count, config.suffix)


def _per_sample(actions: Sequence[Any] | None, batch: int) -> list[Sequence[Any]] | None:
    if actions is None:
        return None
    if not actions or not isinstance(actions[0], (list, tuple)):
        return [actions] * batch
    if len(actions) != batch:
        raise ValueError(f"{len(actions)} lists of actions given for {batch} prompts")
    return list(actions)


def _new_frames(frames: int | None, known: int, actions: int | None, window: int) -> int:
    if frames is None:
        frames = max(window - known, 1) if actions is None else actions - (known - 1)
    if frames < 1:
        raise ValueError(
            f"{frames} new frames asked for; at least 1 is needed"
            + ("" if actions is None else f" ({actions} actions cover {known} prompt frames only)")
        )
    return frames
