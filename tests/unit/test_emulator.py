"""The machine on which kernels run in tests: mistakes in them show, and it says what they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diagonal.engine.kernels.cuda import hopper_attention, nvrtc, small_m_gemm, wgmma_gemm
from diagonal.engine.kernels.cuda.hopper_attention import Splits
from diagonal.engine.kernels.visibility import Visibility
from tests.caches import BOUND, error, reduced, rising, splits_for
from tests.cuda_on_cpu import Machine
from tests.linears import check_linear, random, random_linear

CPU = torch.device("cpu")
WRONG = "wrong numbers"


def make_tokens_m(machine: Machine) -> None:
    """Split-K, rows that are no whole tiles, and five K tiles, two of them in flight."""
    torch.manual_seed(0)
    linear, x = random_linear("biased residual", 24, 102, 1280, "cpu"), random(24, 1280, device="cpu")
    found = wgmma_gemm.configure(24, linear, 4)
    assert found is not None and found.SPLIT_K == 2
    found = replace(found, W_STAGES=2, X_STAGES=2)
    assert linear.residual is not None
    residual = linear.residual.clone()
    machine.fresh = [x, residual]
    check_linear(wgmma_gemm.run(x, replace(linear, residual=residual), found), x, linear)


def make_weights_m(machine: Machine) -> None:
    """Tiles that are not full, and at the end of the matrix fewer rows."""
    torch.manual_seed(0)
    linear, x = random_linear("residual", 72, 180, 320, "cpu"), random(72, 320, device="cpu")
    found = wgmma_gemm.configure(72, linear, 2)
    assert found is not None and found.ROWS == 96 and found.M_TILES == 2 and linear.residual is not None
    found = replace(found, W_STAGES=2, X_STAGES=2)
    check_linear(wgmma_gemm.run(x, replace(linear, residual=linear.residual.clone()), found), x, linear)


def make_small_m(machine: Machine) -> None:
    torch.manual_seed(0)
    linear, x = random_linear("rms bias", 8, 203, 256, "cpu"), random(8, 256, device="cpu")
    found, machine.fresh = small_m_gemm.configure(8, linear, machine.processors), [x]
    assert found is not None
    check_linear(small_m_gemm.run(x, linear, found), x, linear)


def make_layer(machine: Machine) -> None:
    """A norm that takes a mean away, and has a gain and a shift."""
    torch.manual_seed(0)
    linear, x = random_linear("affine", 8, 203, 256, "cpu"), random(8, 256, device="cpu") + 1
    found = small_m_gemm.configure(8, linear, machine.processors)
    assert found is not None and found.NORM == small_m_gemm.LAYER
    check_linear(small_m_gemm.run(x, linear, found), x, linear)


def make_attention(machine: Machine) -> None:
    """All that is written is seen by all; the first blocks were written long ago."""
    torch.manual_seed(0)
    q, k, v = (random(1, heads, length, 128, device="cpu") for heads, length in ((4, 16), (2, 1216), (2, 1216)))
    needed = torch.zeros(1216, dtype=torch.int32)
    seen = Visibility(torch.arange(16) + 1200, needed, torch.tensor([3]), torch.tensor([19]))
    out = torch.full((1, 16, 4, 128), torch.nan).bfloat16()
    machine.fresh = [q, *(head[3 * 64 :] for cache in (k, v) for head in cache[0])]
    hopper_attention.run((q, k, v), seen, Splits(out), hopper_attention.WorkSplit(1, 1))
    assert error(out.transpose(1, 2), (q, k, v), seen) < BOUND[torch.bfloat16]


def make_skipping(machine: Machine) -> None:
    """Five row tiles in three tiles, two of which have two splits; KV tiles that some or none of them see."""
    torch.manual_seed(0)
    q, (k, v) = random(1, 4, 70, 128, device="cpu"), random(2, 1, 1, 1216, 128, device="cpu")
    slots, needed = torch.arange(70) * 16, torch.arange(1216, dtype=torch.int32)
    needed[192:448] = torch.iinfo(torch.int32).max
    k = rising(k)
    seen, work = Visibility(slots, needed, torch.tensor([0]), torch.tensor([19])), hopper_attention.WorkSplit(5, 3, 2)
    splits = splits_for(q, work)
    hopper_attention.run((q, k, v), seen, splits, work)
    assert error(reduced(*splits).transpose(1, 2), (q, k, v), seen) < BOUND[torch.bfloat16]


MAKES = {
    "tokens M": make_tokens_m,
    "weights M": make_weights_m,
    "small M": make_small_m,
    "layer": make_layer,
    "attention": make_attention,
    "skipping": make_skipping,
}
RELEASED = (
    "if (n > 0 && lane == 0)\n"
    "      mbarrier_arrive(w_empty + 8 * ((n - 1) % W_STAGES)), mbarrier_arrive(x_empty + 8 * ((n - 1) % X_STAGES));"
)
FOREVER, OUTSIDE = "wait forever", "none of the kernel's tensors"
SOMETHING = "."  # what goes wrong first is a matter of chance
FRESH = "what the kernel before writes is read"
# The kernel, what it says, what it says instead, and what the machine says of that.
MISTAKES = [
    # Waiting.
    ("tokens M", "mbarrier_wait(w_full + 8 * s, n / W_STAGES & 1);", "", SOMETHING),
    ("tokens M", "mbarrier_wait(x_full + 8 * t, n / X_STAGES & 1);", "", SOMETHING),
    ("tokens M", "if (n >= W_STAGES) mbarrier_wait(w_empty + 8 * s, n / W_STAGES - 1 & 1);", "", FOREVER),
    ("tokens M", "n / X_STAGES - 1 & 1", "n / X_STAGES & 1", FOREVER),
    ("tokens M", "mbarrier_arrive(x_empty + 8 * ((n - 1) % X_STAGES))", "(void)0", FOREVER),
    (
        "tokens M",
        RELEASED,
        RELEASED.replace("n > 0 && ", "").replace("(n - 1)", "n"),
        WRONG,
    ),  # before it was multiplied with
    ("tokens M", "wgmma_wait<1>();", "wgmma_wait<2>();", WRONG),
    ("tokens M", "wgmma_wait<0>();", "", "sums are used before"),
    ("tokens M", "mbarrier_init(w_empty + 8 * s, CONSUMERS / 32)", "mbarrier_init(w_empty + 8 * s, 2)", FOREVER),
    (
        "tokens M",
        "mbarrier_expect_tx(w_full + 8 * s, W_BYTES)",
        "mbarrier_expect_tx(w_full + 8 * s, W_BYTES - 128)",
        FOREVER,
    ),
    ("tokens M", "w_full + 8 * s, ONCE", "x_full + 8 * s, ONCE", FOREVER),
    ("small M", "__syncthreads();  // once a tile", "// once a tile", WRONG),
    ("attention", "mbarrier_wait(v_full + 8 * stage, n / STAGES & 1);", "", SOMETHING),
    ("attention", "if (n >= STAGES) mbarrier_wait(k_empty + 8 * s, parity);", "", SOMETHING),
    ("attention", "if (lane == 0) mbarrier_arrive(k_empty + 8 * (n % STAGES));", "", FOREVER),
    ("attention", "if (lane == 0) mbarrier_arrive", "if (lane < 2) mbarrier_arrive", FOREVER),
    ("skipping", "      skip(n);\n", "", FOREVER),
    ("skipping", "      if (pending >= 0) finish(pending);\n", "", FOREVER),  # and its values are never given back
    ("skipping", "      pending = -1;\n", "", SOMETHING),
    ("skipping", "latest = __reduce_max_sync", "latest = __reduce_min_sync", WRONG),
    # What the kernel before writes.
    ("tokens M", "prefetch_tensor_map(&x);\n      wait_for_previous_kernel();", "", FRESH),
    ("small M", "  wait_for_previous_kernel();", "", FRESH),
    ("attention", "min(STAGES, unmasked_count)", "min(STAGES, count)", FRESH),
    # Blocks of a cluster.
    ("tokens M", "mbarrier_wait(received, 0);", "", "has ended"),
    ("tokens M", "barrier = map_to_peer(received, 1 - rank)", "barrier = received", "a barrier of another block"),
    ("tokens M", "    cluster_sync();", "    __syncthreads();", "there is no barrier"),
    ("tokens M", "mbarrier_expect_tx(received, EXCHANGED)", "mbarrier_expect_tx(received, EXCHANGED + 16)", FOREVER),
    # Places in shared memory.
    ("tokens M", "(i * W_UNIT >> 4) + 2 * k", "(i * W_UNIT >> 4) + k", WRONG),
    ("tokens M", "ws + s * W_BYTES + i * W_UNIT", "ws + s * W_BYTES + i * W_UNIT + 64", "no multiple of 128"),
    ("tokens M", "received = partial + EXCHANGED", "received = partial + EXCHANGED + 4", "no multiple of 8"),
    (
        "tokens M",
        "x_full = w_empty + 8 * W_STAGES",
        "x_full = w_empty + 8 * W_STAGES + 8",
        "not all in the shared memory",
    ),
    ("tokens M", "x_full = w_empty + 8 * W_STAGES", "x_full = w_empty", FOREVER),
    ("tokens M", "(memory + (partial - base) +", "(memory + (partial - base) + 8192 +", "not in the shared memory"),
    ("weights M", "row * LINE) + 2 * k", "row * LINE + 1024) + 2 * k", WRONG),
    (
        "weights M",
        "matrix_descriptor(xs + t * X_BYTES",
        "matrix_descriptor(xs + 16384 + t * X_BYTES",
        "not all in the shared memory",
    ),
    ("small M", "partials + buffer * WARPS", "partials + 2 * buffer * WARPS", "not in the shared memory"),
    ("attention", "i * 16 * 128, KEYS * 128)", "i * 16 * 128)", WRONG),
    # Places in tensors.
    (
        "tokens M",
        "first + rank * MADE + threadIdx.x % 4 * 2",
        "first + rank * MADE + threadIdx.x % 4",
        r"line \d+: 0x\w+ is no multiple of 4",
    ),
    ("tokens M", "if (BIAS && own < width)", "if (BIAS)", OUTSIDE),
    ("tokens M", "if (token + 8 * half < tokens && own < width) *", "*", OUTSIDE),
    ("weights M", "transpose_8x8(before[b][half][j])", "before[b][half][j]", WRONG),
    ("weights M", "min(OUTPUTS, width - first)", "width - first", WRONG),
    ("weights M", "min(OUTPUTS, width - first)", "OUTPUTS", OUTSIDE),
    ("small M", "min(row, rows - 1)", "row", OUTSIDE),
    ("attention", "needed + own, bytes", "needed + own + 1, bytes", "cannot be copied"),
    ("skipping", "split == 0)  // splits that only other", "split == 7)  // splits that only other", WRONG),
    ("skipping", "longer + behind / fewer", "behind / fewer", WRONG),
    ("skipping", "return split + n * splits;", "return n;", WRONG),
    # What is left out.
    ("skipping", "acc[i] *= decay[i % 4 / 2]", "acc[i] *= decay[i % 2]", WRONG),
    ("skipping", "row_sum[h] = row_sum[h] * decay[h] + sum", "row_sum[h] += sum", WRONG),
    # Norms.
    ("small M", "scale += squares_of[k][token]", "scale += squares_of[0][token]", WRONG),
    ("small M", "if (GAIN && (h == 0", "if (h > 0 && (h == 0", WRONG),
    ("layer", "mean += NORM == 2", "mean *= NORM == 2", WRONG),
    ("layer", "if (SHIFT && extra == 1)", "if (SHIFT && extra == 2)", WRONG),
    ("layer", "if (SHIFT) reduce_warps(FREE + 1", "if (SHIFT) reduce_warps(FREE", WRONG),
    ("layer", "if (h * 8 + lane / 4 < LINES)", "if (h * 8 + lane / 4 < LINES - 1)", WRONG),
    # Threads that must do the same.
    ("attention", "most = fmaxf(most, __shfl_xor", "if (lane) most = fmaxf(most, __shfl_xor", FOREVER),
    ("tokens M", "multiply(sum[0], a +", "multiply(sum[0], threadIdx.x / 32 + a +", "different wgmmas"),
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
    machine: Machine, folder: Path, body: str, arguments: Sequence[nvrtc.Argument], threads: int = 32, blocks: int = 1
) -> None:
    """A kernel of its own, which is given numbers, where to write some, and a size."""
    path = folder / "one.cu"
    path.write_text(
        '#include "hopper.cuh"\n#include "bf16.cuh"\n'
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
        wait_for_previous_kernel();
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
    launch(machine, tmp_path, "wait_for_previous_kernel(); out[threadIdx.x] = size;", given)
    assert (given[1] == 7).all()


@pytest.mark.parametrize("meeting", ["__syncthreads();", "named_barrier_sync(1, 64);"])
def test_threads_that_never_meet_do_not_hang(meeting: str, machine: Machine, tmp_path: Path) -> None:
    given = (torch.zeros(1), torch.zeros(1, dtype=torch.int32), 0)
    launch(machine, tmp_path, meeting, given, threads=64)
    with pytest.raises(RuntimeError, match="wait forever: 32 for"):
        launch(machine, tmp_path, f"if (threadIdx.x < 32) {meeting}", given, threads=64)


def test_numbers_are_rounded_as_torch_does_it(machine: Machine, tmp_path: Path) -> None:
    body = "wait_for_previous_kernel(); const int i = blockIdx.x * 32 + threadIdx.x; out[i] = {}(from[i], 0.f);"
    bits = torch.randint(-(2**31), 2**31 - 1, (64 * 32,), generator=torch.Generator().manual_seed(0)).int()
    small = torch.randn(64 * 32, generator=torch.Generator().manual_seed(1))
    ends = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 65504, 65519.9, 65520, 6e-8, 2.9e-8, 3e-8, 6.1e-5]).repeat(
        32
    )
    for numbers in (bits.view(torch.float32).nan_to_num(1), small, 1e-5 * small, 1e-7 * small, ends):
        for name, kind in (("pack_bf16", torch.bfloat16), ("pack_fp16", torch.float16)):
            out = torch.zeros(len(numbers), dtype=torch.int32)
            launch(machine, tmp_path, body.format(name), (numbers, out, 0), blocks=len(numbers) // 32)
            assert torch.equal(out.short().view(kind), numbers.to(kind))


ONES = """
#include "hopper.cuh"
#include "bf16.cuh"
extern "C" __global__ void one(float* out) {  // 64 x 64 of them, multiplied with themselves
  extern __shared__ __align__(1024) char memory[];
  for (int i = threadIdx.x; i < 2048; i += 128) ((pair_t*)memory)[i] = 0x3f803f80u;
  FENCE;
  __syncthreads();
  float s[32];
  const u64 at = matrix_descriptor(shared_address(memory));
  wgmma_fence();
  for (int k = 0; k < 4; k++) WGMMA_SS(s, at + 2 * k, at + 2 * k, k > 0, "64", , , , , );
  wgmma_commit();
  wgmma_wait<0>();
  fence_accumulators(s);
  wait_for_previous_kernel();
  for (int i = 0; i < 32; i++) out[threadIdx.x * 32 + i] = s[i];
}
"""


def test_the_tensor_cores_see_what_threads_write_after_a_fence(machine: Machine, tmp_path: Path) -> None:
    path, out = tmp_path / "one.cu", torch.zeros(128 * 32)
    path.write_text(ONES)
    machine.compile_kernel(path, "one", {"FENCE": "fence_async_proxy()"}, 8192, CPU).launch(
        (1, 1, 1), 128, 8192, (out,)
    )
    assert (out == 64).all()
    with pytest.raises(RuntimeError, match="the tensor cores do not see it"):
        machine.compile_kernel(path, "one", {"FENCE": "(void)0"}, 8192, CPU).launch((1, 1, 1), 128, 8192, (out,))
