"""The machine on which kernels run in tests: mistakes in them show, and it says what they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diagonal.engine.kernels import cuda, hopper_attention, narrow, wide
from diagonal.engine.kernels.visibility import Visibility
from tests.caches import BOUND, error, merged, parts_for, rising
from tests.cuda_on_cpu import Machine
from tests.products import check_product, random, random_product

CPU = torch.device("cpu")
WRONG = "wrong numbers"


def make_wide(machine: Machine) -> None:
    """Two programs that share rows, which are no whole tiles, in five blocks, two of them under way."""
    torch.manual_seed(0)
    product, x = random_product("biased residual", 24, 102, 1280, "cpu"), random(24, 1280, device="cpu")
    found = wide.cut(24, product, 4)
    assert found is not None and found.SPLIT == 2
    found = replace(found, W_STAGES=2, X_STAGES=2)
    assert product.residual is not None
    residual = product.residual.clone()
    machine.fresh = [x, residual]
    check_product(wide.run(x, replace(product, residual=residual), found), x, product)


def make_wider(machine: Machine) -> None:
    """Blocks that are not full, and at the end of the matrix fewer rows."""
    torch.manual_seed(0)
    product, x = random_product("residual", 72, 180, 320, "cpu"), random(72, 320, device="cpu")
    found = wide.cut(72, product, 2)
    assert found is not None and found.ROWS == 96 and found.BLOCKS == 2 and product.residual is not None
    found = replace(found, W_STAGES=2, X_STAGES=2)
    check_product(wide.run(x, replace(product, residual=product.residual.clone()), found), x, product)


def make_narrow(machine: Machine) -> None:
    torch.manual_seed(0)
    product, x = random_product("rms bias", 8, 203, 256, "cpu"), random(8, 256, device="cpu")
    found, machine.fresh = narrow.cut(8, product, machine.processors), [x]
    assert found is not None
    check_product(narrow.run(x, product, found), x, product)


def make_layer(machine: Machine) -> None:
    """A norm that takes a mean away, and has a gain and a shift."""
    torch.manual_seed(0)
    product, x = random_product("affine", 8, 203, 256, "cpu"), random(8, 256, device="cpu") + 1
    found = narrow.cut(8, product, machine.processors)
    assert found is not None and found.NORM == narrow.LAYER
    check_product(narrow.run(x, product, found), x, product)


def make_attention(machine: Machine) -> None:
    """All that is written is seen by all; the first blocks were written long ago."""
    torch.manual_seed(0)
    q, k, v = (random(1, heads, length, 128, device="cpu") for heads, length in ((4, 16), (2, 1216), (2, 1216)))
    needed = torch.zeros(1216, dtype=torch.int32)
    seen = Visibility(torch.arange(16) + 1200, needed, torch.tensor([3]), torch.tensor([19]))
    out = torch.full((1, 16, 4, 128), torch.nan).bfloat16()
    machine.fresh = [q, *(head[3 * 64 :] for cache in (k, v) for head in cache[0])]
    hopper_attention.run((q, k, v), seen, (out, None, None), hopper_attention.Share(1, 1))
    assert error(out.transpose(1, 2), (q, k, v), seen) < BOUND[torch.bfloat16]


def make_passing(machine: Machine) -> None:
    """Five blocks of rows in three tiles, two of which have two parts; there are rounds that not all of them see, and
    some that nobody does."""
    torch.manual_seed(0)
    q, (k, v) = random(1, 4, 70, 128, device="cpu"), random(2, 1, 1, 1216, 128, device="cpu")
    slots, needed = torch.arange(70) * 16, torch.arange(1216, dtype=torch.int32)
    needed[192:448] = torch.iinfo(torch.int32).max
    k = rising(k)
    seen, share = Visibility(slots, needed, torch.tensor([0]), torch.tensor([19])), hopper_attention.Share(5, 3, 2)
    parts = parts_for(q, share)
    parts[0].fill_(torch.nan)
    hopper_attention.run((q, k, v), seen, parts, share)
    assert error(merged(*parts).transpose(1, 2), (q, k, v), seen) < BOUND[torch.bfloat16]


MAKES = {
    "wide": make_wide,
    "wider": make_wider,
    "narrow": make_narrow,
    "layer": make_layer,
    "attention": make_attention,
    "passing": make_passing,
}
RELEASED = (
    "if (n > 0 && lane == 0) arrive(w_empty + 8 * ((n - 1) % W_STAGES)), arrive(x_empty + 8 * ((n - 1) % X_STAGES));"
)
FOREVER, OUTSIDE = "wait forever", "none of the kernel's tensors"
SOMETHING = "."  # what goes wrong first is a matter of chance
FRESH = "what the kernel before writes is read"
# The kernel, what it says, what it says instead, and what the machine says of that.
MISTAKES = [
    # Waiting.
    ("wide", "await(w_full + 8 * s, n / W_STAGES & 1);", "", SOMETHING),
    ("wide", "await(x_full + 8 * t, n / X_STAGES & 1);", "", SOMETHING),
    ("wide", "if (n >= W_STAGES) await(w_empty + 8 * s, n / W_STAGES - 1 & 1);", "", FOREVER),
    ("wide", "n / X_STAGES - 1 & 1", "n / X_STAGES & 1", FOREVER),
    ("wide", "arrive(x_empty + 8 * ((n - 1) % X_STAGES))", "(void)0", FOREVER),
    (
        "wide",
        RELEASED,
        RELEASED.replace("n > 0 && ", "").replace("(n - 1)", "n"),
        WRONG,
    ),  # before it was multiplied with
    ("wide", "await_products<1>();", "await_products<2>();", WRONG),
    ("wide", "await_products<0>();", "", "sums are used before"),
    ("wide", "init(w_empty + 8 * s, MULTIPLYING / 32)", "init(w_empty + 8 * s, 2)", FOREVER),
    ("wide", "expect(w_full + 8 * s, W_BYTES)", "expect(w_full + 8 * s, W_BYTES - 128)", FOREVER),
    ("wide", "w_full + 8 * s, ONCE", "x_full + 8 * s, ONCE", FOREVER),
    ("narrow", "__syncthreads();  // once a tile", "// once a tile", WRONG),
    ("attention", "await(v_full + 8 * stage, n / STAGES & 1);", "", SOMETHING),
    ("attention", "if (n >= STAGES) await(k_empty + 8 * s, parity);", "", SOMETHING),
    ("attention", "if (lane == 0) arrive(k_empty + 8 * (n % STAGES));", "", FOREVER),
    ("attention", "if (lane == 0) arrive", "if (lane < 2) arrive", FOREVER),
    ("passing", "      pass(n);\n", "", FOREVER),
    ("passing", "      if (open >= 0) finish(open);\n", "", FOREVER),  # and its values are never given back
    ("passing", "      open = -1;\n", "", SOMETHING),
    ("passing", "latest = __reduce_max_sync", "latest = __reduce_min_sync", WRONG),
    # What the kernel before writes.
    ("wide", "ready(&x);\n      await_kernel_before();", "", FRESH),
    ("narrow", "  await_kernel_before();", "", FRESH),
    ("attention", "min(STAGES, plain_count)", "min(STAGES, count)", FRESH),
    # Blocks of a cluster.
    ("wide", "await(mailed, 0);", "", "has ended"),
    ("wide", "barrier = at_other(mailed, 1 - part)", "barrier = mailed", "a barrier of another block"),
    ("wide", "    meet_cluster();", "    __syncthreads();", "there is no barrier"),
    ("wide", "expect(mailed, MAIL)", "expect(mailed, MAIL + 16)", FOREVER),
    # Places in shared memory.
    ("wide", "(i * W_UNIT >> 4) + 2 * k", "(i * W_UNIT >> 4) + k", WRONG),
    ("wide", "ws + s * W_BYTES + i * W_UNIT", "ws + s * W_BYTES + i * W_UNIT + 64", "no multiple of 128"),
    ("wide", "mailed = mail + MAIL", "mailed = mail + MAIL + 4", "no multiple of 8"),
    ("wide", "x_full = w_empty + 8 * W_STAGES", "x_full = w_empty + 8 * W_STAGES + 8", "not all in the shared memory"),
    ("wide", "x_full = w_empty + 8 * W_STAGES", "x_full = w_empty", FOREVER),
    ("wide", "(memory + (mail - xs) +", "(memory + (mail - xs) + 8192 +", "not in the shared memory"),
    ("wider", "row * LINE) + 2 * k", "row * LINE + 1024) + 2 * k", WRONG),
    ("wider", "place(xs + t * X_BYTES", "place(xs + 16384 + t * X_BYTES", "not all in the shared memory"),
    ("narrow", "parts + buffer * WARPS", "parts + 2 * buffer * WARPS", "not in the shared memory"),
    ("attention", "i * 16 * 128, KEYS * 128)", "i * 16 * 128)", WRONG),
    # Places in tensors.
    ("wide", "lane % 4 * 2;\n  pair_t before", "lane % 4;\n  pair_t before", r"line \d+: 0x\w+ is no multiple of 4"),
    ("wide", "if (BIAS && at < width)", "if (BIAS)", OUTSIDE),
    ("wide", "if (token + 8 * half < tokens && at < width)\n        *", "*", OUTSIDE),
    ("wider", "turned(before[b][half][j])", "before[b][half][j]", WRONG),
    ("wider", "min(OUTPUTS, width - first)", "width - first", WRONG),
    ("wider", "min(OUTPUTS, width - first)", "OUTPUTS", OUTSIDE),
    ("narrow", "min(row, rows - 1)", "row", OUTSIDE),
    ("attention", "needed + own, bytes", "needed + own + 1, bytes", "cannot be copied"),
    ("passing", "part == 0)  // parts that other", "part == 7)  // parts that other", WRONG),
    ("passing", "longer + behind / fewer", "behind / fewer", WRONG),
    ("passing", "return part + n * parts;", "return n;", WRONG),
    # What is left out.
    ("passing", "mixed[i] *= decay[i % 4 / 2]", "mixed[i] *= decay[i % 2]", WRONG),
    ("passing", "total[h] = total[h] * decay[h] + sum", "total[h] += sum", WRONG),
    # Norms.
    ("narrow", "scale += squares_of[k][token]", "scale += squares_of[0][token]", WRONG),
    ("narrow", "if (GAIN && (h == 0", "if (h > 0 && (h == 0", WRONG),
    ("layer", "mean += NORM == 2", "mean *= NORM == 2", WRONG),
    ("layer", "if (SHIFT && extra == 1)", "if (SHIFT && extra == 2)", WRONG),
    ("layer", "if (SHIFT) add_warps(FREE + 1", "if (SHIFT) add_warps(FREE", WRONG),
    ("layer", "if (h * 8 + lane / 4 < LINES)", "if (h * 8 + lane / 4 < LINES - 1)", WRONG),
    # Threads that must do the same.
    ("attention", "most = fmaxf(most, __shfl_xor", "if (lane) most = fmaxf(most, __shfl_xor", FOREVER),
    ("wide", "multiply(sum, a +", "multiply(sum, threadIdx.x / 32 + a +", "different products"),
]


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("late", [False, True])
def test_without_mistakes_all_is_well(name: str, late: bool, machine: Machine) -> None:
    machine.late = late
    MAKES[name](machine)


@pytest.mark.parametrize(("name", "old", "new", "message"), MISTAKES)
def test_mistakes_show(name: str, old: str, new: str, message: str, machine: Machine) -> None:
    """With all that goes on beside threads done at once, or with all of it done late."""
    machine.changes, said = {old: new}, []
    for machine.late in (False, True):
        try:
            MAKES[name](machine)
        except AssertionError:
            said.append(WRONG)
        except RuntimeError as problem:
            said.append(str(problem))
    assert any(re.search(message, one) for one in said), said


def launch(
    machine: Machine, folder: Path, body: str, arguments: Sequence[cuda.Argument], threads: int = 32, blocks: int = 1
) -> None:
    """A kernel of its own, which is given numbers, where to write some, and a size."""
    path = folder / "one.cu"
    path.write_text(
        '#include "hopper.cuh"\n#include "numbers.cuh"\n'
        f'extern "C" __global__ void one(const float* from, int* out, int size) {{ {body} }}'
    )
    machine.compile_kernel(path, "one", {}, 0, CPU).launch((blocks, 1, 1), threads, 0, arguments)


def test_arguments_must_be_what_the_kernel_takes(machine: Machine, tmp_path: Path) -> None:
    from_, out = torch.zeros(32), torch.zeros(32, dtype=torch.int32)
    launch(machine, tmp_path, "", (from_, out, 3))
    for arguments in ((from_, out), (from_, out, 3.0), (from_, 3, out), (from_, out, 3, 3)):
        with pytest.raises(RuntimeError, match="is not what the kernel takes"):
            launch(machine, tmp_path, "", arguments)


def test_each_block_has_shared_memory_of_its_own_in_which_nothing_is_zero(machine: Machine, tmp_path: Path) -> None:
    body = """
        __shared__ float sums[2][32];
        await_kernel_before();
        out[blockIdx.x * 32 + threadIdx.x] = isnan(sums[1][threadIdx.x]) ? 1 : 0;
        sums[1][threadIdx.x] = 0.f;
    """
    out = torch.zeros(96, dtype=torch.int32)
    launch(machine, tmp_path, body, (torch.zeros(1), out, 0), blocks=3)
    assert out.all()


def test_nothing_may_be_written_before_the_kernel_before_has_ended(machine: Machine, tmp_path: Path) -> None:
    given = (torch.zeros(1), torch.zeros(32, dtype=torch.int32), 7)
    with pytest.raises(RuntimeError, match="written before the kernel before has ended"):
        launch(machine, tmp_path, "out[threadIdx.x] = size;", given)
    launch(machine, tmp_path, "await_kernel_before(); out[threadIdx.x] = size;", given)
    assert (given[1] == 7).all()


@pytest.mark.parametrize("meeting", ["__syncthreads();", "meet_named(1, 64);"])
def test_threads_that_never_meet_do_not_hang(meeting: str, machine: Machine, tmp_path: Path) -> None:
    given = (torch.zeros(1), torch.zeros(1, dtype=torch.int32), 0)
    launch(machine, tmp_path, meeting, given, threads=64)
    with pytest.raises(RuntimeError, match="wait forever: 32 for"):
        launch(machine, tmp_path, f"if (threadIdx.x < 32) {meeting}", given, threads=64)


def test_numbers_are_rounded_as_torch_does_it(machine: Machine, tmp_path: Path) -> None:
    body = "await_kernel_before(); const int i = blockIdx.x * 32 + threadIdx.x; out[i] = {}(from[i], 0.f);"
    bits = torch.randint(-(2**31), 2**31 - 1, (64 * 32,), generator=torch.Generator().manual_seed(0)).int()
    small = torch.randn(64 * 32, generator=torch.Generator().manual_seed(1))
    ends = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 65504, 65519.9, 65520, 6e-8, 2.9e-8, 3e-8, 6.1e-5]).repeat(
        32
    )
    for numbers in (bits.view(torch.float32).nan_to_num(1), small, 1e-5 * small, 1e-7 * small, ends):
        for name, kind in (("pack", torch.bfloat16), ("pack_halves", torch.float16)):
            out = torch.zeros(len(numbers), dtype=torch.int32)
            launch(machine, tmp_path, body.format(name), (numbers, out, 0), blocks=len(numbers) // 32)
            assert torch.equal(out.short().view(kind), numbers.to(kind))


ONES = """
#include "hopper.cuh"
#include "numbers.cuh"
extern "C" __global__ void one(float* out) {  // 64 x 64 of them, multiplied with themselves
  extern __shared__ __align__(1024) char memory[];
  for (int i = threadIdx.x; i < 2048; i += 128) ((pair_t*)memory)[i] = 0x3f803f80u;
  FENCE;
  __syncthreads();
  float s[32];
  const u64 at = place(address(memory));
  before_products();
  for (int k = 0; k < 4; k++) MULTIPLY(s, at + 2 * k, at + 2 * k, k > 0, "64", , , , , );
  asked_products();
  await_products<0>();
  settled(s);
  await_kernel_before();
  for (int i = 0; i < 32; i++) out[threadIdx.x * 32 + i] = s[i];
}
"""


def test_the_tensor_cores_see_what_threads_write_after_a_fence(machine: Machine, tmp_path: Path) -> None:
    path, out = tmp_path / "one.cu", torch.zeros(128 * 32)
    path.write_text(ONES)
    machine.compile_kernel(path, "one", {"FENCE": "fence_for_tensor_cores()"}, 8192, CPU).launch(
        (1, 1, 1), 128, 8192, (out,)
    )
    assert (out == 64).all()
    with pytest.raises(RuntimeError, match="the tensor cores do not see it"):
        machine.compile_kernel(path, "one", {"FENCE": "(void)0"}, 8192, CPU).launch((1, 1, 1), 128, 8192, (out,))
