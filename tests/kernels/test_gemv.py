"""GEMV kernels: right in every order, width, format and edge, with all detectors; loads and code as designed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from auxiliary_kernels import compiled, run_on_cpu
from instruction_counts import instruction_mix

from tilewright.codegen import print_cuda
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, F32, DType
from tilewright.errors import SimulationError
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Barrier, Move, ShuffleAdd
from tilewright.ir.visit import rewrite, walk
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.gemv_body import gemv_kernel
from tilewright.kernels.gemv_space import (
    Facts,
    blocks_by_registers,
    blocks_that_fit,
    fitting,
    registers,
    shared_bytes,
)
from tilewright.kernels.skinny import is_k_major, long_of
from tilewright.planning.cost.gemv import sm_seconds, times_of_memory
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.packing import Stack
from tilewright.planning.skinny import Skinny, skinny_for
from tilewright.problem import Activation, Epilogue, Gemm, Operands, Order, check, make_operands
from tilewright.problem.gemm import orders_of
from tilewright.problem.reference import view
from tilewright.runtime.sass import disassemble
from tilewright.simulator import simulate
from tilewright.simulator.coverage import miscounts

H200 = device("H200")
ORDERS = ("NN", "NT", "TN", "TT")


def problem(m: int, n: int, k: int, orders: str, dtype: DType = F32, **more: Any) -> Gemm:
    a, b = orders_of(orders)
    return Gemm(m, n, k, dtype, a=a, b=b, **{"out": dtype, **more})


def skinny(gemm: Gemm, parts: int = 1) -> Skinny:
    found = skinny_for(gemm, alignment_of_rows(gemm), None, parts=parts)
    assert found is not None and found.config.reasons_against(gemm) == ()
    return found


def run(one: Skinny, operands: Operands, **options: Any) -> Any:
    """The result: of partial sums, their sum in float64."""
    gemm, kernel = operands.gemm, one.kernel()
    if one.whole:
        return gemm.out.decode(view(gemm, "C", simulate(kernel, operands, **options).c))
    room = np.full(one.parts * gemm.m * gemm.n, np.nan, np.float32)
    partial = replace(operands, gemm=one.problem, c=room, added={})
    sums = simulate(kernel, partial, part_of_k=one.part_of_k, **options).c
    return sums.reshape(one.parts, gemm.m, gemm.n).astype(np.float64).sum(axis=0)


def assert_right(gemm: Gemm, parts: int = 1) -> None:
    operands = make_operands(gemm, seed=gemm.m + gemm.n)
    verdict = check(operands, run(skinny(gemm, parts), operands))
    assert verdict.ok, verdict.message


@pytest.mark.cross_section("orders", "m", every=3)
@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 64, 1),
        (1, 256, 512),  # nothing is left over
        (1, 131, 1037),  # nothing is whole
        (1, 1, 5003),  # a dot product
        (2, 132, 300),
        (3, 68, 1032),
        (4, 65, 257),
        (70, 3, 260),  # the long matrix is A
        (1024, 1, 129),
    ],
)
def test_a_few_rows_times_a_long_matrix(m: int, n: int, k: int, orders: str) -> None:
    for dtype in (F32, BF16):
        assert_right(problem(m, n, k, orders, dtype))


@pytest.mark.cross_section("orders", "m", every=2)
@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize(("m", "n", "k"), [(16, 132, 300), (9, 100, 1032), (5, 65, 257), (70, 13, 260)])
def test_up_to_sixteen_rows_of_f32(m: int, n: int, k: int, orders: str) -> None:
    assert_right(problem(m, n, k, orders))


@pytest.mark.cross_section("orders", "dtype", every=2)
@pytest.mark.parametrize("orders", ["NN", "NT", "TT"])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_up_to_sixteen_rows_of_two_bytes(dtype: DType, orders: str) -> None:
    """More than dispatch asks for: kernels take what their configuration says."""
    for m in (8, 13):
        gemm = problem(m, 72, 264, orders, dtype)
        facts = Facts(16, 16 if orders[0] == "N" else 2, True)
        operands = make_operands(gemm)
        for config in list(fitting(gemm, facts))[::5]:
            assert config.reasons_against(gemm) == ()
            result = gemm.out.decode(view(gemm, "C", simulate(gemv_kernel(config, gemm), operands).c))
            assert check(operands, result).ok, config


@pytest.mark.parametrize("orders", ORDERS)
def test_every_configuration_of_a_problem_is_right(orders: str) -> None:
    for shape in ((1, 70, 700), (2, 1, 5000), (3, 264, 90)):
        gemm = problem(*shape, orders, BF16)
        alignment = alignment_of_rows(gemm)
        facts = Facts(alignment.of(long_of(gemm)), 2, False)
        operands = make_operands(gemm)
        for config in list(fitting(gemm, facts))[::7]:
            assert config.reasons_against(gemm) == ()
            result = gemm.out.decode(view(gemm, "C", simulate(gemv_kernel(config, gemm), operands).c))
            assert check(operands, result).ok, config


@pytest.mark.cross_section("orders", "m", every=2)
@pytest.mark.parametrize("orders", ["NN", "NT"])
@pytest.mark.parametrize(("m", "n", "k", "parts"), [(1, 1, 70_003, 20), (4, 256, 3000, 3), (16, 80, 1040, 4)])
def test_blocks_that_share_k_leave_partial_sums(m: int, n: int, k: int, parts: int, orders: str) -> None:
    for dtype in (F32, BF16):
        if dtype is F32 or m <= 4:
            gemm = problem(m, n, k, orders, dtype, alpha=0.5)
            operands = make_operands(gemm)
            one = skinny(gemm, parts)
            assert one.parts > 1 and one.parts <= parts
            assert check(operands, gemm.alpha * run(one, operands)).ok


@pytest.mark.parametrize("order", [Order.ROW, Order.COL])
@pytest.mark.parametrize(
    ("epilogue", "beta"),
    [
        (Epilogue(), 0.5),
        (Epilogue("n", True, Activation.GELU), -1.0),
        (Epilogue("m", False, Activation.RELU), 0.0),
        (Epilogue("n", scale=("m", "n")), 0.5),
    ],
    ids=str,
)
def test_the_epilogue_of_a_whole_sum(epilogue: Epilogue, beta: float, order: Order) -> None:
    for m, n in ((3, 70), (70, 2)):
        assert_right(problem(m, n, 260, "NT", BF16, alpha=2.0, beta=beta, c=order, epilogue=epilogue))


def test_strided_operands_and_offsets_of_64_bits() -> None:
    gemm = problem(2, 100, 200, "NT", lda=260, ldb=204, ldc=107)
    operands = make_operands(gemm)
    for near in (True, False):
        config = next(iter(fitting(gemm, Facts(16, 16, near))))
        kernel = gemv_kernel(config, gemm)
        assert kernel.variant.near is near
        assert check(operands, gemm.out.decode(view(gemm, "C", simulate(kernel, operands).c))).ok


@pytest.mark.parametrize("orders", ORDERS)
def test_every_k_is_summed_once(orders: str) -> None:
    for shape in ((1, 65, 515), (4, 72, 264)):
        gemm = problem(*shape, orders)
        assert miscounts(skinny(gemm).kernel(), gemm) == ()


@pytest.mark.parametrize("orders", ORDERS)
def test_infinities_and_nan_stay_where_they_are(orders: str) -> None:
    """What lies behind the last column or the last k is not read as a factor."""
    gemm = problem(4, 68, 260, orders)
    operands = make_operands(gemm)
    operands.matrix("A")[1, 259], operands.matrix("B")[259, 67] = np.inf, np.nan
    result = run(skinny(gemm), operands)
    assert np.isnan(result[:, 67]).all() and np.isinf(result[1, :67]).all()
    assert np.isfinite(np.delete(result, 1, 0)[:, :67]).all()


def long_loads(kernel: Kernel, gemm: Gemm) -> list[Any]:
    counters = simulate(kernel, make_operands(gemm)).counters
    return [line for line in counters.lines if line.kind == "load" and line.buffer == long_of(gemm)]


@pytest.mark.parametrize("orders", ["NN", "NT"])
@pytest.mark.parametrize(("dtype", "rows"), [(F32, 1), (F32, 16), (BF16, 1), (BF16, 4)], ids=str)
def test_the_long_matrix_is_read_once_in_whole_sectors(dtype: DType, rows: int, orders: str) -> None:
    gemm = problem(rows, 256, 1024, orders, dtype)
    one = skinny(gemm)
    assert one.config.width * dtype.bytes == 16
    counters = simulate(one.kernel(), make_operands(gemm)).counters
    loads = [line for line in counters.lines if line.kind == "load" and line.buffer == "B"]
    assert sum(line.sectors for line in loads) == 256 * 1024 * dtype.bytes // 32
    shared = [line for line in counters.lines if line.space is Space.SHARED and line.kind == "load"]
    assert sum(line.excess_wavefronts for line in shared) == 0


def test_unaligned_lines_are_read_by_neighbouring_lanes() -> None:
    """Elements of 2 bytes, K-major, unaligned leading dimension: a request covers 64 bytes, in two or three sectors."""
    gemm = problem(1, 64, 1023, "NT", BF16)
    one = skinny(gemm)
    assert one.config.width == 1
    loads = long_loads(one.kernel(), gemm)
    assert sum(line.sectors for line in loads) <= 3 * sum(line.requests for line in loads)


@pytest.mark.parametrize("orders", ["NN", "NT"])
def test_each_barrier_and_each_shuffle_counts(orders: str) -> None:
    gemm = problem(2, 72, 9000, orders)
    operands = make_operands(gemm)
    config = skinny(gemm).config
    # Were k shared out by all warps, each lane would read what it stored itself, and need no barrier.
    shape = {"outputs": 2, "warps_k": 1, "steps": 4} if is_k_major(gemm) else {}
    config = replace(config, chunk=1024, **shape)
    assert config.reasons_against(gemm) == ()
    kernel = gemv_kernel(config, gemm)
    right = simulate(kernel, operands).c
    barriers = sum(isinstance(stmt, Barrier) for _, stmt in walk(kernel.body))
    assert barriers == 3
    for number in range(barriers):
        with pytest.raises(SimulationError):
            simulate(without(kernel, Barrier, number), operands, schedule="warps", seed=1)
    masks = sorted({stmt.mask for _, stmt in walk(kernel.body) if isinstance(stmt, ShuffleAdd)})
    assert masks == [mask for mask in (1, 2, 4, 8, 16) if mask >= config.lanes_out]
    shuffles = sum(isinstance(stmt, ShuffleAdd) for _, stmt in walk(kernel.body))
    for number in range(shuffles):
        wrong = simulate(without(kernel, ShuffleAdd, number), operands).c
        assert not np.array_equal(wrong, right)


def without(kernel: Kernel, kind: type, number: int) -> Kernel:
    """The kernel without one of its statements of a kind."""
    seen = -1

    def change(stmt: Any) -> Any:
        nonlocal seen
        seen += isinstance(stmt, kind)
        return () if isinstance(stmt, kind) and seen == number else None

    return replace(kernel, body=rewrite(kernel.body, change))


def test_without_a_guard_something_is_read_outside() -> None:
    gemm = problem(3, 70, 260, "NT")
    kernel, operands = skinny(gemm).kernel(), make_operands(gemm)
    guarded = [
        stmt
        for _, stmt in walk(kernel.body)
        if isinstance(stmt, Move)
        and stmt.guard is not None
        and Space.GLOBAL in (stmt.src.buffer.space, stmt.dst.buffer.space)
    ]
    assert len(guarded) >= 5
    for one in guarded:
        bare = (replace(one, guard=None),)
        body = rewrite(kernel.body, lambda stmt, one=one, bare=bare: bare if stmt == one else None)
        with pytest.raises(SimulationError, match="elements"):
            simulate(replace(kernel, body=body), operands)


@pytest.mark.cross_section("orders", every=3)
@pytest.mark.parametrize("orders", ["NN", "NT", "TT"])
def test_the_text_does_what_the_simulator_does(orders: str) -> None:
    for shape, dtype in (((3, 70, 260), BF16), ((16, 68, 516), F32), ((1, 65, 2050), F16)):
        gemm = problem(*shape, orders, dtype, beta=0.5)
        kernel, operands = skinny(gemm).kernel(), whole_numbers(gemm)
        np.testing.assert_array_equal(run_on_cpu(kernel, operands)["C"], simulate(kernel, operands).c)


def whole_numbers(gemm: Gemm) -> Operands:
    """Small ones, whose sums are exact: the CPU does not contract a multiplication and an addition."""
    operands = make_operands(gemm)
    for name in ("A", "B", "C"):
        matrix = view(gemm, name, operands.storage(name))
        matrix[...] = gemm.dtype.encode(np.random.default_rng(0).integers(-4, 5, matrix.shape).astype(np.float32))
    return operands


@pytest.mark.parametrize("orders", ["NN", "NT"])
def test_each_problem_of_a_batch_has_matrices_of_its_own(orders: str) -> None:
    gemm = problem(2, 68, 264, orders, beta=2.0, epilogue=Epilogue("n", True))
    stack = Stack(3, 2 * 264, 264 * 68 + 4, 2 * 68 + 8, (2 * 68,))
    one = skinny_for(gemm, alignment_of_rows(gemm), None, stack, parts=1)
    assert one is not None and one.grid(one.kernel())[2] == 3
    single = [make_operands(gemm, seed=seed) for seed in range(3)]
    steps = {"A": stack.a, "B": stack.b, "C": stack.c, "residual": stack.added[0]}
    joined = {
        name: np.full(2 * step + single[0].storage(name).size, np.nan, np.float32) for name, step in steps.items()
    }
    for number, operands in enumerate(single):
        for name, step in steps.items():
            stored = operands.storage(name)
            joined[name][number * step :][: stored.size] = stored
    added = {"bias": single[0].storage("bias"), "residual": joined.pop("residual")}
    given = Operands(gemm, *joined.values(), added)
    values = dict(zip((p.name for p in one.kernel().batching), one.arguments()[-5:], strict=True))
    stored = simulate(one.kernel(), given, batching=values).c
    for number, operands in enumerate(single):
        result = view(gemm, "C", stored[number * stack.c :])
        assert check(replace(operands, added={**operands.added, "bias": added["bias"]}), result).ok


def test_bits_do_not_depend_on_the_order_of_warps() -> None:
    gemm = problem(2, 64, 3000, "NN", BF16)
    kernel, operands = skinny(gemm).kernel(), make_operands(gemm)
    first, *others = (simulate(kernel, operands, schedule="warps", seed=seed).c for seed in range(3))
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize(
    ("n", "k", "orders", "parts"),
    [(256, 4096, "NN", 8), (64, 4096, "NN", 1), (64, 16384, "NN", 32), (64, 65536, "NT", 8), (60_000, 4096, "NN", 1)],
)
def test_sums_are_split_where_blocks_leave_sms_idle(n: int, k: int, orders: str, parts: int) -> None:
    """Of the parts that are tried, the fastest by the estimate."""
    gemm = problem(1, n, k, orders)
    one = skinny_for(gemm, alignment_of_rows(gemm), H200)
    assert one is not None and one.parts == parts


SHAPES = [
    *((rows, 8192, 8192, orders, F32) for rows in (1, 4, 16) for orders in ("NN", "NT")),
    *((rows, 8192, 8192, orders, BF16) for rows in (1, 4) for orders in ("NN", "NT")),
    (1, 1, 1_000_003, "NT", BF16),
    (1, 768, 3072, "NN", F32),
]


@pytest.mark.cross_section("m", "orders", "dtype", every=12)
@pytest.mark.parametrize(("m", "n", "k", "orders", "dtype"), SHAPES, ids=str)
def test_they_compile_without_spills_and_as_estimated(m: int, n: int, k: int, orders: str, dtype: DType) -> None:
    gemm = problem(m, n, k, orders, dtype)
    one = skinny_for(gemm, alignment_of_rows(gemm), H200)
    assert one is not None
    for arch in ("sm_80", "sm_90a"):
        resources = compiled(one.kernel(), arch).resources
        assert resources.spill_load_bytes <= 16
        assert abs(resources.registers - registers(one.config, gemm)) <= 40
        # Blocks that an SM has room for are counted by that estimate, and the compiler keeps to it.
        blocks, threads = blocks_by_registers(one.config, gemm), one.config.threads
        assert f"__launch_bounds__({threads}, {blocks})" in print_cuda(one.kernel()).text
        assert resources.registers * threads * blocks <= 65536
        static = shared_bytes(one.config, gemm) * (
            shared_bytes(one.config, gemm) <= H200.max_static_shared_bytes_per_block
        )
        assert abs(resources.shared_bytes - static) <= 16


def test_a_last_wave_with_few_blocks_takes_as_long_as_they_take_alone() -> None:
    """One block more than SMs have room for, and twice as many."""
    config = GemvConfig(rows=8, width=4, few_width=4, outputs=4, lanes_k=16, warps_k=1, warps=4, steps=2, chunk=1024)
    one = problem(8, 1, 1024, "NT")
    outputs = config.outputs_of_block(k_major=True)
    room = blocks_that_fit(config, one, H200) * H200.sm_count

    def of_blocks(count: int) -> float:
        return sm_seconds(config, one.resized(8, count * outputs, 1024))

    full, more = of_blocks(room), of_blocks(room + 1)
    assert 1.5 * full < more <= of_blocks(2 * room) == pytest.approx(2 * full)
    assert of_blocks(H200.sm_count) <= full


def test_warps_side_by_side_read_longer_pieces_of_lines() -> None:
    """Of an MN-major matrix whose lines are long enough, where the others lie along k."""
    for n, expected in ((256, {8}), (512, {8, 4}), (1024, {8, 4, 2})):
        found = list(fitting(problem(2, n, 4096, "NN", BF16), Facts(16, 16, True)))
        assert {one.warps_k for one in found} == expected and {one.warps for one in found} == {8}
        assert max(one.warps_out * one.lanes_out * one.width for one in found) == n
        assert all(times_of_memory(one, problem(2, n, 4096, "NN", BF16)) == 1 for one in found if one.warps_k < 8)


@pytest.mark.cross_section("orders", every=2)
@pytest.mark.parametrize("orders", ["NN", "NT"])
def test_sixteen_bytes_of_the_few_rows_serve_eight_products_or_more(orders: str) -> None:
    """What keeps shared memory ahead of the FMA pipes, in machine code."""
    gemm = problem(16, 8192, 8192, orders)
    mix = instruction_mix(compiled(skinny(gemm).kernel(), "sm_90a"))
    assert 8 * mix["LDS.128"] <= mix["FFMA"]


@pytest.mark.cross_section("orders", every=2, at=1)
@pytest.mark.parametrize("orders", ["NN", "NT"])
def test_loads_of_the_long_matrix_pass_the_first_level_cache(orders: str) -> None:
    gemm = problem(1, 8192, 8192, orders, BF16)
    one = skinny(gemm)
    text = disassemble(compiled(one.kernel(), "sm_90a"))
    streamed = re.findall(r"LDG\.E\.NA\.128", text)
    assert len(streamed) == 2 * one.config.steps * one.config.outputs  # ahead of the loop, and in it
    assert "griddepcontrol" not in text and not one.kernel().overlapped


def test_what_it_cannot_do_it_says() -> None:
    gemm = problem(4, 8192, 8192, "NT", BF16)
    config = skinny(gemm).config
    assert config.rows == 4 and is_k_major(gemm)
    for other, words in (
        (problem(5, 8192, 8192, "NT", BF16), "more than the 4"),
        (problem(4, 8192, 8191, "NT", BF16), "not a multiple of 8"),
        (problem(4, 8192, 8192, "NT", F16, accumulate=F16), "sums in f32"),
        (problem(4, 8192, 8192, "TT", BF16), "the skinny operand is not read"),
    ):
        assert any(words in reason for reason in config.reasons_against(other)), config.reasons_against(other)
    assert "not a multiple of" in replace(config, chunk=100).reasons_against(gemm)[-1]
    assert skinny_for(problem(5, 8192, 8192, "NT", BF16), alignment_of_rows(gemm), H200) is None
    assert skinny_for(problem(1, 8, 8, "NT", BF16), alignment_of_rows(gemm), H200) is None


def test_the_busiest_sm_is_what_takes_time() -> None:
    gemm = problem(1, 8192, 8192, "NT", BF16)
    config = skinny(gemm).config
    assert sm_seconds(config, gemm, H200, count=4) > 3 * sm_seconds(config, gemm, H200)
    few = replace(config, outputs=1, steps=1, chunk=8192)
    assert sm_seconds(few, gemm, H200) > 1.5 * sm_seconds(config, gemm, H200)  # fewer loads are in flight


def test_a_dot_product_fills_the_device_and_is_added_up_by_a_warp() -> None:
    one = skinny_for(problem(1, 1, 1_000_003, "NT", BF16), alignment_of_rows(problem(1, 1, 8, "NT", BF16)), H200)
    assert one is not None and one.config.width == 8 and one.parts >= 60
    assert isinstance(one.config, GemvConfig) and str(one) == f"gemv, k in {one.parts} parts"
