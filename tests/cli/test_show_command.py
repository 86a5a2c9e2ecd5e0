"""`tilewright show`: a rung in each of its forms."""

from __future__ import annotations

import json

import pytest
from command_runs import Cli

from tilewright.ir.text import kernel_text
from tilewright.ladders import find_rung
from tilewright.toolchain import Build, build


@pytest.fixture
def rung6() -> Build:
    rung = find_rung("worklog/6")
    return build(rung.gemm(256, 256, 256), rung)


def test_the_schedule_is_the_default(cli: Cli, rung6: Build) -> None:
    assert cli("show", "worklog/6").out == rung6.schedule.text + "\n"


def test_each_form_is_printed_letter_by_letter(cli: Cli, rung6: Build) -> None:
    assert cli("show", "vectorised", "--rungs").code == 2
    assert cli("show", "worklog/vectorised", "--program").out == rung6.text
    assert json.loads(cli("show", "worklog/6", "--kernel", "--json").out)["text"] == kernel_text(rung6.kernel)
    assert cli("show", "worklog/6", "--cuda").out == rung6.cuda


def test_lines_of_a_kernel_have_the_numbers_by_which_watch_leaves_one_out(cli: Cli) -> None:
    lines = cli("show", "worklog/3", "--kernel").out.splitlines()
    assert lines[16] == "17      barrier  # A_tile read by all: may be overwritten"  # as docs/watch.md leaves it out
    assert lines[0].startswith(" 1  kernel worklog_shared(") and lines[1].endswith(
        "assumes: M, N, K multiples of the tile; 16-byte aligned rows; 32-bit offsets"
    )


def test_ptx_and_sass_are_of_the_architecture(cli: Cli) -> None:
    assert ".target sm_80" in cli("show", "worklog/1", "--ptx", "--arch", "sm_80").out
    out = cli("show", "worklog/1", "--sass", "--arch", "8.6").out
    assert out.startswith("// main loop: ") and "FFMA" in out


def test_a_step_is_the_program_after_it(cli: Cli, rung6: Build) -> None:
    for step in (0, 5, 23):
        assert cli("show", "worklog/6", "--step", step).out == rung6.after(step).text
    assert cli("show", "worklog/6", "--step", 12, "--cuda").out == rung6.after(12).cuda
    assert cli("show", "worklog/6", "--step", 2, "--schedule").out == rung6.schedule[:2].text + "\n"


def test_variants_differ_in_what_they_assume(cli: Cli) -> None:
    assert "M, N, K multiples of 128, 128, 8" in cli("show", "worklog/6", "--cuda", "--variant", "exact").out
    assert "multiples of 128" not in cli("show", "worklog/6", "--cuda", "--variant", "edges").out
    assert "nothing: any size, any alignment" in cli("show", "worklog/6", "--cuda", "--variant", "safe").out


def test_json(cli: Cli) -> None:
    data = cli("show", "worklog/6", "--json").json
    assert (data["rung"], data["form"], data["step"], data["of"]) == ("worklog/6", "schedule", 24, 24)
    assert data["steps"][0] == {"step": "Split", "loop": "m", "by": 128, "into": ["m_block", "m_in"]}
    assert cli("show", "worklog/6", "--step", 3, "--json").json["form"] == "program"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("worklog/66",), 1, "There is no rung 'worklog/66'.\n  Hint: did you mean 'worklog/6'? "),
        (
            ("worklog/6", "--step", "40"),
            1,
            "There is no step 40: worklog/6 has 24 steps.\n"
            "  Hint: --step 0 is the naive program, --step 24 the finished one.\n",
        ),
        (("worklog/6", "--step", "-1"), 1, "There is no step -1: "),
        (("worklog/6", "--variant", "exat"), 1, "There is no variant 'exat'.\n  Hint: did you mean 'exact'? "),
        (("worklog/6", "--ptx", "--arch", "sm_91"), 1, "There is no architecture 'sm_91'.\n"),
        (("worklog/6", "--cuda", "--sass"), 2, "Invalid value: --cuda and --sass are different things to show: choose"),
    ],
)
def test_mistakes_are_explained(cli: Cli, arguments: tuple[str, ...], code: int, message: str) -> None:
    ran = cli("show", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith(message)


def test_a_terminal_gets_colours(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = cli("show", "worklog/6", "--cuda").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = cli("show", "worklog/6", "--cuda").out
    assert "\x1b" not in plain and "\x1b[" in coloured
