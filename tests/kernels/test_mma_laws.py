"""Laws of the mma family: what the pipeline refuses is said in front, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tilewright.dtypes import F16, F32, TF32
from tilewright.errors import TilewrightError
from tilewright.kernels.mma import MmaConfig
from tilewright.problem import Gemm, Order
from tilewright.toolchain import build

CONFIGS = [
    MmaConfig(
        tile,
        warp_tile,
        3,
        copy_issue_distance=distance,
        n_outer=n_outer,
        interleaved_copies=interleaved,
        double_buffered_fragments=double,
    )
    for (tile, warp_tile), distance, n_outer, interleaved, double in product(
        [((128, 128, 16), (64, 64)), ((128, 64, 8), (64, 32))], (0, 3, 6), (False, True), (False, True), (False, True)
    )
]
LAID_OUT = [(a, b) for a in Order for b in Order]


def problem(tf32: bool, a: Order, b: Order) -> Gemm:
    formats = {"dtype": F32, "product": TF32} if tf32 else {"dtype": F16, "out": F16}
    return Gemm(256, 256, 256, a=a, b=b, **formats)  # type: ignore[arg-type]


@pytest.mark.cross_section("tf32", "a", every=2)
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize(("a", "b"), LAID_OUT)
def test_laws_refuse_what_the_lowering_refuses(a: Order, b: Order, tf32: bool) -> None:
    gemm = problem(tf32, a, b)
    for config in CONFIGS[:: 1 if tf32 else 3]:
        if replace(config, copy_issue_distance=0, double_buffered_fragments=False).reasons_against(gemm):
            continue
        try:
            lowers = build(gemm, config.schedule(gemm)).kernel is not None
        except TilewrightError:
            lowers = False
        assert lowers is not bool(config.reasons_against(gemm)), (config, config.reasons_against(gemm))


def test_fragments_of_a_row_major_b_of_tf32_are_wide() -> None:
    """Rows of the instruction are columns of C then: 4 outer fragments of 16 columns in a warp of 64, not 8 of 8."""
    config = MmaConfig((128, 128, 16), copy_issue_distance=6, n_outer=True)
    (reason,) = config.reasons_against(problem(True, Order.ROW, Order.ROW))
    assert reason == "copies cannot be issued after 6 of 4 outer fragments"
    assert config.reasons_against(problem(True, Order.ROW, Order.COL)) == ()
