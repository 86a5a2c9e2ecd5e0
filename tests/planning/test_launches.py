"""Every launch of a plan, as it is handed to the driver: grids, blocks, arguments, places, workspace.

Sizes lie around what decides (vectors of 16 bytes, lines of 1024, tiles, groups), and estimates are made up as in
`test_boundaries`: a line of tests/golden/boundaries/launches changes with what a plan is, not with what is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from planned import alignment_of, paper_dispatcher
from test_boundaries import GPUS, made_up  # noqa: F401  every test here has it
from test_candidates import GATED

from tilewright.dtypes import BF16, E4M3, F16, F32, TF32
from tilewright.errors import TilewrightError
from tilewright.frontend import ops
from tilewright.frontend.symbols import Symbol
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.dispatch import Dispatcher
from tilewright.planning.gated import in_two, joined
from tilewright.planning.packing import Alignment, Groups, Shards, Stack
from tilewright.planning.plan import Plan
from tilewright.problem import Activation, Epilogue, Gemm, Order
from tilewright.problem.coded_product import CodedProduct, CodedWeight
from tilewright.problem.emulation import BF16X3, BF16X6, F16X3, TF32X3
from tilewright.problem.epilogue import Result
from tilewright.problem.functions import Operation
from tilewright.problem.quantization import Quantization
from tilewright.problem.row_sums import RowSums
from tilewright.problem.values import Accumulated, Added, Element, Fold
from tilewright.problem.weight_codes import E4M3_CODES, INT4
from tilewright.problem.weight_coding import WeightCoding
from tilewright.winners.plan_config import PlanConfig

A, B, BOTH = frozenset(("A",)), frozenset(("B",)), frozenset(("A", "B"))
SIMT = SimtConfig((64, 64, 16), (32, 32), unroll=8)
MMA = MmaConfig((64, 64, 32), (32, 32), stages=3)
WGMMA = WgmmaConfig((128, 64, 64), consumers=1, stages=3)
ACC = Symbol(Accumulated())
GATE = Symbol(Element(Added("gate_operand", None, BF16)))


def told(plan: Plan) -> Iterator[str]:
    yield f"  {plan.words}; {plan.scratch_bytes} bytes, way {plan.way}, {plan.other_way or 'no other'}"
    for step in plan.steps:
        launch: Any = step.launch
        told = " ".join(f"{place}+{offset}" if offset else f"{place}" for place, offset in step.pointers)
        values = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in launch.args)
        yield f"    {step.role} {step.what}: {launch.grid} x {launch.block}, at {told}, {step.moved_bytes} moved"
        yield f"      {launch.source.entry} {step.guard}: {values}"


def lines(requests: dict[str, Callable[[Dispatcher], Plan]], gpu: str = "H200") -> Iterator[str]:
    dispatcher = paper_dispatcher(GPUS[gpu])
    for name, made in requests.items():
        yield name
        try:
            yield from told(made(dispatcher))
        except TilewrightError as refused:
            yield f"  {str(refused).splitlines()[0]}"


def by(config: PlanConfig, gemm: Gemm, **options: Any) -> Callable[[Dispatcher], Plan]:
    request = Request(gemm, options.pop("alignment", alignment_of(gemm)), **options)
    return lambda dispatcher: plan_of(dispatcher.kernels, request, config)


def configured() -> dict[str, Callable[[Dispatcher], Plan]]:
    """Plans whose kernel is given: packing, parts, batches, padding."""
    found: dict[str, Callable[[Dispatcher], Plan]] = {}
    kernels: dict[str, tuple[Any, dict[str, Any]]] = {
        "simt": (SIMT, {"dtype": F32}),
        "mma": (MMA, {"dtype": F16, "out": F16}),
        "wgmma": (WGMMA, {"dtype": BF16, "out": BF16}),
    }
    sizes = ((256, 256, 512), (255, 257, 511), (1, 64, 129), (130, 512, 2048))
    for (name, (kernel, formats)), (m, n, k) in product(kernels.items(), sizes):
        gemm = Gemm(m, n, k, b=Order.COL if k % 2 else Order.ROW, beta=float(m == 1), **formats)
        words = f"{name} {m}x{n}x{k}"
        if name != "wgmma" or k % 8 == 0:
            found[words] = by(PlanConfig(kernel), gemm)
        found[f"{words}, A and B packed"] = by(PlanConfig(kernel, BOTH), gemm)
        found[f"{words}, B packed, 3 parts"] = by(
            PlanConfig(kernel.with_split_k(3), B), gemm, alignment=Alignment(16, 2, 4)
        )
        stack = Stack(5, m * k, k * n, m * n)
        found[f"{words}, 5 of them, A packed"] = by(
            PlanConfig(kernel, BOTH if name == "wgmma" else A), gemm, stack=stack
        )
        if name == "simt":
            found[f"{words}, padded"] = by(PlanConfig(kernel, BOTH, B, tile_multiples=True), gemm)
            found[f"{words}, padded, 2 parts"] = by(
                PlanConfig(kernel.with_split_k(2), BOTH, B, tile_multiples=True), gemm
            )
            streams = replace(kernel, persistent=True, stream_k=True, raster_rows=8)
            found[f"{words}, stream-K"] = by(PlanConfig(streams), gemm)
    for m, n, k, parts in ((1, 4096, 4096, 1), (1, 4095, 9000, 4), (3, 17, 70_000, 9), (4096, 1, 300, 1)):
        gemm = Gemm(m, n, k, BF16, out=BF16)
        found[f"gemv {m}x{n}x{k}, {parts} parts"] = by(PlanConfig(GemvConfig(split_k=parts)), gemm)
    found["too large a workspace"] = by(PlanConfig(SIMT.with_split_k(64)), Gemm(8192, 8192, 8192))
    return found


def by_pieces() -> dict[str, Callable[[Dispatcher], Plan]]:
    found: dict[str, Callable[[Dispatcher], Plan]] = {}
    cases = product((BF16X3, BF16X6, F16X3, TF32X3), ((64, 512, 1024), (130, 33, 257)), ("", "batch", "prepared", "or"))
    for at, (how, (m, n, k), kind) in enumerate(cases):
        if at % 3 == 2:
            continue
        gemm = Gemm(m, n, k, F32, a=Order.COL if at % 2 else Order.ROW, b=Order.COL)
        stack = Stack(3, m * k, k * n, m * n) if kind == "batch" else None
        request = Request(gemm, alignment_of(gemm), stack, algorithm=how, prepared=kind == "prepared")
        if kind == "or":
            request = replace(request, or_f32=True, fallback=BF16X6 if how is F16X3 else None)
        found[f"{how} {m}x{n}x{k} {kind}"] = lambda dispatcher, request=request: dispatcher.plan(request)  # type: ignore[misc]
    return found


def of_epilogues() -> dict[str, Callable[[Dispatcher], Plan]]:
    """Results beside C, folds of rows and columns of many lengths, two sums, vectors."""
    found: dict[str, Callable[[Dispatcher], Plan]] = {}

    def fold(name: str, along: Any, operation: Operation, group: int = 0) -> Result:
        return Result(Added(name, along, F32, own=True, fold=Fold(operation, group)), (ACC * ACC).value)

    epilogues = {
        "bias and gelu": Epilogue("n", activation=Activation.GELU),
        "two sums": Epilogue(function=GATED),
        "a residual": Epilogue("m", True),
        "row maxima": Epilogue(function=(ACC * GATE).value, results=(fold("rows", "m", Operation.MAXIMUM),)),
        "column sums": Epilogue(function=ACC.value, results=(fold("columns", "n", Operation.PLUS),)),
        "maxima of 128": Epilogue(function=ACC.value, results=(fold("groups", "m", Operation.MAXIMUM, 128),)),
        "the whole sum": Epilogue(function=ACC.value, results=(fold("total", None, Operation.PLUS),)),
        "another matrix": Epilogue(
            function=ops.relu(ACC).value, results=(Result(Added("second", None, F16), (ACC * GATE).value),)
        ),
    }
    for (name, epilogue), (m, n, k) in product(epilogues.items(), ((128, 256, 64), (1000, 4100, 72), (40_000, 16, 40))):
        gemm = Gemm(m, n, k, BF16, out=BF16, epilogue=epilogue)
        request = Request(gemm, alignment_of(gemm))
        found[f"{name} of {m}x{n}x{k}"] = lambda dispatcher, request=request: dispatcher.plan(request)  # type: ignore[misc]
        if name == "two sums":
            found[f"one sum after the other of {m}x{n}x{k}"] = lambda dispatcher, request=request: joined(  # type: ignore[misc]
                *(dispatcher.plan(one) for one in in_two(request)), request.gemm
            )
    return found


def of_other_calls() -> dict[str, Callable[[Dispatcher], Plan]]:
    """Groups by offsets, codes and scales, sums of rows, shards of ranks."""
    found: dict[str, Callable[[Dispatcher], Plan]] = {}

    def ragged(name: str, request: Request) -> None:
        found[name] = lambda dispatcher: dispatcher.ragged(request)

    for tokens, n, k, count in ((1024, 256, 512, 8), (1000, 512, 264, 3), (77, 1000, 40, 1), (4096, 2048, 1024, 128)):
        gemm = Gemm(tokens, n, k, BF16, b=Order.COL, out=BF16)
        ragged(
            f"{count} groups of m, {tokens}x{n}x{k}",
            Request(gemm, alignment_of(gemm), groups=Groups(count, "m", n * k)),
        )
        held = Groups(count, "m", n * k, capacity=-(-tokens // count), expected=9)
        ragged(f"{count} counted groups, {tokens}x{n}x{k}", Request(gemm, alignment_of(gemm), groups=held))
        gemm = Gemm(n, k, tokens, BF16, a=Order.COL, out=F32)
        ragged(
            f"{count} groups of k, {n}x{k}x{tokens}",
            Request(gemm, alignment_of(gemm), groups=Groups(count, "k", n * k)),
        )
    for lines_, length, group in product((1, 300), (128, 1000), ("line", "block")):
        one = Quantization(lines_, length, length, length + 8, BF16, E4M3, group)
        found[f"codes of {lines_}x{length} {group}"] = lambda d, one=one: d.quantizing(one, 16, capturing=lambda: False)  # type: ignore[misc]
    for lines_, length, terms in ((1, 8, 1), (300, 1001, 4), (64, 4096, 0)):
        sums = RowSums(lines_, length, 99, length, length, BF16, terms, terms == 4, 5 if terms == 0 else 0)
        found[f"sums of {terms} rows, {lines_}x{length}"] = lambda d, one=sums: d.row_sums(
            one, 2, capturing=lambda: False
        )  # type: ignore[misc]
    for m, codes, group in product((1, 8, 9, 16, 17, 33, 128), (INT4, E4M3_CODES), (128, 0)):
        weight = CodedWeight(2048, 1024, codes, group)
        product_ = CodedProduct(m, weight, BF16, BF16, epilogue=Epilogue(scale=() if group else ("n",)))
        found[f"{m} rows by {codes} in groups of {group}"] = lambda d, one=product_: d.coded(
            one, capturing=lambda: False
        )  # type: ignore[misc]
    coding = WeightCoding(CodedWeight(512, 256, INT4, 64), BF16, 1, 256)
    found["codes of a weight"] = lambda d: d.coding(coding, capturing=lambda: False)
    for rank, summed in product((0, 1), (False, True)):
        gemm = Gemm(512, 256, 512, BF16, b=Order.COL, out=BF16)
        request = Request(gemm, alignment_of(gemm), shards=Shards((256, 256), rank, summed))
        found[f"rank {rank}, {'summed' if summed else 'arriving'}"] = lambda d, request=request: d.plan(request)  # type: ignore[misc]
    tf32 = Gemm(512, 512, 512, F32, product=TF32)
    for name, options in (("in order", {"fixed_order": True}), ("no workspace", {"without_workspace": True})):
        request = Request(tf32, alignment_of(tf32), **options)  # type: ignore[arg-type]
        found[f"tf32 {name}"] = lambda d, request=request: d.plan(request)  # type: ignore[misc]
    return found


KINDS = {"configured": configured, "pieces": by_pieces, "epilogues": of_epilogues, "others": of_other_calls}


@pytest.mark.parametrize("kind", KINDS)
def test_launches(kind: str, golden: Callable[[str, str], None]) -> None:
    told = list(lines(KINDS[kind]()))
    if kind == "others":
        told += [
            "",
            "A100",
            *lines(
                {name: made for name, made in KINDS[kind]().items() if "of m," in name or "rows by" in name},
                "A100 SXM 80 GB",
            ),
        ]
    golden(f"boundaries/launches_{kind}.txt", "\n".join(told) + "\n")
