"""`tilewright search --list`: the points of a rung by predicted time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from time import monotonic

from tilewright.cli import output
from tilewright.device.spec import DeviceSpec
from tilewright.errors import CompilerMissing, TilewrightError
from tilewright.ladders.rung import Point, Rung
from tilewright.prediction import Prediction
from tilewright.prediction.predict import predict
from tilewright.problem.gemm import Gemm
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.units import format_seconds

_LISTED = 20


def print_predicted(
    rung: Rung, gemm: Gemm, spec: DeviceSpec, points: Sequence[Point] | None, budget_s: float, as_json: bool
) -> int:
    """Predict as many points as the budget allows, and print them, the fastest first; nothing is measured.

    points: None for all of them.
    """
    assert rung.choices is not None
    wanted = list(rung.choices.points() if points is None else points)
    random.Random(0).shuffle(wanted)
    good: list[tuple[Point, Prediction]] = []
    refused: dict[str, int] = {}
    began = monotonic()
    with output.progress(f"predicting {rung.name}") as step:
        for at, point in enumerate(wanted):
            if monotonic() - began > budget_s:
                break
            step("", at, len(wanted))
            try:
                good.append((point, predict((gemm, rung.choices.schedule_at(gemm, point)), spec, cache=CubinCache())))
            except CompilerMissing:
                raise
            except TilewrightError as error:
                refused[error.headline] = refused.get(error.headline, 0) + 1
    good.sort(key=lambda one: one[1].seconds)
    if as_json:
        listed = [{"point": dict(point), "predicted_us": one.seconds * 1e6} for point, one in good]
        output.print_json({"rung": rung.name, "device": spec.name, "points": listed, "refused": refused})
        return 0 if good else 1
    _print(rung, gemm, spec, good, refused, len(wanted))
    return 0 if good else 1


def _print(
    rung: Rung,
    gemm: Gemm,
    spec: DeviceSpec,
    good: Sequence[tuple[Point, Prediction]],
    refused: dict[str, int],
    wanted: int,
) -> None:
    done = len(good) + sum(refused.values())
    told = f"{rung.name}, {gemm} on {spec.name}: {done} of {wanted} points. Predicted, not measured:"
    print(told)
    for point, one in good[:_LISTED]:
        values = ", ".join(f"{name} {value}" for name, value in point.items())
        print(f"  {format_seconds(one.seconds):>10}  {values}, limited by {one.binding.name}")
    if len(good) > _LISTED:
        print(f"  ... and {len(good) - _LISTED} more; --json prints all")
    for reason, count in sorted(refused.items(), key=lambda one: -one[1])[:_LISTED]:
        print(f"  {count} refused: {reason}")
