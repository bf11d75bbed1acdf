"""Networks of metrics at their true size against recordings of their references, with weights made by a rule and sent
through our own loading in the published layout."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagonal.evaluation.consistency import consistency, frame_weighted
from diagonal.evaluation.metrics import (
    Setting,
    UnfitError,
    Video,
    background_consistency,
    dynamic_degree,
    fvd,
    imaging_quality,
    motion_smoothness,
    subject_consistency,
    temporal_flickering,
)
from diagonal.networks import amt, clip, i3d, musiq, raft
from diagonal.networks.correlation import correlation_levels, look_up, padded, places
from diagonal.networks.dino import Dino
from diagonal.networks.opening import filled
from tests import made_weights
from tests.conftest import golden, golden_json


def recorded(name: str) -> tuple[dict[str, Tensor], Any]:
    return golden(f"metrics/{name}.safetensors"), golden_json(f"metrics/{name}.json")


def frames(facts: Any, case: str) -> Tensor:
    """The video of a case, from its description."""
    text = re.search(r"clip\('([^']+)', (\d+), (\d+), (\d+)(.*?)\)", facts["inputs"][case])
    assert text is not None
    options = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", text[5])}
    return made_weights.clip(text[1], int(text[2]), int(text[3]), int(text[4]), **options)


def network(
    build: Callable[[], nn.Module],
    facts: Any,
    kind: str = "",
    name_of: Callable[[str], str] = lambda key: key,
) -> Any:
    manifest, wanted = facts["manifest" + kind], facts["weights"]["check" + kind]
    state = made_weights.weights(manifest, facts["weights"]["rules"], name_of)
    assert made_weights.crc32(state) == wanted["all_float_tensors_crc32"]
    return filled(build, state, "made")


def close(found: Tensor, expected: Tensor, within: float) -> None:
    torch.testing.assert_close(found.float(), expected.float(), atol=within, rtol=0)


# I3D


@pytest.mark.parametrize("case", ["a", "b"])
def test_i3d(case: str):
    found, facts = recorded("i3d")
    video = frames(facts, case)
    state = made_weights.weights(facts["manifest"], facts["weights"]["rules"])
    assert made_weights.crc32(state) == facts["weights"]["check"]["all_float_tensors_crc32"]
    counters = {key: value for key, value in state.items() if key.endswith("num_batches_tracked")}
    assert len(counters) == 57
    # The published file lacks the counters; the archive has other names, and the original's epsilon.
    published = {key: value for key, value in state.items() if key not in counters}
    archive = {facts["other_layout"]["keys"][key]: value for key, value in state.items()}
    for layout, suffix in ((published, ""), (archive, "_eps1e-3")):
        model = filled(partial(i3d.I3D, i3d.epsilon_of(layout)), layout, "made")
        for variant, name in (("videogpt", "crop"), ("cd-fvd", "stretch"), ("common-metrics", "crop01")):
            with torch.inference_mode():
                made = model(fvd.shown(video, variant).transpose(0, 1)[None])[0]
            close(made, found[f"{case}.logits_{name}{suffix}"], facts["tolerance"]["logits"])


# RAFT


@pytest.fixture(scope="module")
def flow_network():
    _, facts = recorded("raft")
    return network(raft.Raft, facts, name_of=lambda key: key.removeprefix("module.").replace("downsample.1.", "norm3."))


def test_raft_finds_the_recorded_flow(flow_network: raft.Raft):
    found, facts = recorded("raft")
    for case in "ab":
        first, second = (padded(frame[None].float(), 8) for frame in frames(facts, case)[:2])
        with torch.inference_mode():
            low, mask = flow_network.refine(first, second, raft.ITERATIONS)
            once, _ = flow_network.refine(first, second, 1)
        close(low[0], found[f"{case}.flow_low"], 2e-3)
        close(raft.enlarge(low, mask)[0, :, ::8, ::8], found[f"{case}.flow_up"], 2e-2)
        if case == "a":
            close(once[0], found["a.flow_low_1_iteration"], 1e-3)


def test_the_window_of_similarities_runs_as_in_the_reference(flow_network: raft.Raft):
    found, facts = recorded("raft")
    pair = torch.cat([2 * frame[None].float() / 255 - 1 for frame in frames(facts, "a")])
    with torch.inference_mode():
        levels = correlation_levels(*flow_network.fnet(pair).chunk(2))
        seen = look_up(levels, places(levels[0].new_zeros(1, 1, 16, 20)), raft.RADIUS)
    close(seen[0, :, ::5, ::5], found["a.corr_iter0"], 1e-3)


def test_dynamic_degree(flow_network: raft.Raft):
    found, facts = recorded("raft")
    for case in "ab":
        video = frames(facts, case)
        scores = [dynamic_degree.speed(flow_network, one, two) for one, two in itertools.pairwise(video)]
        assert scores == pytest.approx(found[f"{case}.pair_scores"].tolist(), rel=1e-4)
        assert dynamic_degree.moves(scores, min(video.shape[-2:])) == found[f"{case}.moves"].item()


def test_the_rule_of_dynamic_degree():
    _, facts = recorded("raft")
    for rule in facts["dynamic_degree_rule"]:
        assert dynamic_degree.moves(rule["pair_scores"], min(rule["height"], rule["width"])) == rule["moves"]


def test_the_rule_of_the_static_filter():
    _, facts = recorded("raft")
    for rule in facts["static_filter_rule"]:
        scores = [float(score) for score in rule["pair_scores"]]
        assert temporal_flickering.static(scores, min(rule["height"], rule["width"])) == rule["static"]


def test_only_still_videos_flicker(flow_network: raft.Raft, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(temporal_flickering, "opened", lambda *_: flow_network)
    files = {dynamic_degree.WEIGHTS.name: Path("raft-things.pth")}
    metric = temporal_flickering.TemporalFlickering(Setting("static", files=files))
    moving = Video(made_weights.clip("moving", 3, 128, 128))
    assert metric.look(moving, None).shape == (0,)
    with pytest.raises(UnfitError, match="needs videos that stand still"):
        metric.total([metric.look(moving, None)], [])
    monkeypatch.setattr(temporal_flickering, "static", lambda *_: True)
    still = metric.look(moving, None)
    assert still.shape == (2,) and metric.total([still, still[:0]], []).mean == pytest.approx(still.mean())
    with pytest.raises(UnfitError, match="RAFT needs sides of at least 121 pixels; the video has 64"):
        metric.look(Video(made_weights.clip("small", 3, 64, 128)), None)


# MUSIQ


def test_musiq():
    found, facts = recorded("musiq")
    model = network(musiq.Musiq, facts)
    variants = {"a": "longer", "b": "longer", "d": "shorter", "e": "shorter-centercrop", "f": "none"}
    for case, variant in variants.items():
        shown = imaging_quality.shown(frames(facts, case), variant)
        assert list(shown.shape) == found[f"{case}.network_input_shape"].tolist()
        close(shown[0, :, ::17, ::23], found[f"{case}.network_input_sample"], 1e-6)
        _, place, _ = musiq.tokens(shown)
        kept = found[f"{case}.mask"].bool()
        assert torch.equal(place, found[f"{case}.position_index"][kept])
        with torch.inference_mode():
            encoded = model.encode(shown)
        close(encoded[0], found[f"{case}.cls_encoded"], facts["tolerance"]["cls_encoded"])
        scores = model.head(encoded)[:, 0]
        assert scores.tolist() == pytest.approx(found[f"{case}.scores"].tolist(), abs=facts["tolerance"]["scores"])


# DINO


def test_dino():
    found, facts = recorded("dino")
    model = network(Dino, facts)
    seen = []
    for case in "abd":
        shown = subject_consistency.shown(frames(facts, case))
        close(shown[0, :, ::19, ::19], found[f"{case}.input_sample"], 1e-5)
        with torch.inference_mode():
            features = model(shown)
        close(features, found[f"{case}.cls"], facts["tolerance"]["cls"])
        seen.append(consistency(features))
        assert seen[-1].mean() == pytest.approx(found[f"{case}.subject_consistency"].item(), abs=1e-5)
    assert frame_weighted(seen).mean == pytest.approx(found["all.subject_consistency_one_process"].item(), abs=1e-5)
    several = sum(float(one.mean()) for one in seen) / len(seen)
    assert several == pytest.approx(found["all.subject_consistency_several_processes"].item(), abs=1e-5)


# AMT


def test_amt():
    found, facts = recorded("amt")
    model = network(amt.Amt, facts)
    for case, every in (("a", 4), ("b", 3)):
        video = frames(facts, case)
        height, width = video.shape[-2:]
        top, left = (-height % 16) // 2, (-width % 16) // 2
        with torch.inference_mode():
            made = model(*(padded(video[[number]].float() / 255, 16) for number in (0, 2)))
        made = made[0, :, top : top + height, left : left + width]
        expected = found["a.middle"] if case == "a" else found["b.middle_sample"]
        close(made[:, ::every, ::every], expected, facts["tolerance"]["middle"])
        triples = zip(video[:-2:2], video[1:-1:2], video[2::2], strict=True)
        scores = [
            1 - (motion_smoothness.middle(model, one, two).float() - between).abs().mean() / 255
            for one, between, two in triples
        ]
        score = float(torch.stack(scores).mean())
        assert score == pytest.approx(found[f"{case}.motion_smoothness"].item(), abs=1e-4)


# CLIP


@pytest.mark.parametrize(("config", "kind", "cases"), [(clip.B32, "b32", "ab"), (clip.L14, "l14", "a")])
def test_clip(config: clip.Config, kind: str, cases: str):
    found, facts = recorded("clip")
    model = network(config.build, facts, f"_{kind}")
    for case in cases:
        name = f"{kind}.{case}"
        shown = background_consistency.shown(frames(facts, name))
        close(shown[0, :, ::19, ::19], found[f"{name}.input_sample"], 1e-5)
        with torch.inference_mode():
            features = model(shown)
        close(features, found[f"{name}.features"], facts["tolerance"]["features"])
        if kind == "b32":
            assert consistency(features).mean() == pytest.approx(
                found[f"{name}.background_consistency"].item(), abs=1e-5
            )
            continue
        state = made_weights.weights({"weight": [1, 768], "bias": [1]}, facts["weights"]["head_rules"])
        scores = filled(clip.AestheticHead, state, "made")(nn.functional.normalize(features, dim=-1))[:, 0]
        close(scores, found[f"{name}.head_scores"], 1e-4)
        assert scores.mean().item() / 10 == pytest.approx(found[f"{name}.aesthetic_quality"].item(), abs=1e-5)
