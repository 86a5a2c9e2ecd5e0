"""Which kernel computes a problem, found once for each kind and remembered.

A measured choice from the database, where there is one; else the analytical choice; else what is right everywhere. A
kernel is built for a class of problems (formats, orders, alignment, whether tiles fit exactly) and serves every size.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilewright.artifacts import CudaSource
from tilewright.dtypes import F32
from tilewright.errors import CompileError, LaunchError, LoweringError, ScheduleError, TilewrightError
from tilewright.frontend.choices import ENGINE_BYTES, Alignment, Choice, Database, choices
from tilewright.frontend.libraries import say_once
from tilewright.frontend.passes.finish import finish_grid, finish_source
from tilewright.frontend.passes.pad import pad_grid, pad_source, padded, padded_bytes
from tilewright.frontend.plans import Place, Plan, Step
from tilewright.frontend.skinny import Skinny, skinny_for
from tilewright.ir.kernel import Kernel, Variant
from tilewright.ladders import find_rung
from tilewright.lowering.variants import ALIGNMENTS, MAX_INDEX
from tilewright.problem.epilogue import PLAIN
from tilewright.problem.gemm import AddedName, Dim, Gemm, OperandName
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.runtime.launch import LoadedKernel, load
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.runtime.probe import probe
from tilewright.toolchain import Build, arguments, build, check_launchable, grid_of
from tilewright.units import ceil_div, round_up

SAFE_RUNG = "worklog/6"
"""Multiplies every format in every order on every device."""

_SCRATCH_LIMIT = 8 << 30
"""No workspace is larger."""

_PLACE: Mapping[OperandName, Place] = {"A": Place.A, "B": Place.B, "C": Place.OUT}


@dataclass(frozen=True, slots=True)
class Request:
    """A problem as it lies in memory. gemm: C by rows. keep_order: the sum over k in one order, whatever m is."""

    gemm: Gemm
    alignment: Alignment
    keep_order: bool = False
    without_workspace: bool = False


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel on a GPU, and what a launch must know of it."""

    loaded: LoadedKernel
    kernel: Kernel


class Dispatcher:
    """The plans of one GPU. `database`: choices that were measured; None to estimate always."""

    def __init__(self, gpu: Gpu, database: Database | None = None) -> None:
        self.gpu = gpu
        self.database = database
        self._cache = CubinCache()
        self._plans: dict[Request, Plan] = {}
        self._kernels: dict[Any, Built] = {}
        self._tiles: dict[Any, dict[Dim, int]] = {}
        self._passes: dict[str, LoadedKernel] = {}
        self._refused: set[Any] = set()
        self._lock = threading.RLock()
        self._pid = os.getpid()

    @cached_property
    def spec(self) -> Any:
        return probe(self.gpu)

    def known(self, request: Request) -> Plan | None:
        """The plan of a request that was made before."""
        return self._plans.get(request)

    def plan(self, request: Request) -> Plan:
        """The plan of a request; the first time for a class of problems, kernels are compiled."""
        found = self._plans.get(request)
        if found is not None:
            return found
        self._check_process()
        with self._lock:
            self.gpu.make_current()
            found = self._plans[request] = self._made(request)
        return found

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise LaunchError(
                "This process was forked from one that had used the GPU, and CUDA does not work after that.",
                hint="start workers with the method 'spawn': multiprocessing.set_start_method('spawn').",
            )

    def _made(self, request: Request) -> Plan:
        skinny = None if request.keep_order else skinny_for(request.gemm, request.alignment, self.spec)
        if skinny is not None and (skinny.whole or not request.without_workspace):
            return self._skinny_plan(request, skinny)
        for choice in self._ranked(request):
            if request.without_workspace and (choice.pads or choice.splits > 1):
                continue
            try:
                return self._plan_of(request, choice)
            except (CompileError, LaunchError, LoweringError, ScheduleError) as failure:
                self._report(request, choice, failure)
        return self._plan_of(request, Choice(SAFE_RUNG))

    def _ranked(self, request: Request) -> list[Choice]:
        """Choices worth trying, best first."""
        gemm, alignment = request.gemm, request.alignment
        estimated = [c for _, c in choices(gemm, self.spec, alignment, keep_order=request.keep_order)]
        measured = self._measured(request)
        return [*measured, *(choice for choice in estimated if choice not in measured)]

    def _measured(self, request: Request) -> list[Choice]:
        if self.database is None or request.keep_order:
            return []
        gemm = request.gemm
        try:
            found = self.database.best_choice(self.gpu.name, gemm, request.alignment.least)
        except TilewrightError as failure:
            say_once(f"The database of tuned kernels cannot be read, so kernels are chosen by estimate: {failure}")
            return []
        if found is None:
            return []
        rung, point = found
        tuned = {key: value for key, value in point.items() if key not in ("splits",)}
        pads: frozenset[OperandName] = frozenset()
        if rung.startswith("hopper/"):
            operands: tuple[OperandName, ...] = ("A", "B")
            pads = frozenset(name for name in operands if request.alignment.of(name) < ENGINE_BYTES)
        return [Choice(rung, tuned, int(point.get("splits", 1)), pads)]

    def _report(self, request: Request, choice: Choice, failure: TilewrightError) -> None:
        key = (choice.rung, str(failure))
        if key not in self._refused:
            self._refused.add(key)
            if isinstance(failure, CompileError):
                say_once(f"Kernel {choice} is left out for {request.gemm}: {failure.headline}")

    # -- plans ------------------------------------------------------------------------------------------------------

    def _plan_of(self, request: Request, choice: Choice) -> Plan:
        """Pads, the product, and the sum of its parts, as far as the choice has them."""
        gemm, alignment = request.gemm, request.alignment
        steps: list[Step] = []
        at = 0
        places: dict[OperandName, tuple[Place, int]] = {name: (place, 0) for name, place in _PLACE.items()}
        for name in sorted(choice.pads):
            step, size_bytes = self._pad(gemm, name, at)
            steps.append(step)
            places[name] = (Place.SCRATCH, at)
            gemm = replace(gemm, **{f"ld{name.lower()}": padded(_length(gemm, name), gemm.dtype)})  # type: ignore[arg-type]
            alignment = replace(alignment, **{name.lower(): ENGINE_BYTES})
            at += size_bytes
        if choice.splits > 1:
            steps += self._parts(gemm, alignment, choice, places, at)
            at += self._part_bytes(gemm, choice)
        else:
            built = self.kernel(gemm, alignment, choice)
            grid = grid_of(built.kernel, gemm)
            nowhere = (0,) * (3 + len(gemm.added))
            launch = built.loaded.prepare(grid, built.kernel.block, arguments(gemm, nowhere))
            steps.append(Step(launch, (places["A"], places["B"], places["C"], *_added(gemm))))
        if at > _SCRATCH_LIMIT:
            raise LaunchError(f"{choice} would need a workspace of {at} bytes.")
        return Plan(tuple(steps), at, str(choice))

    def _pad(self, gemm: Gemm, name: OperandName, at: int) -> tuple[Step, int]:
        lines, length = gemm.size(gemm.operand(name).strided), _length(gemm, name)
        kernel = self._pass(pad_source(gemm.dtype))
        grid = pad_grid(lines, length, gemm.dtype)
        args = (0, 0, lines, length, gemm.leading(name), padded(length, gemm.dtype))
        launch = kernel.prepare(grid, (kernel.source.threads_per_block, 1, 1), args)
        return Step(launch, ((_PLACE[name], 0), (Place.SCRATCH, at))), padded_bytes(lines, length, gemm.dtype)

    def _part_bytes(self, gemm: Gemm, choice: Choice) -> int:
        return round_up(choice.splits * gemm.m * gemm.n * F32.bytes, 256)

    def _parts(
        self,
        gemm: Gemm,
        alignment: Alignment,
        choice: Choice,
        places: Mapping[OperandName, tuple[Place, int]],
        at: int,
    ) -> list[Step]:
        """The product in parts of k, into the workspace, and their sum."""
        whole = gemm
        part = replace(gemm, out=F32, ldc=gemm.n, alpha=1.0, beta=0.0, epilogue=PLAIN, ld_residual=0)
        row_bytes = part.ldc * F32.bytes
        inside = replace(alignment, c=max(size for size in (16, 8, 4) if row_bytes % size == 0))
        built = self.kernel(part, inside, choice)
        depth = built.kernel.tile["k"]
        length = ceil_div(ceil_div(gemm.k, choice.splits), depth) * depth
        count = ceil_div(gemm.k, length)
        grid = grid_of(built.kernel, part, part_of_k=length)
        args = arguments(part, (0, 0, 0), part_of_k=length)
        launch = built.loaded.prepare(grid, built.kernel.block, args)
        first = Step(launch, (places["A"], places["B"], (Place.SCRATCH, at)))
        return [first, self._finish(whole, alignment, count, at)]

    def _finish(self, gemm: Gemm, alignment: Alignment, count: int, at: int) -> Step:
        wide = gemm.n % 4 == 0 and alignment.c % (4 * gemm.out.bytes) == 0
        width = 4 if wide else 1
        kernel = self._pass(finish_source(gemm.out, gemm.epilogue, width=width))
        nowhere = (0,) * (2 + len(gemm.added))
        args = (*nowhere, gemm.m, gemm.n, gemm.ldc, gemm.ld_residual, count, gemm.alpha, gemm.beta)
        launch = kernel.prepare(finish_grid(gemm.m, gemm.n, width), (kernel.source.threads_per_block, 1, 1), args)
        return Step(launch, ((Place.SCRATCH, at), (Place.OUT, 0), *_added(gemm)))

    def _skinny_plan(self, request: Request, skinny: Skinny) -> Plan:
        kernel = self._pass(skinny.source)
        launch = kernel.prepare(skinny.grid, skinny.block, skinny.arguments)
        long, short = (Place.B, Place.A) if skinny.long == "B" else (Place.A, Place.B)
        if skinny.whole:
            return Plan((Step(launch, ((short, 0), (long, 0), (Place.OUT, 0))),), 0, str(skinny))
        first = Step(launch, ((short, 0), (long, 0), (Place.SCRATCH, 0)))
        gemm = request.gemm
        last = self._finish(gemm, request.alignment, skinny.parts, 0)
        size_bytes = round_up(skinny.parts * gemm.m * gemm.n * F32.bytes, 256)
        return Plan((first, last), size_bytes, str(skinny))

    # -- kernels ----------------------------------------------------------------------------------------------------

    def kernel(self, gemm: Gemm, alignment: Alignment, choice: Choice) -> Built:
        """The kernel of a choice for the class of a problem; built and compiled when the class is new."""
        rung = find_rung(choice.rung)
        if choice.point:
            assert rung.choices is not None
            schedule = rung.choices.schedule_at(gemm, choice.point)
        else:
            schedule = rung.schedule(gemm)
        formats = (gemm.dtype, gemm.accumulate, gemm.out, gemm.product, gemm.a, gemm.b, gemm.c, gemm.epilogue)
        shape = (schedule, formats)
        built: Build | None = None
        if shape not in self._tiles:
            built = build(gemm, schedule, name=choice.rung.replace("/", "_"))
            self._tiles[shape] = {dim: built.program.block_tile(dim) for dim in _DIMS}
        variant = _variant(gemm, alignment, self._tiles[shape], choice.splits)
        key = (*shape, variant, choice.splits > 1)
        found = self._kernels.get(key)
        if found is None:
            built = built or build(gemm, schedule, name=choice.rung.replace("/", "_"))
            built = replace(built, asked_variant=variant, parts=choice.splits > 1)
            check_launchable(built, self.spec, built.gemm)
            cubin = compile_cuda(built.source, self.gpu.arch, cache=self._cache)
            found = self._kernels[key] = Built(load(self.gpu, cubin, built.source), built.kernel)
        return found

    def _pass(self, source: CudaSource) -> LoadedKernel:
        found = self._passes.get(source.entry)
        if found is None:
            cubin = compile_cuda(source, self.gpu.arch, cache=self._cache)
            found = self._passes[source.entry] = load(self.gpu, cubin, source)
        return found


def _length(gemm: Gemm, name: OperandName) -> int:
    """Elements of one row or column that lie side by side."""
    return gemm.size(gemm.operand(name).contiguous)


def _added(gemm: Gemm) -> tuple[tuple[Place, int], ...]:
    """The places of what the epilogue adds, in the order of the parameters."""
    return tuple((Place.BIAS if operand.name == "bias" else Place.RESIDUAL, 0) for operand in gemm.added)


_DIMS: tuple[Dim, ...] = ("m", "n", "k")


def _variant(gemm: Gemm, alignment: Alignment, tile: Mapping[Dim, int], splits: int) -> Variant:
    """What may be assumed. Sizes are exact all together or not at all, so that a class has two kernels, not eight."""
    exact = all(gemm.size(dim) % tile[dim] == 0 for dim in _DIMS)
    narrowest = min(operand.dtype.bytes for operand in gemm.operands)
    widest = next((size for size in ALIGNMENTS if size > narrowest and alignment.least % size == 0), 1)
    reach = max(_reach(gemm, operand.name, tile) for operand in (*gemm.operands, *gemm.added))
    if splits > 1:
        reach = max(reach, (splits * gemm.m + tile["m"]) * gemm.ldc)
    return Variant(frozenset(_DIMS) if exact else frozenset(), widest, reach <= MAX_INDEX)


def _reach(gemm: Gemm, name: OperandName | AddedName, tile: Mapping[Dim, int]) -> int:
    """An offset that no thread's exceeds."""
    operand = gemm.operand(name)
    lines = gemm.size(operand.strided) + tile[operand.strided]
    return lines * gemm.leading(name) + gemm.size(operand.contiguous) + tile[operand.contiguous]


_DISPATCHERS: dict[int, Dispatcher] = {}
_DATABASE: list[Database | None] = [None]


def dispatcher(device: int) -> Dispatcher:
    """The dispatcher of a GPU, by its number."""
    found = _DISPATCHERS.get(device)
    if found is None:
        found = _DISPATCHERS[device] = Dispatcher(open_gpu(device), _DATABASE[0])
    return found


def use_database(database: Database | None) -> None:
    """Measured choices for all that is planned from now on."""
    _DATABASE[0] = database
    for known in _DISPATCHERS.values():
        known.database = database


__all__ = ["Dispatcher", "Request", "dispatcher", "use_database"]
