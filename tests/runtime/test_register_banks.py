"""What the register banks cost, counted in SASS written by hand."""

import json
from pathlib import Path

import pytest

from tilewright.runtime.register_banks import MainLoop, main_loop

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "register_banks_h200.json"


def loop_of(*instructions: str) -> MainLoop | None:
    lines = [".L_x_1:"]
    lines += [f"        /*{16 * i:04x}*/                   {text} ;" for i, text in enumerate(instructions)]
    lines.append("        /*0ff0*/              @P0 BRA `(.L_x_1) ;")
    return main_loop("\n".join(lines))


def test_three_registers_of_two_banks_take_two_clocks() -> None:
    assert loop_of("FFMA R8, R0, R1, R8") == MainLoop(1, 1, 1)


def test_three_registers_of_one_bank_take_three() -> None:
    assert loop_of("FFMA R8, R0, R2, R8") == MainLoop(1, 2, 1)


def test_a_register_that_is_read_twice_is_read_once() -> None:
    assert loop_of("FFMA R8, R1, R1, R8") == MainLoop(1, 0, 1)


def test_the_reuse_cache_gives_what_the_instruction_before_kept_in_that_slot() -> None:
    assert loop_of("FFMA R8, R0.reuse, R1, R8", "FFMA R10, R0, R3, R10") == MainLoop(2, 1, 1)
    assert loop_of("FFMA R8, R0.reuse, R1, R8", "FFMA R10, R3, R0, R10") == MainLoop(2, 2, 1)
    assert loop_of("FFMA R8, R0, R1, R8", "FFMA R10, R0, R3, R10") == MainLoop(2, 2, 1)


def test_an_instruction_of_another_kind_empties_the_reuse_cache() -> None:
    assert loop_of("FFMA R8, R0.reuse, R1, R8", "LDS R4, [R5]", "FFMA R10, R0, R3, R10") == MainLoop(2, 2, 2)


def test_constants_and_immediates_take_no_bank() -> None:
    assert loop_of("FFMA R8, R0, c[0x0][0x210], R9", "FFMA R8, R0, 2, R9") == MainLoop(2, 0, 1)


def test_the_loop_with_most_multiply_adds_is_taken() -> None:
    text = """
.L_x_1:
        /*0000*/                   FFMA R8, R0, R1, R8 ;
        /*0010*/              @P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0020*/                   FFMA R8, R0, R1, R9 ;
        /*0030*/                   FFMA R8, R0, R1, R9 ;
        /*0040*/                   LDS R4, [R5] ;
        /*0050*/              @P0 BRA `(.L_x_2) ;
"""
    found = main_loop(text)
    assert found == MainLoop(2, 2, 2)
    assert found.share == 1 / 3


def test_code_without_a_loop_has_none() -> None:
    assert main_loop("        /*0000*/                   FFMA R8, R0, R1, R8 ;") is None


def test_the_rule_is_what_was_measured() -> None:
    """Patterns of three numbers, remainders by 4 of the registers that an FFMA reads; none of them is kept."""
    rows = [
        row for row in json.loads(MEASURED.read_text())["rows"] if not row.get("replayed") and "*" not in row["pattern"]
    ]
    assert len(rows) == 64
    for row in rows:
        left, right, total = (int(rest) for rest in row["pattern"].split())
        loop = loop_of(f"FFMA R20, R{left}, R{right + 4}, R{total + 8}")
        assert loop is not None
        assert row["clocks_a_ffma"]["2"] == pytest.approx(1 + loop.lost_clocks, rel=0.01)
