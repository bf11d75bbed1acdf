"""A diffusion model on two processes, each with some rows of every frame, makes the video that it makes on one.

Run as a program it is one of these processes: it makes every video and leaves what came out in a folder.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diagonal.engine.ranks import Ranks, ranks_of, shares
from diagonal.generation.load import load
from diagonal.generation.request import Request
from diagonal.generation.video import VideoModel
from diagonal.scale.parallel import check_sequence_parallel
from diagonal.tokenizers.by_rows import DecoderByRows
from tests.processes import launch

CPU = torch.device("cpu")
PLAIN = Request(prompt="a red cat", num_frames=21, height=80, width=96, seed=3)  # 5 rows of tokens: one rank has 3
PICTURE = np.random.default_rng(0).integers(256, size=(80, 96, 3), dtype=np.uint8)
CASES = {
    "plain": PLAIN,
    "begun with a picture": replace(PLAIN, image=PICTURE, num_frames=13),
    "another prompt": replace(PLAIN, prompt_at={1: "a blue dog"}),
    "a batch in columns": replace(PLAIN, prompt=["one", "two"], height=16, num_frames=9),
    "a window that rolls": replace(PLAIN, preset="infinity", num_frames=57, height=32, width=48),
    "all at once": replace(PLAIN, preset="wan", num_frames=9, num_inference_steps=2),
    "preview": replace(PLAIN, decoder="preview", num_frames=9),
}
DOOM = replace(PLAIN, prompt="walking forward", num_frames=11, height=96, width=128)


def made(model: VideoModel, request: Request) -> dict[str, torch.Tensor]:
    clip = model.generate(request)
    return {"latents": clip.latents, "frames": torch.from_numpy(np.ascontiguousarray(clip.frames))}


def make(folder: Path) -> None:
    torch.set_num_threads(1)
    with ranks_of(CPU) as ranks:
        model = load("wan/tiny", "random").shared_by(ranks)
        found: dict[str, Any] = {name: made(model, request) for name, request in CASES.items()}
        found["doom"] = made(load("doom-t2v/tiny", "random").shared_by(ranks), DOOM)
        found["heads"] = torch.tensor(model.runner.cache_spec.kv_heads)
        torch.save(found, folder / f"{ranks.rank}.pt")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    launch("tests.equivalence.test_sequence_parallel", 2, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def same(both: list[dict[str, Any]], name: str, one: dict[str, torch.Tensor]) -> None:
    """The same bytes. Latents are alike to the last bit wherever a matrix product does not ask how many rows it has."""
    for rank in both:
        torch.testing.assert_close(rank[name]["latents"], one["latents"], atol=1e-6, rtol=0)
        assert torch.equal(rank[name]["frames"], one["frames"])


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_make_the_video_of_one(both: list[dict[str, Any]], name: str) -> None:
    same(both, name, made(load("wan/tiny", "random"), CASES[name]))


def test_two_ranks_make_the_video_of_doom(both: list[dict[str, Any]]) -> None:
    same(both, "doom", made(load("doom-t2v/tiny", "random"), DOOM))


def test_a_rank_has_some_heads_of_the_cache(both: list[dict[str, Any]]) -> None:
    assert [int(rank["heads"]) for rank in both] == [2, 2]


def test_rows_are_shared_as_evenly_as_can_be() -> None:
    assert shares(30, 8) == (4, 4, 4, 4, 4, 4, 3, 3)
    assert shares(4, 2) == (2, 2)


def test_a_group_of_one_has_the_model_itself() -> None:
    model = load("wan/tiny", "random")
    assert model.shared_by(Ranks(0, 1, CPU)) is model


def test_what_ranks_cannot_share_is_refused() -> None:
    model = load("wan/tiny", "random")
    with pytest.raises(ValueError, match=r"4 heads, which 3 GPUs cannot share evenly.* 2 or 4 of them"):
        model.shared_by(Ranks(0, 3, CPU))
    with pytest.raises(ValueError, match="magi/tiny denoises chunks together, which are not divided among GPUs"):
        check_sequence_parallel("magi/tiny", 2)
    small = model.shared_by(Ranks(0, 4, CPU))
    with pytest.raises(ValueError, match="3x3 tokens of a frame cannot be shared by 4 GPUs"):
        small.generate(replace(PLAIN, height=48, width=48, num_frames=9))
    with pytest.raises(ValueError, match="3 rows of latents cannot be decoded by 4 GPUs"):
        DecoderByRows(load("wan/tiny", "random").vae, Ranks(0, 4, CPU)).decode(torch.zeros(1, 1, 16, 3, 4), {})
    with pytest.raises(ValueError, match="shared by 4 processes"):
        small.save_pretrained("nowhere")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
