"""Plans without a GPU: kernels are built and lowered for a device that is only known by its data sheet."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tilewright.artifacts import CudaSource
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import BF16, F16, F32
from tilewright.frontend.libraries import View
from tilewright.frontend.options import options_asked
from tilewright.frontend.requests import Views, checked, requests_of
from tilewright.planning.assembly import Request
from tilewright.planning.dispatch import Dispatcher
from tilewright.planning.kernels import Built, Kernels
from tilewright.planning.packing import Alignment, Stack
from tilewright.planning.ranking import Database
from tilewright.problem import Gemm
from tilewright.toolchain import Build, check_launchable


class Prepared:
    """In the place of a LoadedKernel; notes how it would be launched."""

    def __init__(self, source: CudaSource) -> None:
        self.source = source

    def prepare(self, grid: Any, block: Any, args: Any) -> Any:
        assert len(args) == len([p for p in self.source.parameters if p.tensor_map is None])
        return SimpleNamespace(grid=grid, block=block, args=args, source=self.source)


class PaperKernels(Kernels):
    """Kernels that are lowered and printed, and no more."""

    def __init__(self, gpu: Any, spec: DeviceSpec) -> None:
        super().__init__(gpu)
        self.spec = spec
        self.made: list[str] = []

    def _loaded(self, built: Build) -> Built:
        check_launchable(built, self.spec, replace(built.gemm, m=1, n=1, k=1))
        self.made.append(f"{built.name} {built.variant.name}")
        return Built(Prepared(built.source), built.kernel)  # type: ignore[arg-type]

    def small(self, source: CudaSource) -> Any:
        self.made.append(source.entry)
        return Prepared(source)


def paper_dispatcher(spec: DeviceSpec, database: Database | None = None) -> Dispatcher:
    """The dispatcher of a GPU that is not there."""
    gpu: Any = SimpleNamespace(name=spec.name, arch=spec.arch, index=0, as_current=nullcontext)
    made = Dispatcher(gpu, database)
    made.kernels = PaperKernels(gpu, spec)
    return made


def asked(m: int, n: int, k: int, format: str, orders: str) -> Request:
    """What `matmul` asks the dispatcher for, of arrays in C order or transposed views of such, as the allocators of
    libraries place them."""
    dtype = {"bf16": BF16, "f16": F16, "f32": F32, "tf32": F32}[format]

    def view(rows: int, columns: int, order: str) -> View:
        strides = (columns, 1) if order == "N" else (1, rows)
        return View(1 << 20, (rows, columns), strides, dtype, 0)

    options = options_asked(1.0, None, None, "tf32" if format == "tf32" else "default", None, False, None, False)
    views = Views(view(m, k, orders[0]), view(k, n, orders[1]))
    (piece,) = requests_of(views, *checked(views, options), options)
    return piece.request


def alignment_of(gemm: Gemm) -> Alignment:
    """Of the rows, at addresses that are aligned."""
    sizes = [gemm.leading(operand.name) * operand.dtype.bytes for operand in gemm.operands]
    return Alignment(*(min(size & -size, 16) for size in sizes))


def planned(dispatcher: Dispatcher, gemm: Gemm, stack: Stack | None = None, **asked: Any) -> Any:
    """The plan of a problem."""
    return dispatcher.plan(Request(gemm, alignment_of(gemm), stack, **asked))
