"""The code of docs/pytorch.md prints what the page says; tensors of the CPU stand for those of a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from docs.markdown_blocks import blocks, run

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"


@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
def test_each_block_prints_what_the_page_says(gpu: Any) -> None:
    found = blocks(PAGE.read_text(encoding="utf-8"))
    here = [replace(b, code=b.code.replace('"cuda"', '"cpu"')) for b in found if "torch.cuda" not in b.code]
    assert len(here) == len(found) - 1  # graphs are recorded by tests/gpu
    _, printed = run(PAGE, here)
    for block, said in zip(here, printed, strict=True):
        assert said == (block.output or ""), f"line {block.line}"
    assert len(gpu.launches) > 10
