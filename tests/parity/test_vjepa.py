"""V-JEPA and its probe against what the authors' classes gave, in a small size; and the names of the true one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.evaluation.metrics import Setting, Video
from diagonal.evaluation.metrics.jedi import ENCODER, PROBE, Jedi, shown
from diagonal.networks import vjepa
from diagonal.networks.opening import filled, opened
from tests import made_weights
from tests.conftest import golden, golden_json

FACTS = golden_json("metrics/vjepa.json")
FOUND = golden("metrics/vjepa.safetensors")
CONFIG = vjepa.Config(**FACTS["sizes"])


def made(kind: str) -> dict[str, Tensor]:
    state = made_weights.weights(FACTS["manifest"][kind], FACTS["weights"]["rules"])
    assert made_weights.crc32(state) == FACTS["weights"]["check"][kind]
    return state


def frames(case: str) -> Tensor:
    """The video of a case, from its description."""
    name, *size = re.findall(r"'(\S+)'|(\d+)", FACTS["inputs"][case])
    return made_weights.clip(name[0], *(int(number) for _, number in size))


def write(folder: Path) -> Setting:
    """Files as they are published: several models in one, and a classifier around the probe."""
    encoder = made("encoder")
    other = {key: value + 1 for key, value in encoder.items()}
    torch.save({"encoder": other, "target_encoder": encoder, "epoch": 300, "opt": {"state": {}}}, folder / ENCODER.name)
    torch.save({"classifier": made("probe"), "epoch": 20}, folder / PROBE.name)
    return Setting("as-is", folder)


@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_tokens_and_their_pool_are_those_of_the_reference(case: str, tmp_path: Path):
    """At the size of the table of positions, at another one, and with a frame and pixels left over."""
    setting = write(tmp_path)
    encoder = opened(CONFIG.encoder, setting.path(ENCODER), part=vjepa.PART)
    pooler = opened(CONFIG.pooler, setting.path(PROBE), part="classifier")
    with torch.inference_mode():
        tokens = encoder(shown(frames(case), "as-is").transpose(0, 1)[None])
        pooled = pooler(tokens)[0]
    torch.testing.assert_close(tokens[0, ::3, ::5], FOUND[f"{case}.tokens"], atol=FACTS["tolerance"], rtol=0)
    torch.testing.assert_close(pooled, FOUND[f"{case}.pooled"], atol=FACTS["tolerance"], rtol=0)


@pytest.mark.parametrize("kind", ["encoder", "probe"])
def test_the_true_size_takes_the_published_names(kind: str):
    config, manifest = vjepa.Config(), FACTS["true_size"][kind]
    assert FACTS["true_size"]["sizes"].items() <= {name: getattr(config, name) for name in FACTS["sizes"]}.items()
    state = {key: torch.empty(shape, device="meta") for key, shape in manifest.items()}
    filled(config.encoder if kind == "encoder" else config.pooler, state, "made")


def test_the_metric_is_the_kernel_distance_of_pooled_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vjepa, "Config", lambda: CONFIG)
    metric = Jedi(write(tmp_path))
    seen = [metric.look(Video(frames(case)), None) for case in "abc"]
    assert [one.shape for one in seen] == [(1, CONFIG.width)] * 3
    assert seen[0][0].tolist() == pytest.approx(FOUND["a.pooled"].tolist(), abs=FACTS["tolerance"])
    assert metric.total(seen, seen).mean == pytest.approx(0, abs=1e-9)
    assert metric.total(seen[:2], seen[1:]).mean > 0


def test_other_files_are_refused(tmp_path: Path):
    torch.save({"epoch": 3, "encoder": made("encoder")}, tmp_path / ENCODER.name)
    with pytest.raises(ValueError, match="'target_encoder' was looked for, and it has encoder, epoch"):
        opened(CONFIG.encoder, tmp_path / ENCODER.name, part=vjepa.PART)
    state: dict[str, Any] = {"target_encoder": made("encoder")}
    torch.save(state, tmp_path / ENCODER.name)
    with pytest.raises(ValueError, match="does not fit Encoder"):
        opened(vjepa.Config().encoder, tmp_path / ENCODER.name, part=vjepa.PART)
