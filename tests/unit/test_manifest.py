"""What is known of a video beside its frames, and the metrics that need it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from diagonal.evaluation import manifest
from diagonal.evaluation.folders import Folder
from diagonal.evaluation.manifest import Note
from diagonal.evaluation.metrics import Setting, UnfitError, Video
from diagonal.evaluation.metrics.action_agreement import ActionAgreement, agreement, numbers
from diagonal.evaluation.metrics.caption_agreement import WEIGHTS, CaptionAgreement
from diagonal.evaluation.scores import Job, check, score
from diagonal.media.video import writer
from diagonal.networks.caption_reader import Config
from diagonal.worlds import vizdoom
from diagonal.worlds.captions import PLACES
from diagonal.worlds.vizdoom import ACTIONS
from tests import made_weights


def write(folder: Path, *names: str, frames: int = 4) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        with writer(folder / f"{name}.mp4", 8) as file:
            file.write(made_weights.clip(name, frames, 96, 128).permute(0, 2, 3, 1).numpy())


def test_the_manifest_says_what_a_video_was_asked_to_show(tmp_path: Path) -> None:
    write(tmp_path, "a", "a cat, front view-3", "b")
    manifest.add(tmp_path, "a", {"prompt": "a dog", "seed": 3})
    manifest.add(tmp_path, "b", {"actions": ["left", "noop", "noop"]})
    found = {name: video.note for name, video in Folder.of(tmp_path).videos.items()}
    assert found == {
        "a": Note("a dog"),
        "a cat, front view-3": Note("a cat, front view"),
        "b": Note(None, ("left", "noop", "noop")),
    }
    assert manifest.entries(tmp_path)["a"] == {"prompt": "a dog", "seed": 3}
    assert Folder.of(tmp_path, frames=2).videos["b"].load().actions == ("left",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[]", 'must be {"videos"'),
        ('{"videos": {"a": 3}}', 'must be {"videos"'),
        ('{"videos": {"a": {"prompt": 3}}}', "of a, prompt must be a text"),
        ('{"videos": {"a": {"actions": "left"}}}', "actions a list of texts"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path: Path, content: str, message: str) -> None:
    write(tmp_path, "a")
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        Folder.of(tmp_path)


def test_agreement_is_the_share_of_pairs_that_show_their_action() -> None:
    given = torch.tensor([ACTIONS.index(name) for name in ("left", "forward", "forward+right", "noop")])
    seen = torch.tensor([ACTIONS.index(name) for name in ("forward+left", "forward", "left", "noop")])
    assert agreement(seen, given, "all").tolist() == [[1, 0], [1, 1], [1, 0], [1, 1]]
    turns = agreement(seen, given, "turns")
    assert turns.tolist() == [[1, 1], [0, 0], [1, 0], [0, 0]]
    metric = ActionAgreement(Setting("turns"))
    assert metric.of_video(turns) == 0.5 and np.isnan(metric.of_video(turns[1::2]))
    np.testing.assert_array_equal(metric.curve(turns), [1, np.nan, 0, np.nan])


def test_the_judge_sees_the_turns_of_a_real_recording() -> None:
    """The shipped start views are real frames with the actions between them."""
    right = []
    for name in vizdoom.STARTS:
        frames, actions = vizdoom.start(name)
        video = Video(torch.from_numpy(frames).permute(0, 3, 1, 2), actions=tuple(actions))
        right.append(ActionAgreement(Setting("all")).look(video, None))
    assert np.concatenate(right)[:, 1].mean() > 0.6


def test_actions_of_another_game_are_refused() -> None:
    with pytest.raises(UnfitError, match=r"knows Doom's actions, noop, .*, and not 'jump'"):
        numbers(["left", "jump"])


def test_metrics_that_must_know_more_say_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "made", "one", "two")
    job = Job([Folder.of(tmp_path / "made")], None, ["action_agreement", "frozen"], Setting())
    check(job)
    list(score(job))
    assert [one.metric for one in job.results] == ["frozen"]
    assert "action_agreement:all needs the 3 actions between the frames of" in job.refusals[0].reason
    assert "there are none" in job.refusals[0].reason


def test_clips_without_turns_say_nothing_of_turns(tmp_path: Path) -> None:
    write(tmp_path / "made", "one", "two")
    for name in ("one", "two"):
        manifest.add(tmp_path / "made", name, {"actions": ["forward"] * 3})
    jobs = []
    for _ in range(2):
        job = Job([Folder.of(tmp_path / "made")], None, ["action_agreement:turns"], Setting(), tmp_path / "kept")
        list(score(job))
        jobs.append(job)
    assert [job.refusals[0].reason for job in jobs] == ["needs actions that turn; no video has any"] * 2
    manifest.add(tmp_path / "made", "two", {"actions": ["left", "forward", "right"]})
    job = Job([Folder.of(tmp_path / "made")], None, ["action_agreement:turns"], Setting(), tmp_path / "kept")
    list(score(job))
    assert 0 <= job.results[0].value.mean <= 1
    assert [one is None for one in job.results[0].by_frame] == [False, True, False]
    write(tmp_path / "other", "one", "two")
    for name, actions in (("one", ["right"] * 3), ("two", ["forward"] * 3)):
        manifest.add(tmp_path / "other", name, {"actions": actions})
    folders = [Folder.of(tmp_path / name) for name in ("made", "other")]
    job = Job(folders, None, ["action_agreement:turns"], Setting(), tmp_path / "kept")
    list(score(job))  # no video of both has turns in both
    assert [one.minus_first for one in job.results] == [None, None]


def test_a_caption_is_compared_with_what_is_read(tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(Config().build().state_dict(), tmp_path / "reader.pth")
    metric = CaptionAgreement(Setting("scenario", files={WEIGHTS.name: tmp_path / "reader.pth"}))
    video = made_weights.clip("captions", 8, 96, 128)
    told = [
        metric.look(Video(video, prompt=f"walking in {place}"), None).item()
        for place in (place.names[0] for place in PLACES.values())
    ]
    assert sum(told) == 1
    with pytest.raises(UnfitError, match="'a cat' is no caption of Doom"):
        metric.look(Video(video, prompt="a cat"), None)


def test_a_manifest_is_read_as_utf8(tmp_path: Path) -> None:
    manifest.add(tmp_path, "v", {"prompt": "größer"})
    assert json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))["videos"]["v"]["prompt"] == "größer"
