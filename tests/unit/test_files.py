"""Atomic writing: the file appears whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from diagonal.media.files import atomic


def test_the_file_appears_only_when_the_body_is_done(tmp_path):
    path = tmp_path / "out.bin"
    with atomic(path) as temporary:
        temporary.write_bytes(b"whole")
        assert not path.exists()
        assert temporary.parent == tmp_path
    assert path.read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["out.bin"]


def test_the_temporary_name_keeps_the_suffix(tmp_path):
    with atomic(tmp_path / "clip.v2.mp4") as temporary:
        assert temporary.suffix == ".mp4"
        assert temporary.name != "clip.v2.mp4"


def test_a_failed_body_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="halfway"), atomic(tmp_path / "out.bin") as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError("halfway")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("reason", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_body_leaves_nothing(tmp_path, reason):
    with pytest.raises(reason), atomic(tmp_path / "out.bin") as temporary:
        temporary.write_bytes(b"half")
        raise reason
    assert os.listdir(tmp_path) == []


def test_a_failed_body_leaves_the_older_file_as_it_was(tmp_path):
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="disk"), atomic(path) as temporary:
        temporary.write_bytes(b"new")
        raise OSError("disk")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.bin"]


def test_an_older_file_is_replaced(tmp_path):
    path = tmp_path / "out.bin"
    path.write_bytes(b"old and longer")
    with atomic(path) as temporary:
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"new"


def test_a_body_that_removes_its_file_fails_without_a_trace(tmp_path):
    with pytest.raises(FileNotFoundError), atomic(tmp_path / "out.bin") as temporary:
        temporary.unlink()
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_named_before_the_body_runs(tmp_path):
    path = tmp_path / "nowhere" / "out.bin"
    with pytest.raises(FileNotFoundError, match=r"cannot write .*out\.bin: the folder .*nowhere does not exist"):
        atomic(path).__enter__()
    assert os.listdir(tmp_path) == []


def test_a_folder_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        atomic(tmp_path / "out").__enter__()
    assert os.listdir(tmp_path) == ["out"]


def test_a_parent_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write"):
        atomic(tmp_path / "file" / "out.bin").__enter__()


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_the_file_has_the_permissions_of_an_ordinary_one(tmp_path, mask):
    before = os.umask(mask)
    try:
        with atomic(tmp_path / "out.bin") as temporary:
            temporary.write_bytes(b"")
        (tmp_path / "plain.bin").write_bytes(b"")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("out.bin", "plain.bin")}
    assert modes == {0o666 & ~mask}


def test_a_name_relative_to_the_working_folder_is_enough(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with atomic("out.bin") as temporary:
        temporary.write_bytes(b"here")
    assert (tmp_path / "out.bin").read_bytes() == b"here"


def test_two_writers_of_one_file_do_not_share_a_temporary(tmp_path):
    with atomic(tmp_path / "out.bin") as first, atomic(tmp_path / "out.bin") as second:
        assert first != second
        first.write_bytes(b"first")
        second.write_bytes(b"second")
    assert (tmp_path / "out.bin").read_bytes() == b"first"  # the outer one ends last
