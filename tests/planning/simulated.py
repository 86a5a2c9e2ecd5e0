"""Plans that run on the simulator: every launch of a call, one after the other, on memory of the host.

What a launch reads and writes are bytes of places, as on a GPU; workspaces begin as NaN.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import Array
from tilewright.ir.guard import GUARD_FLAGS, Guard
from tilewright.ir.kernel import FLAGS_OF_A_TILE, SHARD_FLAGS, SHARD_STARTS, SHARDS, Kernel, guarded
from tilewright.planning.assembly import Request
from tilewright.planning.dispatch import Dispatcher
from tilewright.planning.kernels import Built, Kernels
from tilewright.planning.plan import Place, Plan
from tilewright.planning.skinny import Skinny
from tilewright.problem import Gemm
from tilewright.problem.block_scales import step_names
from tilewright.problem.problem import Problem
from tilewright.problem.reference import Operands
from tilewright.problem.storages import Storages
from tilewright.simulator import Rank, simulate, simulate_ranks
from tilewright.toolchain import Build, check_launchable


@dataclass
class SimulatedLaunch:
    """In the place of a PreparedLaunch: a kernel, and what its launch is told. written: bytes that launches before it
    made, by address: rows of a copy go on behind the last element of the operand."""

    kernel: Kernel
    problem: Problem
    options: Mapping[str, Any]
    written: dict[int, int] = field(default_factory=dict)

    grid, block = (1, 1, 1), (1, 1, 1)

    @property
    def source(self) -> Any:
        """What an account of a plan shows of a text."""
        return SimpleNamespace(entry=self.kernel.name, text="")

    def sizes(self) -> dict[str, int]:
        """Elements of each matrix of the launch."""
        batching = self.options.get("batching", {})
        found = {one.name: self.problem.storage_elements(one.name) for one in self.problem.matrices}
        more = self.groups - 1 if self.groups else batching.get("batch", 1) - 1
        found = {name: size + more * batching.get(f"{name}_step", 0) for name, size in found.items()}
        if isinstance(self.problem, Gemm) and self.options.get("part_of_k") and not self.kernel.workspace:
            parts = -(-self.problem.k // self.options["part_of_k"])
            found["C"] += (parts - 1) * self.problem.m * self.problem.ldc
        return found

    @property
    def groups(self) -> int:
        """Groups by offsets that the launch finds up to its last; 0 for other kernels."""
        batching = self.options.get("batching", {})
        return batching["groups"] + batching.get("first_group", 0) if self.kernel.problems.has_groups else 0

    def launch(self, stream: int, *addresses: int) -> None:
        """On memory of the host, by its addresses."""
        sizes, views = self.sizes(), {}
        matrices = self.problem.matrices
        options = dict(self.options)
        if self.groups:
            ends = (ctypes.c_int32 * self.groups).from_address(addresses[-1])
            addresses, options["group_ends"] = addresses[:-1], list(ends)
        tables, addresses = self._shard_tables(addresses)
        behind = len(matrices) + len(self.kernel.workspace)
        if self.kernel.workspace:  # the simulator has memory of its own for partial sums, and for flags
            tiles = launched_tiles(self.kernel, self.problem)
            assert not any((ctypes.c_int32 * (FLAGS_OF_A_TILE * tiles)).from_address(addresses[behind - 1]))
        assert len(addresses) == behind + len(self.kernel.guard_flags)
        if not self._runs(addresses[behind:]):
            return
        for matrix, address in zip(matrices, addresses, strict=False):
            dtype = matrix.dtype.numpy
            size_bytes = max(sizes[matrix.name] * dtype.itemsize, self.written.get(address, 0))
            whole = np.ctypeslib.as_array((ctypes.c_uint8 * max(1, size_bytes)).from_address(address))
            views[matrix.name] = whole[:size_bytes].view(dtype)
        if isinstance(self.problem, Gemm):
            added = {name: view for name, view in views.items() if name not in "ABC"}
            given = Operands(self.problem, views["A"], views["B"], views["C"], added)
            if tables:
                rank = Rank(given, options["batching"], tables)
                stored = simulate_ranks(self.kernel, [rank], ("A", *tables)).memory[0]
            else:
                stored = simulate(self.kernel, given, listeners=(), **options).stored
            for name in self.problem.results:
                views[name][:] = stored[name]
            return
        done = simulate(self.kernel, Storages(self.problem, views), listeners=(), **self.options)
        for matrix, address in zip(matrices, addresses, strict=False):
            if matrix.name in self.problem.results:
                views[matrix.name][:] = done.stored[matrix.name]
                self.written[address] = views[matrix.name].nbytes

    def _runs(self, addresses: tuple[int, ...]) -> bool:
        """Whether a guarded launch runs, by its flags; what it tells those behind it."""
        if not addresses:
            return True
        a, b, fell_back = (ctypes.c_float.from_address(address) for address in addresses)
        match self.kernel.variant.guard:
            case Guard.DECIDES:
                fell_back.value = float(a.value != 0 or b.value != 0)
            case Guard.RAISED:
                a.value = b.value = 0
        return (fell_back.value != 0) is (self.kernel.variant.guard is Guard.RAISED)

    def _shard_tables(self, addresses: tuple[int, ...]) -> tuple[dict[str, Array], tuple[int, ...]]:
        """Where shards begin, and their flags, of a kernel that waits for rows; and the other addresses."""
        if not self.kernel.arriving:
            return {}, addresses
        *others, starts, flags = addresses
        count = self.options["batching"][SHARDS.name]
        counts = {SHARD_STARTS: (starts, count + 1), SHARD_FLAGS: (flags, count)}
        tables = {
            name: np.array((ctypes.c_int32 * size).from_address(address), np.int32)
            for name, (address, size) in counts.items()
        }
        return tables, tuple(others)


def launched_tiles(kernel: Kernel, gemm: Any) -> int:
    """Tiles of C of a problem."""
    return -(-gemm.m // kernel.tile["m"]) * -(-gemm.n // kernel.tile["n"])


class _Loaded:
    """In the place of a LoadedKernel of a product."""

    def __init__(self, built: Build) -> None:
        self.built = built

    def prepare(self, grid: Any, block: Any, values: tuple[Any, ...]) -> SimulatedLaunch:
        kernel = self.built.kernel
        told = dict(zip([p.name for p in (*kernel.arguments, *kernel.batching)], values, strict=True))
        sizes = {name.lower(): told[name] for name in ("M", "N", "K", "lda", "ldb", "ldc")}
        gemm = _with_steps(self.built.gemm, told)
        gemm = replace(gemm, **sizes, alpha=told["alpha"], beta=told["beta"])
        leading = tuple(told[one.leading] for one in gemm.added if not one.is_vector)
        gemm = replace(gemm, ld_added=leading, numbers=tuple(told[name] for name in gemm.epilogue.factors))
        batching = {p.name: told[p.name] for p in kernel.batching}
        batching |= {p.name: told[p.name] for p in kernel.shard_numbers}
        options = {"part_of_k": told.get("K_part", 0), **({"batching": batching} if batching else {})}
        return SimulatedLaunch(kernel, gemm, options)


def _with_steps(gemm: Gemm, told: Mapping[str, Any]) -> Gemm:
    """The scales of blocks as a launch is told that they lie."""
    scales = gemm.block_scales
    if scales is None:
        return gemm
    steps = {f"steps_{side}": tuple(told[one] for one in step_names(f"block_scale_{side}")) for side in "ab"}
    return replace(gemm, block_scales=replace(scales, **steps))


class SimulatedKernels(Kernels):
    """Kernels that are lowered, and run on the simulator."""

    def __init__(self, gpu: Any, spec: DeviceSpec) -> None:
        super().__init__(gpu)
        self.spec = spec

    def _loaded(self, built: Build) -> Built:
        check_launchable(built, self.spec, replace(built.gemm, m=1, n=1, k=1))
        return Built(_Loaded(built), built.kernel)  # type: ignore[arg-type]

    def auxiliary(self, config: Any, problem: Any, guard: Guard | None = None) -> Any:
        assert not config.reasons_against(problem, self.spec)
        kernel = config.kernel(problem)
        return SimulatedLaunch(kernel if guard is None else guarded(kernel, guard), problem, {})

    def gemv(self, skinny: Skinny, guard: Guard | None = None) -> Any:
        assert skinny.stack is None  # of batches the dispatcher's tests see texts alone
        kernel = skinny.kernel() if guard is None else guarded(skinny.kernel(), guard)
        return SimulatedLaunch(kernel, skinny.problem, {} if skinny.whole else {"part_of_k": skinny.part_of_k})


def simulated_dispatcher(name: str = "H200") -> Dispatcher:
    """The dispatcher of a GPU that is simulated."""
    spec = device(name)
    gpu: Any = SimpleNamespace(name=spec.name, arch=spec.arch, index=0, as_current=nullcontext)
    made = Dispatcher(gpu, None)
    made.kernels = SimulatedKernels(gpu, spec)
    return made


def run_plan(plan: Plan, arrays: Mapping[int, Array]) -> None:
    """Every launch of a plan, on the memory of flat arrays."""
    scratch, flags = np.full(plan.scratch_bytes + 256, 0xFF, np.uint8), np.zeros(len(GUARD_FLAGS), np.float32)
    addresses: dict[int, int] = {place: array.ctypes.data for place, array in arrays.items()}
    places = (Place.GUARD_A, Place.GUARD_B, Place.FELL_BACK)
    addresses |= {place: flags.ctypes.data + number * flags.itemsize for number, place in enumerate(places)}
    addresses[Place.SCRATCH] = (scratch.ctypes.data + 255) // 256 * 256
    written: dict[int, int] = {}
    for step in plan.steps:
        launch: Any = step.launch
        launch.written = written
    plan.run(0, [addresses.get(place, 0) for place in range(max(addresses) + 1)])
    assert not flags[:2].any(), "flags are lowered for the next call"


def computed(dispatcher: Dispatcher, request: Request, operands: Operands) -> Array:
    """The flat C of a request."""
    names = {Place.A: "A", Place.B: "B", Place.OUT: "C"}
    arrays: dict[int, Array] = {place: operands.storage(name).copy() for place, name in names.items()}
    if request.gemm.epilogue.bias:
        arrays[Place.BIAS] = operands.storage("bias").copy()
    if request.gemm.epilogue.residual:
        arrays[Place.RESIDUAL] = operands.storage("residual").copy()
    for number, operand in enumerate(request.gemm.epilogue.named):
        arrays[Place.OPERAND + number] = operands.storage(operand.name).copy()
    if request.gemm.accumulators > 1:
        arrays[Place.OPERAND + len(request.gemm.epilogue.named)] = operands.storage("B1").copy()
    run_plan(dispatcher.plan(request), arrays)
    return arrays[Place.OUT]
