"""Reads checkpoints and fills models with them, strictly, without ever running code from a file.

Accepted: safetensors (a file, or a folder with one or several shards), PyTorch `.ckpt/.bin/.pt/.pth` through
`torch.load(weights_only=True)`, a Lightning `.ckpt` that this refuses and TorchScript `.jit` through `pickles`, and hub
ids through huggingface_hub (its cache and offline mode apply).
"""

from __future__ import annotations

import errno
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from diagonal import pickles
from diagonal.engine.protocols import WeightMap
from diagonal.files import atomic

RANDOM = "random"  # weights that nobody trained
EMBEDDED = "embedded"  # weights that the package ships
ASSETS = Path(__file__).parent / "assets"
PICKLED = (".ckpt", ".bin", ".pt", ".pth")
SCRIPTED = ".jit"
DIGITS = re.compile("[0-9]{1,18}")
READABLE = (".safetensors", *PICKLED, SCRIPTED)
HALVES = {f"encoder{SCRIPTED}", f"decoder{SCRIPTED}"}  # of a tokenizer; a third file beside them holds both again

# Under these names trainers put the weights: those of Self-Forcing's family the generator, averaged where they have it.
PARTS = ("state_dict", "generator_ema", "generator", "model", "generator_lora")
# What trainers put around modules, at any depth.
WRAPPERS = re.compile(r"\b(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")

SHARD = 5 * 10**9  # bytes of tensors in a file that is written, at most
SCALE = ".scale"

State = dict[str, Tensor]


def read(source: str | Path, part: str | None = None) -> State:
    """All tensors of a checkpoint: a file, a folder of shards, or a hub id such as 'org/name'.

    A trainer's file may hold several models: `part` names one, such as 'generator'; else the first of PARTS is read.
    """
    state: State = {}
    for path in files(locate(source)):
        found = _read_file(path, part)
        twice = state.keys() & found.keys()
        if twice:
            raise ValueError(f"{path} repeats keys of another shard: {some(sorted(twice))}")
        state |= found
    return restore(state)


def settings(source: str | Path) -> dict[str, pickles.Scalar]:
    """What a checkpoint says beside its tensors, by path: a Lightning file's hyper-parameters, or the metadata of
    safetensors (of the first shard; they hold texts, of which those of digits are numbers). Other files say nothing."""
    first = files(locate(source))[0]
    if _lightning(first):
        return pickles.read(first).settings
    if first.suffix != ".safetensors":
        return {}
    with _valid_safetensors(first), safe_open(first, "pt") as file:
        return {key: int(text) if DIGITS.fullmatch(text) else text for key, text in (file.metadata() or {}).items()}


def _lightning(path: Path) -> bool:
    return path.suffix == ".ckpt" and zipfile.is_zipfile(path)


def locate(source: str | Path, folders: Sequence[str] = ()) -> Path:
    """The local path of a checkpoint. From the hub, 'org/name' is downloaded first, without the folders in it but for
    those named here, and 'org/name/folder/file.ckpt' as that one file."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    name = r"\w[\w.-]*"
    match = re.fullmatch(rf"({name}/{name})(?:/((?:{name}/)*{name}))?", str(source))
    if match is None or (match[2] is not None and not match[2].endswith(READABLE)):
        raise FileNotFoundError(
            f"weights {str(source)!r} do not exist; give a file, a folder, or a hub id 'org/name'; for one file of it, "
            f"'org/name/file' that ends in {', '.join(READABLE)}"
        )
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    repository, file = match.groups()
    try:
        if file is not None:
            return Path(hf_hub_download(repository, file))
        wanted = [f"*{suffix}" for suffix in READABLE] + ["*.json"]
        if folders:
            inside = [f"{folder}/{pattern}" for folder in folders for pattern in wanted]
            snapshot_download(repository, allow_patterns=inside)
        # Folders hold other things than the model: guardrails, text encoders, other sizes.
        return Path(snapshot_download(repository, allow_patterns=wanted, ignore_patterns=["*/*"]))
    except (EntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise FileNotFoundError(
            f"weights {str(source)!r} are no local path, and the hub did not give them: {error}"
        ) from error


def load(module: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Put a checkpoint's tensors into `module` by its weight map; every key and shape must match."""
    weight_map = cast(WeightMap, module.weight_map)
    strip = len(prefix(state, weight_map))
    found = {key[strip:]: value for key, value in state.items() if key.startswith(prefix(state, weight_map))}
    found = {key: value for key, value in found.items() if not any(_form(one)(key) for one in weight_map.ignore)}
    found = rename(found, weight_map.aliases)
    wanted = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    # Our own names or the published ones: whichever fits better.
    found = max(found, rename(found, weight_map.keys), key=lambda state: len(wanted.keys() & state.keys()))
    shapes = {key: tuple(value.shape) for key, value in found.items()}
    other = [key for key in wanted.keys() & shapes.keys() if shapes[key] != wanted[key]]
    problems = [
        *_list("missing", sorted(wanted.keys() - shapes.keys())),
        *_list("unexpected", sorted(shapes.keys() - wanted.keys())),
        *_list("of another shape", [f"{key} is {shapes[key]}, not {wanted[key]}" for key in sorted(other)]),
        *_list("not of floating point", sorted(key for key, value in found.items() if not value.is_floating_point())),
    ]
    if problems:
        raise ValueError(f"the checkpoint does not fit {name}: keys " + "; ".join(problems))
    module.load_state_dict(found, strict=True, assign=True)


def prefix(state: Mapping[str, Tensor], weight_map: WeightMap) -> str:
    """The first prefix of the map that any key has."""
    return next((one for one in weight_map.prefixes if any(key.startswith(one) for key in state)), "")


def rename(state: Mapping[str, Tensor], keys: Mapping[str, tuple[str, ...]]) -> State:
    """Apply a weight map's table; keys that it does not name stay as they are, to be reported."""
    left, renamed = dict(state), {}
    for ours, theirs in keys.items():
        for match in list(filter(None, map(_form(theirs[0]), left))):
            sources = [name.format(*match.groups()) for name in theirs]
            if all(name in left for name in sources):
                parts = [left.pop(name) for name in sources]
                renamed[ours.format(*match.groups())] = _join(parts, sources)
    return renamed | left


def _form(text: str) -> Callable[[str], re.Match[str] | None]:
    """Whether a whole key has the form of a weight map's entry, and what its '{}' stand for."""
    return re.compile(re.escape(text).replace(r"\{\}", "(.+)")).fullmatch


def _join(parts: list[Tensor], names: list[str]) -> Tensor:
    if len({(part.shape[1:], part.dtype) for part in parts}) > 1 or (len(parts) > 1 and not parts[0].ndim):
        shapes = ", ".join(f"{name} {tuple(part.shape)}" for name, part in zip(names, parts, strict=True))
        raise ValueError(f"the checkpoint does not fit: these cannot be joined: {shapes}")
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def save(
    modules: Mapping[str, nn.Module],
    path: Path,
    metadata: Mapping[str, str],
    dtype: torch.dtype | None = None,
    on_file: Callable[[int, int], object] = lambda done, total: None,
) -> list[Path]:
    """Write modules as safetensors, each under its name as prefix: one file, or shards where that would be too large.

    Every file has the metadata. Numbers become `dtype`, one shard at a time; None keeps them as they are. The files
    appear together, when all are written; after each, `on_file` is told how many are done, of how many.
    """
    tensors = {f"{name}.{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}
    shards = _shards({key: value.numel() * (dtype or value.dtype).itemsize for key, value in tensors.items()})
    count = len(shards)
    names = [f"{path.stem}-{number:05}-of-{count:05}{path.suffix}" for number in range(1, count + 1)]
    paths = [path.with_name(name) for name in names] if count > 1 else [path]
    other = {*path.parent.glob(f"{path.stem}-*-of-*{path.suffix}"), *path.parent.glob(path.name)} - {*paths}
    if other:
        listed = some(sorted(file.name for file in other))
        raise FileExistsError(f"{path.parent} holds another number of parts: {listed}; remove them, or save elsewhere")
    with ExitStack() as written:
        for done, (target, keys) in enumerate(zip(paths, shards, strict=True), 1):
            content = {key: tensors[key].detach().to(dtype=dtype).contiguous().cpu() for key in keys}
            save_tensors(content, written.enter_context(atomic(target)), metadata)
            on_file(done, count)
    return paths


def save_tensors(content: State, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Tensors as a safetensors file. A disk that takes no more is an OSError, as of any other file."""
    try:
        save_file(content, path, None if metadata is None else dict(metadata))
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error


def _shards(sizes: Mapping[str, int]) -> list[list[str]]:
    """Keys in their order, in parts of at most SHARD bytes; a larger tensor is a part of its own."""
    shards: list[list[str]] = [[]]
    size = 0
    for key, more in sizes.items():
        if shards[-1] and size + more > SHARD:
            shards.append([])
            size = 0
        shards[-1].append(key)
        size += more
    return shards


def randomise(model: nn.Module, device: torch.device, dtype: torch.dtype | None, seed: int) -> None:
    """Draw the weights of a model on the meta device where they are to be: norms are 1, biases 0, and the rows of a
    matrix have length 1 on average, so that activations keep their size."""
    model.to(dtype=dtype).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.normal_(std=parameter[0].numel() ** -0.5, generator=generator)


def check_free(folder: Path) -> None:
    """Refuse to write a checkpoint into a folder that holds one: their files would be read as one."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; name a folder to write into")
    found = sorted(file.name for file in folder.glob("*") if file.name.endswith(READABLE))
    if found:
        raise FileExistsError(f"{folder} already holds checkpoint files: {some(found)}; name another folder")


def files(path: Path) -> list[Path]:
    """The files that make up a checkpoint: itself, or those of a folder that belong together."""
    if path.is_file():
        if path.suffix not in READABLE:
            raise ValueError(f"{path} is no checkpoint: its name must end in {', '.join(READABLE)}")
        return [path]
    for suffix in READABLE:
        found = sorted(file for file in path.glob(f"*{suffix}") if not file.name.startswith("."))
        halves = [file for file in found if file.name in HALVES]
        if len(found) == 1 or (found and suffix == ".safetensors"):
            return found
        if len(halves) == len(HALVES):
            return halves
        if found:
            raise ValueError(f"{path} holds {len(found)} {suffix} files; name the one to load")
    raise FileNotFoundError(f"{path} holds no checkpoint ({', '.join(READABLE)})")


def shrink(state: Mapping[str, Tensor]) -> State:
    """Weights for shipping: matrices as int8 with one float16 scale per row (`key.scale`), all else as float16."""
    small: State = {}
    for key, value in state.items():
        if value.ndim == 2:
            small[key], scale_N = int8_rows(value)
            small[key + SCALE] = scale_N[:, None].half()
        else:
            small[key] = value.half()
    return small


def int8_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as int8 numbers and one float32 scale for each row, of which they are multiples: the nearest ones, where
    the largest number of a row is 127 or -127 times its scale."""
    scale_N = (matrix.float().abs().amax(1) / 127).clamp(min=1e-8)
    return (matrix / scale_N[:, None]).round().to(torch.int8), scale_N


def restore(state: State) -> State:
    """Undo `shrink`; a state that was never shrunk stays as it is."""
    scales = {key for key in state if key.endswith(SCALE) and key.removesuffix(SCALE) in state}
    return {
        key: value.float() * state[key + SCALE].float() if key + SCALE in scales else value
        for key, value in state.items()
        if key not in scales
    }


def _read_file(path: Path, part: str | None) -> State:
    if path.suffix in PICKLED:
        return _read_pickled(path, part)
    if part is not None:
        raise ValueError(f"{path} has no part {part!r}: only {', '.join(PICKLED)} files have parts")
    return pickles.read_module(path) if path.suffix == SCRIPTED else _read_safetensors(path)


def _read_safetensors(path: Path) -> State:
    with _valid_safetensors(path):
        return load_file(path)


@contextmanager
def _valid_safetensors(path: Path) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{path} is not a valid safetensors file: {error}") from error


def _read_pickled(path: Path, part: str | None) -> State:
    """Tensors of a PyTorch file; anything but plain tensors and containers is refused before it can run."""
    try:
        # Only the zip format can be mapped; files of PyTorch before 1.6 are read whole.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        if _lightning(path) and part is None:
            return pickles.read(path).state
        raise ValueError(
            f"{path} was refused: it is damaged, or it holds code or objects besides tensors, which are never run"
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(
            f"{path} was refused: it is damaged or no PyTorch file ({type(error).__name__}); code in it is never run"
        ) from error
    state = _choose(content, part, path)
    unwrapped = {WRAPPERS.sub("", str(key)): value for key, value in state.items()}
    if len(unwrapped) < len(state):
        raise ValueError(f"{path} holds keys that differ only in the wrappers of a trainer: which to read is unclear")
    return unwrapped


def _choose(content: object, part: str | None, path: Path) -> State:
    """The state dict among what a PyTorch file holds, however deep trainers put it."""
    state = content
    while isinstance(state, dict) and not _is_state(state):
        holds = [str(key) for key, value in state.items() if isinstance(value, dict) and value]
        chosen = next((name for name in ((part,) if part else PARTS) if name in holds), None)
        if chosen is None:
            wanted = repr(part) if part else f"any of {', '.join(PARTS)}"
            held = some(sorted(map(str, state)), 12) or "nothing"
            raise ValueError(f"{path} holds no state dict of tensors: {wanted} was looked for, and it has {held}")
        state, part = state[chosen], None
    if not isinstance(state, dict) or part is not None:
        missing = f" called {part!r}" if part else ""
        raise ValueError(f"{path} holds no state dict of tensors{missing}")
    return state


def _is_state(content: dict[object, object]) -> bool:
    return bool(content) and all(isinstance(value, Tensor) for value in content.values())


def _list(what: str, items: list[str]) -> list[str]:
    return [f"{len(items)} {what}: {some(items)}"] if items else []


def some(items: list[str], most: int = 4) -> str:
    """The first few of a list, for messages."""
    return ", ".join(items[:most]) + (f", and {len(items) - most} more" if len(items) > most else "")
