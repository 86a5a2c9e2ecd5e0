"""Tiles whose columns lie where a table says: right wherever it is run, and no dearer than a formula where one fits."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import cuda_on_cpu
import pytest

from tilewright.errors import ScheduleError
from tilewright.ir.kernel import SAFE
from tilewright.ladders import find_rung
from tilewright.layout.arrangement import Arrangement, Interleaved, Permuted, Xor
from tilewright.problem import check, make_operands
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Relayout, Schedule, Vectorize, from_json, to_json
from tilewright.toolchain import build, run_on_simulator

RUNG = find_rung("worklog/7")
COLUMNS = 64
GEMM = RUNG.gemm(70, 66, 21, beta=0.5)
SHUFFLED = random.Random(7).sample(range(COLUMNS), COLUMNS)


def laid_out(arrangement: Arrangement, gemm: Gemm = GEMM) -> Schedule:
    """Rung 7 with another arrangement of its B tile, which has 8 rows of 64 columns."""
    steps = RUNG.schedule(gemm)
    old = next(step for step in steps if isinstance(step, Relayout) and step.arrangement is not None)
    return Schedule(*(replace(old, arrangement=arrangement) if step is old else step for step in steps))


def table_of(arrangement: Arrangement, rows: int, columns: int) -> Permuted:
    return Permuted(tuple(arrangement.column(r, c, columns) for r in range(rows) for c in range(columns)))


def in_runs(places: list[int], run: int) -> Permuted:
    return Permuted(tuple(place * run + step for place in places for step in range(run)))


TABLES = {
    "one row": Permuted(tuple(SHUFFLED)),
    "eight rows": Permuted(tuple((place + 3 * row) % COLUMNS for row in range(8) for place in SHUFFLED)),
    "three rows": Permuted(tuple((column + row) % COLUMNS for row in range(3) for column in range(COLUMNS))),
    "runs of four": in_runs([place // 4 for place in SHUFFLED if place % 4 == 0], 4),
    "bits": table_of(Xor(bits=2, base=2, shift=1), 8, COLUMNS),
    "bits, some of them always flipped": Permuted(tuple(column ^ 21 for column in range(COLUMNS))),
}


@pytest.mark.cross_section("name", every=2)
@pytest.mark.parametrize("name", TABLES)
def test_the_product_is_right(name: str, tmp_path: Path) -> None:
    """In the simulator, with every detector; as C++ on this machine; and the compiler takes the text."""
    schedule = laid_out(TABLES[name])
    built = build(GEMM, schedule, variant=SAFE)
    operands = make_operands(GEMM)
    computed, run = run_on_simulator(built, operands)
    verdict = check(operands, computed)
    assert verdict.ok, verdict.message
    assert not run.findings
    assert built.compile("sm_90").image
    if cuda_on_cpu.GXX is not None:
        verdict = cuda_on_cpu.build(built.kernel, built.source, tmp_path).verdict(GEMM)
        assert verdict.ok, verdict.message


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_only_where_bits_do_not_do(name: str) -> None:
    text = build(GEMM, laid_out(TABLES[name])).cuda
    assert ("place_in_row[" in text) == (not name.startswith("bits"))
    assert text.count("__device__ const") <= 1


def test_runs_make_the_table_short() -> None:
    assert "__device__ const unsigned char place_in_row[16] = {" in build(GEMM, laid_out(TABLES["runs of four"])).cuda


def test_the_table_of_an_interleaving_costs_what_the_interleaving_costs() -> None:
    gemm = RUNG.gemm(128, 128, 16)
    operands = make_operands(gemm)

    arrangements = (Interleaved(8), table_of(Interleaved(8), 1, 128))
    plain, table = (build(gemm, laid_out(arrangement, gemm)) for arrangement in arrangements)
    costs = [
        [(c.origin, c.wavefronts, c.requests) for c in b.simulate(operands).counters.lines] for b in (plain, table)
    ]
    assert costs[0] == costs[1]
    assert "B_frag[n_reg] = B_tile[k_in][n_thread + n_reg * 16];" in table.cuda


def test_what_stays_together_may_be_read_at_once() -> None:
    """Fragments of four neighbours need runs of four."""
    wide = Schedule(Vectorize("B_frag", 4))
    operands = make_operands(GEMM)
    computed, run = run_on_simulator(build(GEMM, laid_out(TABLES["runs of four"]) + wide), operands)
    assert check(operands, computed).ok and not run.findings
    with pytest.raises(ScheduleError, match=r"rows of 'B_tile' are aligned for accesses of 1 element\(s\), not 4"):
        (laid_out(TABLES["one row"]) + wide).apply(GEMM)


def test_a_loop_may_have_the_name_of_the_table() -> None:
    renamed = from_json(to_json(laid_out(TABLES["one row"])).replace("k_in", "place_in_row"))
    built = build(GEMM, renamed)
    assert "place_in_row_2 < 8" in built.cuda and built.compile("sm_90").image
