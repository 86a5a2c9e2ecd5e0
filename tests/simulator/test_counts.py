"""What the machine counts, against numbers worked out by hand and against a count without any shortcut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from simulated_kernels import (
    A,
    at,
    kernel,
    less,
    loop,
    naive,
    register_tiled,
    registers,
    shared,
    tiled,
    value,
)

from tilewright.ir.buffer import Space
from tilewright.ir.expr import Expr, Ref, Var, as_expr, real
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, If, Move
from tilewright.ir.text import kernel_text
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import Counters, Listener, count_sampled, simulate, standard_listeners
from tilewright.simulator.findings import Access

THREAD = Var("threadIdx.x")


def count(kernel: Kernel, gemm: Gemm, **options: Any) -> Counters:
    return simulate(kernel, make_operands(gemm), **options).counters


class TestGlobal:
    """One thread an element, 64 x 64 x 64: 128 warps, 64 steps over k, a load of A and of B each."""

    REQUESTS = 128 * 64

    def test_coalesced(self) -> None:
        counters = count(naive(), Gemm(64, 64, 64))
        a, b = counters.of_origin("A").global_loads, counters.of_origin("B").global_loads
        assert (a.requests, a.sectors, a.cache_lines) == (self.REQUESTS, self.REQUESTS, self.REQUESTS)
        assert (b.requests, b.sectors, b.cache_lines) == (self.REQUESTS, 4 * self.REQUESTS, self.REQUESTS)
        assert (counters.global_stores.requests, counters.global_stores.sectors) == (128, 4 * 128)

    def test_rows_first(self) -> None:
        counters = count(naive(rows_first=True), Gemm(64, 64, 64))
        a, b = counters.of_origin("A").global_loads, counters.of_origin("B").global_loads
        assert (a.sectors_per_request, a.lines_per_request) == (32, 32)
        assert (b.sectors_per_request, b.lines_per_request) == (1, 1)
        assert counters.global_stores.sectors_per_request == 32

    def test_bytes(self) -> None:
        loads = count(naive(), Gemm(64, 64, 64)).global_loads
        assert loads.bytes_asked == 2 * 4 * 64**3
        assert loads.bytes_moved == 32 * 5 * self.REQUESTS

    def test_rows_that_start_off_a_sector_cost_one_more(self) -> None:
        b = count(naive(), Gemm(32, 32, 8, ldb=33)).of_origin("B").global_loads
        # Row k starts at float k: 32 floats from there take 4 sectors if k % 8 == 0, else 5.
        assert b.sectors == 32 * (4 + 7 * 5)

    def test_an_operand_that_starts_off_a_sector(self) -> None:
        operands = make_operands(Gemm(32, 32, 8))
        b = simulate(naive(), operands, base_bytes={"B": 4}).counters.of_origin("B").global_loads
        assert b.sectors_per_request == 5

    def test_guarded_lanes_make_no_traffic(self) -> None:
        counters = count(naive(), Gemm(8, 8, 4))
        loads = counters.global_loads
        assert loads.instructions == 32 * 4 * 2  # all 32 warps of the block execute both loads
        # A is guarded by row, one warp each: 8 of 32 warps ask. B by column: each warp asks with 8 lanes.
        assert counters.of_origin("A").global_loads.requests == 8 * 4
        assert counters.of_origin("B").global_loads.requests == 32 * 4
        assert counters.of_origin("B").partial_requests == 32 * 4
        assert counters.of_origin("A").guarded_off_lanes == 24 * 32 * 4


class TestShared:
    def test_square_tiles_are_free_of_conflicts(self) -> None:
        counters = count(tiled(), Gemm(64, 64, 64))
        loads, stores = counters.shared_loads, counters.shared_stores
        steps, warps = 4 * 2, 32  # blocks x k tiles; warps of a block
        assert loads.requests == loads.wavefronts == loads.ideal_wavefronts == steps * warps * 32 * 2
        assert stores.requests == stores.wavefronts == steps * warps * 2

    def test_an_outer_product_from_16_byte_loads(self) -> None:
        """A: the half warps read one address each, merged to 2 wavefronts. B: lane % 16 at 32 bytes, 8 wavefronts."""
        counters = count(register_tiled(), Gemm(128, 128, 8))
        a = counters.of_origin("A_tile").shared_loads
        b = counters.of_origin("B_tile").shared_loads
        assert (a.requests, a.wavefronts, a.excess_wavefronts) == (8 * 8 * 2, 2 * 128, 0)
        assert (b.requests, b.wavefronts, b.ideal_wavefronts) == (8 * 8 * 2, 8 * 128, 4 * 128)

    def test_transposed_stores_and_the_pad_that_does_not_help_them(self) -> None:
        stores = count(register_tiled(), Gemm(128, 128, 8)).of_origin("A_tile").shared_stores
        assert (stores.requests, stores.wavefronts) == (8 * 4, 2 * 8 * 4)
        padded = count(register_tiled(pad=4), Gemm(128, 128, 8)).of_origin("A_tile").shared_stores
        assert padded.excess_wavefronts == 0  # rows k and k + 4 now lie 16 banks apart

    @pytest.mark.parametrize(("stride", "ways"), [(1, 1), (2, 2), (3, 1), (4, 4), (8, 8), (16, 16), (32, 32), (33, 1)])
    def test_strided_stores(self, stride: int, ways: int) -> None:
        stores = count(store_shared(THREAD * stride, 32 * 33), Gemm(1, 1, 1)).shared_stores
        assert (stores.requests, stores.wavefronts, stores.excess_wavefronts) == (1, ways, ways - 1)


def store_shared(index: Expr, elements: int, width: int = 1) -> Kernel:
    tile, x = shared("tile", elements), registers("x", 4)
    fill = loop("i", 4, Assign(at(x, Var("i")), real(1)))
    return kernel((Alloc(x), fill, Move(at(tile, index), at(x), width)), shared_buffers=(tile,))


def test_counts_that_ncu_measured() -> None:
    """1024^3 with beta = 1 on an RTX A6000, ncu 2023.2: figures of its source page, quoted in idx:56628686795."""
    operands = make_operands(Gemm(1024, 1024, 1024, beta=1.0))
    counters = count_sampled(tiled(quads=True), operands)
    loads, stores = counters.global_loads, counters.global_stores
    assert not counters.is_estimate
    assert (loads.requests, stores.requests) == (2_129_920, 32_768)
    assert (loads.sectors, stores.sectors) == (8_519_680, 131_072)
    assert (counters.shared_loads.requests, counters.shared_stores.requests) == (41_943_040, 2_097_152)
    wavefronts = counters.shared_loads.wavefronts + counters.shared_stores.wavefronts
    ideal = counters.shared_loads.ideal_wavefronts + counters.shared_stores.ideal_wavefronts
    assert wavefronts == ideal == 52_428_800


class TestSums:
    def test_instructions(self) -> None:
        counters = count(register_tiled(), Gemm(128, 128, 16))
        assert counters.instructions == {
            "BAR": 2 * 2 * 8,
            "BRA": 2 * 8,  # the loop over k tiles; unrolled loops leave none
            "FFMA": 2 * 8 * 8 * 64,
            "FMUL": 64 * 8,
            "LDG.128": 2 * 2 * 8,
            "LDS.128": 2 * 8 * 4 * 8,
            "MOV": 64 * 8,
            "STG.128": 16 * 8,
            "STS": 2 * 4 * 8,
            "STS.128": 2 * 8,
        }

    def test_multiply_adds_and_loads_for_each(self) -> None:
        counters = count(register_tiled(), Gemm(128, 128, 16))
        assert counters.fmas == 128 * 128 * 16 and counters.results == 128 * 128
        assert counters.per_fma(Space.SHARED) == 4 / 64
        assert counters.per_result(Space.GLOBAL) == 16 / 8 * 2 / 64
        assert counters.per_result(Space.SHARED) == 16 * 4 / 64

    def test_barriers(self) -> None:
        counters = count(tiled(), Gemm(64, 64, 96))
        assert (counters.barriers_per_block, counters.barriers_per_k_step) == (6, 2)
        assert count(naive(), Gemm(8, 8, 8)).barriers_per_k_step == 0

    def test_divergence(self) -> None:
        x = registers("x")
        split, whole = less(THREAD, 5), less(THREAD, 32)
        body = (Alloc(x), *(If(c, (Assign(at(x), real(1)),), (Assign(at(x), real(2)),)) for c in (split, whole)))
        counters = count(kernel(body, block=(64, 1, 1)), Gemm(1, 1, 1))
        assert counters.divergent_branches == 1  # warp 0 at the first branch
        assert counters.instructions == {"BRA": 4, "MOV": 2 + 1 + 1 + 1}

    def test_levels(self) -> None:
        levels = count(tiled(), Gemm(32, 32, 32)).bytes_by_level
        assert levels["global_to_registers"] == levels["registers_to_shared"] == 2 * 32 * 32 * 4
        assert levels["shared_to_registers"] == 2 * 32**3 * 4
        assert levels["registers_to_global"] == levels["l1_to_l2_sectors"] == 32 * 32 * 4

    def test_plain_values(self) -> None:
        plain = count(tiled(), Gemm(32, 32, 32)).as_dict()
        assert plain["shared_loads"]["wavefronts_per_request"] == 1.0
        assert plain["global_loads"]["sectors_per_request"] == 4.0
        assert plain["barriers_per_k_step"] == 2.0
        line = next(line for line in plain["lines"] if line["kind"] == "barrier")
        assert line["text"] == "barrier  # tiles are complete" and line["executions"] == 32

    def test_lines_are_those_of_the_printed_kernel(self) -> None:
        text = kernel_text(tiled()).splitlines()
        counters = count(tiled(), Gemm(32, 32, 32))
        assert all(text[line.line - 1].strip() == line.text for line in counters.lines)
        assert counters.origins == ("sum", "A_tile", "B_tile", "C")

    def test_both_schedules_count_alike(self) -> None:
        gemm = Gemm(70, 68, 40)
        for make in (naive, tiled, register_tiled):
            assert count(make(), gemm) == count(make(), gemm, schedule="warps")

    def test_nobody_listens(self) -> None:
        counters = count(tiled(), Gemm(32, 32, 32), listeners=())
        assert counters.fmas == 0 and counters.instructions["FFMA"] == 0


class Plain(Listener):
    """Counts sectors and words of banks from the addresses of every single access, remembering nothing."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def accessed(self, access: Access) -> None:
        kind = f"{access.space.value} {'store' if access.store else 'load'}"
        active = access.pattern.active_rows
        for row, addresses in enumerate(access.addresses().tolist()):
            taking_part = [a for lane, a in enumerate(addresses) if active is None or active[row][lane]]
            touched = {a + byte for a in taking_part for byte in range(0, access.width_bytes, 4)}
            self.counts[f"{kind} requests"] += bool(taking_part)
            self.counts[f"{kind} lanes"] += len(taking_part)
            self.counts[f"{kind} sectors"] += len({a // 32 for a in touched})
            if access.width_bytes == 4 and taking_part:
                banks = Counter(word % 32 for word in {a // 4 for a in taking_part})
                self.counts[f"{kind} wavefronts"] += max(banks.values())


@pytest.mark.parametrize("make", [naive, lambda: naive(rows_first=True), tiled, lambda: tiled(8)])
@pytest.mark.parametrize("options", [{"ldb": 77}, {"lda": 33, "ldc": 70}, {"beta": 1.0}])
def test_shortcuts_change_no_count(make: Callable[[], Kernel], options: dict[str, Any]) -> None:
    """Counts are remembered by pattern and alignment; here they meet a listener that remembers nothing."""
    operands, plain = make_operands(Gemm(37, 45, 19, **options)), Plain()
    counters = simulate(make(), operands, listeners=(*standard_listeners(), plain)).counters
    for space, groups in (
        ("global", (counters.global_loads, counters.global_stores)),
        ("shared", (counters.shared_loads, counters.shared_stores)),
    ):
        for verb, group in zip(("load", "store"), groups, strict=True):
            assert group.requests == plain.counts[f"{space} {verb} requests"]
            assert group.lanes == plain.counts[f"{space} {verb} lanes"]
            if space == "global":
                assert group.sectors == plain.counts[f"global {verb} sectors"]
            else:
                assert group.wavefronts == plain.counts[f"shared {verb} wavefronts"]


def test_a_guard_that_changes_from_step_to_step() -> None:
    """Lanes below i load in step i: every mask is new, every count different."""
    a, i = registers("a"), Var("i")
    body = (Alloc(a), loop("i", 20, Move(at(a), Ref(A, (THREAD + i * 3,)), guard=less(THREAD, i))))
    operands, plain = make_operands(Gemm(100, 1, 1)), Plain()
    loads = simulate(kernel(body), operands, listeners=(*standard_listeners(), plain)).counters.global_loads
    assert (loads.requests, loads.lanes) == (19, sum(range(20)))
    assert loads.sectors == plain.counts["global load sectors"]


def test_barriers_outside_loops_do_not_count_as_k_steps() -> None:
    assert count(kernel((Barrier(),)), Gemm(1, 1, 1)).barriers_per_k_step == 0
    in_loop = kernel((Barrier(), loop("k_tile", 4, Barrier(), Barrier(), Barrier())))
    assert count(in_loop, Gemm(1, 1, 1)).barriers_per_k_step == 3
    assert count(in_loop, Gemm(1, 1, 1)).barriers_per_block == 13


def test_values_stored_are_counted_as_results() -> None:
    x = registers("x", 4)
    fill = loop("i", 4, Assign(at(x, Var("i")), value(registers("y"))))
    y = registers("y")
    body = (
        *(Alloc(y), Assign(at(y), real(3)), Alloc(x), fill),
        Move(Ref(Ref(A, ()).buffer, (THREAD * 4,)), at(x), 4, less(THREAD, as_expr(8))),
    )
    assert count(kernel(body), Gemm(32, 1, 1)).results == 32
