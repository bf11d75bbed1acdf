"""Which kernels launch early (programmatic dependent launch)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from diagonal.engine.kernels.triton import pdl


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    pdl.options.cache_clear()
    yield
    pdl.options.cache_clear()


@pytest.mark.parametrize(
    ("cuda", "major", "wait", "able"),
    [("13.0", 9, True, True), ("13.0", 8, True, False), (None, 9, True, False), ("13.0", 9, False, False)],
)
def test_only_where_the_gpu_and_triton_can(
    cuda: str | None, major: int, wait: bool, able: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    monkeypatch.setattr(pdl, "wait", object() if wait else None)
    asked = pdl.options(torch.device("cuda", 0))
    assert asked == ({"PDL": True, "launch_pdl": True} if able else {"PDL": False})


def test_not_on_a_cpu() -> None:
    assert pdl.options(torch.device("cpu")) == {"PDL": False}
