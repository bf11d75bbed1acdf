"""The references of the kernels are the models' own maths, and need no Triton."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.engine.heads import HeadNorm, Heads, joined, rotate
from diagonal.engine.kernels import reference, select
from diagonal.models import layers
from diagonal.models.layers import LayerNorm, RMSNorm, SwiGLU, add_linear, rope_1d

DTYPES = [torch.float32, torch.bfloat16]


def _norm(width: int, dtype: torch.dtype) -> RMSNorm:
    norm = RMSNorm(width, eps=1e-5)
    nn.init.normal_(norm.weight, mean=1.0, std=0.3)
    return norm.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_are_what_their_names_say(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGONAL_KERNELS", "0")
    torch.manual_seed(1)
    x = torch.randn(5, 48, dtype=dtype)
    norm, mlp, layer_norm = _norm(48, dtype), SwiGLU(48, 64).to(dtype), LayerNorm(48).to(dtype)
    with torch.no_grad():
        gate, up = mlp.gate_up(norm(x)).chunk(2, -1)
        assert torch.equal(mlp(x, norm), x + mlp.down(F.silu(gate) * up))
        scale = x.float().pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt()
        assert torch.equal(norm(x), (x.float() * scale).to(dtype) * norm.weight)
        assert torch.equal(layer_norm(x), F.layer_norm(x, (48,), layer_norm.weight, layer_norm.bias))
    assert torch.equal(reference.gelu(x), F.gelu(x, approximate="tanh"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_heads_are_normed_rotated_and_written(dtype: torch.dtype, normed: bool, turned: bool) -> None:
    torch.manual_seed(2)
    slots = torch.tensor([7, 0, 10])
    rope = rope_1d(slots, 16, 10000.0)
    before = torch.randn(2, 2, 2, 11, 16, dtype=dtype)
    k_cache, v_cache = before.clone()
    q_norm, k_norm = _norm(16, dtype), _norm(16, dtype)
    norm = HeadNorm(q_norm.weight, k_norm.weight, q_norm.eps) if normed else None
    heads = Heads(torch.randn(2, 3, (6 + 2 + 2) * 16, dtype=dtype), 2, 16, rope if turned else None, norm)
    with torch.no_grad():
        found = reference.write_heads(heads, k_cache, v_cache, slots)
        q, k, v = heads.qkv().unflatten(-1, (-1, 16)).transpose(1, 2).split((6, 2, 2), dim=1)
        if normed:
            q, k = q_norm(q), k_norm(k)
        if turned:
            q, k = rotate(q, rope), rotate(k, rope)
    assert torch.equal(found, q)
    assert torch.equal(k_cache[:, :, slots], k)
    assert torch.equal(v_cache[:, :, slots], v)
    others = [slot for slot in range(11) if slot not in slots]
    assert torch.equal(torch.stack([k_cache, v_cache])[:, :, :, others], before[:, :, :, others])


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("permuted", [False, True])
def test_samples_have_slots_and_cache_rows_of_their_own(several: bool, permuted: bool) -> None:
    """As if they were written one by one; other rows of the cache stay as they were."""
    torch.manual_seed(3)
    slots = torch.stack([torch.randperm(11)[:4] for _ in range(3)]) if several else torch.randperm(11)[:4]
    rows = torch.tensor([4, 0, 3]) if permuted else None
    qkv, before = torch.randn(3, 4, (6 + 2 + 2) * 16), torch.randn(2, 5 if permuted else 3, 2, 11, 16)
    found, wanted = before.clone(), before.clone()
    made = reference.write_heads(Heads(qkv, 2, 16, rope_1d(slots, 16, 10000.0)), found[0], found[1], slots, rows)
    for sample, row in enumerate(rows.tolist() if permuted and rows is not None else range(3)):
        own = slots[sample] if several else slots
        heads = Heads(qkv[sample : sample + 1], 2, 16, rope_1d(own, 16, 10000.0))
        one = reference.write_heads(heads, wanted[0, row : row + 1], wanted[1, row : row + 1], own)
        assert torch.equal(made[sample], one[0])
    assert torch.equal(found, wanted) and not torch.equal(found, before)


def test_rotation_turns_pairs_by_their_slot() -> None:
    slots = torch.tensor([0, 1, 5])
    x = torch.randn(1, 1, 3, 8)
    turned = rotate(x, rope_1d(slots, 8, 10000.0))
    pairs = torch.complex(x[..., :4], x[..., 4:])
    angles = slots[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    expected = pairs * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], -1))
    assert joined(x).shape == (1, 3, 8)


def test_on_a_cpu_the_references_run() -> None:
    x = torch.zeros(1)
    assert not select.serves(x) and not select.available(x.device)
    assert select.describe(lambda: select.rms_norm(x, x, 1e-5)) == {"RMS norm": "PyTorch"}


def test_a_layer_is_added_onto_the_residual_without_changing_it() -> None:
    linear, x, residual = nn.Linear(4, 6), torch.randn(2, 3, 4), torch.randn(2, 3, 6)
    kept = residual.clone()
    found: Tensor = add_linear(residual, linear, x)
    torch.testing.assert_close(found, kept + linear(x))
    assert torch.equal(residual, kept)


def test_the_references_need_no_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None; import diagonal.engine.kernels.select, diagonal.engine.tokens.graphs"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_models_never_ask_where_they_run() -> None:
    """Only `models.layers` knows that there are kernels."""
    folder = Path(layers.__file__).parent
    asking = [path.name for path in folder.glob("*.py") if "engine.kernels" in path.read_text()]
    assert asking == ["layers.py"]


def test_what_is_chosen_is_recorded_as_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    x, layer = torch.randn(3, 8), nn.Linear(8, 5)
    monkeypatch.setattr(select, "serves", lambda x: True)
    with torch.no_grad(), select.recorded() as found:
        layers.linear(layer, x)
        layers.linear(layer, x, "gelu")
    assert found == {"linear 5x8, 3 tokens": "PyTorch; cuBLAS with GELU epilogue"}
    with torch.no_grad():
        layers.linear(layer, x[:1])
    assert len(found) == 1
