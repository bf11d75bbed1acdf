"""LPIPS with random weights of the right shapes: what a distance must be, whatever the weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from diagonal.networks import lpips

SHAPES = ((64, 3, 11), (192, 64, 5), (384, 192, 3), (256, 384, 3), (256, 256, 3))


def random_weights() -> dict[str, Tensor]:
    """AlexNet's five convolutions and a positive weight for each channel."""
    generator = torch.Generator().manual_seed(0)
    weights: dict[str, Tensor] = {}
    for stage, (out, into, side) in enumerate(SHAPES):
        scale = (2 / (into * side**2)) ** 0.5
        weights[f"conv{stage}.weight"] = torch.randn(out, into, side, side, generator=generator) * scale
        weights[f"conv{stage}.bias"] = torch.randn(out, generator=generator) * 0.05
        weights[f"lin{stage}"] = torch.rand(1, out, 1, 1, generator=generator)
    return weights


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return random_weights()


def pictures(count: int, seed: int = 0, height: int = 48, width: int = 64) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_a_picture_is_at_no_distance_from_itself(weights):
    x = pictures(3)
    assert lpips.distance(x, x.clone(), weights).tolist() == [0.0, 0.0, 0.0]


def test_different_pictures_are_apart(weights):
    made = lpips.distance(pictures(3), pictures(3, seed=1), weights)
    assert made.shape == (3,)
    assert (made > 0.01).all()


def test_the_distance_is_the_same_both_ways(weights):
    x, y = pictures(2), pictures(2, seed=1)
    torch.testing.assert_close(lpips.distance(x, y, weights), lpips.distance(y, x, weights))


def test_more_noise_is_farther(weights):
    x, noise = pictures(2) * 0.5, pictures(2, seed=1)
    near, middle, far = (lpips.distance(x, x + scale * noise, weights) for scale in (0.02, 0.1, 0.4))
    assert (near < middle).all() and (middle < far).all()


def test_a_batch_gives_what_its_pairs_give_alone(weights):
    x, y = pictures(4), pictures(4, seed=1)
    alone = torch.cat([lpips.distance(x[i : i + 1], y[i : i + 1], weights) for i in range(4)])
    torch.testing.assert_close(lpips.distance(x, y, weights), alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["noise", "black", "flat"])
def test_the_gradient_is_finite_where_both_are_the_same(weights, kind):
    x = {"noise": pictures(1), "black": -torch.ones(1, 3, 48, 64), "flat": torch.zeros(1, 3, 48, 64)}[kind]
    made = x.clone().requires_grad_()
    lpips.distance(made, x, weights).sum().backward()
    assert made.grad is not None and made.grad.isfinite().all()


def test_distance_and_gradient_are_finite_where_no_channel_answers(weights):
    """A dead stage has features of length zero."""
    dead = weights | {f"conv{stage}.bias": weights[f"conv{stage}.bias"] - 100 for stage in range(5)}
    made = pictures(1).requires_grad_()
    distance = lpips.distance(made, pictures(1, seed=1), dead)
    assert distance.item() == 0
    distance.sum().backward()
    assert made.grad is not None and made.grad.isfinite().all()


def test_descending_the_distance_brings_pictures_together(weights):
    true = pictures(1)
    made = pictures(1, seed=1).requires_grad_()
    before = lpips.distance(made, true, weights)
    before.sum().backward()
    assert made.grad is not None
    with torch.no_grad():
        moved = made - 0.5 * made.grad / made.grad.norm()
    assert lpips.distance(moved, true, weights) < before


def published(x: Tensor, y: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Zhang et al., equation 1, on AlexNet's layers as torchvision has them."""
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    both, total = [(part - shift.view(3, 1, 1)) / scale.view(3, 1, 1) for part in (x, y)], torch.zeros(len(x))
    for stage, (stride, padding) in enumerate([(4, 2), (1, 2), (1, 1), (1, 1), (1, 1)]):
        if stage in (1, 2):
            both = [F.max_pool2d(part, kernel_size=3, stride=2) for part in both]
        kernel, bias = weights[f"conv{stage}.weight"], weights[f"conv{stage}.bias"]
        both = [F.relu(F.conv2d(part, kernel, bias, stride=stride, padding=padding)) for part in both]
        first, second = (part / (part.norm(dim=1, keepdim=True) + 1e-10) for part in both)
        total = total + F.conv2d((first - second) ** 2, weights[f"lin{stage}"]).mean((1, 2, 3))
    return total


def test_the_distance_is_the_published_one(weights):
    x, y = pictures(3), pictures(3, seed=1)
    torch.testing.assert_close(lpips.distance(x, y, weights), published(x, y, weights), atol=1e-5, rtol=1e-4)


def test_spatial_averages_over_the_picture(weights):
    x, y = pictures(2), pictures(2, seed=1)
    plain, spatial = lpips.distance(x, y, weights), lpips.distance(x, y, weights, spatial=True)
    torch.testing.assert_close(plain, spatial, rtol=0.1, atol=0)
    assert (plain != spatial).all()
    # A stage of one position has the same mean either way.
    single = {f"lin{stage}": torch.zeros_like(weights[f"lin{stage}"]) for stage in range(4)}
    x, y = pictures(1, height=35, width=35), pictures(1, seed=1, height=35, width=35)
    both = [lpips.distance(x, y, weights | single, spatial) for spatial in (False, True)]
    torch.testing.assert_close(*both)


def test_the_heads_weigh_the_stages(weights):
    """The distance is linear in the heads: the five stages add up, and a head of zero silences its stage."""
    x, y = pictures(2), pictures(2, seed=1)
    parts = []
    for stage in range(5):
        silent = {f"lin{other}": torch.zeros_like(weights[f"lin{other}"]) for other in range(5) if other != stage}
        parts.append(lpips.distance(x, y, weights | silent))
        assert (parts[-1] > 0).all()
    torch.testing.assert_close(torch.stack(parts).sum(0), lpips.distance(x, y, weights))


def test_a_file_is_read_as_float32(tmp_path: Path, weights: dict[str, Tensor]):
    path = tmp_path / "lpips.safetensors"
    save_file({key: value.half() for key, value in weights.items()}, path)
    loaded = lpips.load(path)
    assert loaded.keys() == weights.keys()
    assert all(value.dtype == torch.float32 for value in loaded.values())
    torch.testing.assert_close(loaded["conv1.weight"], weights["conv1.weight"], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("gone", ["conv3.weight", "conv0.bias", "lin4"])
def test_a_file_that_lacks_some_weights_is_refused(tmp_path: Path, weights: dict[str, Tensor], gone: str):
    path = tmp_path / "some.safetensors"
    save_file({key: value for key, value in weights.items() if key != gone}, path)
    with pytest.raises(ValueError, match=f"holds no LPIPS weights.*{gone}"):
        lpips.load(path)


def test_a_file_of_something_else_is_refused(tmp_path: Path):
    path = tmp_path / "else.safetensors"
    save_file({"tokenizer.weight": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"else.safetensors holds no LPIPS weights: .*conv0.weight"):
        lpips.load(path)
