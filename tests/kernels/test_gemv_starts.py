"""GEMV kernels that start under the kernel before: they wait for it, ask the L2 meanwhile, and share out SMs evenly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from auxiliary_kernels import assert_nothing_moves_before_the_wait

from tests.lowering.test_constant_operands import asked_ahead
from tests.mutations.broken import without
from tests.mutations.test_dependent_launches import early, waits
from tilewright.codegen import print_cuda
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, F32, DType
from tilewright.ir.async_stmt import L2Prefetch, StartNextGrid
from tilewright.ir.stmt import For, Move
from tilewright.ir.text import kernel_text
from tilewright.ir.visit import walk
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.gemv_space import blocks_of, blocks_that_fit, shared_bytes, starts_early
from tilewright.planning.on_paper import PaperKernels, alignment_of_rows
from tilewright.planning.skinny import Skinny, Start, skinny_for
from tilewright.problem import Gemm, Operands, check, make_operands
from tilewright.problem.gemm import orders_of
from tilewright.problem.reference import view
from tilewright.simulator import PreviousGrid, simulate

H200 = device("H200")


def problem(m: int, n: int, k: int, orders: str, dtype: DType = F32) -> Gemm:
    a, b = orders_of(orders)
    return Gemm(m, n, k, dtype, a=a, b=b, out=dtype)


def skinny(gemm: Gemm, parts: int = 1) -> Skinny:
    found = skinny_for(gemm, alignment_of_rows(gemm), None, parts=parts)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("m", "n", "k", "orders", "dtype"),
    [(1, 200, 512, "NT", BF16), (2, 200, 264, "NN", F16), (3, 77, 333, "NT", F32), (200, 2, 264, "TN", F32)],
)
def test_what_the_kernel_before_writes_is_there_behind_the_wait(
    m: int, n: int, k: int, orders: str, dtype: DType
) -> None:
    gemm = problem(m, n, k, orders, dtype)
    operands, kernel = make_operands(gemm), skinny(gemm).kernel(early=True)
    stale = replace(operands, a=np.zeros_like(operands.a), b=np.zeros_like(operands.b))
    written = PreviousGrid({"A": operands.a, "B": operands.b})
    run = simulate(kernel, stale, previous=written)
    assert not run.findings and right(operands, run.c)
    (wait,) = waits(kernel)
    broken = simulate(without(kernel, wait), stale, previous=written, on_finding="collect")
    assert early(broken.errors) == {"A", "B"}


def right(operands: Operands, c: np.ndarray) -> bool:
    gemm = operands.gemm
    return bool(check(operands, gemm.out.decode(view(gemm, "C", c))).ok)


@pytest.mark.parametrize("orders", ["NN", "NT"])
def test_the_l2_is_asked_for_what_is_loaded_first(orders: str) -> None:
    """16 KiB a block, of the same places as the first loads in front of the loop over k, where the same guards hold."""
    one = skinny(problem(2, 1024, 1024, orders, BF16))
    kernel = one.kernel(early=True)
    assert asked_ahead(kernel, L2Prefetch)
    ahead = [stmt for stmt in kernel.body if not (isinstance(stmt, For) and stmt.var == "chunk")]
    asked = [(stmt.place, stmt.guard) for _, stmt in walk(ahead) if isinstance(stmt, L2Prefetch)]
    loaded = [(stmt.src, stmt.guard) for _, stmt in walk(ahead) if isinstance(stmt, Move) and stmt.streaming]
    assert asked == loaded[: len(asked)]
    assert "the L2 is asked for B[" in kernel_text(kernel)
    assert "prefetch.global.L2" in print_cuda(kernel).text


@pytest.mark.parametrize("orders", ["NN", "NT"])
def test_the_compiler_loads_nothing_before_the_wait(orders: str) -> None:
    for dtype in (BF16, F32):
        assert_nothing_moves_before_the_wait(skinny(problem(1, 4096, 4096, orders, dtype)).kernel(early=True))


def test_a_kernel_that_starts_plainly_has_no_wait() -> None:
    kernel = skinny(problem(1, 1024, 1024, "NT")).kernel()
    assert not kernel.overlapped and not waits(kernel)
    assert not any(isinstance(stmt, StartNextGrid) for _, stmt in walk(kernel.body))


DRAWN = [
    (problem(few, many, k, orders, dtype), parts)
    for few in (1, 3)
    for many in (1000, 4096, 20000)
    for k in (512, 8192)
    for orders in ("NN", "NT")
    for dtype in (BF16, F32)
    for parts in (1, 4)
]


@pytest.mark.parametrize(("gemm", "parts"), DRAWN[::5])
def test_an_sm_has_room_for_its_share_of_one_wave_and_for_no_more(gemm: Gemm, parts: int) -> None:
    one = skinny(gemm, parts)
    start, each = one.start(H200), -(-blocks_of(one.config, gemm) // H200.sm_count)
    kernel = one.kernel()
    blocks = blocks_of(one.config, gemm)
    assert blocks == np.prod(one.grid(kernel))
    room = blocks_that_fit(one.config, one.problem, H200)
    if each > room:
        assert start == Start(early=True)
    elif start.early:
        block_bytes = kernel.shared_bytes + start.spare_bytes + H200.reserved_shared_bytes_per_block
        assert each * block_bytes <= H200.shared_bytes_per_sm < (each + 1) * block_bytes
        assert kernel.shared_bytes <= shared_bytes(one.config, one.problem) + 256
    else:
        assert start == Start() and blocks < each * H200.sm_count


def test_starts_of_all_kinds_are_met() -> None:
    kinds = {skinny(gemm, parts).start(H200) for gemm, parts in DRAWN}
    assert {(one.early, one.spare_bytes > 0) for one in kinds} == {(False, False), (True, False), (True, True)}


def test_blocks_that_would_crowd_do_not_start_early() -> None:
    """Two an SM, of which so many are missing, with and without a reduction behind them; one an SM."""
    config = GemvConfig(width=8, outputs=4, whole_k=True, steps=2)  # 32 outputs a block
    for blocks, parts, expected in ((200, 1, False), (240, 1, True), (100, 2, True), (90, 2, False), (20, 1, True)):
        gemm = problem(1, 32 * blocks, 8192, "NT", BF16)
        assert starts_early(config.with_split_k(parts), gemm, H200) is expected, blocks


def test_a_gpu_without_dependent_launch_starts_it_plainly() -> None:
    gemm = problem(1, 4096, 4096, "NT", BF16)
    assert skinny(gemm).start(device("A100")) == Start()


def test_the_launch_takes_the_spare_memory() -> None:
    gemm = problem(1, 8192, 4096, "NT", BF16)
    one = skinny(gemm)
    for spec in (H200, device("A100"), None):
        launch = PaperKernels(spec).gemv(one)
        start = Start() if spec is None else one.start(spec)
        assert launch.source.dynamic_shared_bytes == start.spare_bytes
        assert launch.source.overlapped is start.early
    assert one.start(H200).early


def test_problems_of_other_sizes_start_in_another_way() -> None:
    """One configuration: as many blocks as SMs have room for, and many more, which find room as it comes."""
    kernels, one = PaperKernels(H200), skinny(problem(1, 8192, 4096, "NT", BF16))
    found = [kernels.gemv(replace(one, problem=problem(1, n, 4096, "NT", BF16))).source for n in (8192, 32768)]
    assert found[0].text == found[1].text
    assert found[0].dynamic_shared_bytes > found[1].dynamic_shared_bytes == 0
