"""Layout: long lines are cut where they bind loosest, notes stand in a column."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.codegen import cuda_paths, print_cuda
from tilewright.codegen.lines import WIDTH, Line, layout, wrap
from tilewright.ir.async_stmt import TmaLoad, Wgmma
from tilewright.ir.stmt import Barrier, For, Let, Move, MultiplyTiles
from tilewright.ir.visit import walk
from tilewright.ladders import find_rung
from tilewright.toolchain import build


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


def test_a_loop_is_cut_behind_its_first_part_and_arguments_of_templates_stay_together() -> None:
    bound = " + ".join(["some_rather_long_number_of_tiles"] * 2)
    assert wrap(f"for (int tile_iteration = 0; tile_iteration < {bound}; ++tile_iteration) {{") == [
        "for (int tile_iteration = 0;",
        f"        tile_iteration < {bound};",
        "        ++tile_iteration) {",
    ]
    call = f"wgmma_m64n192k16_f32_bf16<0, 1>(sum[m_frag], {'x' * 60}, {'y' * 40});"
    assert wrap(call)[0].startswith("wgmma_m64n192k16_f32_bf16<0, 1>(sum[m_frag],")


words = st.text("abc[]()", min_size=1, max_size=30)


@given(st.lists(words, min_size=1, max_size=12), st.sampled_from([" + ", ", ", " && ", " ? ", " * "]))
def test_a_cut_changes_white_space_only(parts: list[str], glue: str) -> None:
    code = glue.join(parts)
    rows = wrap(code, "    ")
    assert re.sub(r"\s", "", "".join(rows)) == re.sub(r"\s", "", code)
    assert all(len(row) <= WIDTH for row in rows)


@pytest.mark.parametrize("name", ["worklog/6", "ampere/6", "hopper/best"])
def test_lines_say_which_statement_they_are_of(name: str) -> None:
    rung = find_rung(name)
    kernel = build(rung.gemm(256, 256, 256), rung).kernel
    lines, paths = print_cuda(kernel).text.splitlines(), cuda_paths(kernel)
    assert len(lines) == len(paths)
    of = {path: [line for line, other in zip(lines, paths, strict=True) if other == path] for path in paths}
    statements = dict(walk(kernel.body))
    assert set(of) - {None} <= set(statements)
    for path, stmt in statements.items():
        match stmt:
            case Barrier():
                assert any("__syncthreads();" in line for line in of[path])
            case For():
                assert any(f"++{stmt.var}" in line for line in of[path])
            case Let():
                assert any(f" {stmt.name} = " in line for line in of[path])
            case Wgmma() | MultiplyTiles() | TmaLoad() | Move():
                assert of[path]
            case _:
                pass
