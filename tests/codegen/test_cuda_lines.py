"""Layout: long lines are cut where they bind loosest, notes stand in a column."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tilewright.codegen.lines import WIDTH, Line, layout, wrap


def test_notes_of_neighbours_stand_in_a_column() -> None:
    lines = [Line(1, "float a;", "first"), Line(1, "double long_name;", "second"), Line(1, "int b;")]
    assert layout(lines) == (
        "    float a;           // first\n"  #
        "    double long_name;  // second\n"
        "    int b;\n"
    )


def test_a_note_that_does_not_fit_stands_above() -> None:
    text = layout([Line(1, f"float {'x' * 80};", "a note " * 5)])
    assert text == f"    // {('a note ' * 5).strip()}\n    float {'x' * 80};\n"


def test_a_condition_is_cut_before_its_operators_and_stands_out_from_the_body() -> None:
    condition = " && ".join(["some_row * 128 + some_lane < M"] * 5)
    assert wrap(f"if ({condition}) {{") == [
        f"if ({' && '.join(['some_row * 128 + some_lane < M'] * 3)}",
        f"        && {' && '.join(['some_row * 128 + some_lane < M'] * 2)}) {{",
    ]


def test_what_cannot_be_cut_stays_whole() -> None:
    assert wrap("x" * 200) == ["x" * 200]


words = st.text("abc[]()", min_size=1, max_size=30)


@given(st.lists(words, min_size=1, max_size=12), st.sampled_from([" + ", ", ", " && ", " ? ", " * "]))
def test_a_cut_changes_white_space_only(parts: list[str], glue: str) -> None:
    code = glue.join(parts)
    rows = wrap(code, "    ")
    assert re.sub(r"\s", "", "".join(rows)) == re.sub(r"\s", "", code)
    assert all(len(row) <= WIDTH for row in rows)
