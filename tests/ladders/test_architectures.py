"""Rungs compile for the architectures that we name, on a machine with no GPU."""

import pytest

from rung_formats import formats_for
from rung_runs import laid_out, rungs
from tilewright.dtypes import TF32
from tilewright.ir.kernel import SAFE
from tilewright.ladders import Rung, find_rung
from tilewright.problem import Gemm, Order
from tilewright.problem.formats import format_options
from tilewright.toolchain import build

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")


@pytest.mark.cross_section("number", "arch", every=6)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("number", range(1, 7))
def test_a_rung_compiles_with_its_resources_reported(number: int, arch: str) -> None:
    rung = find_rung(f"worklog/{number}")
    built = build(rung.gemm(256, 256, 256), rung)
    resources = built.compile(arch).resources
    assert 0 < resources.registers <= 255
    assert resources.spill_load_bytes == 0
    assert resources.shared_bytes == built.kernel.shared_bytes


UNALIGNED = [
    pytest.param(rung, name, id=f"{rung.name}-{name}")
    for (rung,) in (param.values for param in rungs("hopper"))
    for name in formats_for(rung)
]


@pytest.mark.cross_section("rung", "name", every=16)
@pytest.mark.parametrize(("rung", "name"), UNALIGNED)
def test_rungs_of_hopper_fit_into_the_registers_where_rows_of_c_are_unaligned(rung: Rung, name: str) -> None:
    """`build(...).compile` refuses what is spilled. Elements are stored one by one there, with guards. C is row-major
    for every other format of a rung, and column-major for the one beside it; assuming nothing, the other way round."""
    at = formats_for(rung).index(name)
    for assumed, c in ((None, (Order.ROW, Order.COL)[at % 2]), (SAFE, (Order.COL, Order.ROW)[at % 2])):
        options = dict(format_options(name)) | {"a": Order.ROW, "b": Order.COL}
        gemm = laid_out(rung, rung.gemm(131, 67, 45, c=c, beta=0.5, **options))
        build(gemm, rung, variant=assumed).compile("sm_90a")


@pytest.mark.parametrize("number", ["5", "6", "7", "best"])
def test_rungs_of_hopper_whose_results_have_4_bytes_fit_a_block(number: str) -> None:
    """TMA stores them in as many bytes at a time as those of 2 bytes."""
    gemm = Gemm(200, 136, 200, product=TF32, b=Order.COL)
    assert build(gemm, find_rung(f"hopper/{number}")).kernel.dynamic_shared_bytes <= 227 * 1024
