"""What a gate knows of one schedule: counts of the simulator, and what the compiler made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tilewright.device.arch import arch as known_arch
from tilewright.errors import TilewrightError
from tilewright.prediction import predict
from tilewright.problem.formats import format_name
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import make_operands
from tilewright.report.collect import check_build, compile_all, is_large, target_for
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.simulator import Counters, Finding, Kind, count_sampled
from tilewright.toolchain import Build
from tilewright.version import __version__

DEFAULT_ARCHS = ("sm_80", "sm_90a")

CANNOT = "cannot"
"""The key under which an architecture says why it does not run the kernel."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One schedule at one problem.

    counts: whole numbers, by name, of all blocks. targets: by architecture, registers and the like; or under `CANNOT`
    why there are none. wrong: why the result is wrong, "" where it is right; such facts are in no snapshot. remarks: in
    words, what the detectors found, and what was not looked at.
    """

    problem: str
    counts: Mapping[str, int]
    targets: Mapping[str, Mapping[str, Any]]
    wrong: str = ""
    remarks: tuple[str, ...] = field(default=(), compare=False)

    def as_data(self) -> dict[str, Any]:
        """Plain values for JSON."""
        targets = {arch: dict(target) for arch, target in self.targets.items()}
        return {"problem": self.problem, "counts": dict(self.counts), "targets": targets}


def facts_of(built: Build, archs: Sequence[str] = DEFAULT_ARCHS, *, cache: CubinCache | None = None) -> Facts:
    """Simulate a build and compile it for each architecture; no GPU is used.

    Raises TilewrightError where the schedule does not apply or the kernel cannot be lowered.
    """
    names = [known_arch(name).name for name in archs]
    built.source  # noqa: B018  # a schedule that cannot be lowered says so before anything is simulated
    counters, findings, wrong = _counted(built)
    told = tuple(f"{found.kind.value}: {found.headline}" for found in findings)
    if is_large(built.gemm):
        told = ("The problem is large: a sample of its blocks was counted, and the result was not checked.",)
    targets = {name: _target(built, name, cache) for name in names}
    return Facts(problem_text(built.gemm), _counts(built, counters, findings), targets, wrong, told)


def _counted(built: Build) -> tuple[Counters, tuple[Finding, ...], str]:
    """The counts, what the detectors found, and why the result is wrong.

    Where only a sample of the blocks ran, which computes a part of C, the result is not looked at.
    """
    if is_large(built.gemm):
        return count_sampled(built.kernel, make_operands(built.gemm)), (), ""
    checked = check_build(built)
    if isinstance(checked, TilewrightError):
        raise checked
    return checked.counters, checked.findings, "" if checked.verdict.ok else checked.verdict.message


def _counts(built: Build, counters: Counters, findings: Sequence[Finding]) -> dict[str, int]:
    races = sum(finding.kind is Kind.RACE for finding in findings)
    counts = {
        "races": races,
        "other_findings": len(findings) - races,
        "barriers": counters.total("executions", "barrier"),
        "shared_bytes": built.kernel.shared_bytes,
    }
    for name, moved in (("global_load", counters.global_loads), ("global_store", counters.global_stores)):
        counts |= {f"{name}_requests": moved.requests, f"{name}_sectors": moved.sectors}
    for name, kept in (("shared_load", counters.shared_loads), ("shared_store", counters.shared_stores)):
        counts |= {
            f"{name}_requests": kept.requests,
            f"{name}_wavefronts": kept.wavefronts,
            f"{name}_conflicts": kept.excess_wavefronts,
        }
    counts["bulk_load_sectors"] = counters.bulk_loads.sectors
    counts["bulk_store_sectors"] = counters.bulk_stores.sectors
    return counts


def _target(built: Build, arch: str, cache: CubinCache | None) -> dict[str, Any]:
    missing = known_arch(arch).missing(built.kernel.needs)
    if missing:
        return {CANNOT: f"{arch} lacks {', '.join(feature.value for feature in missing)}"}
    (outcome,) = compile_all([built], arch, cache)
    if isinstance(outcome, TilewrightError):
        return {CANNOT: outcome.headline}
    used = outcome.resources
    return {
        "compiler": outcome.compiler,
        "registers": used.registers,
        "spilled_bytes": used.spill_store_bytes + used.spill_load_bytes,
        **_predicted(built, arch, cache),
    }


def _predicted(built: Build, arch: str, cache: CubinCache | None) -> dict[str, Any]:
    """The predicted time on the GPU that stands for an architecture, and who predicted it; empty where none is."""
    spec = target_for(None, arch, None).spec
    if spec is None or not built.gemm.flops:
        return {}
    try:
        seconds = predict(built, spec, cache=cache).seconds
    except TilewrightError:
        return {}
    return {"predicted_us": round(seconds * 1e6, 3), "predicted_on": spec.name, "model": f"tilewright {__version__}"}


def problem_text(gemm: Gemm) -> str:
    """All of a problem that its counts depend on, in a line.

    >>> from tilewright.problem.gemm import Order
    >>> problem_text(Gemm(64, 64, 32, a=Order.COL, beta=1.0))
    '64 x 64 x 32, f32, a=Order.COL, beta=1.0'
    """
    plain = Gemm(gemm.m, gemm.n, gemm.k, gemm.dtype, gemm.accumulate, gemm.out)
    tight = gemm.resized(gemm.m, gemm.n, gemm.k)
    parts = [f"{gemm.m} x {gemm.n} x {gemm.k}", format_name(gemm)]
    for name in (one.name for one in fields(Gemm)):
        value = getattr(gemm, name)
        if value != getattr(tight if name.startswith("ld") else plain, name):
            parts.append(f"{name}={value!r}")
    return ", ".join(parts)
