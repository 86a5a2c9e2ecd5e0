"""Which kernel to export for a shape: what `matmul` would choose, as far as it is one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from tilewright.device.arch import arch as known_arch
from tilewright.device.spec import DeviceSpec
from tilewright.errors import ProblemError
from tilewright.export.bundle import spec_of
from tilewright.kernels.gemv import GemvConfig
from tilewright.ladders import Rung
from tilewright.planning.kernels import schedule_of
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.packing import Alignment, fitted
from tilewright.planning.ranking import Database, ranked
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Schedule
from tilewright.winners.plan_config import PlanConfig


@dataclass(frozen=True, slots=True)
class Chosen:
    """origin: the rung, or the kernel's configuration. passed_over: what `matmul` would rather do, which takes several
    launches. anywhere: what the rung does with an unaligned leading dimension, if that is something else."""

    origin: str
    schedule: Schedule
    passed_over: str = ""
    anywhere: Schedule | None = None


def of_rung(rung: Rung, gemm: Gemm, archs: Sequence[str] = ()) -> Chosen:
    """A rung as it stands, on the GPU with the least shared memory if it is for some architectures."""
    specs = [spec for spec in (spec_of(known_arch(arch)) for arch in archs) if spec is not None]
    if specs:
        rung = rung.on(min(specs, key=lambda spec: spec.max_shared_bytes_per_block))
    schedule, anywhere = rung.schedule(gemm), rung.schedule(replace(gemm, lda=gemm.lda + 1, ldb=gemm.ldb + 1))
    return Chosen(f"{rung.ladder}/{rung.slug}", schedule, anywhere=None if anywhere == schedule else anywhere)


def of_shape(gemm: Gemm, spec: DeviceSpec, database: Database | None = None) -> Chosen:
    """The best kernel for a shape on a device, with tight rows and aligned addresses: measured, else by estimate."""
    alignment = alignment_of_rows(gemm)
    first: PlanConfig | None = None
    for config in chain(_measured(gemm, spec, alignment, database), (c for _, c in ranked(gemm, spec, alignment))):
        first = first or config
        if not config.shares_k and not config.packed and not isinstance(config.kernel, GemvConfig):
            return Chosen(str(config), schedule_of(gemm, config), "" if config == first else str(first))
    raise ProblemError(f"No single kernel multiplies {gemm} on {spec.name}.", hint="name a rung to export.")


def _measured(gemm: Gemm, spec: DeviceSpec, alignment: Alignment, database: Database | None) -> list[PlanConfig]:
    found = None if database is None else database.winner(spec.name, gemm, alignment.least)
    return [] if found is None else [fitted(found.config, gemm, alignment)]
