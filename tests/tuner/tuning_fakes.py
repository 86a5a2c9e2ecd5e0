"""A search with no GPU and no compiler: candidates of two numbers, times by formula, a clock that measuring moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.bench.protocol import Timing
from tilewright.errors import TilewrightError
from tilewright.kernels.simt import SimtConfig
from tilewright.tuner.compiling import Prepared
from tilewright.tuner.measure import Measured
from tilewright.tuner.study import TuningStudy
from tilewright.tuner.tune import Tuning
from tilewright.winners.plan_config import PlanConfig

CANDIDATES = tuple(PlanConfig(SimtConfig(stages=a, raster_rows=b)) for a in range(6) for b in range(5))


def true_us(candidate: PlanConfig) -> float:
    """A bowl, its ground at 4 stages and 2 rows."""
    assert isinstance(candidate.kernel, SimtConfig)
    a, b = candidate.kernel.stages, candidate.kernel.raster_rows
    return 100.0 + 3.0 * (a - 4) ** 2 + 2.0 * (b - 2) ** 2


BEST = min(CANDIDATES, key=true_us)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class Compilers:
    """Ready at once. fails: by candidate, what the compiler says."""

    fails: Mapping[PlanConfig, str] = field(default_factory=dict)
    ahead: int = 3

    def submit(self, candidate: PlanConfig) -> Future[PlanConfig]:
        future: Future[PlanConfig] = Future()
        if candidate in self.fails:
            future.set_exception(TilewrightError(self.fails[candidate]))
        else:
            future.set_result(candidate)
        return future


@dataclass
class Measurer:
    """fails: by candidate, what is raised. each_s: what a measurement takes on the clock."""

    clock: Clock = field(default_factory=Clock)
    fails: Mapping[PlanConfig, TilewrightError] = field(default_factory=dict)
    each_s: float = 0.1
    us: Callable[[PlanConfig], float] = true_us
    log: list[PlanConfig] = field(default_factory=list)

    def beside_imports(self) -> AbstractContextManager[None]:
        return nullcontext()

    def measure(self, prepared: PlanConfig) -> Measured:
        self.clock.seconds += self.each_s
        self.log.append(prepared)
        if prepared in self.fails:
            raise self.fails[prepared]
        return Measured(self.us(prepared), 32, 0.0, "kernel", "order")

    def side_by_side(self, prepared: Mapping[str, PlanConfig]) -> Mapping[str, Timing]:
        self.clock.seconds += 0.3
        return {name: Timing(t := self.us(one), t, t, 1, 1) for name, one in prepared.items()}


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'study.sqlite'}"


def a_study(folder: Path, seeds: tuple[PlanConfig, ...] = (), **options: Any) -> TuningStudy:
    return TuningStudy(url_of(folder), "bowl", CANDIDATES, seeds, **options)


def a_search(folder: Path, measurer: Measurer, compilers: Compilers | None = None, **options: Any) -> Tuning:
    settings: dict[str, Any] = {"seconds": 1000.0, "now": measurer.clock, **options}
    return Tuning(a_study(folder), compilers or Compilers(), measurer, **settings)


class OnPaper:
    """A measurer that takes the registers of a kernel for its time. clock: moved by a second by each measurement."""

    class gpu:
        arch = "sm_90a"

        def make_current(self) -> None:
            pass

    def __init__(
        self, gpu: object = None, gemm: Any = None, find_peers: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        self.gemm = gemm
        self.log: list[Prepared] = []
        self.clock = Clock()
        self.peers = find_peers()

    def begin(self, *then: Callable[[], object]) -> None:
        pass

    def begin_peers(self) -> None:
        pass

    def beside_imports(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass

    def us(self, prepared: Prepared) -> float:
        return float(prepared.registers)

    def measure(self, prepared: Prepared) -> Measured:
        self.clock.seconds += 1.0
        self.log.append(prepared)
        if getattr(prepared.candidate.kernel, "m", 0) == 128:
            raise TilewrightError("wrong result: on paper")
        return Measured(self.us(prepared), 1, 0.0, prepared.kernel, prepared.order)

    def side_by_side(self, prepared: Mapping[str, Prepared]) -> Mapping[str, Timing]:
        times = {name: self.us(one) for name, one in prepared.items()}
        return {name: Timing(time, time, time, 1, 1) for name, time in {**times, **self.peers}.items()}
