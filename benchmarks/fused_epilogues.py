"""Epilogues in the kernel against torch.compile's kernels around cuBLAS: SwiGLU, quantised results, folds, rotary.

    python benchmarks/fused_epilogues.py --out fused_epilogues.json
    python benchmarks/fused_epilogues.py --device cpu --scale 32 --only rms rotary      # the script itself, no times

Each case is a call of ours and the same by PyTorch: the product by cuBLAS (`torch.mm`, `torch._scaled_mm`), what
follows by a function under torch.compile; of SwiGLU in two ways, the products apart and as one of twice the columns.
Results are compared first: the relative distance of each pair of results in the Frobenius norm. Then all are captured
as CUDA graphs and timed in turn, operands rotated over at least four times the L2; `share` is the median over rounds of
the time of the fastest of PyTorch's ways over ours. Cases of FP8 are timed on Hopper alone, whose wgmma finds scales of
blocks. --mode is torch.compile's: with max-autotune-no-cudagraphs it tries products of Triton as well, for minutes.
Ends with 1 where results differ, with 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import tilewright as tw
from tilewright.bench.records import this_run
from tilewright.runtime.driver import gpu_problem
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.peers import over
from tilewright.suite.timing import interleaved

ops: Any = tw.ops
ROTATED_BYTES = 250_000_000
"""Of the operands of a case; four times the L2 of an H200."""

OURS, PEER = "ours", "torch.compile"

FP8: Any = torch.float8_e4m3fn
LARGEST = 448.0
MOST_DISTANCE = {"bf16": 2e-2, "codes": 6e-2, "f32": 2e-2}
"""Of two results: sums in f32, rounded once to bf16 (2**-9) by each; codes may differ by one in the last place."""

Call = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """make: operands on a device, of sizes m, n, k. ours, theirs: the same of them, results in one order; theirs in
    each way that there is. kinds: of the results, as in MOST_DISTANCE."""

    name: str
    shape: tuple[int, int, int]
    make: Callable[[int, int, int, Any], tuple[Any, ...]]
    ours: Call
    theirs: tuple[Call, ...]
    kinds: tuple[str, ...]
    fp8: bool = False


def drawn(rows: int, columns: int, device: Any) -> Any:
    return torch.randn(rows, columns, device=device).to(torch.bfloat16)


def codes(rows: int, columns: int, device: Any) -> Any:
    return torch.randn(rows, columns, device=device).to(FP8)


def pair(m: int, n: int, k: int, device: Any) -> tuple[Any, ...]:
    return drawn(m, k, device), drawn(n, k, device)


def gated(m: int, n: int, k: int, device: Any) -> tuple[Any, ...]:
    """The two weights, which lie one behind the other, and both as one."""
    both = drawn(2 * n, k, device)
    return drawn(m, k, device), *both.split(n), both


def with_residual(m: int, n: int, k: int, device: Any) -> tuple[Any, ...]:
    return *pair(m, n, k, device), drawn(m, n, device)


def with_angles(m: int, n: int, k: int, device: Any) -> tuple[Any, ...]:
    return *pair(m, n, k, device), drawn(m, n, device), drawn(m, n, device)


def scaled(m: int, n: int, k: int, device: Any) -> tuple[Any, ...]:
    one = torch.full((1,), 0.05, device=device)
    return codes(m, k, device), codes(n, k, device), one, one


def _swiglu(x: Any, gate: Any, up: Any, _: Any) -> Any:
    return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T),)


def _swiglu_of_one_product(x: Any, _gate: Any, _up: Any, both: Any) -> Any:
    left, right = (x @ both.T).chunk(2, -1)
    return (torch.nn.functional.silu(left) * right,)


def _normed_by_torch(x: Any, w: Any, residual: Any) -> Any:
    total = x @ w.T + residual
    return total, total.float().square().sum(-1, keepdim=True)


def _statistics(acc: Any) -> Any:
    return acc, ops.column_sum(acc), ops.column_sum_of_squares(acc), ops.row_max(acc)


def _statistics_by_torch(x: Any, w: Any) -> Any:
    wide = (product := x @ w.T).float()
    return product, wide.sum(0), wide.square().sum(0), wide.amax(-1, keepdim=True)


def _turned_by_torch(x: Any, w: Any, cos: Any, sin: Any) -> Any:
    y = x @ w.T
    turned = torch.stack((-y[:, 1::2], y[:, 0::2]), -1).flatten(-2)
    return (y * cos + turned * sin,)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _product(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    """By cuBLAS: Inductor of PyTorch 2.11 refuses a scaled product of two scales of one element."""
    if a.device.type == "cpu":
        return (a.float() @ b.float().T) * scale_a * scale_b
    return torch._scaled_mm(a, b.T, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)


def _fast(device: Any) -> bool:
    return bool(device.type != "cpu")


def _by_tensor(acc: Any, inverse: Any) -> Any:
    x = ops.silu(acc)
    return x * inverse, ops.amax(x)


def _codes_by_tensor(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    return tw.scaled_matmul(
        *(a, b.T, scale_a, scale_b),
        fast_accumulation=_fast(a.device),
        epilogue=_by_tensor,
        operands={"inverse": 8.0},
        out_dtype="e4m3",
    )


def _codes_by_tensor_by_torch(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    x = torch.nn.functional.silu(_product(a, b, scale_a, scale_b).float())
    return (x * 8.0).clamp(-LARGEST, LARGEST).to(FP8), x.abs().amax().reshape(1)


def _blocks(acc: Any) -> Any:
    return ops.quantized(ops.silu(acc))


def _codes_of_blocks(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    return tw.scaled_matmul(a, b.T, scale_a, scale_b, fast_accumulation=_fast(a.device), epilogue=_blocks)


def _codes_of_blocks_by_torch(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    x = torch.nn.functional.silu(_product(a, b, scale_a, scale_b).float()).unflatten(-1, (-1, 128))
    scales = (x.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(2.0**-126)
    return (x / scales).clamp(-LARGEST, LARGEST).to(FP8).flatten(-2), scales.squeeze(-1)


def cases() -> Iterator[Case]:
    wide, square = (8192, 14336, 4096), (8192, 8192, 4096)
    yield Case(
        "swiglu",
        wide,
        gated,
        lambda x, g, u, _: (tw.linear_gated(x, g, u),),
        (_swiglu, _swiglu_of_one_product),
        ("bf16",),
    )
    yield Case(
        *("rms", square, with_residual),
        lambda x, w, r: tw.linear(x, w, epilogue=ops.add_residual, operands={"residual": r}),
        (_normed_by_torch,),
        ("bf16", "f32"),
    )
    yield Case(
        *("statistics", square, pair),
        lambda x, w: tw.linear(x, w, epilogue=_statistics),
        (_statistics_by_torch,),
        ("bf16", "f32", "f32", "f32"),
    )
    yield Case(
        *("rotary", square, with_angles),
        lambda x, w, cos, sin: (tw.linear(x, w, epilogue=ops.rotary, operands={"cos": cos, "sin": sin}),),
        (_turned_by_torch,),
        ("bf16",),
    )
    fp8 = ("codes", "f32")
    yield Case("codes", wide, scaled, _codes_by_tensor, (_codes_by_tensor_by_torch,), fp8, fp8=True)
    yield Case("codes of blocks", wide, scaled, _codes_of_blocks, (_codes_of_blocks_by_torch,), fp8, fp8=True)


def distances(found: Any, expected: Any) -> list[float]:
    """Of each pair of results, relative to the second."""
    made = []
    for one, other in zip(found, expected, strict=True):
        a, b = one.double(), other.double()
        made.append(float((a - b).norm() / b.norm().clamp_min(1e-30)) if a.shape == b.shape else float("inf"))
    return made


def sizes(shape: tuple[int, int, int], scale: int) -> tuple[int, ...]:
    """A shape made smaller for a run without a GPU; columns stay whole blocks of 128."""
    m, n, k = shape
    return (max(m // scale, 16), max(n // scale // 128, 1) * 128, max(k // scale // 16, 1) * 16)


def run(case: Case, device: Any, scale: int, mode: str = "default") -> dict[str, Any]:
    """One case: checked, and timed where there is a GPU. mode: of torch.compile."""
    shape = sizes(case.shape, scale)
    torch.manual_seed(0)
    operands = [case.make(*shape, device)]
    calls: dict[str, Call] = {OURS: case.ours}
    for number, way in enumerate(case.theirs):
        name = f"{PEER} {number + 1}" if number else PEER
        calls[name] = way if device.type == "cpu" else torch.compile(way, mode=mode, dynamic=False)
    if device.type != "cpu":
        size = sum(one.numel() * one.element_size() for one in operands[0])
        operands += [case.make(*shape, device) for _ in range(ROTATED_BYTES // size)]
    found = {name: call(*operands[0]) for name, call in calls.items()}
    off = [
        max(each) for each in zip(*(distances(found[OURS], found[name]) for name in calls if name != OURS), strict=True)
    ]
    right = all(one <= MOST_DISTANCE[kind] for one, kind in zip(off, case.kinds, strict=True))
    row: dict[str, Any] = {"case": case.name, "shape": shape, "distances": [float(f"{one:.3g}") for one in off]}
    row["right"] = right
    del found
    if device.type == "cpu" or not right:
        return row
    in_turn = {name: over(call, operands) for name, call in calls.items()}
    times = interleaved(TorchTimer(torch), in_turn, copies=len(operands))
    row |= {f"{name}_us": round(one.median_us, 2) for name, one in times.items()}
    row["share"] = round(min(times[OURS].share_of(times[name]) for name in calls if name != OURS), 4)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--scale", type=int, default=1, help="divides every size")
    parser.add_argument("--mode", default="default", help="of torch.compile")
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--out", type=Path, help="the record, one JSON document")
    given = parser.parse_args()
    if given.device == "cuda" and gpu_problem() is not None:
        print(gpu_problem(), file=sys.stderr)
        return 2
    device = torch.device(given.device)
    has_fp8 = given.device == "cpu" or torch.cuda.get_device_capability()[0] == 9
    chosen = [case for case in cases() if (not given.only or case.name in given.only) and (has_fp8 or not case.fp8)]
    rows = []
    for case in chosen:
        rows.append(run(case, device, given.scale, given.mode))
        print(json.dumps(rows[-1]), flush=True)
    if given.out is not None:
        name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
        origin = {"device": name, **this_run(), **versions}
        given.out.write_text(json.dumps({"origin": origin, "cases": rows}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
