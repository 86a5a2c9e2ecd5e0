"""The program and the lowered kernel of rungs, word for word."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rung_runs import by_boxes, laid_out, rungs
from tilewright.ir.text import kernel_text
from tilewright.ladders import Rung
from tilewright.toolchain import build

# The best point follows the search and may move; its text is nobody's promise.
PINNED = [param for param in rungs("worklog", "te") if param.id != "worklog/best"]


@pytest.mark.parametrize("rung", PINNED)
def test_program_and_kernel(rung: Rung, golden: Callable[[str, str], None]) -> None:
    name = f"ladders/{rung.ladder}_{rung.label}"
    built = build(rung.gemm(4096, 4096, 4096), rung)
    golden(f"{name}.program.txt", built.text)
    golden(f"{name}.kernel.txt", kernel_text(built.kernel))


@pytest.mark.cross_section("rung", every=3)
@pytest.mark.parametrize("rung", rungs())
def test_the_kernel_at_the_edges_is_another(rung: Rung) -> None:
    whole = build(rung.gemm(3072, 3072, 4096), rung)
    assert whole.variant.name.removesuffix("_overwrites") == "mnk_aligned_near"
    edges = build(laid_out(rung, rung.gemm(4095, 4097, 4099)), rung)
    single = {dim for dim in ("m", "n", "k") if edges.program.block_tile(dim) == 1}  # divides every size
    assert edges.variant.exact == single and edges.variant.aligned == by_boxes(rung)
    assert kernel_text(whole.kernel) != kernel_text(edges.kernel)
