"""The page for those who call the library: its blocks run, and what it says of the library is so."""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path

import pytest

from docs.markdown_blocks import blocks, run, with_outputs
from tilewright import matmul, ops
from tilewright.problem.functions import Activation

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "matmul.md"


@pytest.mark.parametrize("name", ["matmul.md", "epilogues.md"])
def test_the_blocks_print_what_the_page_says(name: str, request: pytest.FixtureRequest) -> None:
    page = DOCS / name
    text = page.read_text(encoding="utf-8")
    found = blocks(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that NumPy computes
        _, printed = run(page, found)
    if request.config.getoption("--update-golden"):
        page.write_text(with_outputs(text, found, printed), encoding="utf-8")
        return
    for block, said in zip(found, printed, strict=True):
        assert said == (block.output or ""), f"line {block.line}; if this is meant: pytest --update-golden"


def test_every_argument_is_told() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    assert set(inspect.signature(matmul).parameters) <= told


def test_every_function_is_told() -> None:
    told = set(re.findall(r"`(\w+)`", (DOCS / "epilogues.md").read_text(encoding="utf-8")))
    assert set(ops.__all__) - told <= {"cast", "where"}  # which stand in examples


def test_every_activation_is_told() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f'`"{one.value}"`' in text for one in Activation)
