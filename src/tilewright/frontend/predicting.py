"""The time model on what `matmul` runs for a precision, with no GPU."""

from __future__ import annotations

from tilewright.device.catalog import device as known_device
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.errors import ProblemError
from tilewright.frontend.libraries.views import View
from tilewright.frontend.options import Precision, options_with
from tilewright.frontend.requests import Views, checked, requests_of
from tilewright.model.prediction import Prediction
from tilewright.planning.account import dispatcher_on_paper
from tilewright.planning.on_paper import predict_plan
from tilewright.planning.plan import Plan
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.memory import c_strides

_APART = 1 << 44
"""Bytes between arrays that have no address."""


def predict_precision(
    precision: Precision,
    m: int,
    n: int,
    k: int,
    spec: DeviceSpec | str,
    *,
    cache: CubinCache | None = None,
    clock_mhz: float | None = None,
) -> tuple[Prediction, Plan]:
    """The predicted time of `matmul` of f32 operands of shapes (m, k) and (k, n), row-major, on a known GPU, with the
    plan that it is of: the launches around the product are terms of their own. clock_mhz: by default that of the data
    sheet.

    Raises ProblemError for sizes of 0 and unknown precisions, LaunchError where the GPU cannot multiply so or a GEMV
    kernel does it.

    >>> found, plan = predict_precision("bf16x6", 4096, 4096, 4096, "H200")
    >>> 80 < found.tflops < 160, len(plan.steps)
    (True, 3)
    """
    if not m * n * k:
        raise ProblemError(f"A product of {m} x {n} x {k} takes no time.", hint="use sizes from 1 on.")
    found = known_device(spec)
    options = options_with(precision=precision)
    a, b = (View(at * _APART, shape, c_strides(shape), F32, 0) for at, shape in ((1, (m, k)), (2, (k, n))))
    views = Views(a, b)
    (piece,) = requests_of(views, *checked(views, options), options)
    plan = dispatcher_on_paper(found).plan(piece.request)
    return predict_plan(plan, 2 * m * n * k, found, cache=cache, clock_mhz=clock_mhz), plan
