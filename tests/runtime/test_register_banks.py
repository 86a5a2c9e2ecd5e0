"""What the register banks cost, counted in instructions written by hand."""

import json
from pathlib import Path

import pytest

from tilewright.ladders import find_rung
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.machine_code import Instruction, Kind, MachineCode
from tilewright.runtime.register_banks import MainLoop, lost_clocks, main_loop
from tilewright.toolchain import build

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "register_banks_h200.json"
OTHER, BRANCH = Instruction(Kind.OTHER, None, 0), Instruction(Kind.BRANCH, None, 0)
FIRST_KEPT = 0b001


def ffma(*reads: int | None, kept: int = 0) -> Instruction:
    return Instruction(Kind.MULTIPLY_ADD, None, 0, reads=reads, kept=kept)


@pytest.mark.parametrize(
    ("code", "lost"),
    [
        ([ffma(0, 1, 8)], 1),  # three registers of two banks
        ([ffma(0, 2, 8)], 2),  # of one bank
        ([ffma(0, 2, 8)] * 3, 6),
        ([ffma(1, 1, 8)], 0),  # a register that is read twice is read once
        ([ffma(0, 1, 8, kept=FIRST_KEPT), ffma(0, 3, 10)], 1),  # the reuse cache
        ([ffma(0, 1, 8, kept=FIRST_KEPT), ffma(3, 0, 10)], 2),  # is of one operand
        ([ffma(0, 1, 8), ffma(0, 3, 10)], 2),  # and has what was to be kept
        ([ffma(0, 1, 8, kept=FIRST_KEPT), OTHER, ffma(0, 3, 10)], 2),  # until an instruction of another kind
        ([ffma(0, None, 9), ffma(0, None, 9)], 0),  # constants take no bank
    ],
)
def test_clocks_that_banks_take(code: list[Instruction], lost: int) -> None:
    assert lost_clocks(code) == lost


def test_a_bank_that_may_be_late_makes_up_for_it() -> None:
    """Two reads of the even bank, then none."""
    pair = [ffma(0, 2, 9), ffma(1, 1, None)]
    assert (lost_clocks(pair * 8), lost_clocks(pair * 8, behind=1)) == (8, 0)
    assert lost_clocks([ffma(0, 2, 9)] * 8, behind=1) == 7


def code(*instructions: Instruction, loops: tuple[tuple[int, int], ...]) -> MachineCode:
    return MachineCode(instructions, loops)


def test_the_loop_with_most_multiply_adds_is_taken() -> None:
    one = ffma(0, 1, 9)
    found = main_loop(code(one, BRANCH, one, one, OTHER, BRANCH, loops=((0, 1), (2, 5))))
    assert found == MainLoop(2, 2, 2)
    assert found.share == 1 / 3
    assert str(found).startswith("main loop: 2 FFMA, 2 clocks lost to register banks, 2 other instructions: 33.3%")


def test_code_without_a_loop_of_multiply_adds_has_none() -> None:
    assert main_loop(code(ffma(0, 1, 8), loops=())) is None
    assert main_loop(code(OTHER, BRANCH, ffma(0, 1, 8), loops=((0, 1),))) is None


def test_the_main_loop_of_a_rung() -> None:
    rung = find_rung("worklog/6")
    found = main_loop(MachineCode.of(build(rung.gemm(256, 256, 256), rung).compile("sm_90a", cache=CubinCache())))
    assert found is not None and found.multiply_adds == 512 and 0 < found.lost_clocks < 300


def test_the_rule_is_what_was_measured() -> None:
    """Patterns of three numbers, remainders by 4 of the registers that an FFMA reads; none of them is kept."""
    rows = [
        row for row in json.loads(MEASURED.read_text())["rows"] if not row.get("replayed") and "*" not in row["pattern"]
    ]
    assert len(rows) == 64
    for row in rows:
        left, right, total = (int(rest) for rest in row["pattern"].split())
        lost = lost_clocks([ffma(left, right + 4, total + 8)])
        assert row["clocks_a_ffma"]["2"] == pytest.approx(1 + lost, rel=0.01)
