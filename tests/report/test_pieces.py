"""The report of a ladder of f32 has what multiplies the same operands by pieces."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.device.catalog import device
from tilewright.problem.emulation import ALGORITHMS, BF16X6, EMULATIONS
from tilewright.report.page import Page, page_text
from tilewright.report.page.on_gpu import pieces_rows


def test_every_precision_has_a_bound_a_prediction_and_its_record(
    page: Page, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(kernel_cache))
    found = pieces_rows(device("H200"))
    rows = {row.precision: row for row in found}
    assert tuple(rows) == EMULATIONS
    assert rows["bf16x6"].bound == round(BF16X6.units(4096)) and rows["f32_emulated"].bound == 4096
    for row in rows.values():
        assert row.low < row.tflops < row.high and row.sustained <= row.tflops
        assert row.recorded is not None and row.low < row.recorded < row.high
    text = page_text(replace(page, pieces=found))
    section = text[text.index('id="h-pieces"') : text.index('id="inside"')]
    assert re.findall(r"<tr><td>(\w+)</td>", section) == [*ALGORITHMS, "f32_emulated"]


def test_there_are_none_without_wgmma() -> None:
    assert pieces_rows(device("A100")) == ()
