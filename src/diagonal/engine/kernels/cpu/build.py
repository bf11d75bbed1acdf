"""The C++ library, compiled once for a machine and kept in the user's cache folder.

A file there is named by what it was made of: sources, compiler, flags, processor. It ends with its own digest and is
renamed into place when it is whole, so a broken one is made anew. The folder belongs to the user alone: nobody else can
put a file into it that would be loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = tuple(HERE / f"{name}.cpp" for name in ("pool", "linear", "heads", "attention", "sampling", "steps"))
HEADERS = tuple(HERE / name for name in ("vectors.h", "pool.h", "linear.h"))
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-shared", "-fPIC", "-pthread", "-w")
DIGEST = hashlib.sha256().digest_size
SECONDS = 300  # a compiler that takes longer is given up


def find_compiler() -> str | None:
    """The first C++ compiler in the path, or the one that CXX names."""
    wanted = os.environ.get("CXX")
    return next((found for name in ([wanted] if wanted else COMPILERS) if (found := shutil.which(name))), None)


def cache_folder() -> Path:
    """Where the library is kept: diagonal's folder in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "diagonal" / "kernels"


def library_file(compiler: str, folder: Path) -> Path:
    """The compiled library, made if it is not there; RuntimeError where it cannot be made or kept."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder)
        target = folder / f"{_key(compiler)}.so"
        if not _is_whole(target):
            _compile(compiler, target)
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeError(f"the library cannot be made in {folder}: {error}") from error
    return target


def _flags() -> tuple[str, ...]:
    """With all that this processor can do."""
    arm = platform.machine().lower() in ("arm64", "aarch64")
    return (*FLAGS, "-mcpu=native" if arm else "-march=native")


def _key(compiler: str) -> str:
    """A name for what the library is made of, and for whom."""
    path = Path(compiler).resolve()
    made = path.stat()
    parts = [str(path), str(made.st_mtime_ns), str(made.st_size), *_flags(), _processor()]
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in (*SOURCES, *HEADERS):
        digest.update(b"\0" + source.read_bytes())
    return digest.hexdigest()[:24]


def _processor() -> str:
    """What tells processors apart that cannot run each other's code."""
    named = ("model name", "cpu family", "model", "flags", "Features", "CPU part", "CPU implementer")
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(line for line in lines if line.split(":")[0].strip() in named)


def _check_private(folder: Path) -> None:
    """Others must not be able to write into the folder."""
    found = folder.stat()
    foreign = found.st_uid != os.getuid()
    if not foreign and stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    if foreign:
        raise RuntimeError(f"{folder} belongs to somebody else; set XDG_CACHE_HOME to a folder of your own")


def _is_whole(target: Path) -> bool:
    """Whether the file is there, the user's own, and as it was written."""
    try:
        found = target.lstat()
        content = target.read_bytes()
    except OSError:
        return False
    own = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
    return own and content[-DIGEST:] == hashlib.sha256(content[:-DIGEST]).digest()


def _compile(compiler: str, target: Path) -> None:
    """Compile beside the target and rename: two processes may do so at once."""
    with tempfile.TemporaryDirectory(dir=target.parent) as room:
        made = Path(room) / target.name
        command = [compiler, *_flags(), *map(str, SOURCES), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode:
            raise RuntimeError(f"{compiler} does not compile the library:\n{done.stderr[-2000:]}")
        with made.open("ab") as file:
            file.write(hashlib.sha256(made.read_bytes()).digest())
        made.replace(target)
