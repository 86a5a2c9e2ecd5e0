"""`tilewright export`: a folder, and what is refused. The project itself is tested in tests/export."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_runs import Cli


def test_a_rung_becomes_a_folder(cli: Cli, tmp_path: Path) -> None:
    ran = cli("export", "worklog/6", "--size", 256, "--arch", "sm_80", "-o", tmp_path / "out", "--one-kernel")
    assert ran.code == 0
    assert ran.out.startswith("worklog_vectorised_f32_nn: worklog/vectorised, 1 kernel for sm_80\n")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"README.md", "CMakeLists.txt", "example.cpp", "check.cu", "worklog_vectorised_f32_nn.cu"} <= names


def test_a_shape_alone_gets_the_kernel_that_suits_it(cli: Cli, tmp_path: Path) -> None:
    where = ("--dtype", "bf16", "-o", tmp_path / "out", "--one-kernel", "--name", "gemm")
    ran = cli("export", "--size", "512x512x16384", *where)
    assert (ran.code, ran.out.partition(":")[0]) == (0, "gemm")
    assert "matmul would take several launches here" in ran.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "name a RUNG, or give --size MxNxK"),
        (("worklog/66",), 1, "There is no rung 'worklog/66'."),
        (("worklog/6", "--order", "XX"), 1, "There is no order of A and B 'XX'."),
        (("worklog/6", "--activation", "tan"), 1, "There is no activation 'tan'."),
        (("worklog/6", "--bias", "k"), 1, "There is no bias 'k'."),
        (("worklog/6", "--arch", "sm_1"), 1, "There is no architecture 'sm_1'."),
        (("worklog/6", "--name", "a-b"), 1, "'a-b' cannot be the name of a C function."),
        (("hopper/best", "--arch", "sm_80"), 1, "cannot be compiled for sm_80"),
        (("worklog/6", "--name", "int"), 1, "'int' cannot be the name of a C function."),
        (("worklog/6", "--size", "-1x2x3"), 2, "'-1x2x3' is not a size"),
    ],
)
def test_bad_words_are_explained(cli: Cli, tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    ran = cli("export", *words, "-o", tmp_path / "out")
    assert ran.code == code and said in ran.err
    assert not (tmp_path / "out").exists()
