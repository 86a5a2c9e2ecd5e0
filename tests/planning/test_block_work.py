"""Closed forms of what a block does, held to what the simulator counts; and the kernels behind them, to NumPy."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.frontend.test_gated import piece_of
from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import BF16, F16, F32, TF32
from tilewright.kernels.block_work import Setting, work_of
from tilewright.kernels.columns import Columns
from tilewright.kernels.configuration import GemmConfig, described, row_of
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import (
    COOPERATIVE,
    NARROW,
    PING_PONG,
    SKINNY_ROWS,
    at_depth,
    one_tile,
    persistent,
    skinny,
)
from tilewright.kernels.work import Work
from tilewright.model.occupancy import blocks_that_fit, occupancy
from tilewright.model.time import predict_seconds
from tilewright.planning.candidates import candidates, configurations
from tilewright.planning.cost.block_clocks import blocks_per_sm
from tilewright.planning.cost.plans import Around, plan_seconds
from tilewright.planning.kernels import build_of
from tilewright.planning.packing import Packing
from tilewright.prediction.counting import work_of as simulated
from tilewright.problem import Gemm, check, make_operands
from tilewright.problem.gemm import orders_of
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.runtime.sass import disassemble
from tilewright.toolchain import run_on_simulator
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
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


WGMMA = [
    COOPERATIVE,
    PING_PONG,
    *(persistent(m, n, consumers, subtile=min(n, 64)) for m, n, consumers in NARROW),
    *(one_tile(m, n, consumers) for m, n, consumers in NARROW),
    *(skinny(rows, 64) for rows in SKINNY_ROWS),
    replace(skinny(32, 64, blocks=2), cluster_k=4),
]


def problem(name: str, orders: str) -> Gemm:
    a, b = orders_of(orders)
    return Gemm(4096, 4096, 4096, a=a, b=b, **FORMATS[name])  # type: ignore[arg-type]


def kernels(gemm: Gemm) -> list[GemmConfig]:
    """Candidates of dispatch that read the operands as they lie; of wgmma's thousands the known ones."""
    found = some(gemm)
    found += [replace(next(one for one in found if one.m == one.n == 64), cluster_k=2)]  # type: ignore[call-arg]
    if gemm.multiplied is not F32:
        found += [at_depth(config, gemm) for config in WGMMA]
    return [config for config in found if not config.reasons_against(gemm)]


def some(gemm: Gemm) -> list[GemmConfig]:
    """Of SIMT kernels, of which there are hundreds, every 13th; all of others."""
    found = [*configurations(gemm, H200)]
    return found[::13] if found[0].kind == "simt" else found


def formed_of(config: GemmConfig, gemm: Gemm, counted: Work, **options: Any) -> Work:
    """The closed form for as many blocks and k tiles, found as a column of one."""
    setting = Setting(np.array([counted.blocks]), np.array([int(counted.steps)]), **options)
    return work_of(config.kind, Columns.of([config], config.columns), gemm, setting)


def seconds(work: Work, spec: DeviceSpec, blocks_per_sm: int = 1) -> float:
    return float(np.max(predict_seconds(work, spec, blocks_per_sm=blocks_per_sm, dram_bytes=0)))


def tolerance(config: GemmConfig) -> float:
    """The forms are rough where a tile is narrow: SIMT by up to 20 %, mma.sync by 4 % (tf32, NN, 32 x 16); of threads
    with four rows of 28 by 7 %."""
    if config.kind == "simt":
        return 0.2 if config.m <= 16 else 0.1 if config.lanes_m == 8 else 0.02
    return 0.05 if config.kind == "mma" and min(config.m, config.n) <= 16 else 0.02


PARTS = 16


@pytest.mark.cross_section("name", "orders", "part", every=19)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("name", "orders"), CASES)
def test_the_forms_are_what_the_simulator_counts(name: str, orders: str, part: int) -> None:
    """As far as the time model sees it: for one block on an SM, for several, and where memory is not a bound. Of the
    kernels of a format each order has its share: those next to each other meet other orders."""
    gemm, orders_of_format = problem(name, orders), [order for one, order in CASES if one == name]
    share = kernels(gemm)[orders_of_format.index(orders) :: len(orders_of_format)]
    for config in share[part::PARTS]:
        # Waits for loads and for instructions are of predictions alone: the fit of the choice learned them in sweeps.
        counted = replace(simulated(build_of(gemm, PlanConfig(config))), awaited_ahead=0, code=0)
        formed = formed_of(config, gemm, counted)
        for ours, theirs in (
            (formed.warps, counted.warps),
            (formed.strip_bytes, counted.strip_bytes),
            (formed.steps_ahead, counted.steps_ahead),
        ):
            assert np.max(ours) == theirs, config
        for together in (1, 3):
            ours, theirs = (seconds(work, H200, together) for work in (formed, counted))
            assert ours == pytest.approx(theirs, rel=tolerance(config)), config


def test_the_forms_of_many_kernels_at_once_are_those_of_each() -> None:
    gemm = problem("bf16", "NT")
    for kind, table in candidates(gemm, H200).items():
        table = table[:: len(table) // 50 + 1]
        setting = Setting(np.full(len(table), 512), np.full(len(table), 64))
        together = predict_seconds(work_of(kind, table, gemm, setting), H200, blocks_per_sm=1, dram_bytes=0)
        for at in range(len(table)):
            config = row_of(kind, table, at)
            alone = predict_seconds(work_of(kind, config, gemm, Setting(512, 64)), H200, blocks_per_sm=1, dram_bytes=0)
            assert float(alone) == pytest.approx(float(together[at]), rel=1e-12), config


@pytest.mark.parametrize("name", ["bf16", "tf32", "f32"])
def test_a_table_that_is_kept_has_the_times_of_its_rows(name: str) -> None:
    """With what no size changes found before, and with it found for these rows alone."""
    for m, n, k in ((4096, 4096, 4096), (129, 1000, 333), (16, 8192, 8192)):
        gemm = replace(problem(name, "NT"), m=m, n=n, k=k, lda=0, ldb=0, ldc=0)
        for kind, table in candidates(gemm, H200).items():
            rows = np.tile(np.arange(len(table)), 3)
            split = table[rows].with_columns(split_k=np.repeat([1, 3, 8], len(table)))
            alone = Columns({name: getattr(split, name) for name in split.names})
            for packing in (
                Packing(),
                Packing(frozenset("AB"), frozenset("B")),
                Packing(frozenset("AB"), frozenset(), True),
            ):
                around = Around(packing, 16, 4, 8, count=2)
                known, found = (plan_seconds(kind, [(c, around)], gemm, H200)[0] for c in (split, alone))
                assert table.table is not None and np.array_equal(known, found)


@pytest.mark.parametrize(("tile", "swap_ab"), [((128, 96, 64), False), ((144, 128, 64), True)])
def test_two_sums_are_made_by_one_instruction_where_one_is_so_wide(tile: tuple[int, int, int], swap_ab: bool) -> None:
    gemm = piece_of(4096, 4096, 4096, BF16).request.gemm
    config = WgmmaConfig(tile, stages=3, swap_ab=swap_ab, accumulators=2, raster_rows=16, subtile=64 if swap_ab else 16)
    counted = simulated(build_of(gemm, PlanConfig(config)))
    formed = formed_of(config, gemm, counted)
    for of in ("matrix_instructions", "operand_bytes", "matrix_flops"):
        assert np.max(getattr(formed.step, of)) == pytest.approx(getattr(counted.step, of)), of


def test_an_unaligned_c_has_a_form_too() -> None:
    """Of each tile that is stored by threads along its rows, from shared memory."""
    gemm = replace(problem("bf16", "NT"), ldc=4097)
    staged = [config for config in kernels(gemm) if isinstance(config, WgmmaConfig) and config.subtile]
    assert len(staged) > 4
    for config in staged:
        counted = simulated(build_of(gemm, PlanConfig(config)))
        formed = formed_of(config, gemm, counted, result_bytes=2)
        assert seconds(formed, H200) == pytest.approx(seconds(counted, H200), rel=0.02), config


@pytest.mark.cross_section("name", every=2)
@pytest.mark.parametrize("name", ["bf16", "f32"])
def test_blocks_of_an_sm_are_those_of_the_compiled_kernels(name: str) -> None:
    gemm = problem(name, "NN")
    for kind, table in candidates(gemm, H200).items():
        expected = blocks_per_sm(kind, table, gemm, H200)
        for at in range(0, len(table), len(table) // 4 + 1):
            built = build_of(gemm, PlanConfig(row_of(kind, table, at)))
            compiled = built.occupancy(H200, built.compile(H200.arch)).blocks_per_sm
            # Fewer registers than estimated let small blocks share an SM in greater number.
            assert abs(int(expected[at]) - compiled) <= max(1, compiled // 4), row_of(kind, table, at)


def own_tiles() -> list[tuple[str, GemmConfig]]:
    """Tiles that dispatch knows beside those at which the rungs themselves stand, which have tests of their own. Of
    mma.sync every other one in bf16, and those between in tf32."""
    bf16, tf32, f32 = (some(problem(name, "NT")) for name in ("bf16", "tf32", "f32"))
    found = {"bf16": bf16[::2], "tf32": tf32[1::2], "f32": f32}
    return [(name, config) for name, configs in found.items() for config in configs]


@pytest.mark.cross_section("config", every=43)
@pytest.mark.parametrize(
    ("name", "config"), own_tiles(), ids=lambda one: one if isinstance(one, str) else described(one)
)
def test_every_tile_computes_the_product(name: str, config: GemmConfig) -> None:
    """At edges in every direction, simulated with every detector on."""
    gemm = replace(problem(name, "NT"), m=72, n=136, k=88, lda=0, ldb=0, ldc=0)
    operands = make_operands(gemm)
    computed, run = run_on_simulator(build_of(gemm, PlanConfig(config)), operands)
    assert check(operands, computed).ok and not run.findings


def streamed(orders: str) -> list[tuple[Gemm, GemmConfig]]:
    """A skinny problem with SIMT candidates on the H200 that unroll a part of a k tile."""
    gemm = replace(problem("f32", orders), m=16, n=1024, k=1024, lda=0, ldb=0, ldc=0)
    found = (one for one in configurations(gemm, H200) if isinstance(one, SimtConfig) and one.unroll < one.k)
    return [(gemm, config) for config in [*found][::7]]


@pytest.mark.cross_section("config", every=17)
@pytest.mark.parametrize(("gemm", "config"), streamed("NN") + streamed("NT"))
def test_loads_of_the_next_tile_come_before_the_fmas_of_this_one(gemm: Gemm, config: GemmConfig) -> None:
    """In machine code, where ptxas decides it."""
    built = build_of(gemm, PlanConfig(config.with_split_k(2)))
    step = loop_over_k(disassemble(compile_cuda(built.source, "sm_90a")))
    first = next(at for at, opcode in enumerate(step) if opcode == "FFMA")
    loads = [at for at, opcode in enumerate(step) if opcode.startswith(("LDG.", "LDGSTS."))]
    assert loads and max(loads) < first, (config, max(loads), first)


def loop_over_k(text: str) -> list[str]:
    """The opcodes between the last two barriers before the results are stored: one step over k."""
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", text)
    barriers = [at for at, opcode in enumerate(opcodes) if opcode.startswith("BAR.")]
    return opcodes[barriers[-2] : barriers[-1]]


def test_rows_of_tiles_are_visited_together_where_each_would_read_all_of_b_anew() -> None:
    def rows(m: int, n: int, k: int) -> set[int]:
        return {config.raster_rows for config in configurations(Gemm(m, n, k, F32), device("H200"))}

    assert rows(4096, 4096, 4096) == {1}  # a wave of blocks covers all columns of B
    assert rows(2048, 151936, 64) == {1}  # B stays in the L2
    assert rows(100, 151936, 2048) == {1, 2, 3, 4, 7}  # as many as there are
    assert rows(2048, 151936, 2048) == {8, 11, 13, 16}


def test_a_table_of_occupancies_is_that_of_each_kernel() -> None:
    draw = np.random.default_rng(0)
    columns = {
        "warps": draw.integers(1, 40, 200),
        "registers_per_thread": draw.integers(16, 300, 200),
        "shared_bytes": draw.integers(0, 250_000, 200),
    }
    for name in ("H200", "A100", "RTX 4090", "T4"):
        spec = device(name)
        together = blocks_that_fit(spec, **columns)
        for at in range(200):
            warps, registers, shared_bytes = (int(column[at]) for column in columns.values())
            alone = occupancy(
                spec,
                threads_per_block=32 * warps,
                registers_per_thread=registers,
                static_shared_bytes=shared_bytes,
            )
            assert together[at] == alone.blocks_per_sm, (name, warps, registers, shared_bytes)
