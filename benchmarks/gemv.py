"""GEMV, skinny products, copies and reductions beside PyTorch: each kernel checked, all timed in turn.

    python benchmarks/gemv.py --out benchmarks/results/gemv_h200.jsonl
    python benchmarks/gemv.py --problems 1x8192x8192:NT:bf16 --sweep 12

A problem is MxNxK:ORDERS:FORMAT. First the bandwidth of a copy of 128 MiB and of a read of 1 GiB is measured. Then each
problem runs as `matmul` runs it, whatever kernel that is, and by the GEMV kernel where it has one, beside torch.mm;
--sweep also times so many other configurations of it, best estimate first, so that estimates can be held against times.
Then copies (padded, transposed) beside PyTorch's. Calls are CUDA graphs of some milliseconds over operands rotated
through more than four times the L2. One JSON line a row: microseconds, GB/s of the bytes that must move, shares of the
measured bandwidths, of PyTorch's time, and of the time of a copy that moves as many bytes in the same kind of graph.
--build-only prints configurations, registers and estimates; it needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from recording import Budget, origin_of, recorded, with_results

from tilewright import extras, matmul, plan
from tilewright.codegen import print_cuda
from tilewright.device.catalog import device
from tilewright.dtypes import DType
from tilewright.errors import TilewrightError
from tilewright.ir.kernel import Kernel
from tilewright.kernels.gemv_space import Facts, fitting
from tilewright.kernels.reduce import ReduceConfig
from tilewright.kernels.relayout import RelayoutConfig
from tilewright.kernels.skinny import long_of, short_of
from tilewright.layout.banks import LINE_BYTES
from tilewright.planning.cost.gemv import gemv_seconds, sm_seconds
from tilewright.planning.kernels import Kernels
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.packing import padded, whole_pieces
from tilewright.planning.skinny import Skinny, skinny_for
from tilewright.problem.formats import format_options
from tilewright.problem.gemm import Gemm, orders_of
from tilewright.problem.reduction import Reduction
from tilewright.problem.relayout import MatrixCopy, Relayout
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.launch import load
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.operands import ROTATED_BYTES, checked, operands_of
from tilewright.suite.peers import over
from tilewright.suite.timing import interleaved
from tilewright.toolchain import arguments, grid_of
from tilewright.units import round_up

PROBLEMS = (
    "1x8192x8192:NT:bf16",
    "1x8192x8192:NN:bf16",
    "1x8192x8192:NT:f32",
    "1x8192x8192:NN:f32",
    "1x4096x4096:NT:bf16",
    "1x4096x4096:NN:bf16",
    "1x4096x14336:NT:bf16",
    "1x28672x8192:NT:bf16",
    "1x128256x4096:NT:bf16",
    "1x768x3072:NT:f32",
    "1x768x3072:NN:f32",
    "1x2048x2048:NT:bf16",
    "1x1x1000003:NT:bf16",
    "1x1x1000003:NT:f32",
    "1x4x100000:NT:f32",
    "8192x1x8192:NN:f32",
    "2x8192x8192:NT:bf16",
    "4x8192x8192:NT:bf16",
    "4x8192x8192:NN:bf16",
    "8x8192x8192:NT:bf16",
    "8x4096x4096:NN:bf16",
    "4x8192x8192:NT:f32",
    "8x8192x8192:NN:f32",
    "16x8192x8192:NT:f32",
    "16x8192x8192:NN:f32",
    "1x8191x8193:NT:bf16",
    "1x8191x8193:NN:bf16",
    "1x4097x4095:NT:f32",
    "1x100000x64:NT:bf16",
)

COPIES = ("4096x4097", "8192x8192", "4095x4093", "28672x8192", "512x513")
"""Lines x elements of a line of the sources."""

BANDWIDTH_BYTES = 1 << 30
LONGEST_COPY_BYTES = 256 << 20
"""Moved by the copy that a problem is held against, at most: graphs copy buffers of 512 MiB at 2.8 TB/s."""

MATMUL, COPY = "matmul", "copy"


def problem(text: str) -> Gemm:
    shape, orders, dtype = text.split(":")
    m, n, k = (int(part) for part in shape.split("x"))
    a, b = orders_of(orders)
    return Gemm(m, n, k, a=a, b=b, **format_options(dtype))  # type: ignore[arg-type]


def exact_rows(gemm: Gemm) -> Gemm:
    """With leading dimensions as dispatch sees them: that of a single line is a multiple of 16 bytes."""
    each = 16 // gemm.dtype.bytes
    tight = {o.leading: gemm.tight_leading(o.name) for o in gemm.operands[:2] if gemm.size(o.strided) == 1}
    return replace(gemm, **{name: -(-size // each) * each for name, size in tight.items()})  # type: ignore[arg-type]


def shapes(gemm: Gemm, chosen: Skinny, count: int) -> Iterator[Skinny]:
    """The configuration that is planned, then others of the same split by their estimates."""
    yield chosen
    alignment = alignment_of_rows(gemm)
    facts = Facts(alignment.of(long_of(gemm)), alignment.of(short_of(gemm)), chosen.config.near)
    others = sorted(fitting(gemm, facts, chosen.config.split_k), key=lambda one: sm_seconds(one, gemm))
    for config in [one for one in others if one != chosen.config][:count]:
        parts = config.parts(gemm)
        if (parts > 1) is (chosen.parts > 1):
            yield replace(chosen, config=config, parts=parts, part_of_k=config.part_of_k(gemm) if parts > 1 else 0)


def described(one: Skinny) -> str:
    c = one.config
    return (
        f"width {c.width}, outputs {c.outputs}, lanes_k {c.lanes_k}, warps_k {c.warps_k} of {c.warps}, "
        f"steps {c.steps}, chunk {c.chunk}, parts {one.parts}"
    )


class Bench:
    """What is timed on a GPU. torch: PyTorch."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.gpu = open_gpu(torch.cuda.current_device())
        self.kernels = Kernels(self.gpu)
        self.timer = TorchTimer(torch)

    def loaded(self, kernel: Kernel) -> Any:
        source = print_cuda(kernel)
        return load(self.gpu, compile_cuda(source, self.gpu.arch), source)

    def stream(self) -> int:
        return int(self.torch.cuda.current_stream().cuda_stream)

    def bandwidths(self) -> dict[str, float]:
        """GB/s of a copy (bytes read and written) and of a read."""
        source = self.torch.empty(BANDWIDTH_BYTES // 4, device="cuda").normal_()
        total = self.torch.empty((), device="cuda")
        calls = {
            "copy": self.copy_of_as_much(LONGEST_COPY_BYTES),
            "read": lambda: self.torch.sum(source, dim=0, out=total),
        }
        times = interleaved(self.timer, calls)
        moved = {"copy": LONGEST_COPY_BYTES, "read": BANDWIDTH_BYTES}
        return {name: moved[name] / times[name].median_us / 1e3 for name in calls}

    def copy_of_as_much(self, moved_bytes: int) -> Callable[[], object]:
        """A copy from device to device that moves so many bytes, read and written ones together, over buffers in
        turn."""
        half = round_up(max(1, moved_bytes // 2), LINE_BYTES)
        count = max(2, -(-ROTATED_BYTES // moved_bytes))
        sources, targets = (self.torch.zeros(count, half, device="cuda", dtype=self.torch.uint8) for _ in range(2))
        return over(lambda source, target: target.copy_(source), list(zip(sources, targets, strict=True)))

    def product(self, gemm: Gemm, one: Skinny) -> Callable[[Any, Any, Any], None]:
        """launch(a, b, c): the GEMV kernel, and the reduction where k is split."""
        first = self.kernels.gemv(one)
        if one.whole:
            return lambda a, b, c: first.launch(self.stream(), a.data_ptr(), b.data_ptr(), c.data_ptr())
        reduction = Reduction.of(gemm, one.parts, gemm.n, gemm.m * gemm.n)
        last = ReduceConfig.of(reduction, 16 if gemm.ldc * gemm.out.bytes % 16 == 0 else 1).kernel(reduction)
        nowhere = (0,) * len(reduction.matrices)
        second = self.loaded(last).prepare(grid_of(last, reduction), last.block, arguments(reduction, nowhere))
        partials = self.torch.empty(one.parts * gemm.m * gemm.n, device="cuda", dtype=self.torch.float32)

        def both(a: Any, b: Any, c: Any) -> None:
            first.launch(self.stream(), a.data_ptr(), b.data_ptr(), partials.data_ptr())
            second.launch(self.stream(), partials.data_ptr(), c.data_ptr())

        return both

    def products(self, gemm: Gemm, candidates: list[Skinny]) -> Iterator[dict[str, Any]]:
        """`matmul` and the candidates beside torch.mm, each checked first."""
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.cuda.empty_cache()
        pairs = operands_of(torch, gemm, getattr(torch, gemm.dtype.array_name))
        a, b = pairs[0]
        results = [torch.empty(gemm.m, gemm.n, device="cuda", dtype=a.dtype) for _ in pairs]
        launches: dict[str, Callable[[Any, Any, Any], object]] = {MATMUL: lambda x, y, c: matmul(x, y, out=c)}
        launches |= {described(one): self.product(gemm, one) for one in candidates}
        errors: dict[str, float] = {}
        for name, launch in launches.items():
            results[0].fill_(float("nan"))
            launch(a, b, results[0])
            torch.cuda.synchronize()
            errors[name] = checked(torch, gemm, name, results[0], a, b)
        launches["torch"] = lambda x, y, c: torch.mm(x, y, out=c)
        calls = {name: over(launch, with_results(pairs, results)) for name, launch in launches.items()}
        copied_bytes = min(gemm.compulsory_bytes, LONGEST_COPY_BYTES)
        calls[COPY] = self.copy_of_as_much(copied_bytes)
        times = interleaved(self.timer, calls, copies=len(pairs))
        copy_us = times[COPY].median_us * gemm.compulsory_bytes / copied_bytes
        ran = plan(a, b, out=results[0])
        estimates = {MATMUL: ran.estimated_us}
        estimates |= {described(one): 1e6 * gemv_seconds(one.config, gemm, device("H200")) for one in candidates}
        for name, estimated_us in estimates.items():
            found = times[name]
            yield {
                "kernel": f"{name}: {ran.words}" if name == MATMUL else name,
                "us": round(found.median_us, 3),
                "torch_us": round(times["torch"].median_us, 3),
                "share_of_torch": round(found.share_of(times["torch"]), 4),
                "share_of_as_long_a_copy": round(copy_us / found.median_us, 4),
                "estimated_us": round(estimated_us, 2),
                "gb_per_s": round(gemm.compulsory_bytes / found.median_us / 1e3, 1),
                "error": float(f"{errors[name]:.2g}"),
            }

    def copies(self, lines: int, length: int, dtype: DType, *, transposed: bool) -> dict[str, Any]:
        """A padded or transposed copy beside PyTorch's."""
        torch = self.torch
        to_lines, to_length = (length, lines) if transposed else (lines, length)
        to = whole_pieces(to_length, dtype)
        matrix = MatrixCopy(lines, length, length, to_lines, to, padded(to, dtype), transposed)
        relayout = Relayout((matrix,), dtype, dtype)
        aligned = next(size for size in (16, 8, 4, 2) if length * dtype.bytes % size == 0)
        kernel = RelayoutConfig.of(relayout, [aligned]).kernel(relayout)
        launch = self.loaded(kernel).prepare(grid_of(kernel, relayout), kernel.block, arguments(relayout, (0, 0)))
        kind = getattr(torch, dtype.array_name)
        count = max(2, -(-ROTATED_BYTES // relayout.compulsory_bytes))
        sources = [torch.randn(lines, length, device="cuda").to(kind) for _ in range(count)]
        targets = [torch.full((to_lines, matrix.to_leading), float("nan"), device="cuda", dtype=kind) for _ in sources]
        launch.launch(self.stream(), sources[0].data_ptr(), targets[0].data_ptr())
        torch.cuda.synchronize()
        expected = sources[0].t() if transposed else sources[0]
        if not torch.equal(targets[0][:, :to_length], expected) or targets[0][:, to_length:to].any():
            raise TilewrightError(f"A copy of {lines} x {length} {dtype} is wrong.")

        def ours(source: Any, target: Any) -> None:
            launch.launch(self.stream(), source.data_ptr(), target.data_ptr())

        def theirs(source: Any, target: Any) -> None:
            target[:, :to_length].copy_(source.t() if transposed else source)

        sets = list(zip(sources, targets, strict=True))
        times = interleaved(self.timer, {"ours": over(ours, sets), "torch": over(theirs, sets)}, copies=count)
        return {
            "copy": f"{lines}x{length} {dtype} {'transposed' if transposed else 'padded'}",
            "kernel": kernel.name,
            "us": round(times["ours"].median_us, 3),
            "torch_us": round(times["torch"].median_us, 3),
            "share_of_torch": round(times["ours"].share_of(times["torch"]), 4),
            "gb_per_s": round(relayout.compulsory_bytes / times["ours"].median_us / 1e3, 1),
        }


def planned(gemm: Gemm) -> Skinny | None:
    """The GEMV kernel as dispatch would plan it on an H200, if it has one."""
    return skinny_for(gemm, alignment_of_rows(gemm), device("H200"))


def build_only(gemms: dict[str, Gemm]) -> None:
    for text, gemm in gemms.items():
        one = planned(gemm)
        if one is None:
            print(f"{text:24} has no GEMV kernel")
            continue
        used = compile_cuda(print_cuda(one.kernel()), "sm_90a").resources
        estimate = 1e6 * gemv_seconds(one.config, gemm, device("H200"))
        print(f"{text:24} {estimate:7.1f} us estimated, {used.registers} registers, {described(one)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), metavar="MxNxK:ORDERS:FORMAT")
    parser.add_argument("--copies", nargs="*", default=list(COPIES), metavar="LINESxLENGTH")
    parser.add_argument("--sweep", type=int, default=0, metavar="COUNT", help="other configurations of each problem")
    parser.add_argument("--seconds", type=float, default=500.0, help="no row is begun after this")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--build-only", action="store_true", help="print configurations and registers; needs no GPU")
    asked = parser.parse_args()
    gemms = {text: exact_rows(problem(text)) for text in asked.problems}
    if asked.build_only:
        build_only(gemms)
        return 0
    budget = Budget(asked.seconds)
    bench = Bench(extras.require("torch", "Timing torch.mm"))
    bandwidths = bench.bandwidths()
    beside = {"device": bench.gpu.name, **{f"{name}_gb_per_s": round(rate, 1) for name, rate in bandwidths.items()}}
    origin = {**beside, **origin_of(bench.torch, bench.gpu.name)}

    def shared(row: dict[str, Any]) -> dict[str, Any]:
        return row | {f"share_of_{n}": round(row["gb_per_s"] / rate, 3) for n, rate in bandwidths.items()}

    def rows() -> Iterator[dict[str, Any]]:
        for text, gemm in gemms.items():
            if not budget.allows(text):
                continue
            one = planned(gemm)
            candidates = [] if one is None else list(shapes(gemm, one, asked.sweep))
            for row in bench.products(gemm, candidates):
                yield shared({"problem": text, **row})
        for text in asked.copies:
            lines, length = (int(part) for part in text.split("x"))
            for name in ("f32", "bf16"):
                for transposed in (False, True):
                    if budget.left > 0:
                        kind = format_options(name)["dtype"]
                        yield shared(bench.copies(lines, length, kind, transposed=transposed))

    print(json.dumps(origin))
    try:
        list(recorded(origin, rows(), asked.out))
    except TilewrightError as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
