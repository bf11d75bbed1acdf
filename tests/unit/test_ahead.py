"""Weights that a kernel fetches for the ones after it: which, and how much of them."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import diagonal
from diagonal.engine.attention import Causal
from diagonal.engine.heads import Heads
from diagonal.engine.kernels import cuda, hopper_attention, narrow, wide
from diagonal.engine.kernels.products import product
from diagonal.engine.kernels.visibility import Visibility
from diagonal.engine.product import Pending, Product, Weighted
from diagonal.models import layers, wham
from tests.ahead import Layer, lines
from tests.cuda_on_cpu import Machine
from tests.products import random, random_product

MODELS = ["mcar/tiny", "cosmos/tiny", "cosmos/tiny-text", "wham/tiny"]


def test_what_a_kernel_reads_has_its_layout() -> None:
    """As `struct Ahead` of ahead.cuh on a machine of 64 bits."""
    assert ctypes.sizeof(cuda.Ahead) == 24 and cuda.Ahead.lines.offset == 16


def test_beginnings_of_half_rows_are_fetched_up_to_a_limit() -> None:
    first, second = torch.zeros(64, 1024).bfloat16(), torch.zeros(32, 2048).bfloat16()
    whole, nothing, part = cuda.ahead([first, None, second], limit=first.nbytes + 32 * 1024)
    assert (whole.start, whole.segments, whole.stride, whole.lines) == (first.data_ptr(), 128, 1024, 8)
    assert (nothing.start, nothing.segments, nothing.lines) == (None, 0, 0)
    assert (part.start, part.segments, part.stride, part.lines) == (second.data_ptr(), 64, 2048, 4)


@pytest.mark.parametrize("limit", [0, 1, 127 * 128, 10**5, 10**9])
def test_no_line_lies_outside_of_its_matrix_nor_above_the_limit(limit: int) -> None:
    for shape in ((64, 1024), (3, 96), (1, 8), (100, 40)):
        weight = torch.zeros(shape).bfloat16()
        (found,) = cuda.ahead([weight], limit)
        assert found.segments * found.lines * cuda.LINE <= limit
        last = (found.segments - 1) * found.stride + found.lines * cuda.LINE
        assert not found.lines or last <= weight.nbytes
    (strided,) = cuda.ahead([torch.zeros(64, 1024).t()], limit)
    assert strided.lines == 0


@pytest.mark.parametrize("limit", [0, 4096, 1 << 20])
@pytest.mark.parametrize(("tokens", "kernel"), [(1, narrow), (14, narrow), (48, wide), (96, wide)])
def test_products_fetch_what_comes_next_once(
    tokens: int, kernel: Any, limit: int, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(kernel, "AHEAD", limit)
    read_next = random(24, 512, device="cpu")
    product = replace(random_product("plain", tokens, 256, 256, "cpu"), then=Layer(read_next))
    found = kernel.cut(tokens, product, machine.processors)
    kernel.run(random(tokens, 256, device="cpu"), product, found)
    assert sorted(machine.prefetched) == lines([read_next], limit)


def test_attention_fetches_the_next_two(machine: Machine) -> None:
    q, k = torch.zeros(1, 4, 3, 64).bfloat16(), torch.zeros(1, 2, 128, 64).bfloat16()
    number = torch.ones(1, dtype=torch.long)
    seen = Visibility(torch.arange(64, 67), torch.arange(128, dtype=torch.int32), number, 2 * number)
    weights = (random(24, 512, device="cpu"), random(8, 256, device="cpu"))
    then = (Layer(weights[0]), Layer(weights[1]))
    for found in (hopper_attention.Cut(64, 1, SPLIT=False), hopper_attention.Cut(64, 3, SPLIT=False, CLUSTER=8)):
        hopper_attention.run(found, (q, k, k), seen, (torch.empty(1, 3, 4, 64).bfloat16(), None, None), then)
        assert sorted(machine.prefetched) == lines(weights, hopper_attention.AHEAD)


@pytest.mark.parametrize("name", MODELS)
def test_models_say_which_weights_come_next(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each product and each attention is told must be what the next products are made with, and after the last
    the first of the next step."""
    read: list[int] = []
    told: list[tuple[int, tuple[Weighted, ...]]] = []  # after so many products

    def noted(x: Tensor, asked: Product) -> Tensor:
        read.append(asked.weight_NK.data_ptr())
        if asked.then is not None:
            told.append((len(read), (asked.then,)))
        return made(x, asked)

    def noted_heads(*given: Any, **named: Any) -> Heads:
        heads = Heads(*given, **named)
        assert isinstance(heads.source, Pending)  # it is made before the weights that come next are read
        told.append((len(read) + 1, heads.then))
        return heads

    model = diagonal.load(name).model.float()
    made = product
    monkeypatch.setattr(layers, "product", noted)
    monkeypatch.setattr(wham, "product", noted)
    monkeypatch.setattr(f"diagonal.models.{name.split('/')[0]}.Heads", noted_heads)
    width = model.config.text if "text" in name else 0
    tokens, slots = torch.zeros(1, 5, dtype=torch.long), torch.arange(5)
    with torch.inference_mode():
        text = (model.context(torch.randn(1, 3, width)),) if width else ()
        model(tokens, slots, Causal(), None, *text)
    layers_count = model.config.layers
    assert len(told) >= 3 * layers_count + 1
    for after, weights in told:
        assert [one.weight.data_ptr() for one in weights] == (read + read[:1])[after : after + len(weights)]
