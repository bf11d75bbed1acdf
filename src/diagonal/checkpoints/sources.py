"""Where a checkpoint is: a file, a folder of shards, or a hub id (through huggingface_hub, with its cache)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from diagonal.checkpoints.state import some

RANDOM = "random"  # weights that nobody trained
EMBEDDED = "embedded"  # weights that the package ships
ASSETS = Path(__file__).parents[1] / "assets"
PICKLED = (".ckpt", ".bin", ".pt", ".pth", ".pth.tar")
SCRIPTED = ".jit"
READABLE = (".safetensors", *PICKLED, SCRIPTED)
SHARD_OF = re.compile(r"(.*-)(\d+)-of-(\d+)(\.\w+)")  # model-00001-of-00003.safetensors
MOST_SHARDS = 10_000
INDEX, MAX_INDEX = ".index.json", 2**26  # which names the shards of a checkpoint; bytes
HALVES = {f"encoder{SCRIPTED}", f"decoder{SCRIPTED}"}  # of a tokenizer; a third file beside them holds both again


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


def check_free(folder: Path) -> None:
    """Refuse to write a checkpoint into a folder that holds one: their files would be read as one."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; name a folder to write into")
    found = sorted(file.name for file in folder.glob("*") if file.name.endswith(READABLE))
    if found:
        raise FileExistsError(f"{folder} already holds checkpoint files: {some(found)}; name another folder")


def released(path: Path) -> list[Path]:
    """The folders of weights in a model's folder of MAGI-1's release: of one model, in one precision each."""
    return sorted(one for one in path.glob("inference_weight*") if one.is_dir())


def files(path: Path) -> list[Path]:
    """The files that make up a checkpoint: itself, or those of a folder that belong together."""
    if path.is_file():
        if not path.name.endswith(READABLE):
            raise ValueError(f"{path} is no checkpoint: its name must end in {', '.join(READABLE)}")
        return [path]
    packed = sorted(file.name for file in path.glob("*.safetensors.zst"))
    if packed:
        raise ValueError(f"{path} holds packed files: {some(packed)}; unpack them first: zstd -d --rm {path}/*.zst")
    indexed = _indexed(path)
    if indexed:
        return indexed
    for suffix in READABLE:
        found = sorted(file for file in path.glob(f"*{suffix}") if not file.name.startswith("."))
        halves = [file for file in found if file.name in HALVES]
        if len(found) == 1 or (found and suffix == ".safetensors"):
            _check_shards(found)
            return found
        if len(halves) == len(HALVES):
            return halves
        if found:
            raise ValueError(f"{path} holds {len(found)} {suffix} files; name the one to load")
    raise FileNotFoundError(f"{path} holds no checkpoint ({', '.join(READABLE)})")


def _check_shards(found: Sequence[Path]) -> None:
    """Refuse files that say they are parts of more than there are."""
    numbered = [match for path in found if (match := SHARD_OF.fullmatch(path.name))]
    there = {match[0] for match in numbered}
    for match in numbered:
        if int(match[3]) > MOST_SHARDS:
            raise ValueError(
                f"{found[0].parent / match[0]} says it is one of {int(match[3])} files; {MOST_SHARDS} are allowed"
            )
        names = [f"{match[1]}{n:0{len(match[2])}}-of-{match[3]}{match[4]}" for n in range(1, int(match[3]) + 1)]
        missing = [name for name in names if name not in there]
        if missing:
            raise FileNotFoundError(
                f"{found[0].parent} lacks {some(missing)}: {len(there)} of {int(match[3])} shards are there"
            )


def _indexed(path: Path) -> list[Path]:
    """The shards that a folder's index names, all of which must be there; none, if there is no index."""
    indices = sorted(path.glob(f"*.safetensors{INDEX}"))
    if len(indices) != 1:
        return []
    try:
        if indices[0].stat().st_size > MAX_INDEX:
            raise ValueError(f"it has more than {MAX_INDEX} bytes")
        named = sorted(
            {str(name) for name in json.loads(indices[0].read_text(encoding="utf-8"))["weight_map"].values()}
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{indices[0]} is no index of shards ({error!r}); remove it to read all files here") from error
    if any(Path(name).name != name or not name.endswith(".safetensors") for name in named):
        raise ValueError(f"{indices[0]} names files that are no shards beside it: {some(named)}")
    lacking = [name for name in named if not (path / name).is_file()]
    if lacking:
        raise FileNotFoundError(f"{path} lacks {len(lacking)} of {len(named)} shards: {some(lacking)}; fetch them too")
    return [path / name for name in named]
