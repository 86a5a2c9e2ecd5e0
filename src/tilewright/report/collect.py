"""Rows: what is known of each rung of a ladder (right or wrong, counted, compiled, timed), as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.artifacts import Cubin
from tilewright.bench.ladder import measure_ladder
from tilewright.bench.records import Record
from tilewright.device.arch import arch as known_arch
from tilewright.device.catalog import DEVICES, H200, device
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32, DType
from tilewright.errors import LaunchError, TilewrightError
from tilewright.ladders import below
from tilewright.ladders.rung import Rung
from tilewright.model.occupancy import Occupancy
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import make_operands
from tilewright.problem.tolerance import Verdict, check
from tilewright.report.figures import TIMED_SIZE, Figure, Size, figure_of, recorded_figure
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import Gpu
from tilewright.runtime.nvrtc import compile_many
from tilewright.runtime.probe import probe
from tilewright.schedule import Difference, Schedule, diff
from tilewright.simulator import Counters, Finding
from tilewright.toolchain import Build, build, run_on_simulator, verify_on_gpu

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""

_MOST_COUNTED_PRODUCTS = 2**27
"""With a GPU that verifies, counts of a larger problem are taken at `COUNTED_SIZE`: the simulator would take minutes."""

COUNTED_SIZE: Size = (256, 256, 256)


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """holds is None where the claim was not asked: it speaks of sizes that are multiples of the tile."""

    sentence: str
    holds: bool | None


@dataclass(frozen=True)
class Row:
    """One rung.

    new: against the rung below; everything for the lowest. verified_on: "simulator", or the name of the GPU.
    counted: the problem that was simulated. cubin, occupancy: for `spec`; occupancy None where no GPU of the
    architecture is known.
    """

    rung: Rung
    built: Build
    new: Difference
    verdict: Verdict
    verified_on: str
    counted: Gemm
    counters: Counters
    findings: tuple[Finding, ...]
    claims: tuple[ClaimResult, ...]
    cubin: Cubin
    occupancy: Occupancy | None
    figure: Figure | None

    @property
    def broken_claims(self) -> tuple[str, ...]:
        return tuple(claim.sentence for claim in self.claims if claim.holds is False)

    @property
    def ok(self) -> bool:
        """Right, free of broken rules, and all it claims."""
        timed_right = self.figure is None or self.figure.verified
        return self.verdict.ok and not self.findings and not self.broken_claims and timed_right

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        gemm, figure = self.built.gemm, self.figure
        counters = self.counters.as_dict()
        del counters["lines"]
        return {
            "rung": self.rung.name,
            "slug": self.rung.slug,
            "idea": self.rung.idea,
            "new": self.new.text.splitlines(),
            "m": gemm.m,
            "n": gemm.n,
            "k": gemm.k,
            "dtype": gemm.dtype.name,
            "verified": self.verdict.ok and not self.findings,
            "verified_on": self.verified_on,
            "error": self.verdict.relative_error,
            "verdict": self.verdict.message,
            "findings": [finding.headline for finding in self.findings],
            "claims": [asdict(claim) for claim in self.claims],
            "counted_at": [self.counted.m, self.counted.n, self.counted.k],
            "counters": counters,
            "resources": self._resources(),
            "tflops": figure and figure.tflops,
            "share_of_cublas": figure and figure.share_of_cublas,
            "figure": figure and figure.kind,
            "figure_size": figure and list(figure.size),
            "figure_device": figure and figure.device,
            "figure_date": figure and figure.date,
            "figure_command": figure and figure.command,
        }

    def _resources(self) -> dict[str, Any]:
        found = self.occupancy
        return {
            "arch": self.cubin.arch,
            "compiler": self.cubin.compiler,
            "threads_per_block": self.built.source.threads_per_block,
            "dynamic_shared_bytes": self.built.source.dynamic_shared_bytes,
            **asdict(self.cubin.resources),
            "occupancy": found and found.fraction,
            "occupancy_device": found and found.spec.name,
            "blocks_per_sm": found and found.blocks_per_sm,
            "limited_by": found and [limit.value for limit in found.limited_by],
            "occupancy_why": found and found.why,
        }


@dataclass(frozen=True, slots=True)
class Target:
    """What a ladder is looked at for. spec is None for an architecture of which the catalogue has no GPU.

    gpu: verifies and measures; None leaves that to the simulator and to the records. named: the user chose the
    device, so that a record of another one is no answer.
    """

    arch: str
    spec: DeviceSpec | None
    gpu: Gpu | None = None
    named: bool = False


def target_for(device_name: str | None, arch_name: str | None, gpu: Gpu | None) -> Target:
    """The target that a user means. Raises UnknownName, and LaunchError where device and architecture do not agree."""
    if gpu is not None:
        return Target(gpu.arch, probe(gpu), gpu)
    if device_name is not None:
        spec = device(device_name)
        arch = known_arch(arch_name or spec.arch)
        if not arch.runs_on(spec.compute_capability):
            raise LaunchError(f"Machine code for {arch} does not run on {spec.name}.", hint=f"use {spec.arch}.")
        return Target(arch.name, spec, named=True)
    arch = known_arch(arch_name or H200.arch)
    candidates = [spec for spec in (H200, *reversed(DEVICES)) if arch.runs_on(spec.compute_capability)]
    exact = [spec for spec in candidates if spec.arch == arch.name]
    return Target(arch.name, next(iter(exact or candidates), None))


def collect_ladder(
    rungs: Sequence[Rung],
    size: Size,
    target: Target,
    *,
    dtype: DType = F32,
    timed_size: Size = TIMED_SIZE,
    cache: CubinCache | None = None,
    progress: Progress | None = None,
) -> tuple[list[Row], list[Record]]:
    """A row for each rung, and the records of what was measured (none without a GPU)."""
    tell = progress or (lambda what, done, total: None)
    gemms = [rung.gemm(*size, dtype=dtype, out=dtype) for rung in rungs]
    builds = [build(gemm, rung) for gemm, rung in zip(gemms, rungs, strict=True)]
    with ThreadPoolExecutor(1) as background:
        compiling = background.submit(_compile_all, builds, target.arch, cache)
        checks = [_check(built, target, tell, number, len(builds)) for number, built in enumerate(builds)]
        cubins = _result(compiling)
    figures, records = _figures(rungs, target, dtype, timed_size, cache, tell)
    rows = [
        Row(
            rung=rung,
            built=built,
            new=whats_new(rung, built.gemm),
            verdict=found.verdict,
            verified_on=found.verified_on,
            counted=found.counted.gemm,
            counters=found.counters,
            findings=found.findings,
            claims=_claims(rung, found.counted, found.counters),
            cubin=cubin,
            occupancy=None if target.spec is None else built.occupancy(target.spec, cubin),
            figure=figure,
        )
        for rung, built, found, cubin, figure in zip(rungs, builds, checks, cubins, figures, strict=True)
    ]
    return rows, records


def whats_new(rung: Rung, gemm: Gemm) -> Difference:
    """The steps that changed against the rung below; all of them where there is none."""
    lower = below(rung)
    return diff(Schedule() if lower is None else lower.schedule(gemm), rung.schedule(gemm))


def _figures(
    rungs: Sequence[Rung],
    target: Target,
    dtype: DType,
    size: Size,
    cache: CubinCache | None,
    tell: Progress,
) -> tuple[list[Figure | None], list[Record]]:
    # The measuring protocol speaks of fp32 so far; other formats have no figure rather than a wrong one.
    if target.gpu is not None and dtype is F32:
        measured = measure_ladder(target.gpu, rungs, *size, cache=cache, progress=tell)
        return [figure_of(one.record, "measured") for one in measured], [one.record for one in measured]
    spec = target.spec if target.named else None
    return [recorded_figure(rung, size, dtype, spec) for rung in rungs], []


@dataclass(frozen=True, slots=True)
class _Checked:
    verdict: Verdict
    verified_on: str
    counted: Build
    counters: Counters
    findings: tuple[Finding, ...]


def _check(built: Build, target: Target, tell: Progress, number: int, of: int) -> _Checked:
    """The result of one rung held against float64, and its counts."""
    gemm = built.gemm
    fine = 1000  # steps of the bar for each rung

    def blocks_done(done: int, total: int) -> None:
        tell(f"simulating {built.name}", number * fine + fine * done // max(total, 1), of * fine)

    blocks_done(0, 1)
    counted = built
    if target.gpu is not None and gemm.m * gemm.n * gemm.k > _MOST_COUNTED_PRODUCTS:
        smaller = gemm.resized(*COUNTED_SIZE)
        counted = build(smaller, built.schedule, name=built.name)
    operands = make_operands(counted.gemm)
    computed, run = run_on_simulator(counted, operands, on_finding="collect", progress=blocks_done)
    if target.gpu is None:
        return _Checked(check(operands, computed), "simulator", counted, run.counters, run.errors)
    given = operands if counted is built else make_operands(gemm)
    verdict = verify_on_gpu(built, target.gpu, given)
    return _Checked(verdict, target.gpu.name, counted, run.counters, run.errors)


def _claims(rung: Rung, counted: Build, counters: Counters) -> tuple[ClaimResult, ...]:
    asked = counted.variant.exact == frozenset("mnk") and counted.gemm.m * counted.gemm.n * counted.gemm.k > 0
    return tuple(
        ClaimResult(claim.sentence, claim.holds(counters, counted.gemm) if asked else None) for claim in rung.claims
    )


def _compile_all(builds: Sequence[Build], arch: str, cache: CubinCache | None) -> list[Cubin | TilewrightError]:
    outcomes: dict[int, Cubin | TilewrightError] = {}
    for done in compile_many([(built.source, arch) for built in builds], cache=cache):
        outcomes[done.index] = done.outcome
    return [outcomes[index] for index in range(len(builds))]


def _result(compiling: Future[list[Cubin | TilewrightError]]) -> list[Cubin]:
    cubins = []
    for outcome in compiling.result():
        if isinstance(outcome, TilewrightError):
            raise outcome
        cubins.append(outcome)
    return cubins
