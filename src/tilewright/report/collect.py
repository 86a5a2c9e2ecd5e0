"""Rows: what is known of each rung of a ladder (right or wrong, counted, compiled, timed), as plain values."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilewright.artifacts import Cubin
from tilewright.bench.ladder import measure_ladder
from tilewright.bench.records import Record
from tilewright.device.arch import arch as known_arch
from tilewright.device.catalog import DEVICES, H200, device
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.errors import CompilerMissing, LaunchError, TilewrightError
from tilewright.ir.clusters import cluster_tile
from tilewright.ladders import below
from tilewright.ladders.rung import Rung
from tilewright.model.occupancy import Occupancy
from tilewright.problem.formats import FormatOptions, format_name
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import make_operands
from tilewright.problem.tolerance import Verdict, check
from tilewright.report.figures import TIMED_SIZE, Figure, Size, figure_of, predicted_figure, recorded_figure
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import Gpu
from tilewright.runtime.probe import probe
from tilewright.schedule import Difference, Schedule, diff
from tilewright.simulator import Counters, Finding, count_sampled
from tilewright.toolchain import Build, build, run_on_simulator, verify_on_gpu

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""

_MOST_SIMULATED_PRODUCTS = 2**27
"""Larger problems may be counted from a sample of their blocks: the simulator would take minutes."""


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """holds is None where the claim was not asked: it speaks of sizes that are multiples of the tile which the rung has
    for large problems, and of elements as wide as those of the rung's own format."""

    sentence: str
    holds: bool | None


@dataclass(frozen=True, slots=True)
class Checked:
    """A result held against float64 on the simulator or a GPU (`where`), the counts, and the rules it broke."""

    verdict: Verdict
    where: str
    counters: Counters
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return self.verdict.ok and not self.findings


@dataclass(frozen=True)
class Row:
    """One rung.

    new: against the rung below; everything for the lowest. problem: why `checked` or `cubin` is missing, else "".
    Where no compiler is installed `cubin` is None and that is not a problem of the rung: `no_compiler` says so.
    occupancy: None where no GPU of the architecture is known.
    """

    rung: Rung
    built: Build
    new: Difference
    checked: Checked | None
    claims: tuple[ClaimResult, ...]
    cubin: Cubin | None
    occupancy: Occupancy | None
    figure: Figure | None
    problem: str = ""
    no_compiler: str = ""

    @property
    def broken_claims(self) -> tuple[str, ...]:
        return tuple(claim.sentence for claim in self.claims if claim.holds is False)

    @property
    def ok(self) -> bool:
        """Built, right, free of broken rules, and all it claims."""
        timed_right = self.figure is None or self.figure.verified
        checked = self.checked is not None and self.checked.ok
        return checked and not self.problem and not self.broken_claims and timed_right

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        gemm, found = self.built.gemm, self.checked
        return {
            "rung": self.rung.name,
            "slug": self.rung.slug,
            "idea": self.rung.idea,
            "new": self.new.text.splitlines(),
            "m": gemm.m,
            "n": gemm.n,
            "k": gemm.k,
            "dtype": format_name(gemm),
            "ok": self.ok,
            "problem": self.problem or None,
            "verified": found is not None and found.ok,
            "verified_on": found and found.where,
            "error": found and found.verdict.relative_error,
            "verdict": found and found.verdict.message,
            "findings": [] if found is None else [finding.headline for finding in found.findings],
            "claims": [asdict(claim) for claim in self.claims],
            "counters": found and {k: v for k, v in found.counters.as_dict().items() if k != "lines"},
            "resources": self.cubin and self._resources(self.cubin),
            **_figure_as_dict(self.figure),
        }

    def _resources(self, cubin: Cubin) -> dict[str, Any]:
        found = self.occupancy
        return {
            "arch": cubin.arch,
            "compiler": cubin.compiler,
            "threads_per_block": self.built.source.threads_per_block,
            "dynamic_shared_bytes": self.built.source.dynamic_shared_bytes,
            **asdict(cubin.resources),
            "occupancy": found and found.fraction,
            "occupancy_device": found and found.spec.name,
            "blocks_per_sm": found and found.blocks_per_sm,
            "limited_by": found and [limit.value for limit in found.limited_by],
            "occupancy_why": found and found.why,
        }


def _figure_as_dict(figure: Figure | None) -> dict[str, Any]:
    return {
        "tflops": figure and figure.tflops,
        "share_of_cublas": figure and figure.share_of_cublas,
        "figure": figure and figure.kind,
        "figure_size": figure and list(figure.size),
        "figure_device": figure and figure.device,
        "figure_date": figure and figure.date,
        "figure_command": figure and figure.command,
    }


@dataclass(frozen=True, slots=True)
class Target:
    """What a ladder is looked at for. spec is None for an architecture of which the catalogue has no GPU.

    gpu: verifies and measures; None leaves that to the simulator and to the records. named: the user chose the
    device, so that a record of another one is not an answer.
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
        arch = known_arch(spec.arch if arch_name is None else arch_name)
        if not arch.runs_on(spec.compute_capability):
            raise LaunchError(f"Machine code for {arch} does not run on {spec.name}.", hint=f"use {spec.arch}.")
        return Target(arch.name, spec, named=True)
    arch = known_arch(H200.arch if arch_name is None else arch_name)
    candidates = [spec for spec in (H200, *reversed(DEVICES)) if arch.runs_on(spec.compute_capability)]
    exact = [spec for spec in candidates if spec.arch == arch.name]
    return Target(arch.name, next(iter(exact or candidates), None))


def collect_ladder(
    rungs: Sequence[Rung],
    size: Size,
    target: Target,
    *,
    formats: FormatOptions | None = None,
    timed_size: Size = TIMED_SIZE,
    cache: CubinCache | None = None,
    progress: Progress | None = None,
) -> tuple[list[Row], list[Record]]:
    """A row for each rung, and the records of what was measured (none without a GPU).

    formats: none for those of the rungs. A rung that cannot be built, simulated or compiled has a row that says why.
    """
    tell = progress or (lambda what, done, total: None)
    formats = formats or {}
    if target.spec is not None:
        rungs = [rung.on(target.spec) for rung in rungs]
    builds = [build(rung.gemm(*size, **formats), rung) for rung in rungs]
    with ThreadPoolExecutor(1) as background:
        compiling = background.submit(compile_all, builds, target.arch, cache)
        checks = [check_build(built, target.gpu, _part(tell, at, len(builds))) for at, built in enumerate(builds)]
        cubins = compiling.result()
    rows = [
        _row(rung, built, checked, cubin, target)
        for rung, built, checked, cubin in zip(rungs, builds, checks, cubins, strict=True)
    ]
    if target.gpu is None:
        return [replace(row, figure=_known_figure(row, target, timed_size, formats, cache)) for row in rows], []
    right = [row.rung for row in rows if row.checked is not None and row.checked.ok and not row.problem]
    measured = (
        measure_ladder(target.gpu, right, *timed_size, formats=formats, cache=cache, progress=tell) if right else []
    )
    by_name = {one.rung.name: figure_of(one.record, "measured") for one in measured}
    return [replace(row, figure=by_name.get(row.rung.name)) for row in rows], [one.record for one in measured]


def _known_figure(
    row: Row, target: Target, size: Size, formats: FormatOptions, cache: CubinCache | None
) -> Figure | None:
    """What was recorded, on the GPU that the user named if any; else what is predicted."""
    spec = target.spec
    recorded = recorded_figure(row.rung, size, format_name(row.built.gemm), spec if target.named else None)
    if recorded is not None or spec is None or row.cubin is None:
        return recorded
    return predicted_figure(row.rung, size, spec, formats, cache)


def _row(
    rung: Rung,
    built: Build,
    checked: Checked | TilewrightError,
    cubin: Cubin | TilewrightError,
    target: Target,
) -> Row:
    """The row of a rung, its figure still missing."""
    no_compiler = str(cubin) if isinstance(cubin, CompilerMissing) else ""
    parts = (checked,) if no_compiler else (checked, cubin)
    problems = [str(part) for part in parts if isinstance(part, TilewrightError)]
    found = None if isinstance(checked, TilewrightError) else checked
    compiled = None if isinstance(cubin, TilewrightError) else cubin
    return Row(
        rung=rung,
        built=built,
        new=whats_new(rung, built.gemm),
        checked=found,
        claims=() if found is None else _claims(rung, built, found.counters),
        cubin=compiled,
        occupancy=None if target.spec is None or compiled is None else built.occupancy(target.spec, compiled),
        figure=None,
        problem="\n".join(dict.fromkeys(problems)),
        no_compiler=no_compiler,
    )


def whats_new(rung: Rung, gemm: Gemm) -> Difference:
    """The steps that changed against the rung below; all of them where there is none."""
    lower = below(rung)
    return diff(Schedule() if lower is None else lower.schedule(gemm), rung.schedule(gemm))


def _part(tell: Progress, number: int, of: int) -> Progress:
    """Progress of one rung of `of` as a part of the whole."""
    fine = 1000  # steps of the bar for each rung
    return lambda what, done, total: tell(what, number * fine + fine * done // max(total, 1), of * fine)


def is_large(gemm: Gemm) -> bool:
    """Whether the simulator would take minutes to run a problem whole."""
    return gemm.m * gemm.n * gemm.k > _MOST_SIMULATED_PRODUCTS


def check_build(
    built: Build, gpu: Gpu | None = None, tell: Progress = lambda what, done, total: None
) -> Checked | TilewrightError:
    """The result of one rung held against float64, and its counts; the error where it cannot be run."""
    gemm = built.gemm
    doing = f"simulating {built.name}"
    tell(doing, 0, 1)
    try:
        operands = make_operands(gemm)
        if gpu is not None and is_large(gemm):
            counters = count_sampled(built.kernel, operands)
            return Checked(verify_on_gpu(built, gpu, operands), gpu.name, counters, ())
        blocks_done: Callable[[int, int], None] = lambda done, total: tell(doing, done, total)  # noqa: E731
        computed, run = run_on_simulator(built, operands, on_finding="collect", progress=blocks_done)
        if gpu is None:
            return Checked(check(operands, computed), "the simulator", run.counters, run.errors)
        return Checked(verify_on_gpu(built, gpu, operands), gpu.name, run.counters, run.errors)
    except TilewrightError as error:
        return error


def _claims(rung: Rung, built: Build, counters: Counters) -> tuple[ClaimResult, ...]:
    gemm = built.gemm
    same_bytes = gemm.dtype.bytes == rung.problem.get("dtype", F32).bytes
    asked = same_bytes and built.variant.exact == frozenset("mnk") and gemm.m * gemm.n * gemm.k > 0
    asked = asked and _has_its_tiles(rung, gemm)
    return tuple(ClaimResult(claim.sentence, claim.holds(counters, gemm) if asked else None) for claim in rung.claims)


def _has_its_tiles(rung: Rung, gemm: Gemm) -> bool:
    """Whether a problem is as large as a tile of the rung, which takes smaller ones for smaller problems."""
    m, n, k = TIMED_SIZE
    large = replace(gemm, m=m, n=n, k=k, lda=0, ldb=0, ldc=0, ld_added=())
    program = build(large, rung).program
    return all(getattr(gemm, dim) >= cluster_tile(program, dim) for dim in ("m", "n"))


def compile_all(builds: Sequence[Build], arch: str, cache: CubinCache | None) -> list[Cubin | TilewrightError]:
    """The cubin of each build, or why there is none; by a thread a core, as NVRTC releases the interpreter lock."""

    def compiled(built: Build) -> Cubin | TilewrightError:
        try:
            return built.compile(arch, cache=cache)
        except TilewrightError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="nvrtc") as pool:
        return list(pool.map(compiled, builds))
