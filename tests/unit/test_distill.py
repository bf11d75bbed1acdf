"""Training a teacher, starting a student and distilling it, on videos of moving blobs."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diagonal.engine.attention import Full
from diagonal.engine.chunks.bidirectional import velocity
from diagonal.planning.presets import PRESETS
from diagonal.training.batch import BatchShard
from diagonal.training.data import latents
from diagonal.training.data.latents import EmbeddedPrompts, Solving, Trajectories, record
from diagonal.training.latents import diffusion, distill, losses
from diagonal.training.latents.diffusion import preset_sigmas
from diagonal.training.latents.distill import DistillTask
from diagonal.training.latents.losses import LossWeights
from diagonal.training.latents.methods import METHODS, Distillation, find
from diagonal.training.latents.pretraining import OdeTask, TeacherTask
from diagonal.training.loop import RunConfig, fit
from tests.small_diffusion import CPU, FRAMES, NEGATIVE, PROMPTS_ONLY, SIZE, TOKENS, blobs, method, student, texts


def short(steps: int, **changes: Any) -> RunConfig:
    settings: dict[str, Any] = {"warmup": 0, "decay_from": 1.0, "clip": 10.0, "log_every": 1, "save_every": 4}
    return RunConfig(steps=steps, **(settings | changes))


def flat(module: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory: pytest.TempPathFactory) -> Trajectories:
    folder = tmp_path_factory.mktemp("trajectories")
    small = method()
    solving = Solving((FRAMES, 2, *SIZE), preset_sigmas((small.preset,), FRAMES), steps=4, shift=5.0, batch=3)
    assert list(record(student(5), EmbeddedPrompts(texts(7)), NEGATIVE, solving, folder)) == [3, 6, 7]
    return Trajectories(folder, CPU)


def task(how: Distillation, source: Any = None, **changes: Any) -> DistillTask:
    settings: dict[str, Any] = {"size": SIZE, "batch": 2, "seed": 3} | changes
    return DistillTask(
        student(1), student(2), student(2), source or EmbeddedPrompts(texts(5)), NEGATIVE, how, **settings
    )


def gradients(one: DistillTask, step: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """The gradient of a step's loss for the generator, and its terms."""
    loss, terms = one.loss(step)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in one.generator.parameters() if p.grad is not None]), terms


# The teacher


def test_a_teacher_learns_clips_and_their_prompts(tmp_path: Path) -> None:
    train, held_out = blobs(64), blobs(16, seed=1)
    learner = TeacherTask(student(), train, held_out, NEGATIVE, batch=8, seed=0, lr=4e-3)
    before = learner.evaluate()["val_loss"]
    lines = list(fit(learner, short(200, log_every=200), tmp_path))
    assert lines[-1]["val_loss"] < 0.6 * before
    # It has understood the prompt if another one fits worse.
    clip = held_out.take(range(16))
    assert clip.video_BFCHW is not None
    noise, level = (
        torch.randn(clip.video_BFCHW.shape, generator=torch.Generator().manual_seed(0)),
        torch.tensor([[700.0]]),
    )
    errors = []
    for text in (clip.text_BLC, -clip.text_BLC):
        with torch.no_grad():
            x = 0.3 * clip.video_BFCHW + 0.7 * noise
            found = velocity(learner.module, x, level, learner.module.embed_text(text), Full())
        errors.append(losses.flow_matching(found, noise, clip.video_BFCHW))
    assert errors[0] < 0.9 * errors[1]


def test_prompts_are_dropped_as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    learner = TeacherTask(student(), blobs(8), blobs(8), NEGATIVE - 7, batch=50, seed=0, dropout=0.3)
    embed = learner.module.embed_text

    def watched(text: Tensor) -> Any:
        seen.append(text)
        return embed(text)

    monkeypatch.setattr(learner.module, "embed_text", watched)
    for step in range(6):
        learner.loss(step)
    dropped = (torch.cat(seen) == -7).all(dim=(1, 2)).float().mean().item()
    assert abs(dropped - 0.3) < 0.08


# Trajectories


def test_trajectories_are_euler_steps_along_the_guided_velocity(trajectories: Trajectories) -> None:
    small = method()
    assert trajectories.sigmas == (*preset_sigmas((small.preset,), FRAMES), 0.0)
    assert len(trajectories) == 7
    text, states = trajectories.states([5])
    assert torch.equal(text, texts(7)[5:6]) and states.shape == (1, len(trajectories.sigmas), FRAMES, 2, *SIZE)
    model, sigmas = student(5), Solving((1,), small_shares(small), steps=4, shift=5.0).sigmas()
    x = states[:, 0]
    for share, following in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        if share in trajectories.sigmas:
            torch.testing.assert_close(x, states[:, trajectories.sigmas.index(share)])
        with torch.no_grad():
            level = torch.tensor([[1000 * share]])
            with_it, without = (velocity(model, x, level, model.embed_text(one), Full()) for one in (text, NEGATIVE))
        x = x + (following - share) * (without + 6.0 * (with_it - without))
    torch.testing.assert_close(x, states[:, -1])
    batch = trajectories.take([5])
    assert batch.video_BFCHW is not None and batch.noise_BFCHW is not None
    assert torch.equal(batch.video_BFCHW, states[:, -1]) and torch.equal(batch.noise_BFCHW, states[:, 0])


def small_shares(how: Distillation) -> tuple[float, ...]:
    return preset_sigmas((how.preset,), FRAMES)


def test_recording_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    solving = Solving((2, 2, *SIZE), (1.0, 0.5), steps=2, batch=2)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    list(record(student(), EmbeddedPrompts(texts(5)), NEGATIVE, solving, whole))
    run = record(student(), EmbeddedPrompts(texts(5)), NEGATIVE, solving, cut)
    next(run)
    del run
    first = (cut / "0000000.safetensors").stat().st_mtime_ns
    list(record(student(), EmbeddedPrompts(texts(5)), NEGATIVE, solving, cut))
    assert (cut / "0000000.safetensors").stat().st_mtime_ns == first
    for one, other in zip(sorted(whole.iterdir()), sorted(cut.iterdir()), strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_shards_of_other_prompts_or_another_teachers_settings_are_not_mixed(tmp_path: Path) -> None:
    solving = Solving((2, 2, *SIZE), (1.0, 0.5), steps=2, batch=2)
    list(record(student(), EmbeddedPrompts(texts(2)), NEGATIVE, solving, tmp_path))
    for prompts, how in ((texts(2, seed=1), solving), (texts(2), replace(solving, guidance_scale=3.0))):
        with pytest.raises(ValueError, match="was made of other prompts or in another way"):
            list(record(student(), EmbeddedPrompts(prompts), NEGATIVE, how, tmp_path))


def test_a_folder_without_trajectories_or_with_other_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no trajectories"):
        Trajectories(tmp_path, CPU)
    (tmp_path / "0.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is no shard of trajectories"):
        Trajectories(tmp_path, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_trajectories_are_held_where_they_fit_and_read_where_they_do_not(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    shares = torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64)
    for start, count in ((0, 3), (3, 2)):
        states = torch.randn(count, 3, 2, 2, *SIZE).to(dtype)
        save_file({"text": texts(count), "states": states, "shares": shares}, tmp_path / f"{start}.safetensors")
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    monkeypatch.setattr(latents, "memory", lambda device: 4 * size)
    held = Trajectories(tmp_path, CPU)
    monkeypatch.setattr(latents, "memory", lambda device: 4 * size - 4)
    read = Trajectories(tmp_path, CPU)
    for one, other in zip(held.states([4, 0, 2]), read.states([4, 0, 2]), strict=True):
        assert torch.equal(one, other) and one.dtype == torch.float32
    for path in tmp_path.iterdir():
        path.unlink()
    assert held.take([1]).text_BLC.shape == (1, *texts(1).shape[1:])  # nothing is read any more
    with pytest.raises(FileNotFoundError):
        read.take([1])


def test_shards_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    content = {"text": texts(1), "states": torch.zeros(1, 2, 2, 2, *SIZE), "shares": torch.tensor([1.0, 0.0])}
    save_file(content, tmp_path / "0.safetensors")
    for change, message in (
        ({"shares": torch.tensor([1.0, 0.5])}, r"states at \[1.0, 0.5\], the shards before it \[1.0, 0.0\]"),
        ({"states": torch.zeros(1, 2, 3, 2, *SIZE)}, "has sizes"),
        ({"states": content["states"].half()}, "has dtype F16, the shards before it F32"),
    ):
        save_file(content | change, tmp_path / "1.safetensors")
        with pytest.raises(ValueError, match=message):
            Trajectories(tmp_path, CPU)


# ODE initialisation


def test_a_student_learns_to_jump_to_the_end_of_trajectories(trajectories: Trajectories, tmp_path: Path) -> None:
    learner = OdeTask(student(5), trajectories, trajectories, (method().preset,), batch=4, seed=0, lr=3e-3)
    lines = list(fit(learner, short(60, log_every=20, evaluate_every=20), tmp_path))
    assert lines[-1]["val_loss"] < 0.6 * lines[0]["val_loss"]


def test_chunks_are_noised_to_levels_of_their_own(trajectories: Trajectories) -> None:
    preset = method().preset
    level, share = diffusion.chunk_levels((preset,), FRAMES, [diffusion.draw(0, 0, sample) for sample in range(200)])
    table = dict(zip((1000.0, 933.0, 733.0, 357.0), preset_sigmas((preset,), FRAMES), strict=True))
    for frame in range(FRAMES):
        levels = preset.schedule.levels(frame)
        counts = [int((level[:, frame] == one).sum()) for one in levels]
        assert sum(counts) == 200 and min(counts) > 0.6 * 200 / len(levels)
    assert {float(one) for one in share.unique()} == set(table.values())
    assert (level[:, 0] != level[:, 1]).any()


def test_one_start_serves_students_of_several_schedules() -> None:
    presets = (method().preset, PRESETS["causvid"], PRESETS["diagonal-distillation"].with_context("t100"))
    rngs = [diffusion.draw(0, 0, sample) for sample in range(500)]
    level, share = diffusion.chunk_levels(presets[1:], 6, rngs)
    wanted = [{1000.0, 757.0, 522.0, 933.0, 733.0, 100.0}, {1000.0, 757.0, 522.0, 933.0, 100.0}]
    for chunk, levels in enumerate(wanted):
        assert set(level[:, 3 * chunk].tolist()) == levels
        for one in levels:  # each is as likely as the others
            assert (level[:, 3 * chunk] == one).sum() > 0.6 * 500 / len(levels)
    shares = preset_sigmas(presets[1:], 6)
    assert set(share.unique().tolist()) == set(shares) and shares == tuple(sorted(shares, reverse=True))
    with pytest.raises(ValueError, match=r"chunks of \[1, 3\] frames given; they must have chunks of one size"):
        preset_sigmas(presets, 6)


def test_trajectories_that_lack_the_schedules_levels_are_refused(trajectories: Trajectories) -> None:
    preset = PRESETS["self-forcing"]
    with pytest.raises(ValueError, match="no states at"):
        OdeTask(student(), trajectories, trajectories, (preset,), batch=1, seed=0)
    with pytest.raises(ValueError, match="it is a teacher's"):
        OdeTask(student(), trajectories, trajectories, (PRESETS["wan"],), batch=1, seed=0)


# Distillation


def test_generator_and_critic_take_turns(tmp_path: Path) -> None:
    one = task(method(weights=PROMPTS_ONLY, critic_steps=2, lr=1e-3, critic_lr=1e-3))
    teacher = flat(one.teacher)
    before, moved = (flat(one.generator), flat(one.critic)), []
    for line in fit(one, short(6), tmp_path):
        now = (flat(one.generator), flat(one.critic))
        moved.append(tuple(not torch.equal(a, b) for a, b in zip(before, now, strict=True)))
        before = now
        assert math.isfinite(line["dmd"]) and math.isfinite(line["flow_dmd"]) and ("critic" in line) != moved[-1][0]
    assert moved == [(True, False), (False, True), (False, True)] * 2
    assert torch.equal(teacher, flat(one.teacher))


def test_the_critic_learns_what_the_student_makes(tmp_path: Path) -> None:
    one = task(method(weights=PROMPTS_ONLY, critic_steps=60, lr=0.0, critic_lr=4e-3, weight_decay=0.0), batch=8)
    lines = [line["critic"] for line in fit(one, short(61), tmp_path) if "critic" in line]
    assert sum(lines[-15:]) < 0.8 * sum(lines[:15])


def test_every_term_moves_the_generator_in_its_own_way(trajectories: Trajectories) -> None:
    names = {"spatial": 0.0, "regression": 0.0, "flow": 0.0, "flow_regression": 0.0}
    found = {}
    for name in names:
        # A little of the regression has the rollouts begin with the teacher's noise, whatever else counts.
        weights = LossWeights(**{**names, "regression": 1e-9, name: 1.0}, motion=1.0)
        found[name], terms = gradients(task(method(weights=weights), trajectories))
        assert len(terms) <= 2 and found[name].norm() > 1e-4
    for name, one in found.items():
        for other in found:
            assert name == other or torch.cosine_similarity(one, found[other], dim=0) < 0.999
    whole, terms = gradients(task(method(weights=LossWeights(1.0, 2.0, 3.0, 0.5, 0.25)), trajectories))
    mixed = found["spatial"] + 2 * found["regression"] + 1.5 * found["flow"] + 0.75 * found["flow_regression"]
    torch.testing.assert_close(whole, mixed, atol=1e-5, rtol=1e-4)
    assert set(terms) == {"dmd", "regression", "flow_dmd", "flow_regression"}


def test_where_critic_and_teacher_agree_the_student_stays() -> None:
    found, terms = gradients(task(method(weights=PROMPTS_ONLY, guidance_scale=1.0)))
    assert found.abs().max() < 1e-7 and max(terms["dmd"], terms["flow_dmd"]) < 1e-7
    found, _ = gradients(task(method(weights=PROMPTS_ONLY, guidance_scale=4.0)))
    assert found.abs().max() > 1e-3


def test_the_scores_are_the_clean_videos_of_a_noised_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A critic whose velocity is larger by 1 than the teacher's sees a video that is less by the noise's share."""
    one, seen = task(method(weights=LossWeights(1, 0, 0), guidance_scale=1.0), batch=3), []
    with torch.no_grad():
        one.critic.head.head.bias += 1
    ordinary = losses.dmd

    def watched(x: Tensor, real: Tensor, fake: Tensor) -> Tensor:
        seen.append((real, fake))
        return ordinary(x, real, fake)

    monkeypatch.setattr(losses, "dmd", watched)
    one.loss(0)
    ((real, fake),) = seen
    share = (real - fake).flatten(1)
    torch.testing.assert_close(share, share.mean(1, keepdim=True).expand_as(share), atol=1e-4, rtol=1e-4)
    assert (share.mean(1) > 0.019).all() and (share.mean(1) < 0.981).all() and share.mean(1).std() > 0.01


@pytest.mark.parametrize("motion", losses.MOTIONS)
def test_distillation_pulls_the_student_towards_its_teacher(
    trajectories: Trajectories, tmp_path: Path, motion: str
) -> None:
    how = method(motion=motion, lr=2e-3, critic_lr=2e-3, critic_steps=1)
    one = task(how, trajectories, held_out=trajectories, batch=4)
    before = one.evaluate()
    (line,) = fit(one, short(60, log_every=60), tmp_path)
    assert line["val_regression"] < 0.7 * before["val_regression"]
    assert 0 < line["val_motion"] < 10


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs(trajectories: Trajectories, name: str) -> None:
    how = method(name)
    source: Any = trajectories if how.needs_videos else blobs(4) if how.forcing == "diffusion" else None
    one = task(how, source)
    for step in (0, 1):
        loss, _ = one.loss(step)
        loss.backward()
        assert loss.isfinite()
    for module in (one.generator, one.critic):
        assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_the_critic_sees_the_real_distribution_of_levels() -> None:
    one = task(method(weights=PROMPTS_ONLY))
    share, noise = one._noise(torch.zeros(4000, 1), [diffusion.draw(0, 0, sample) for sample in range(4000)])
    assert share.min() >= 0.02 and share.max() <= 0.98
    line = share / (5 - 4 * share)  # the shift undone: even
    inside = line[(share > 0.02) & (share < 0.98)]
    torch.testing.assert_close(inside.quantile(0.5), torch.tensor(0.458), atol=0.02, rtol=0)
    assert abs(noise.mean()) < 0.1 and abs(noise.std() - 1) < 0.1


# Long rollouts


def test_long_rollouts_pass_the_window_and_change_their_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    how = method(weights=PROMPTS_ONLY, scored=2, longest=9, switch=0.5)
    one, rolls = task(how), []
    ordinary = distill.rollout

    def watched(model: Any, cache: Any, how: Distillation, roll: distill.Roll) -> Tensor:
        rolls.append(roll)
        made = ordinary(model, cache, how, roll)
        assert made.shape[1] == roll.frames
        return made

    monkeypatch.setattr(distill, "rollout", watched)
    for step in range(0, 6 * 24, 6):
        one.loss(step)[0].backward()
    assert {2, 8} < {roll.frames for roll in rolls} < set(range(2, 10))  # the window holds 4
    switched = [roll for roll in rolls if roll.switch is not None]
    assert 3 < len(switched) < 20
    assert all(0 < (roll.switch or 0) <= roll.frames - 2 for roll in switched)
    assert any((roll.switch or 0) < roll.frames - 2 for roll in switched)
    assert any(not torch.equal(roll.last, roll.text_BLC) for roll in switched)
    assert all(roll.last is roll.text_BLC for roll in rolls if roll.switch is None)


def test_the_first_scored_latent_is_made_one_that_begins_a_video() -> None:
    given: list[Tensor] = []

    def first(latents: Tensor) -> Tensor:
        given.append(latents)
        return torch.zeros_like(latents[:, :1])

    how = method(weights=PROMPTS_ONLY, scored=2, longest=4)
    one = task(how, first_latent=first)
    lengths = []
    for step in range(0, 60, 6):
        rngs = [diffusion.draw(3, step, sample) for sample in range(2)]
        x, _ = one._make(step, one._take(rngs), rngs)
        lengths.append(given.pop().shape[1] if given else 1)
        assert x.shape[1] == 2 and (not x[:, 0].any()) == (lengths[-1] > 1)
    assert set(lengths) == {1, 2, 3}


# Runs


def weights_after(folder: Path, steps: int = 8, left_at: int | None = None) -> list[Tensor]:
    one = task(method(weights=PROMPTS_ONLY, critic_steps=2, lr=1e-3, critic_lr=1e-3, switch=0.5, scored=2, longest=4))
    for line in fit(one, short(steps, ema=0.9), folder):
        if line["step"] == left_at:
            return []
    return [flat(one.generator), flat(one.critic)]


@pytest.mark.parametrize("left_at", [2, 5, 7])
def test_a_distillation_that_is_killed_and_started_again_ends_as_if_it_never_was(tmp_path: Path, left_at: int) -> None:
    whole = weights_after(tmp_path / "whole")
    weights_after(tmp_path / "left", left_at=left_at)
    again = weights_after(tmp_path / "left")
    assert all(torch.equal(one, other) for one, other in zip(whole, again, strict=True))


def test_samples_in_parts_or_processes_give_the_gradient_of_all(trajectories: Trajectories) -> None:
    how = method()
    whole, terms = gradients(task(how, trajectories, batch=4))
    parts, same = gradients(task(how, trajectories, batch=4, shard=BatchShard(micro_batch=3)))
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-4)
    shares = [gradients(task(how, trajectories, batch=4, shard=BatchShard(rank, 2))) for rank in range(2)]
    torch.testing.assert_close((shares[0][0] + shares[1][0]) / 2, whole, atol=1e-6, rtol=1e-4)
    for name, term in terms.items():
        assert same[name].item() == pytest.approx(term.item(), rel=1e-5)
        assert sum(one[name].item() for _, one in shares) / 2 == pytest.approx(term.item(), rel=1e-5)
    with pytest.raises(ValueError, match="a batch of 4 given for 3 processes"):
        BatchShard(0, 3).own(4)


@pytest.mark.parametrize("again", [False, True])
def test_in_bfloat16_no_weight_loses_its_gradient(monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    """Calls without gradient come first: their casts of the weights must not be used again."""

    @contextmanager
    def half(device: torch.device) -> Iterator[None]:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=diffusion.autocast(device)._cache_enabled):
            yield

    exact, _ = gradients(task(method(weights=PROMPTS_ONLY)), 12)
    monkeypatch.setattr(distill, "autocast", half)
    one = task(method(weights=PROMPTS_ONLY, recompute=again))
    rough, _ = gradients(one, 12)
    assert all(
        p.grad is not None and p.grad.any() and p.grad.dtype == torch.float32 for p in one.generator.parameters()
    )
    assert torch.cosine_similarity(rough, exact, dim=0) > 0.98


def test_a_damaged_teacher_stops_the_run_and_the_last_good_state_stays(tmp_path: Path) -> None:
    one = task(method(weights=PROMPTS_ONLY, critic_steps=2))
    training = fit(one, short(9), tmp_path)
    for line in training:
        if line["step"] == 5:
            with torch.no_grad():
                next(one.teacher.parameters()).mul_(math.nan)
            break
    with pytest.raises(ValueError, match="the teacher answered NaN"):
        list(training)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["step"] == 4 and all(value.isfinite().all() for value in state["module"].values())


def test_a_damaged_student_stops_the_run_before_it_is_saved(tmp_path: Path) -> None:
    one = task(method(weights=PROMPTS_ONLY, critic_steps=2))
    training = fit(one, short(9), tmp_path)
    for line in training:
        if line["step"] == 5:
            with torch.no_grad():
                next(one.generator.parameters()).mul_(math.nan)
            break
    with pytest.raises(ValueError, match="came out as NaN"):
        list(training)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 4


# What cannot be


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scored": 20}, "20 latent frames given; they must divide into chunks of 3"),
        ({"longest": 9}, "21 of them are scored"),
        ({"longest": 24}, "no video of the teacher is so long"),
        ({"forcing": "teacher"}, "known: self, diffusion"),
        ({"motion": "optical"}, "known: difference, field"),
        ({"critic_steps": 0}, "impossible distillation"),
        ({"critic_alone": -1}, "impossible distillation"),
        ({"score_levels": (900.0, 100.0)}, "impossible distillation"),
        ({"weights": PROMPTS_ONLY, "switch": 0.5}, "must be longer than what is scored"),
        ({"preset": PRESETS["wan"]}, "it is a teacher's"),
    ],
)
def test_impossible_methods_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(METHODS["diagonal-distillation"], **changes)


def test_a_spec_changes_a_method() -> None:
    plain = METHODS["diagonal-distillation"]
    found = find("diagonal-distillation:flow=0,context=t100,schedule=4444444")
    assert found == replace(
        plain,
        preset=plain.preset.with_schedule("4444444").with_context("t100"),
        weights=replace(plain.weights, motion=0.0),
    )
    assert find("diagonal-distillation:regression=0.5,motion=field") == replace(
        plain, weights=replace(plain.weights, regression=0.5), motion="field"
    )
    assert find("causvid:guidance=2") == replace(METHODS["causvid"], guidance_scale=2.0)
    assert find("self-forcing") == METHODS["self-forcing"]
    beside = find("self-forcing:flow=1", {"schedule": "even:steps=2,context=last", "context": "clean"})
    assert beside.preset == PRESETS["self-forcing"].with_schedule("2") and beside.weights.motion == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("diagonal", "no method is called 'diagonal'; known: diagonal-distillation, "),
        ("causvid:", "'causvid:' says ''; it may say schedule=..., context=..., motion=..., guidance=..., flow=..."),
        ("causvid:lr=1", "'causvid:lr=1' says 'lr=1'; it may say schedule="),
        ("causvid:flow", "says 'flow'; it may say"),
        ("causvid:flow=", "says 'flow='; it may say"),
        ("causvid:flow=1,", "says ''; it may say"),
        ("causvid:flow=1,flow=1", "flow '1' given along with flow '1'; give it once"),
        ("causvid:flow=much", "flow 'much' given; it must be a number of 0 or more"),
        ("causvid:flow=-1", "weights must be 0 or more"),
        ("causvid:regression=nan", "weights must be 0 or more"),
        ("causvid:guidance=some", "guidance 'some' given; it must be a number of 0 or more"),
        ("causvid:guidance=-1", "guidance -1.0 given; it must be a number of 0 or more"),
        ("causvid:guidance=nan", "guidance nan given; it must be a number of 0 or more"),
        ("causvid:motion=fast", "motion 'fast' given; known: difference, field"),
        ("causvid:context=soon", "soon"),
        ("causvid:schedule=4302", "4302"),
    ],
)
def test_specs_that_cannot_be_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        find(spec)


def test_missing_data_is_said(trajectories: Trajectories) -> None:
    with pytest.raises(ValueError, match="need trajectories of the teacher"):
        task(method())
    with pytest.raises(ValueError, match="give clips, not prompts alone"):
        task(method("causvid"))
    with pytest.raises(ValueError, match=r"videos of \(6, 2, 4, 6\) given; \(3, 2, 4, 6\)"):
        task(method(scored=3, longest=3), trajectories)
    with pytest.raises(ValueError, match="known: diagonal-distillation, "):
        find("dmd")


def test_small_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="are not float32; small updates would be lost"):
        DistillTask(
            student().bfloat16(),
            student(),
            student(),
            EmbeddedPrompts(texts(2)),
            NEGATIVE,
            method(weights=PROMPTS_ONLY),
            SIZE,
            1,
            0,
        )


def test_the_critic_may_learn_alone_at_first() -> None:
    plain, later = (task(method(weights=PROMPTS_ONLY, critic_steps=2, critic_alone=count)) for count in (0, 4))

    def teaches(one: DistillTask, step: int) -> str:
        loss, _ = one.loss(step)
        loss.backward()
        models = {"generator": one.generator, "critic": one.critic}
        found = [name for name, model in models.items() if any(p.grad is not None for p in model.parameters())]
        one.module.zero_grad(set_to_none=True)
        return " ".join(found)

    turn = ["generator", "critic", "critic"]
    assert [teaches(plain, step) for step in range(4)] == [*turn, "generator"]
    assert [teaches(later, step) for step in range(8)] == [*["critic"] * 4, *turn, "generator"]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_long_videos_are_masked_without_a_matrix_to_the_same_end() -> None:
    how = method("diagonal-distillation", scored=6, longest=6)
    dense, flex = (diffusion.chunk_memory(how.preset, 6, TOKENS, CPU, use_flex=flex) for flex in (False, True))
    assert (type(dense).__name__, type(flex).__name__) == ("Dense", "Flex")
    assert type(diffusion.chunk_memory(how.preset, 6, 1560, CPU)).__name__ == "Dense"  # a CPU has no kernel for it
    model, clips = student(), blobs(2)
    assert clips.video_NFCHW.shape[1] == 6
    level = torch.tensor([[900.0, 700.0, 300.0, 1000.0, 500.0, 100.0]])
    with torch.no_grad():
        one, other = (
            velocity(model, clips.video_NFCHW, level, model.embed_text(clips.text_NLC), memory)
            for memory in (dense, flex)
        )
        free = velocity(model, clips.video_NFCHW, level, model.embed_text(clips.text_NLC), Full())
    torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)
    assert (one - free).abs().max() > 1e-4


def test_flex_attention_takes_heads_whose_norms_are_of_another_precision() -> None:
    """As under autocast: q and k are normed by float32 weights, v is as the matrix left it."""
    memory = diffusion.chunk_memory(method().preset, 2, 2, CPU, use_flex=True)
    q, k, v = torch.randn(3, 1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = memory.layer(0).attend(q, k, v.bfloat16())
    wanted = diffusion.chunk_memory(method().preset, 2, 2, CPU).layer(0).attend(q, k, v)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), wanted, atol=0.05, rtol=0.05)
