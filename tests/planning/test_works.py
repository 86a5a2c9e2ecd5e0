"""Closed forms of what a block does, held to what the simulator counts; and the kernels behind them, to NumPy."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, F32, TF32
from tilewright.model.time import predict_seconds
from tilewright.planning.candidates import Candidate, candidates
from tilewright.planning.kernels import build_of
from tilewright.planning.works import work_of
from tilewright.prediction.counting import work_of as simulated
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.runtime.sass import disassemble
from tilewright.toolchain import run_on_simulator
from tilewright.winners.choice import Choice

H200, T4 = device("H200"), replace(device("T4"), max_shared_bytes_per_block=96 * 1024)
FORMATS = {
    "bf16": {"dtype": BF16, "out": BF16},
    "f16": {"dtype": F16, "out": F16},
    "tf32": {"dtype": F32, "product": TF32},
    "f32": {"dtype": F32},
}
CASES = [
    *(("bf16", orders) for orders in ("NN", "TN", "NT")),
    *(("tf32", orders) for orders in ("NN", "NT")),
    *(("f32", orders) for orders in ("NN", "TN", "NT")),
]


def problem(name: str, orders: str) -> Gemm:
    a, b = (Order.ROW if letter == "N" else Order.COL for letter in orders)
    return Gemm(4096, 4096, 4096, a=a, b=b, **FORMATS[name])  # type: ignore[arg-type]


def takes(tile: Candidate, gemm: Gemm) -> bool:
    return not tile.by_engine or gemm.dtype.bytes == 2 or (gemm.a, gemm.b) == (Order.ROW, Order.COL)


@pytest.mark.cross_section("name", "orders", every=2)
@pytest.mark.parametrize(("name", "orders"), CASES)
def test_the_forms_are_what_the_simulator_counts(name: str, orders: str) -> None:
    """As far as the time model sees it: for one block on an SM, for several, and where memory is no bound."""
    gemm = problem(name, orders)
    for tile in candidates(gemm, H200):
        if not takes(tile, gemm):
            continue
        counted = simulated(build_of(gemm, Choice(tile.rung, tile.point)))
        formed = work_of(tile, gemm, blocks=counted.blocks, steps=int(counted.steps))
        assert (formed.warps, formed.strip_bytes, formed.steps_ahead) == (
            counted.warps, counted.strip_bytes, counted.steps_ahead,
        )  # fmt: skip
        for blocks_per_sm in (1, 3):
            ours, theirs = (
                predict_seconds(work, H200, blocks_per_sm=blocks_per_sm, dram_bytes=0) for work in (formed, counted)
            )
            assert ours == pytest.approx(theirs, rel=0.02), tile


def test_rows_that_begin_anywhere_have_a_form_too() -> None:
    """Of each tile whose lanes store C from shared memory."""
    gemm = replace(problem("bf16", "NT"), ldc=4097)
    tiles = [tile for tile in candidates(gemm, H200) if tile.by_engine and tile.point["parts"]]
    assert len(tiles) > 4
    for tile in tiles:
        counted = simulated(build_of(gemm, Choice(tile.rung, tile.point)))
        formed = work_of(tile, gemm, blocks=counted.blocks, steps=int(counted.steps), result_bytes=2)
        ours, theirs = (predict_seconds(work, H200, blocks_per_sm=1, dram_bytes=0) for work in (formed, counted))
        assert ours == pytest.approx(theirs, rel=0.02), tile


def test_the_first_tensor_cores_have_a_form_too() -> None:
    gemm = problem("f16", "NN")
    (tile,) = candidates(gemm, T4)
    counted = simulated(build_of(gemm, Choice(tile.rung, tile.point)))
    formed = work_of(tile, gemm, blocks=counted.blocks, steps=int(counted.steps))
    ours, theirs = (predict_seconds(work, T4, blocks_per_sm=1, dram_bytes=0) for work in (formed, counted))
    assert ours == pytest.approx(theirs, rel=0.25)  # there is no other to choose


@pytest.mark.cross_section("name", every=2)
@pytest.mark.parametrize("name", ["bf16", "f32"])
def test_blocks_of_an_sm_are_those_of_the_compiled_kernels(name: str) -> None:
    gemm = problem(name, "NN")
    for tile in candidates(gemm, H200):
        built = build_of(gemm, Choice(tile.rung, tile.point))
        compiled = built.occupancy(H200, built.compile(H200.arch)).blocks_per_sm
        assert abs(tile.blocks_per_sm(gemm, H200) - compiled) <= 1, tile


@pytest.mark.parametrize("b", Order)
def test_shared_memory_of_odd_rows_is_that_of_the_kernels(b: Order) -> None:
    gemm = Gemm(513, 515, 517, F16, out=F16, b=b)
    tiles = [tile for tile in candidates(gemm, H200) if tile.unit == "mma.sync"]
    assert tiles
    for tile in tiles:
        assert tile.shared_bytes(gemm) == build_of(gemm, Choice(tile.rung, tile.point)).kernel.shared_bytes


def own_tiles() -> list[tuple[str, str]]:
    """Tiles that dispatch knows beside those at which the rungs themselves stand, which have tests of their own."""
    found = []
    for name in ("bf16", "tf32", "f32"):
        for tile in candidates(problem(name, "NT"), H200):
            if tile.rung in ("ampere/full", "worklog/best") or (name == "bf16" and tile.n == 64):
                found.append((name, Choice(tile.rung, tile.point).key))
    return found


@pytest.mark.cross_section("key", every=3)
@pytest.mark.parametrize(("name", "key"), own_tiles())
def test_every_tile_computes_the_product(name: str, key: str) -> None:
    """At edges in every direction, simulated with every detector on."""
    choice = Choice.from_data(json.loads(key))
    gemm = replace(problem(name, "NT"), m=72, n=136, k=88, lda=0, ldb=0, ldc=0)
    operands = make_operands(gemm)
    computed, run = run_on_simulator(build_of(gemm, choice), operands)
    assert check(operands, computed).ok and not run.findings


@pytest.mark.slow
@pytest.mark.parametrize("order", [Order.ROW, Order.COL], ids=["NN", "NT"])
def test_loads_of_the_next_tile_come_before_the_products_of_this_one(order: Order) -> None:
    """In machine code, where ptxas decides it: all FFMA candidates of the H200 start their loads first in a step."""
    gemm = Gemm(16, 1024, 1024, F32, b=order)
    for tile in candidates(gemm, device("H200")):
        built = build_of(gemm, Choice(tile.rung, tile.point, 2))
        step = loop_over_k(disassemble(compile_cuda(built.source, "sm_90a")))
        first = next(at for at, opcode in enumerate(step) if opcode == "FFMA")
        loads = [at for at, opcode in enumerate(step) if opcode.startswith(("LDG.", "LDGSTS."))]
        assert loads and max(loads) < first, (tile, max(loads), first)


def loop_over_k(text: str) -> list[str]:
    """The opcodes between the last two barriers before the results are stored: one step over k."""
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", text)
    barriers = [at for at, opcode in enumerate(opcodes) if opcode.startswith("BAR.")]
    return opcodes[barriers[-2] : barriers[-1]]


def test_rows_of_blocks_walk_together_where_each_would_read_all_of_b_anew() -> None:
    def groups(m: int, n: int, k: int) -> set[int]:
        return {tile.point["group"] for tile in candidates(Gemm(m, n, k, F32), device("H200"))}

    assert groups(4096, 4096, 4096) == {1}  # a round of blocks covers all columns of B
    assert groups(2048, 151936, 64) == {1}  # B stays in the L2
    assert groups(100, 151936, 2048) == {1, 2, 4}  # as many as there are
    assert groups(2048, 151936, 2048) == {8, 16}
