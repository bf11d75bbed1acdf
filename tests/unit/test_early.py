"""Which kernels begin early."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from diagonal.engine.kernels import early


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    early.early.cache_clear()
    yield
    early.early.cache_clear()


@pytest.mark.parametrize(
    ("cuda", "major", "wait", "able"),
    [("13.0", 9, True, True), ("13.0", 8, True, False), (None, 9, True, False), ("13.0", 9, False, False)],
)
def test_only_where_the_gpu_and_triton_can(
    cuda: str | None, major: int, wait: bool, able: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    monkeypatch.setattr(early, "wait", object() if wait else None)
    asked = early.early(torch.device("cuda", 0))
    assert asked == ({"EARLY": True, "launch_pdl": True} if able else {"EARLY": False})


def test_not_on_a_cpu() -> None:
    assert early.early(torch.device("cpu")) == {"EARLY": False}
