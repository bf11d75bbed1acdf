"""How the C++ library for a CPU is compiled, kept and left out."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diagonal.engine.kernels import select
from diagonal.engine.kernels.cpu import build, library
from diagonal.engine.linear import FusedLinear


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder, and a process that has not loaded the library."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "library", library.library.__wrapped__)
    return build.cache_folder()


def _linear() -> str:
    with torch.no_grad(), select.recorded() as chosen:
        found = select.linear(torch.ones(1, 2, 4), FusedLinear(torch.ones(3, 4), residual=torch.zeros(1, 2, 3)))
    assert (found == 4).all()
    return "; ".join(chosen.values())


def _small(monkeypatch: pytest.MonkeyPatch, folder: Path, source: str) -> None:
    path = folder / "small.cpp"
    path.write_text(source)
    monkeypatch.setattr(build, "SOURCES", (path,))
    monkeypatch.setattr(build, "HEADERS", ())


def test_the_switch_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGONAL_KERNELS", "0")
    assert _linear() == select.TORCH


def test_without_a_compiler_pytorch_runs(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match="there is no C\\+\\+ compiler; install"):
        assert _linear() == select.TORCH


@pytest.mark.skipif(build.find_compiler() is None, reason="needs a C++ compiler")
def test_what_does_not_compile_is_left_out(monkeypatch: pytest.MonkeyPatch, fresh: Path, tmp_path: Path) -> None:
    _small(monkeypatch, tmp_path, "nonsense")
    with pytest.warns(UserWarning, match=r"(?s)does not compile the library:.*nonsense"):
        assert _linear() == select.TORCH


def test_a_folder_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh: Path) -> None:
    (tmp_path / "diagonal").write_text("in the way")
    monkeypatch.setattr(build, "find_compiler", lambda: sys.executable)
    with pytest.warns(UserWarning, match="the library cannot be made in"):
        assert _linear() == select.TORCH


@pytest.mark.skipif(build.find_compiler() is None, reason="needs a C++ compiler")
def test_a_library_is_compiled_once_and_again_when_broken(
    monkeypatch: pytest.MonkeyPatch, fresh: Path, tmp_path: Path
) -> None:
    compiler = build.find_compiler()
    assert compiler is not None
    _small(monkeypatch, tmp_path, 'extern "C" int one() { return 1; }')
    made = build.library_file(compiler, fresh)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
    content, written = made.read_bytes(), made.stat().st_mtime_ns
    assert build.library_file(compiler, fresh) == made and made.stat().st_mtime_ns == written
    for broken in (content[: len(content) // 2], content[:-1], b"", content.replace(b"\x7fELF", b"\x7fELG")):
        made.write_bytes(broken)
        assert build.library_file(compiler, fresh).read_bytes()[: build.DIGEST] == content[: build.DIGEST]
        assert made.read_bytes() != broken
    made.unlink()
    foreign = tmp_path / "foreign"
    foreign.write_bytes(content)
    made.symlink_to(foreign)
    assert not build.library_file(compiler, fresh).is_symlink()
    assert list(fresh.iterdir()) == [made]
    _small(monkeypatch, tmp_path, 'extern "C" int one() { return 2; }')
    assert build.library_file(compiler, fresh) != made


def test_a_folder_open_to_others_is_closed(fresh: Path) -> None:
    fresh.mkdir(parents=True)
    fresh.chmod(0o777)
    build._check_private(fresh)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700


@pytest.mark.skipif(not library.available(), reason="needs a C++ compiler")
def test_a_forked_process_has_threads_of_its_own() -> None:
    code = """
import os, torch
from diagonal.engine.kernels import select
from diagonal.engine.linear import FusedLinear
torch.set_num_threads(2)
layer, x = FusedLinear(torch.ones(640, 384), residual=torch.zeros(1, 9, 640)), torch.ones(1, 9, 384)
with torch.no_grad():
    select.linear(x, layer)
    child = os.fork()
    for _ in range(20):
        assert (select.linear(x, layer) == 384).all()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
