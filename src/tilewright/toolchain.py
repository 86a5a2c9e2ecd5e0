"""The only place that knows the whole path: problem, schedule, program, kernel, CUDA text, cubin, run.

`build(gemm, schedule)` gives a `Build`, whose stages are made when they are asked for and kept, so a user without a
GPU never reaches the runtime and one who only reads programs never reaches the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tilewright.artifacts import Cubin, CudaSource
from tilewright.codegen import print_cuda
from tilewright.device.arch import Arch
from tilewright.device.catalog import device as known_device
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import FP8_FORMATS, OPERAND_DTYPES, Array, DType
from tilewright.errors import CompileError, LaunchError, ProblemError, ScheduleError
from tilewright.html_text import code, folded
from tilewright.ir.clusters import cluster_tile
from tilewright.ir.expr import Const, Expr
from tilewright.ir.kernel import BATCH, GROUPS, MOST_GROUPS, PART_OF_K, Kernel, Variant
from tilewright.ir.program import Program
from tilewright.ir.program_text import program_text
from tilewright.ir.visit import simplify, substitute
from tilewright.ir.work import Problems, SplitK
from tilewright.ladders.rung import Rung
from tilewright.layout_search import Found, resolve_layouts
from tilewright.lowering import lower
from tilewright.lowering.variants import MAX_INDEX, variant_for
from tilewright.model.l2 import L2Estimate, estimate_l2, strips_of
from tilewright.model.limits import reasons_it_cannot_run
from tilewright.model.occupancy import Occupancy, occupancy
from tilewright.problem.gemm import Gemm, OperandName, Order
from tilewright.problem.problem import Problem, ScalarKind, values_of
from tilewright.problem.reference import Operands, view
from tilewright.problem.tolerance import Verdict, check
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import Gpu
from tilewright.runtime.launch import LoadedKernel, load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.schedule import Schedule
from tilewright.units import counted, type_name

if TYPE_CHECKING:
    from tilewright.simulator import OrderSearch, Run
    from tilewright.simulator.coverage import Miscount

MAX_SIZE = MAX_INDEX - 2**16
"""The largest m, n or k: block and tile coordinates are rounded up in 32 bits."""


def grid_of(kernel: Kernel, problem: Problem, *, part_of_k: int = 0, batch: int = 1) -> tuple[int, int, int]:
    """Blocks along x, y, z for a problem. part_of_k: products that one work item sums, where items share out k. batch:
    problems of a strided batched kernel, or groups. Raises LaunchError for more groups than a launch can count."""
    if kernel.problems.along_m and batch > MOST_GROUPS:
        raise LaunchError(
            f"A launch computes at most {MOST_GROUPS} groups along m, not {batch}.",
            note="each block counts the tiles of all groups in shared memory.",
            hint="launch it for parts of the groups: the argument first_group.",
        )
    sizes = (scalar for scalar in problem.scalars if scalar.kind is ScalarKind.SIZE)
    values = {scalar.name: Const(int(scalar.value)) for scalar in sizes}
    values[BATCH.name] = values[GROUPS.name] = Const(batch)
    if kernel.split_k.by_items:
        values[PART_OF_K.name] = Const(part_of_k or max(int(values_of(problem)["K"]), 1))

    def count(extent: Expr) -> int:
        value = simplify(substitute(extent, values))
        assert isinstance(value, Const)
        return int(value.value)

    x, y, z = (count(extent) for extent in kernel.grid)
    return x, y, z


@dataclass(frozen=True)
class Build:
    """A scheduled problem and everything that can be made of it.

    variant None: the strongest one that is true of the problem with aligned pointers. split_k: whether work items share
    out k, and what becomes of their partial sums; NONE: as the schedule says. problems: whether a launch computes many.
    stream_k: blocks share out the k of all tiles of C in equal parts, or with whole_waves that of tiles that fill no
    whole wave. layouts: how the layouts were found that the
    schedule left open, with their proofs. arriving: rows of A arrive shard by shard while the kernel runs.
    constant: as of `Program`.
    """

    gemm: Gemm
    schedule: Schedule
    name: str = "gemm"
    asked_variant: Variant | None = None
    layouts: tuple[Found, ...] = ()
    split_k: SplitK = SplitK.NONE
    problems: Problems = Problems.ONE
    stream_k: bool = False
    whole_waves: bool = False
    arriving: bool = False
    constant: OperandName | Literal[""] = ""

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The naive program, then the program after each step."""
        return tuple(self.schedule.programs(self.gemm))

    def changed(self, **fields: Any) -> Build:
        """The same schedule of the same problem, with other fields: its programs are not made again."""
        found = replace(self, **fields)
        if "programs" in self.__dict__:
            found.__dict__["programs"] = self.programs
        return found

    @property
    def program(self) -> Program:
        """The program after the last step."""
        return self.programs[-1]

    @property
    def variant(self) -> Variant:
        return self.asked_variant or variant_for(self.program, self.gemm)

    @cached_property
    def kernel(self) -> Kernel:
        """The lowered program."""
        proofs = [line for found in self.layouts for line in found.proof.splitlines()]
        heading = [*self.schedule.text.splitlines(), *proofs]
        split_k = self.program.split_k if self.split_k is SplitK.NONE else self.split_k
        program = replace(self.program, problems=self.problems, split_k=split_k, stream_k=self.stream_k)
        program = replace(program, whole_waves=self.whole_waves, arriving=self.arriving, constant=self.constant)
        return lower(program, self.variant, name=self.name, heading=heading)

    @cached_property
    def source(self) -> CudaSource:
        """The CUDA C++ text, with what a compiler and a launcher must know."""
        return print_cuda(self.kernel)

    @property
    def cuda(self) -> str:
        """The CUDA C++ text."""
        return self.source.text

    @property
    def text(self) -> str:
        """The scheduled program as text."""
        return program_text(self.program)

    def _repr_html_(self) -> str:
        shown = code(f"{self.name}: {self.gemm}", self.text)
        return shown + folded("Schedule", self.schedule.text) + folded("CUDA", self.cuda)

    def after(self, step: int) -> Build:
        """The build of the first `step` steps (0 is the naive program). Raises ScheduleError where there are fewer."""
        steps = len(self.schedule)
        if step not in range(steps + 1):
            raise ScheduleError(
                f"There is no step {step!r}: {self.name} has {counted(steps, 'step')}.",
                hint=f"0 is the naive program, {steps} the finished one.",
            )
        return replace(self, schedule=self.schedule[:step])

    def compile(self, arch: str, *, cache: CubinCache | None = None) -> Cubin:
        """Machine code for an architecture; needs no GPU."""
        return compile_cuda(self.source, arch, cache=cache)

    def occupancy(self, spec: DeviceSpec | str, cubin: Cubin) -> Occupancy:
        """How many blocks share one SM, and what stops the next. Raises ProblemError where `cubin` is not a Cubin."""
        if not isinstance(cubin, Cubin):
            raise ProblemError(
                f"Occupancy follows from machine code, and this is {type_name(cubin)}.",
                hint="built.occupancy(device, built.compile(arch)).",
            )
        found = known_device(spec) if isinstance(spec, str) else spec
        return occupancy(
            found,
            threads_per_block=self.kernel.threads_per_block,
            registers_per_thread=cubin.resources.registers,
            static_shared_bytes=cubin.resources.shared_bytes,
            dynamic_shared_bytes=self.kernel.dynamic_shared_bytes,
            barriers=cubin.resources.barriers,
        )

    def l2(self, spec: DeviceSpec | str, cubin: Cubin) -> L2Estimate | None:
        """What the L2 cache serves, estimated; None where blocks stage no whole strips of A and B, or do not fit."""
        found = known_device(spec) if isinstance(spec, str) else spec
        strips = strips_of(self.program, self.kernel, grid_of(self.kernel, self.gemm))
        blocks_per_sm = self.occupancy(found, cubin).blocks_per_sm
        return None if strips is None or not blocks_per_sm else estimate_l2(strips, found, blocks_per_sm)

    def simulate(self, operands: Operands, **options: Any) -> Run:
        """The kernel on the CPU, exactly. Options go to `tilewright.simulator.simulate`.

        Raises ProblemError for operands that this kernel is not for.
        """
        from tilewright.simulator import simulate  # here, so that `tilewright show` starts without it

        if isinstance(operands, Operands):
            _check_suits(self, operands.gemm)
        return simulate(self.kernel, operands, **options)

    def search_orders(self, operands: Operands, **options: Any) -> OrderSearch:
        """Every order of warps and copies that can matter. Options go to `tilewright.simulator.search_orders`."""
        from tilewright.simulator import search_orders

        return search_orders(self.kernel, operands, **options)

    def miscounts(self) -> tuple[Miscount, ...]:
        """The first elements of C that do not sum every k exactly once, by exact arithmetic; empty if all do."""
        from tilewright.simulator.coverage import miscounts

        return miscounts(self.kernel, self.gemm)

    def load(self, gpu: Gpu, *, cache: CubinCache | None = None) -> LoadedKernel:
        """The kernel on a GPU, ready to launch."""
        return load(gpu, self.compile(gpu.arch, cache=cache), self.source)


def _check_suits(built: Build, gemm: Gemm) -> None:
    """Raises ProblemError where a problem breaks what the kernel of a build takes for granted."""
    hint = "build(operands.gemm, schedule), or make_operands(built.gemm)."
    if [(one.dtype, one.order) for one in gemm.matrices] != [(one.dtype, one.order) for one in built.gemm.matrices]:
        raise ProblemError(f"{built.name} was built for {built.gemm}, and the operands are {gemm}.", hint=hint)
    for dim in sorted(built.variant.exact):
        tile = cluster_tile(built.program, dim)
        if gemm.size(dim) % tile:
            raise ProblemError(
                f"{built.name} was built for {built.gemm}, with no edges along {dim}, and {dim} = {gemm.size(dim)} is "
                f"not a multiple of {tile}.",
                hint=hint,
            )


def build(gemm: Gemm, schedule: Schedule | Rung, *, variant: Variant | None = None, name: str = "") -> Build:
    """A scheduled problem. `schedule` is a Schedule or a rung of a ladder.

    Layouts that it leaves open (`Auto`) are searched here, each on one block; what was found stands in its place.
    Raises ProblemError or ScheduleError for what is neither; a step that does not fit raises when the build is used.
    """
    given: tuple[object, object] = gemm, schedule
    if not isinstance(given[0], Gemm):
        what = type_name(given[0]) if isinstance(given[0], Schedule | Rung) else repr(given[0])
        raise ProblemError(f"The problem to build is a Gemm, not {what}.", hint="build(Gemm(m, n, k), schedule).")
    if isinstance(given[1], list | tuple):
        raise ScheduleError(f"{type_name(schedule, 'A')} is not a schedule.", hint="write Schedule(*steps).")
    if not isinstance(given[1], Schedule | Rung):
        raise ScheduleError(
            f"{schedule!r} is not a schedule.",
            hint="give Schedule(Split(...), Bind(...)), or a rung: find_rung('worklog/6').",
        )
    if variant is not None:
        _check_variant(variant)
    if not isinstance(name, str):
        raise ProblemError(f"name = {name!r} is not a text.", hint="a kernel is called by a text.")
    for dim in ("m", "n", "k"):
        if gemm.size(dim) > MAX_SIZE:
            note = "an index of 32 bits must reach the end of the last tile."
            raise ProblemError(f"{dim} = {gemm.size(dim)} is more than {MAX_SIZE}.", note=note, hint="multiply parts.")
    if isinstance(schedule, Rung):
        name, schedule = name or f"{schedule.ladder}_{schedule.slug}", schedule.schedule(gemm)
    resolved, layouts = resolve_layouts(gemm, schedule)
    return Build(gemm, resolved, name or "gemm", variant, layouts)


def check_compilable(name: str, kernel: Kernel, target: Arch) -> None:
    """Raise CompileError where a kernel has instructions that the target lacks: NVRTC passes them on in PTX."""
    missing = target.missing(kernel.needs)
    if missing:
        words = ", ".join(feature.value for feature in missing)
        raise CompileError(
            f"{name} cannot be compiled for {target}: it needs {words}.",
            hint="choose another --arch, or another rung.",
        )


def _check_variant(variant: object) -> None:
    if not isinstance(variant, Variant):
        raise ScheduleError(f"{variant!r} is not a Variant.", hint="leave it out for what the size allows.")
    if not set(variant.exact) <= set("mnk"):
        raise ScheduleError(f"exact = {variant.exact!r} are not dimensions.", hint="frozenset('mnk') are all of them.")
    known_bytes = (1, 2, 4, 8, 16)
    for name, known in (
        ("alignment_bytes", known_bytes),
        *((own, (0, *known_bytes)) for own in ("b_bytes", "result_bytes")),
    ):
        if getattr(variant, name) not in known:
            raise ScheduleError(f"{name} = {getattr(variant, name)!r} is not one of {known}.")


def arguments(problem: Problem, pointers: Sequence[int], *, part_of_k: int = 0) -> tuple[Any, ...]:
    """The launch arguments of a problem, in the order of `Kernel.parameters`.

    part_of_k: products that one block sums, of a kernel of parts; 0 for any other kernel.
    """
    parts = (part_of_k,) if part_of_k else ()
    return (*pointers, *(scalar.value for scalar in problem.scalars), *parts)


def run_on_gpu(built: Build, gpu: Gpu, operands: Operands, *, cache: CubinCache | None = None) -> Array:
    """C as the GPU computes it: the logical (m, n) matrix, decoded. The host's operands are not changed."""
    gemm = operands.gemm
    built.kernel.check_beta(gemm.beta)
    if gemm.m == 0 or gemm.n == 0:
        return np.zeros((gemm.m, gemm.n), np.float32)
    loaded = built.load(gpu, cache=cache)
    arrays = [DeviceArray.of(gpu, host if host.size else np.zeros(1, host.dtype)) for host in _storages(operands)]
    try:
        args = arguments(gemm, [array.pointer for array in arrays])
        loaded.launch(gpu.stream, grid_of(built.kernel, gemm), built.kernel.block, args)
        gpu.synchronize()
        stored = arrays[2].download()
    finally:
        for array in arrays:
            array.close()
    return gemm.out.decode(view(gemm, "C", stored))


def run_on_simulator(built: Build, operands: Operands, **options: Any) -> tuple[Array, Run]:
    """C as the simulator computes it (logical, decoded), and the run with its counters and findings."""
    run = built.simulate(operands, **options)
    gemm = operands.gemm
    return gemm.out.decode(view(gemm, "C", run.c)), run


def _storages(operands: Operands) -> tuple[Array, ...]:
    gemm = operands.gemm
    return tuple(operands.storage(operand.name) for operand in gemm.matrices)


def verify_on_gpu(built: Build, gpu: Gpu, operands: Operands, *, cache: CubinCache | None = None) -> Verdict:
    """The GPU's result held against float64."""
    return check(operands, run_on_gpu(built, gpu, operands, cache=cache))


_NUMPY_DTYPES: dict[str, DType] = {one.array_name: one for one in OPERAND_DTYPES if one not in FP8_FORMATS}


def operands_from(a: Array, b: Array, c: Array | None = None, *, alpha: float = 1.0, beta: float = 0.0) -> Operands:
    """A problem from a user's own matrices: 2-D float32 or float16 arrays of any strides.

    Rows or columns that are contiguous are used as they lie; anything else is copied. Raises ProblemError as NumPy's
    matmul would raise ValueError.
    """
    for name, matrix in (("A", a), ("B", b)):
        if matrix.ndim != 2:
            has = counted(matrix.ndim, "dimension")
            raise ProblemError(f"{name} has {has}, and a matrix has 2: shape {matrix.shape}.")
    if a.shape[1] != b.shape[0]:
        raise ProblemError(
            f"Cannot multiply {a.shape[0]} x {a.shape[1]} by {b.shape[0]} x {b.shape[1]}: "
            f"A has {a.shape[1]} columns and B has {b.shape[0]} rows.",
        )
    for name, matrix in (("A", a), ("B", b)):
        if matrix.dtype.name not in _NUMPY_DTYPES:
            raise ProblemError(
                f"{name} is {matrix.dtype.name}, which no kernel here multiplies.",
                hint=f"use {', '.join(_NUMPY_DTYPES)}: {name.lower()}.astype('float32').",
            )
    if a.dtype != b.dtype:
        raise ProblemError(f"A is {a.dtype.name} and B is {b.dtype.name}.", hint="convert one to the other's dtype.")
    dtype = _NUMPY_DTYPES[a.dtype.name]
    (flat_a, order_a, lda), (flat_b, order_b, ldb) = _stored(a), _stored(b)
    m, k = a.shape
    n = b.shape[1]
    if c is not None and (c.shape != (m, n) or c.dtype != a.dtype):
        raise ProblemError(f"C is {c.dtype.name} {c.shape}, not {a.dtype.name} {(m, n)}.")
    gemm = Gemm(m, n, k, dtype, out=dtype, a=order_a, b=order_b, alpha=alpha, beta=beta, lda=lda, ldb=ldb)
    start = np.full((m, n), np.nan, dtype.numpy) if c is None else np.ascontiguousarray(c)
    return Operands(gemm, flat_a, flat_b, start.reshape(-1))


def _stored(matrix: Array) -> tuple[Array, Order, int]:
    """Flat storage, order and leading dimension of a matrix; copied only if neither index is contiguous."""
    step = matrix.itemsize
    for order, index in ((Order.ROW, 1), (Order.COL, 0)):
        along, across = matrix.strides[index], matrix.strides[1 - index]
        run, lines = matrix.shape[index], matrix.shape[1 - index]
        tight = (run <= 1 or along == step) and (lines <= 1 or (across % step == 0 and across >= run * step))
        if tight and matrix.size:
            leading = across // step if lines > 1 else max(run, 1)
            length = (lines - 1) * leading + run
            return np.lib.stride_tricks.as_strided(matrix, (length,), (step,)), order, leading
    copied = np.ascontiguousarray(matrix)
    return copied.reshape(-1), Order.ROW, max(matrix.shape[1], 1)


def check_launchable(built: Build, spec: DeviceSpec, gemm: Gemm) -> None:
    """Raise LaunchError with every reason why the kernel cannot run on a device."""
    reasons = reasons_it_cannot_run(
        spec,
        threads_per_block=built.kernel.threads_per_block,
        static_shared_bytes=built.kernel.shared_bytes - built.kernel.dynamic_shared_bytes,
        dynamic_shared_bytes=built.kernel.dynamic_shared_bytes,
        grid=grid_of(built.kernel, gemm),
        needs=built.kernel.needs,
    )
    if reasons:
        raise LaunchError(f"{built.name} cannot run on {spec.name}: {reasons[0]}", note="; ".join(reasons[1:]))
