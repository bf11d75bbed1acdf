"""LoRA files in the three namings, merged into weights, and everything that is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.checkpoints.lora import merge_lora

Q, O = "blocks.0.self_attn.q", "blocks.11.self_attn.o"  # noqa: E741
RANK = 2

# How each tool writes the name of a module, and of its two matrices.
NAMINGS = {
    "peft": ("base_model.model.{}.lora_A.default.weight", "base_model.model.{}.lora_B.default.weight"),
    "peft of a wrapper": ("base_model.model.model.{}.lora_A.weight", "base_model.model.model.{}.lora_B.weight"),
    "comfy": ("diffusion_model.{}.lora_A.weight", "diffusion_model.{}.lora_B.weight"),
    "comfy, down and up": ("diffusion_model.{}.lora_down.weight", "diffusion_model.{}.lora_up.weight"),
    "plain": ("{}.lora_A.weight", "{}.lora_B.weight"),
}


def _weights(prefix: str = "", dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    torch.manual_seed(0)
    state = {f"{Q}.weight": torch.randn(6, 4), f"{Q}.bias": torch.randn(6), f"{O}.weight": torch.randn(4, 6)}
    state |= {"patch_embedding.weight": torch.randn(5, 3, 1, 2, 2), "norm.weight": torch.randn(4)}
    return {prefix + key: value.to(dtype) for key, value in state.items()}


def _pairs() -> dict[str, tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return {Q: (torch.randn(RANK, 4), torch.randn(6, RANK)), O: (torch.randn(RANK, 6), torch.randn(4, RANK))}


def _file(naming: str) -> dict[str, Tensor]:
    names = NAMINGS[naming]
    return {form.format(key): one for key, pair in _pairs().items() for form, one in zip(names, pair, strict=True)}


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("naming", NAMINGS)
def test_every_naming_adds_the_product(naming: str, prefix: str) -> None:
    state = _weights(prefix)
    merged = merge_lora(state, _file(naming), scale=0.5)
    assert list(merged) == list(state)
    changed = {f"{prefix}{key}.weight": 0.5 * up @ down for key, (down, up) in _pairs().items()}
    for key, value in state.items():
        torch.testing.assert_close(merged[key], value + changed[key] if key in changed else value)
        assert key not in changed or not torch.equal(merged[key], value)
    assert all(torch.equal(value, _weights(prefix)[key]) for key, value in state.items())  # the given ones are kept


def test_kohyas_names_have_no_dots_and_an_alpha() -> None:
    lora: dict[str, Tensor] = {}
    for key, (down, up) in _pairs().items():
        name = f"lora_unet_{key.replace('.', '_')}"
        lora |= {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up, f"{name}.alpha": torch.tensor(8.0)}
    merged = merge_lora(_weights(), lora)
    for key, (down, up) in _pairs().items():
        torch.testing.assert_close(merged[f"{key}.weight"], _weights()[f"{key}.weight"] + 8 / RANK * up @ down)


def test_a_diffusers_file_fits_diffusers_names() -> None:
    down, up = _pairs()[Q]
    name = "blocks.0.attn1.to_q"
    lora = {f"transformer.{name}.lora_A.weight": down, f"transformer.{name}.lora_B.weight": up}
    merged = merge_lora({f"{name}.weight": torch.zeros(6, 4)}, lora)
    torch.testing.assert_close(merged[f"{name}.weight"], up @ down)
    with pytest.raises(ValueError, match=r"fit no weight of the checkpoint.*checkpoints.rename"):
        merge_lora(_weights(), lora)
    renamed = checkpoints.rename(_weights(), {"blocks.{}.attn1.to_q.weight": ("blocks.{}.self_attn.q.weight",)})
    torch.testing.assert_close(merge_lora(renamed, lora)[f"{name}.weight"], _weights()[f"{Q}.weight"] + up @ down)


def test_a_convolution_has_its_kernel_in_the_first_matrix() -> None:
    down, up = torch.randn(RANK, 3, 1, 2, 2), torch.randn(5, RANK, 1, 1, 1)
    merged = merge_lora(_weights(), {"patch_embedding.lora_A.weight": down, "patch_embedding.lora_B.weight": up})
    change = torch.einsum("or,rixyz->oixyz", up.flatten(1), down)
    torch.testing.assert_close(merged["patch_embedding.weight"], _weights()["patch_embedding.weight"] + change)


def test_half_precision_is_kept_and_added_in_single() -> None:
    state = {"a.weight": torch.full((1, 1), 256.0, dtype=torch.bfloat16)}
    lora = {"a.lora_A.weight": torch.tensor([[1.5]]), "a.lora_B.weight": torch.tensor([[1.0]])}
    merged = merge_lora(state, {key: value.bfloat16() for key, value in lora.items()})["a.weight"]
    assert merged.dtype == torch.bfloat16 and merged.item() == 258  # 257.5, rounded once


def test_a_trainers_lora_file_is_read_and_merged(tmp_path: Path) -> None:
    torch.save({"generator_lora": _file("peft"), "critic_lora": {}, "step": 3000}, tmp_path / "lora.pt")
    merged = merge_lora(_weights(), checkpoints.read(tmp_path / "lora.pt"))
    down, up = _pairs()[Q]
    torch.testing.assert_close(merged[f"{Q}.weight"], _weights()[f"{Q}.weight"] + up @ down)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"a.lora_A.weight": (2, 4)}, "lack one of two matrices: a"),
        ({"a.b.lora_A.weight": (2, 4), "a.b.lora_B.weight": (6, 2)}, "1 of its keys fit no weight .*: a.b"),
        ({f"{Q}.diff_b": (6,)}, "neither lora_A.*q.diff_b"),
        ({f"{Q}.lora_A.other.weight": (2, 4)}, "come twice"),
        (
            {"norm.lora_A.weight": (2, 4), "norm.lora_B.weight": (5, 2)},
            r"\(5, 2\) and \(2, 4\), and .* \(4,",
        ),
        ({"norm.lora_A.weight": (2,), "norm.lora_B.weight": (4,)}, "does not fit"),
        ({"norm.lora_A.weight": (0, 1), "norm.lora_B.weight": (4, 0)}, "does not fit"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(changes: dict[str, tuple[int, ...]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        merge_lora(_weights(), _file("plain") | {key: torch.ones(shape) for key, shape in changes.items()})


def test_ranks_of_the_two_matrices_must_agree() -> None:
    file = _file("plain") | {f"{Q}.lora_B.weight": torch.ones(4, 3)}
    with pytest.raises(ValueError, match="does not fit"):
        merge_lora(_weights(), file)


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(ValueError, match="holds nothing"):
        merge_lora(_weights(), {})
