"""Graph replay, eager steps on the GPU and float32 on the CPU decode the same tokens, greedily; and videos too."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from diagonal import Grid, Layout, Sampling, load, make_plan
from diagonal.engine.kernels.device import SWITCH
from diagonal.engine.sampler import Sampler
from diagonal.engine.tokens.cache import KVCache
from diagonal.engine.tokens.decode import decode
from diagonal.engine.tokens.graphs import Graphs
from diagonal.engine.tokens.runner import Eager, make_runner
from tests.gpu import logits_errors
from tests.tiny import GREEDY, TINY, build, random_prompt, tiny_config

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CUDA = torch.device("cuda")


def _sampler(config: Any, plan: Any, device: torch.device) -> Sampler:
    seeds = torch.tensor([1], device=device)
    return Sampler(GREEDY, torch.tensor(config.valid_ids(), device=device), plan.layout.prefix, seeds)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("spec", ["raster", "diagonal:k=1", "diagonal:k=2,d=3", "window:s=2"])
def test_three_paths_decode_the_same_tokens(name: str, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(name)
    model = build(config)
    plan = make_plan(Layout(Grid(4, config.rows, config.cols), len(config.prefix_ids), config.suffix), spec, 1)
    results = []
    torch.backends.cuda.matmul.allow_tf32 = False
    for device, kernels in ((torch.device("cpu"), "0"), (CUDA, "0"), (CUDA, "1")):
        monkeypatch.setenv(SWITCH, kernels)
        moved = copy.deepcopy(model).to(device)
        cache = KVCache(moved.cache_spec, 1, plan.layout.length, device, torch.float32)
        runner = make_runner(moved, cache, _sampler(config, plan, device))
        assert isinstance(runner, Graphs if kernels == "1" else Eager)
        for _ in range(2):  # the second time every graph is replayed
            tokens = random_prompt(config, plan).to(device)
            frames = [frame.tokens.cpu() for frame in decode(runner, plan, tokens)]
        results.append(torch.stack(frames))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("name", ["mcar/300m", "wham/200m"])
@pytest.mark.parametrize(("inputs", "slack"), [(1, 1.15), (14, 1.15), (600, 1.1)])
def test_logits_at_true_size_agree_within_bfloat16(
    name: str, inputs: int, slack: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diagonal.catalog.names import find

    config = find("models", name).config
    with torch.device(CUDA):
        torch.manual_seed(0)
        model = config.build().eval()
    without, found = logits_errors(model, inputs, monkeypatch)
    assert found < 0.03 and found < slack * without


def test_a_stream_gives_the_same_video_whenever_it_is_asked() -> None:
    """Pixels come from another stream of the GPU; graphs are captured once and used again, with other seeds too."""
    world = load("cosmos/tiny", "random", device=CUDA, dtype=torch.float32)
    prompt = torch.randint(64, (2, 4, 6), generator=torch.Generator().manual_seed(0))
    # Convolutions of float32 round to TF32 here, each shape in its own way, and the pixels of random weights span all.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        made = [world.generate(prompt, frames=16, sampling=Sampling(top_p=0.8), seed=seed) for seed in (1, 2, 1)]
        pixels = world.tokenizer.decode(torch.cat([prompt, made[0].tokens])[None].to(CUDA), {})
    assert np.array_equal(made[0].frames, made[2].frames) and torch.equal(made[0].tokens, made[2].tokens)
    assert not torch.equal(made[0].tokens, made[1].tokens)
    whole = pixels[0, 9:].permute(0, 2, 3, 1).cpu().numpy()
    assert whole.shape == made[0].frames.shape
    assert np.abs(whole.astype(int) - made[0].frames.astype(int)).max() <= 1
