"""Every reason, word for word; and legality agrees with occupancy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.device.arch import Feature
from tilewright.device.catalog import DEVICES, H200, RTX_3090, T4
from tilewright.model.limits import reasons_it_cannot_run
from tilewright.model.occupancy import occupancy
from tilewright.units import KIB


def test_a_legal_launch_has_no_reasons() -> None:
    reasons = reasons_it_cannot_run(
        H200,
        threads_per_block=384,
        dynamic_shared_bytes=227 * KIB,
        grid=(2**31 - 1, 65535, 1),
        needs=[Feature.WGMMA, Feature.TMA],
    )
    assert reasons == ()


@pytest.mark.parametrize(
    ("spec", "launch", "reason"),
    [
        (H200, {"threads_per_block": 0}, "a block needs at least one thread, not 0"),
        (
            H200,
            {"threads_per_block": 2048},
            "2048 threads per block exceed 1024: use a smaller block tile or a larger thread tile",
        ),
        (
            T4,
            {"dynamic_shared_bytes": 65 * KIB},
            "65.0 KiB of shared memory per block exceed the 64.0 KiB of T4: use fewer stages or a smaller tile",
        ),
        (
            H200,
            {"static_shared_bytes": 64 * KIB},
            "64.0 KiB of static shared memory exceed 48.0 KiB: make it dynamic, which may take 227.0 KiB",
        ),
        (H200, {"grid": (0, 4, 1)}, "the grid has 0 blocks along x: an empty result needs no launch"),
        (H200, {"grid": (1, 65536, 1)}, "65536 blocks along y exceed 65535: bind this axis to x or fold it into x"),
        (H200, {"grid": (2**31, 1, 1)}, "2147483648 blocks along x exceed 2147483647: split the problem"),
        (
            T4,
            {"needs": [Feature.CP_ASYNC]},
            "cp.async needs sm_80 and later, and the kernel is compiled for sm_75",
        ),
        (
            RTX_3090,
            {"needs": [Feature.WGMMA]},
            "wgmma.mma_async needs sm_90a, and the kernel is compiled for sm_86",
        ),
    ],
)
def test_each_reason(spec, launch: dict, reason: str) -> None:
    assert reasons_it_cannot_run(spec, **({"threads_per_block": 256} | launch)) == (reason,)


def test_all_reasons_are_listed_at_once() -> None:
    reasons = reasons_it_cannot_run(
        T4, threads_per_block=2048, static_shared_bytes=80 * KIB, grid=(1, 1, 70000), needs=[Feature.TMA]
    )
    assert len(reasons) == 4


@given(
    st.sampled_from(DEVICES),
    st.integers(1, 1100),
    st.integers(0, 48 * KIB),
    st.integers(0, 240 * KIB),
)
def test_legal_exactly_when_a_block_fits(spec, threads: int, static: int, dynamic: int) -> None:
    asked = {
        "threads_per_block": threads,
        "static_shared_bytes": static,
        "dynamic_shared_bytes": dynamic,
    }
    legal = not reasons_it_cannot_run(spec, **asked)
    assert legal == (occupancy(spec, registers_per_thread=1, **asked).blocks_per_sm > 0)
