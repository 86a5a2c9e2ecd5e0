"""The notebooks of the documentation run from top to bottom, without a GPU, and become pages of the site."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import nbformat
import notebooks
import pytest

SAID = {
    "learn": ("0 bank conflicts of loads", "worklog/3 without a barrier: step through a block"),
    "write_a_kernel": ("0 findings", "Cannot split loop 'b' by 7", "TFLOP/s predicted, limited by", "__global__"),
}
"""Of what each prints and shows."""


@cache
def executed(name: str) -> Any:
    return notebooks.executed(name)


def test_there_are_a_notebook_to_learn_and_one_to_write_with() -> None:
    assert notebooks.names() == sorted(SAID)


@pytest.mark.parametrize("name", SAID)
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    stored = nbformat.read(notebooks.FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(stored)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count is not None] == []


@pytest.mark.cross_section("name", every=2)
@pytest.mark.parametrize("name", SAID)
def test_a_notebook_runs_and_its_page_has_what_it_gave(name: str) -> None:
    text = notebooks.page(name, executed(name))
    assert text.startswith("# ") and f"]({name}.ipynb)" in text
    for said in SAID[name]:
        assert said in text, said
    assert "Traceback" not in text
    frames = re.findall(r"^<div class=\"output\" data-search-exclude><iframe .*</iframe></div>$", text, re.MULTILINE)
    assert frames and all(len(frame) < 2_000_000 for frame in frames)
