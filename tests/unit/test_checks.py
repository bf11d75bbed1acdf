"""What is refused without a model is what the model itself would refuse, in the same words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import diagonal
from diagonal import Request, VideoModel, Weights, World
from diagonal.catalog.names import find
from diagonal.catalog.variants import diffusion_variant, token_variant
from diagonal.generation import checks
from diagonal.generation.checks import Unloaded
from diagonal.planning.plan import Order


def unloaded(name: str) -> Unloaded:
    return Unloaded.of(name, token_variant(find("models", name), name))


@pytest.fixture(scope="module")
def cosmos() -> World:
    return diagonal.load("cosmos/tiny")


@pytest.fixture(scope="module")
def wan() -> VideoModel:
    found = diagonal.load("wan/tiny")
    assert isinstance(found, VideoModel)
    return found


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as error:  # the message is what the test is about
        call()
    return str(error.value)


def test_a_world_that_is_not_loaded_has_the_sizes_of_the_loaded_one(cosmos: World) -> None:
    known = unloaded("cosmos/tiny")
    assert checks.frame_size(known) == checks.frame_size(cosmos) == cosmos.size
    assert known.at(32, 48).variant.config == cosmos.at(32, 48).variant.config
    assert next(known.tokenizer.parameters()).is_meta


@pytest.mark.parametrize("size", [(30, 48), (32, 0), (-32, 48)])
def test_sizes_are_refused_in_the_words_of_the_world(cosmos: World, size: tuple[int, int]) -> None:
    assert refusal(lambda: unloaded("cosmos/tiny").at(*size)) == refusal(lambda: cosmos.at(*size))


def test_learned_positions_are_known_without_them() -> None:
    assert "learned positions of its own frames, (90, 150)" in refusal(lambda: unloaded("wham/tiny").at(90, 160))
    assert unloaded("wham/tiny").at(90, 150).variant == unloaded("wham/tiny").variant


@pytest.mark.parametrize("shape", [(0, 64, 96, 3), (1, 64, 90, 3), (10, 64, 96, 3), (1, 64, 96, 4)])
def test_prompts_that_the_world_refuses_are_refused(cosmos: World, shape: tuple[int, ...]) -> None:
    prompt = np.zeros(shape, np.uint8)
    assert refusal(lambda: checks.check_prompt(unloaded("cosmos/tiny"), prompt))
    assert refusal(lambda: cosmos.stream(prompt))
    checks.check_prompt(unloaded("cosmos/tiny"), np.zeros((9, 64, 96, 3), np.uint8))
    checks.check_prompt(unloaded("cosmos/tiny"), np.zeros((64, 96, 3), np.uint8))


def test_frames_are_counted_as_the_model_does() -> None:
    world = unloaded("cosmos/tiny")
    assert checks.token_frames(world, 24) == 3
    assert "20 new frames asked for; cosmos/tiny makes 8 at a time: write 24" in refusal(
        lambda: checks.token_frames(world, 20)
    )


def test_a_plan_that_was_checked_is_the_one_that_is_run(cosmos: World, monkeypatch: pytest.MonkeyPatch) -> None:
    checks.check_order(unloaded("cosmos/tiny"), 2, 3, Order.of("diagonal:k=3,d=2"))
    from diagonal.engine.tokens import decode

    monkeypatch.setattr(decode, "make_plan", None)  # it would have to be called again
    stream = cosmos.stream(np.zeros((9, 64, 96, 3), np.uint8), frames=24, schedule="diagonal:k=3,d=2")
    assert stream.frames == 24


@pytest.mark.parametrize(
    "wrong",
    [
        {"height": 40},
        {"num_frames": 10},
        {"prompt_at": {3: "a dog"}},
        {"image": np.zeros((16, 16, 3), np.uint8)},
        {"video": np.zeros((6, 32, 48, 3), np.uint8)},
        {"prompt": None, "prompt_embeds": torch.zeros(3, 5)},
    ],
)
def test_requests_are_refused_as_the_model_does(wan: VideoModel, wrong: dict[str, object]) -> None:
    given: dict[str, object] = {"prompt": "a cat", "num_frames": 9, "height": 32, "width": 48}
    request = Request(**(given | wrong))  # type: ignore[arg-type]
    ours, theirs = (
        refusal(lambda: checks.check_request("wan/tiny", wan.variant, request)),
        refusal(lambda: wan.stream(request)),
    )
    assert ours[:40] == theirs[:40]


def test_decoders_that_are_not_there_are_known() -> None:
    wan, doom = (diffusion_variant(find("models", name), name) for name in ("wan/1.3b", "doom-t2v"))
    checks.check_decoder("wan/1.3b", wan, Weights("x"), "vae")
    checks.check_decoder("wan/1.3b", wan, Weights("x", vae="none"), "none")
    checks.check_decoder("wan/1.3b", wan, Weights("random"), "preview")
    assert "TAEHV" in refusal(lambda: checks.check_decoder("wan/1.3b", wan, Weights("x"), "preview"))
    assert "decodes to frames" in refusal(
        lambda: checks.check_decoder("wan/1.3b", wan, Weights("x", vae="none"), "vae")
    )
    assert "has no preview" in refusal(lambda: checks.check_decoder("doom-t2v", doom, Weights(None), "preview"))
    assert "Wan-AI/Wan2.1-T2V-1.3B" in checks.without_decoder("wan/1.3b", wan, "vae")
    tiny = diffusion_variant(find("models", "wan/tiny"), "wan/tiny")
    assert "none: random" not in checks.without_decoder("wan/tiny", tiny, "vae")
