"""The launches of drawn plans: a fault of the lowering, or of what a plan passes, changes a line of the golden file.

A line has the kernel's grid, pointers and arguments, its barriers and lines of CUDA, and a digest of the text without
comments, spaces and names. Plans are drawn near the best, so that options are met which the best plans lack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice, product

import pytest
from planned import alignment_of, paper_dispatcher
from test_dispatch import problem
from test_ragged import REQUESTS

from frozen.freeze import normalised
from tests.lowering.test_epilogue_results import CONFIGS, FOLDS, MATRICES, built_for, epilogue_of, gemm_of
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, E5M2, F32
from tilewright.errors import TilewrightError
from tilewright.planning import coded
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.beside_products import quantizing_plan, row_sums_plan
from tilewright.planning.coded import coded_plan
from tilewright.planning.coded_wgmma import wgmma_candidates
from tilewright.planning.gated import in_one_kernel
from tilewright.planning.packing import Stack
from tilewright.planning.plan import Place, Plan, Step
from tilewright.planning.ragged import ragged_plan, ranked_ragged
from tilewright.planning.ranking import ranked
from tilewright.problem import Gemm, Order
from tilewright.problem.block_scales import BlockScales
from tilewright.problem.coded_product import CodedProduct, CodedWeight
from tilewright.problem.emulation import BF16X6, BF16X9, F16X3
from tilewright.problem.epilogue import Activation, Epilogue
from tilewright.problem.functions import Operation
from tilewright.problem.quantization import Quantization
from tilewright.problem.row_sums import RowSums
from tilewright.problem.values import Accumulated, Applied, Combined
from tilewright.problem.weight_codes import E4M3_CODES, INT4

GATED = Combined(Operation.TIMES, Applied(Activation.SILU, Accumulated()), Accumulated(1))
GPUS = {"H200": 6, "A100 SXM 80 GB": 2}
"""How many plans of each problem are drawn."""

PROBLEMS: dict[str, tuple[Gemm, int]] = {
    "large": (problem(1000, 2000, 520, "bf16"), 1),
    "deep": (problem(128, 96, 30_000, "f16", "TN"), 1),
    "rows of odd length": (problem(301, 515, 77, "bf16", "NT"), 1),
    "a sum, with C": (problem(500, 264, 1000, "f16", "TT", beta=0.5, alpha=2.0), 1),
    "f32": (problem(513, 300, 400, "f32", "NT"), 1),
    "tf32": (problem(512, 640, 256, "tf32", "NN"), 1),
    "batch": (problem(136, 200, 72, "bf16"), 30),
    "bias and gelu": (problem(256, 640, 192, "bf16", epilogue=Epilogue(bias="n", activation=Activation.GELU)), 1),
    "residual in f32": (Gemm(264, 392, 320, BF16, out=F32, epilogue=Epilogue(residual=True)), 1),
    "fp8": (Gemm(160, 512, 1024, E4M3, out=BF16, b=Order.COL), 1),
    "C column-major": (problem(400, 136, 160, "bf16", c=Order.COL), 1),
}


def line_of(step: Step) -> str:
    launch = step.launch
    source = launch.source  # type: ignore[attr-defined]
    told = hashlib.sha256(normalised(source.text).encode()).hexdigest()[:12]
    counts = f"{source.text.count('__syncthreads')} barriers, {source.text.count(chr(10))} lines"
    grid = "x".join(str(size) for size in launch.grid)  # type: ignore[attr-defined]
    places = ", ".join(f"{Place(place).name}+{offset}" for place, offset in step.pointers)
    return f"    {step.role} {grid} of {source.threads_per_block}, {places}: {counts}, {told}"


def lines_of(plan: Plan) -> Iterator[str]:
    yield f"  {plan.words}, {plan.scratch_bytes} bytes"
    yield from (line_of(step) for step in plan.steps)


@pytest.mark.parametrize("name", PROBLEMS)
def test_launches_of_drawn_plans(name: str, golden: Callable[[str, str], None]) -> None:
    gemm, count = PROBLEMS[name]
    lines = []
    stack = Stack(count, gemm.m * gemm.k, gemm.k * gemm.n, gemm.m * gemm.n) if count > 1 else None
    for gpu, most in GPUS.items():
        lines.append(gpu)
        request = Request(gemm, alignment_of(gemm), stack)
        kernels = paper_dispatcher(device(gpu)).kernels
        for _, config in ranked(gemm, device(gpu), request.alignment, stack=stack).drawn(most, seed=1, spread=0.5):
            try:
                lines += lines_of(plan_of(kernels, request, config))
            except TilewrightError as refused:
                lines += [f"  {config}", f"    refused: {str(refused).splitlines()[0]}"]
    golden(f"plans/{name.replace(' ', '_').replace(',', '')}.txt", "\n".join(lines) + "\n")


H200 = device("H200")
KERNELS = paper_dispatcher(H200).kernels
GATED_GEMM = Gemm(300, 512, 256, BF16, out=BF16, epilogue=Epilogue(function=GATED))
BLOCK_SCALED = Gemm(136, 256, 384, E4M3, out=BF16, b=Order.COL, block_scales=BlockScales(1, 128))


def gated() -> Iterator[Plan]:
    request = Request(GATED_GEMM, alignment_of(GATED_GEMM))
    yield from (plan_of(KERNELS, request, config) for _, config in islice(in_one_kernel(request, H200), 0, 12, 6))
    yield paper_dispatcher(H200).plan(request)


def groups() -> Iterator[Plan]:
    for request in REQUESTS.values():
        yield from (ragged_plan(KERNELS, request, config) for config in islice(ranked_ragged(request, H200), 0, 10, 9))


def pieces() -> Iterator[Plan]:
    for how, orders in product((BF16X6, BF16X9, F16X3), ("NN", "TT")):
        gemm = problem(300, 1000, 520, "f32", orders)
        yield paper_dispatcher(H200).plan(Request(gemm, alignment_of(gemm), algorithm=how))


def blocks_of_fp8() -> Iterator[Plan]:
    request = Request(BLOCK_SCALED, alignment_of(BLOCK_SCALED), promote_every=128)
    found = ranked(BLOCK_SCALED, H200, request.alignment, promote_every=128).drawn(6, seed=1, spread=0.5)
    yield from (plan_of(KERNELS, request, config) for _, config in found)


def codes_of_weights() -> Iterator[Plan]:
    for codes, (m, n, k), group in product(
        (INT4, E4M3_CODES), ((1, 512, 1024), (40, 1000, 512), (120, 256, 640)), (128, 0)
    ):
        epilogue = Epilogue(bias="n" if m == 1 else None, scale=() if group else ("n",))
        one = CodedProduct(m, CodedWeight(n, k, codes, group), BF16, BF16, epilogue=epilogue)
        yield coded_plan(KERNELS, one)
        for found in (coded.candidates(one, H200), wgmma_candidates(one, H200)):
            yield from (coded_plan(KERNELS, one, config) for config in islice(found, 3, 40, 18))


def codes() -> Iterator[Plan]:
    for aligned, kept, how in product((16, 2), ("line", "all", "block"), (E4M3, E5M2)):
        if kept == "block" and how is E5M2:
            continue
        yield quantizing_plan(KERNELS, Quantization(300, 1000, 1000, 1000, BF16, how, kept), aligned)  # type: ignore[arg-type]
    for terms, weighted in ((1, False), (3, True)):
        yield row_sums_plan(KERNELS, RowSums(50, 777, 90, 800, 784, BF16, terms, weighted), 16)


def gemv() -> Iterator[Plan]:
    for (m, n, k), format, orders in product(
        ((1, 3000, 1000), (5, 900, 9000), (700, 2, 4096)), ("f32", "bf16"), ("NN", "NT")
    ):
        gemm = problem(m, n, k, format, orders)
        yield paper_dispatcher(H200).plan(Request(gemm, alignment_of(gemm)))


OTHERS = (gated, groups, pieces, blocks_of_fp8, codes_of_weights, codes, gemv)


@pytest.mark.parametrize("plans", OTHERS, ids=lambda plans: plans.__name__)
def test_launches_of_other_plans(plans: Callable[[], Iterator[Plan]], golden: Callable[[str, str], None]) -> None:
    lines = [line for plan in plans() for line in lines_of(plan)]
    golden(f"plans/{plans.__name__}.txt", "\n".join(lines) + "\n")


BESIDE = {
    "matrices": (MATRICES, 75),
    "folds of rows": (tuple(one for one in FOLDS.values() if one.operand.along == "m"), 72),
    "folds of columns": (tuple(one for one in FOLDS.values() if one.operand.along == "n"), 75),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_kernels_that_write_more_than_c(name: str, golden: Callable[[str, str], None]) -> None:
    lines = []
    for what, (results, columns) in BESIDE.items():
        gemm = gemm_of(CONFIGS[name], 70, columns, epilogue=epilogue_of(*results))
        try:
            text = normalised(built_for(CONFIGS[name], gemm).cuda)
            told = f"{len(text)} characters, {hashlib.sha256(text.encode()).hexdigest()[:12]}"
        except TilewrightError as refused:
            told = f"refused: {str(refused).splitlines()[0]}"
        lines.append(f"{what}, {columns} columns: {told}")
    golden(f"plans/results_of_{name}.txt", "\n".join(lines) + "\n")
