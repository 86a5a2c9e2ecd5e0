"""The first six rungs compile for every architecture we name, on a machine with no GPU."""

import pytest

from tilewright.ladders import find_rung
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
