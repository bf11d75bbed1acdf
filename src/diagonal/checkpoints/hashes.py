"""SHA-256 of checkpoint files, to say which weights made something. Those of large files are kept from run to run."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from diagonal.checkpoints.sources import files, locate, released
from diagonal.media.files import atomic

LARGE = 64 * 2**20  # bytes: a smaller file is read again, which takes less than a tenth of a second


def hashes(*sources: str | Path) -> dict[str, str]:
    """SHA-256 of all files of these checkpoints, by their names; as the tool `sha256sum` prints it."""
    found: dict[str, str] = {}
    for source in sources:
        place = locate(source)
        inner = [folder for folder in ("transformer", "vae") if (place / folder).is_dir()]  # of a diffusers pipeline
        inner += [folder.name for folder in released(place)]
        for folder in inner or [""]:
            for path in files(place / folder if folder else place):
                found[f"{folder}/{path.name}" if folder else path.name] = _of(path)
    return found


def _of(path: Path) -> str:
    path = path.resolve()
    about = path.stat()
    if about.st_size < LARGE:
        return _computed(path)
    store = _store()
    known = _read(store)
    key = f"{path}|{about.st_size}|{about.st_mtime_ns}"
    if key not in known:
        # Another process may have added to it meanwhile.
        known = _read(store) | {key: _computed(path)}
        store.parent.mkdir(parents=True, exist_ok=True)
        with atomic(store) as temporary:
            temporary.write_text(json.dumps(known), encoding="utf-8")
    return known[key]


def _computed(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _store() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "diagonal" / "sha256.json"


def _read(store: Path) -> dict[str, str]:
    """What is kept; nothing, if it is not there or damaged: it is computed again."""
    try:
        known = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in known.items()} if isinstance(known, dict) else {}
