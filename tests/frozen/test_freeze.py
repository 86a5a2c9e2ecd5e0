"""The tool that freezes kernels: what it calls equal, and what not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frozen.freeze import cases, compare, normalised, take, text_of


def test_names_comments_and_spaces_do_not_count() -> None:
    before = 'int turn = 1; // a slot\nasm("mov %0, turn;" : "+r"(turn));'
    assert normalised(before) == normalised('int  item = 1;\n/* b */ asm("mov %0, turn;" : "+r"(item));')


@pytest.mark.parametrize("after", ["int a = b + a;", "int a = b + 2;", "float a = b + 1;", "int a = a + 1;"])
def test_everything_else_does(after: str) -> None:
    assert normalised("int a = b + 1;") != normalised(after)


def test_a_snapshot_names_the_kernels_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    take(str(before), 1, "te/1 f32 TT ", None, text_of)
    kernels = json.loads(before.read_text())
    assert len(set(kernels.values())) == len(kernels) == 3  # variants
    assert compare(str(before), str(before), None) == 0
    after.write_text(json.dumps({**kernels, "te/1 f32 TT safe": "another"}))
    assert compare(str(before), str(after), str(tmp_path / "keys")) == 1
    assert (tmp_path / "keys").read_text() == "te/1 f32 TT safe\n" and "te/1 f32 TT safe" in capsys.readouterr().out


@pytest.mark.slow
def test_every_rung_is_frozen_under_a_key_of_its_own() -> None:
    found = list(cases())
    assert len({case.key for case in found}) == len(found)
