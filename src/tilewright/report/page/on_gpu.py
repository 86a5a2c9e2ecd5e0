"""What the page says of rungs on a GPU: edits that would help, speeds at several sizes, and f32 products by pieces on
tensor cores; recorded or predicted, nothing is measured. Most of it is Python, so other processes work it out while
this one counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tilewright.bench import records
from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.frontend.options import Precision
from tilewright.frontend.predicting import predict_precision
from tilewright.ladders import is_shipped
from tilewright.ladders.rung import Rung
from tilewright.problem.emulation import ALGORITHMS, EMULATIONS, f32_units
from tilewright.problem.formats import FormatOptions
from tilewright.report.outlook import Outlook, outlook
from tilewright.report.page.speed import speed_at
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.tuner.processes import Processes

Result = TypeVar("Result")

SPEED_SIZES = (1024, 2048, 4096, 8192)
"""Where speeds are shown; the second largest is where most records were taken."""

PIECES_SIZE = 4096
"""m, n and k of products by pieces, where most records were taken."""

_FILE_PATTERN = "emulation_*.jsonl"


@dataclass(frozen=True, slots=True)
class OnGpu:
    """One rung on a GPU. outlook: None where it cannot run there. speeds: what is known, by size."""

    outlook: Outlook | None
    speeds: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PiecesRow:
    """One precision. bound: W of |C - AB| <= W u |A||B|. tflops, sustained, low, high, binding: predicted. recorded: on
    the device itself, in a burst, with row-major operands; None where nothing was."""

    precision: str
    bound: int
    tflops: float
    low: float
    high: float
    sustained: float
    binding: str
    recorded: float | None


class Caller(Protocol):
    """Begins a function, here or in another process."""

    def __call__(self, work: Callable[..., Result], /, *given: object) -> Future[Result]: ...


@contextmanager
def caller(rungs: Sequence[Rung], workers: int) -> Iterator[Caller]:
    """Other processes; or a thread, for one rung, for which a process is not worth its start, and for schedules of a
    user's file, which another process cannot import. Ctrl-C waits for neither.

    workers: processes, at most. They import the main program anew, which must not do its work on import.
    """
    workers = min(workers, len(rungs))
    if workers > 1 and all(map(is_shipped, rungs)):
        with Processes(workers, __name__) as processes:
            processes.start(workers)
            yield processes.call
        return
    with ThreadPoolExecutor(1) as thread:
        try:
            yield thread.submit
        except BaseException:
            thread.shutdown(wait=False, cancel_futures=True)
            raise


def begun(call: Caller, work: Callable[..., Result], *given: object) -> Callable[[], Result]:
    """Begins a function, and gives what waits for its result. What a process was at that was killed is done here."""
    future = call(work, *given)

    def result() -> Result:
        try:
            return future.result()
        except BrokenProcessPool:
            return work(*given)

    return result


def on_gpu(rung: Rung, spec: DeviceSpec, formats: FormatOptions, cache: Path | None) -> OnGpu:
    """What is said of a rung. cache: the folder of kernels."""
    kernels = CubinCache(cache)
    speeds = {str(n): speed_at(rung, (n, n, n), spec, formats, kernels) for n in SPEED_SIZES}
    try:
        return OnGpu(outlook(rung, spec, formats), speeds)
    except TilewrightError:  # the row says why
        return OnGpu(None, speeds)


@cache
def pieces_rows(spec: DeviceSpec) -> tuple[PiecesRow, ...]:
    """Every precision that multiplies pieces; none on devices without wgmma, or where no compiler is installed."""
    if spec.compute_capability[0] != 9:
        return ()
    try:
        return tuple(_row(name, spec) for name in EMULATIONS)
    except TilewrightError:
        return ()


def _row(name: Precision | str, spec: DeviceSpec) -> PiecesRow:
    n = PIECES_SIZE
    found, _ = predict_precision(name, n, n, n, spec, cache=CubinCache())  # type: ignore[arg-type]
    bound = ALGORITHMS[name].units(n) if name in ALGORITHMS else f32_units(n)
    rates = found.tflops, found.tflops_low, found.tflops_high, found.sustained_tflops
    return PiecesRow(name, round(bound), *rates, found.binding.name, _recorded(spec).get(name))


@cache
def _recorded(spec: DeviceSpec) -> dict[str, float]:
    """TFLOP/s of each precision, the newest first of several."""
    found: dict[str, float] = {}
    size = "x".join(3 * [str(PIECES_SIZE)])
    for path in sorted(records.recorded_folder().glob(_FILE_PATTERN)):
        of_device = False
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "device" in row:
                of_device = device(row["device"]) == spec
            elif of_device and (row.get("problem"), row.get("orders")) == (size, "NN"):
                found[row["precision"]] = row["tflops"]
    return found
