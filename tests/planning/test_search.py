"""The choice looks at part of what it could estimate: how far it is from the least estimate of all."""

from __future__ import annotations

from math import log

from named_problems import problem_named, request_of

from tilewright.device.catalog import device
from tilewright.planning.ranking import ranked

SPEC = device("H200")

PROBLEMS = (
    "72x6000x8 bf16 NT",
    "1320x376x32 bf16 TN",
    "96x3176x16 tf32 NT",
    "160x5120x3072 bf16 NN",
    "464x3432x5472 f16 NT",
    "197x4608x1152 tf32 NN",
    "300x640x640 f16 NT",
    "4 x 1768x88x32 f16",
    "38 x 600x24x40 f16",
)


def least_us(name: str, corrected: int | None = None) -> float:
    request = request_of(problem_named(name))
    return ranked(request.gemm, SPEC, request.alignment, stack=request.stack, corrected=corrected)[0][0]


def test_the_choice_is_estimated_as_the_least_of_all_plans() -> None:
    """Where all kernels get every option, and all plans are corrected, nothing is much better."""
    behind = {name: least_us(name) / least_us(name, 1 << 20) for name in PROBLEMS}
    assert max(behind.values()) < 1.09, behind
    assert sum(map(log, behind.values())) / len(behind) < 0.01, behind
    assert min(behind.values()) > 0.999, behind
