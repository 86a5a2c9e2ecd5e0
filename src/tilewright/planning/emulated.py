"""Products of f32 operands as one product of their pieces.

    A -> a0, a1, a2    B -> b0, b1, b2    C = a2 b0 + a1 b1 + a0 b2 + a1 b0 + a0 b1 + a0 b0, accumulators promoted

A stage of the kernel holds a tile of each piece, and all products of pieces go into one accumulator. alpha, beta and
the epilogue are the kernel's, as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.errors import LaunchError
from tilewright.ir.guard import Guard
from tilewright.kernels.relayout import RelayoutConfig
from tilewright.kernels.scaling import ScalingConfig
from tilewright.kernels.splitting import LONGEST_LINE, LineSplittingConfig, SplittingConfig
from tilewright.kernels.wgmma import WgmmaConfig, deepest_ring, fits
from tilewright.kernels.wgmma_steps import reads_orders
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.cost.launches import MORE_LAUNCHES_SECONDS, around_us
from tilewright.planning.kernels import Kernels
from tilewright.planning.packing import PACKABLE, TMA_BYTES, Alignment, Stack, padded, padded_bytes
from tilewright.planning.plan import Place, Plan, Role, Step, guards_of
from tilewright.problem.emulation import F16X3, Algorithm, guarded_depth, least_scaled
from tilewright.problem.gemm import Gemm, OperandName, Order
from tilewright.problem.relayout import MatrixCopy, Relayout
from tilewright.problem.scaling import Scaling
from tilewright.problem.splitting import Splitting, stored_as
from tilewright.units import format_bytes, round_up
from tilewright.winners.plan_config import PlanConfig

_MOST_BYTES = 16 << 30
"""Of the pieces of both operands."""

_PLACE: dict[OperandName, Place] = {"A": Place.A, "B": Place.B}

_SCALES: dict[OperandName, Place] = {"A": Place.SCALE_A, "B": Place.SCALE_B}

_FLAGS: dict[OperandName, Place] = {"A": Place.GUARD_A, "B": Place.GUARD_B}

_SCALES_TOGETHER = 64
"""Scales in 256 bytes."""

_K_MAJOR: dict[OperandName, Order] = {"A": Order.ROW, "B": Order.COL}


def why_not(request: Request, spec: DeviceSpec) -> LaunchError | None:
    """Why a request cannot be computed by pieces on a device, or without a workspace."""
    how = request.algorithm
    assert how is not None
    if spec.compute_capability[0] != 9:
        return LaunchError(
            f"precision={how.name!r} multiplies pieces of f32 operands by wgmma, which {spec.name} does not have.",
            note="its bound holds for sums that wgmma promotes (compute capability 9.0).",
            hint="use precision='f32_emulated', which is f32 arithmetic there, or 'default'.",
        )
    if request.without_workspace:
        return LaunchError(
            f"precision={how.name!r} keeps pieces of the operands in a workspace, and there is no memory for it.",
            hint="free some memory, or use precision='default'.",
        )
    size_bytes = sum(_size_bytes(request, name) for name in _split_by(request))
    if size_bytes > _MOST_BYTES:
        return LaunchError(
            f"precision={how.name!r} keeps pieces of the operands of {request.gemm} in {format_bytes(size_bytes)} of "
            f"workspace, more than {format_bytes(_MOST_BYTES)}.",
            hint="multiply parts of the matrices, or use an algorithm of fewer pieces.",
        )
    return None


def of_pieces(request: Request) -> Request:
    """The product of pieces that a request asks for."""
    how = request.algorithm
    assert how is not None
    gemm = request.gemm
    inner = _product(gemm, how)
    stack = request.stack
    if stack is not None:
        splits = {name: _splitting(gemm, how, name, stack) for name in PACKABLE}
        added, scales = iter(stack.added), {"scale_m": splits["A"].scale_step, "scale_n": splits["B"].scale_step}
        steps = [
            scales[one.name] if one.is_own else next(added) for one in inner.added if one.is_own or not one.is_vector
        ]
        stack = Stack(stack.count, splits["A"].to_step, splits["B"].to_step, stack.c, tuple(steps))
    return Request(
        inner,
        Alignment(TMA_BYTES, TMA_BYTES, request.alignment.c),
        stack,
        request.fixed_order,
        piece_bytes=tuple(_piece_bytes(gemm, how, name) for name in PACKABLE),
    )


def by_scaled_pieces(request: Request) -> Request:
    """The request of f32_emulated by the fastest pieces, with the others to fall back to. Bits that must not depend on
    other rows cannot depend on a flag that other rows raise."""
    if not request.or_f32 or request.fixed_order or guarded_depth(F16X3, request.gemm.k) is None:
        return request
    return replace(request, algorithm=F16X3, fallback=request.algorithm)


def splitting_us(request: Request, spec: DeviceSpec) -> float:
    """The estimated microseconds of everything before the product of pieces, and of launches that end at once. A
    product with prepared pieces starts under the splitting."""
    how, ended = request.algorithm, 0
    if request.fallback is not None:  # f32 arithmetic behind a prepared operand, which is else to be split anew
        ended = 1 if request.prepared else 1 + len(PACKABLE)
    assert how is not None
    found = 1e6 * ended * MORE_LAUNCHES_SECONDS
    for name in _split_by(request):
        splitting = _splitting_of(request, name)
        found += around_us(splitting.compulsory_bytes, spec, starts=0 if request.prepared else 1)
        if how.shift and not splitting.own_scales:
            found += around_us(_scaling(splitting).compulsory_bytes, spec)
        if _is_transposed(request.gemm, how, name):
            found += around_us(2 * splitting.count * splitting.lines * splitting.length * F32.bytes, spec)
    return found


def _split_by(request: Request) -> tuple[OperandName, ...]:
    """The operands that a call splits."""
    return ("A",) if request.prepared else PACKABLE


def pieces_of_b(request: Request) -> Splitting:
    """How the pieces of B lie, wherever B itself lies."""
    assert request.algorithm is not None
    found = _splitting_of(request, "B")
    return replace(found, leading=found.length, step=0)


def splitting_plan(kernels: Kernels, request: Request) -> tuple[Plan, int]:
    """B split into pieces at `Place.OUT`, and their bytes."""
    how = request.algorithm
    assert how is not None
    steps, scratch = _split(kernels, request, "B", 0, (Place.OUT, 0))
    return Plan(tuple(steps), scratch, f"pieces of B for {how}"), _size_bytes(request, "B")


def _split(
    kernels: Kernels, request: Request, name: OperandName, at: int, to: tuple[int, int] | None = None
) -> tuple[list[Step], int]:
    """The launches that split an operand, and where the workspace goes on. at: where it begins. to: where pieces go,
    if not into the workspace."""
    how, steps = request.algorithm, []
    assert how is not None
    splitting = _splitting_of(request, name)
    source, aligned = (_PLACE[name], 0), request.alignment.of(name)
    if _is_transposed(request.gemm, how, name):
        source, aligned = (Place.SCRATCH, at), TMA_BYTES
        steps.append(_transposed(kernels, request, splitting, name, at))
        at += splitting.count * padded_bytes(splitting.lines, splitting.length, F32)
    target = to or (Place.SCRATCH, at)
    pointers: list[tuple[int, int]] = [source, target]
    config: SplittingConfig | LineSplittingConfig
    if splitting.own_scales:
        config = LineSplittingConfig.of(splitting, aligned, overlapped=kernels.overlaps)
        pointers.append(_scales_at(request, name, target))
    else:
        config = SplittingConfig.of(splitting, aligned, overlapped=kernels.overlaps)
        if how.shift:
            scaling, (place, offset) = _scaling(splitting), _scales_at(request, name, target)
            found = kernels.auxiliary(ScalingConfig.of(scaling, aligned, overlapped=kernels.overlaps), scaling)
            what = "rows of A" if name == "A" else "columns of B"
            steps.append(Step(found, (source, (place, offset)), Role.SCALE, what, scaling.compulsory_bytes))
            pointers.append((place, offset + scaling.count * scaling.apart * F32.bytes))
    if splitting.flags:
        pointers.append((_FLAGS[name], 0))
    launch = kernels.auxiliary(config, splitting, request.guard)
    what = f"{name}{', scaled,' if splitting.own_scales else ''} into {how.count} pieces of {how.pieces}"
    guards, moved = guards_of(request.guard), splitting.compulsory_bytes
    steps.append(Step(launch, (*pointers, *guards), Role.SPLIT, what, moved, guard=request.guard))
    return steps, at if to is not None else at + _size_bytes(request, name)


def _scaling(splitting: Splitting) -> Scaling:
    """The scales of an operand, as it lies when it is split."""
    lines, length = splitting.lines, splitting.length
    apart = round_up(length if splitting.across else lines, _SCALES_TOGETHER)
    return Scaling(lines, length, splitting.leading, splitting.across, apart, splitting.step, splitting.count)


def _scales_at(request: Request, name: OperandName, pieces: tuple[int, int]) -> tuple[int, int]:
    """Where the scales of an operand lie: behind its pieces."""
    assert request.algorithm is not None
    place, offset = pieces
    return place, offset + _pieces_bytes(_splitting_of(request, name))


def _is_transposed(gemm: Gemm, how: Algorithm, name: OperandName) -> bool:
    """Whether an operand is transposed before it is split: wgmma reads tf32 along k only."""
    return _product(gemm, how).operand(name).order is not gemm.operand(name).order


def _product(gemm: Gemm, how: Algorithm) -> Gemm:
    """The problem behind the splitting; operands keep their orders where kernels read those."""
    product = how.pieces if stored_as(how) is F32 else None
    k = how.padded_k(gemm.k)
    epilogue = replace(gemm.epilogue, scale=("m", "n"), twice=True) if how.shift else gemm.epilogue
    inner = replace(gemm, k=k, dtype=stored_as(how), product=product, pieces=how, lda=0, ldb=0, epilogue=epilogue)
    if not reads_orders(inner):
        inner = replace(inner, a=Order.ROW, b=Order.COL, lda=0, ldb=0)
    lda, ldb = (padded(inner.size(inner.operand(name).contiguous), inner.dtype) for name in PACKABLE)
    return replace(inner, lda=lda, ldb=ldb)


def _splitting(gemm: Gemm, how: Algorithm, name: OperandName, stack: Stack | None) -> Splitting:
    """How an operand is split, as it lies, or as its transposed copy lies."""
    inner = _product(gemm, how)
    transposed = _is_transposed(gemm, how, name)
    rows, k, leading = gemm.size("m" if name == "A" else "n"), inner.k, inner.leading(name)
    if inner.operand(name).order is _K_MAJOR[name]:
        lines, length, to_lines, to_length = rows, gemm.k, rows, k
    else:
        lines, length, to_lines, to_length = gemm.k, rows, k, leading
    to_piece = _piece_bytes(gemm, how, name) // inner.dtype.bytes
    count, step = (1, 0) if stack is None else (stack.count, {"A": stack.a, "B": stack.b}[name])
    if count > 1 and step == 0:
        count = 1  # one matrix for the whole batch
    source = padded(length, F32) if transposed else gemm.leading(name)
    step = padded_bytes(lines, length, F32) // F32.bytes if transposed else step
    to_step = 0 if count == 1 else how.count * to_piece
    sizes = (lines, length, source, to_lines, to_length, leading, to_piece, step if count > 1 else 0, to_step, count)
    if not how.shift:
        return Splitting(how, *sizes)
    across = inner.operand(name).order is not _K_MAJOR[name]
    apart = round_up(length if across else lines, _SCALES_TOGETHER) if count > 1 else 0
    return Splitting(how, *sizes, across=across, scale_step=apart)


def _splitting_of(request: Request, name: OperandName) -> Splitting:
    """How an operand of a request is split. One launch finds the scales of its lines and splits them, where a block
    holds a line. A flag is raised where there is something to fall back on."""
    how = request.algorithm
    assert how is not None
    found = _splitting(request.gemm, how, name, request.stack)
    together = how.shift > 0 and not found.across and found.to_length <= LONGEST_LINE
    least = 0.0 if request.fallback is None else least_scaled(how, request.gemm.k)
    return replace(found, own_scales=together, least=least)


def _piece_bytes(gemm: Gemm, how: Algorithm, name: OperandName) -> int:
    """From one piece of an operand to the next."""
    inner = _product(gemm, how)
    operand = inner.operand(name)
    return padded_bytes(inner.size(operand.strided), inner.size(operand.contiguous), inner.dtype)


def emulated_plan(kernels: Kernels, request: Request, config: PlanConfig) -> Plan:
    """Both operands split, or A alone, then the product of their pieces by the kernel of a configuration."""
    how = request.algorithm
    assert how is not None
    inner, at = of_pieces(request), 0
    inner = replace(inner, guard=Guard.DECIDES if request.fallback else request.guard)
    if request.prepared:
        inner, config = _ahead_of_a(inner, config)
    steps: list[Step] = []
    places: dict[int, tuple[int, int]] = {Place.B: (Place.PIECES, 0)}
    for name in _split_by(request):
        more, end = _split(kernels, request, name, at)
        steps += more
        places[_PLACE[name]], at = more[-1].pointers[1], end
    if how.shift:
        places |= _behind_pieces(request, places)
    product = plan_of(kernels, inner, config)
    steps += [replace(step, pointers=tuple(_moved(one, places, at) for one in step.pointers)) for step in product.steps]
    return Plan(tuple(steps), at + product.scratch_bytes, f"{how}: pieces by {product.words}")


def _ahead_of_a(inner: Request, config: PlanConfig) -> tuple[Request, PlanConfig]:
    """A product whose B is there before A is split: its blocks start under that, and the L2 is asked for their first
    tiles of B. Those of the launches around it find room beside them."""
    assert isinstance(config.kernel, WgmmaConfig)
    kernel = replace(_beside_others(config.kernel, inner.gemm), dependent_launch=True)
    return replace(inner, constant="B"), replace(config, kernel=kernel)


_LEFT_TO_OTHERS, _LEAST_STAGES = 1.5, 3
"""Blocks of a ring that leaves a third of an SM to others, and its stages: with two, loads wait for MMAs."""


def _beside_others(config: WgmmaConfig, gemm: Gemm) -> WgmmaConfig:
    """The same with a ring that leaves a third of an SM's shared memory to blocks of the kernels around it, but no room
    for a second block of its own."""
    if fits(config, 2, gemm):
        return config
    stages = max(_LEAST_STAGES, int(deepest_ring(config, _LEFT_TO_OTHERS, gemm)))
    while fits(replace(config, stages=stages), 2, gemm):
        stages += 1
    return replace(config, stages=min(stages, config.stages))


def _behind_pieces(request: Request, places: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """The scales of both operands. places: of their pieces."""
    return {_SCALES[name]: _scales_at(request, name, places[_PLACE[name]]) for name in PACKABLE}


def with_fallback(request: Request, first: Plan, other: Plan) -> Plan:
    """A plan by scaled pieces, and behind it one that runs where these do not do. other: that one, guarded. The flag of
    a prepared operand stays as it is."""
    kept: dict[int, tuple[int, int]] = {Place.GUARD_B: (Place.GUARD_A, 0)} if request.prepared else {}
    more = [
        replace(step, pointers=tuple(_moved(one, kept, first.scratch_bytes) for one in step.pointers))
        for step in other.steps
    ]
    words = f"{first.words}; {other.way} where rows or columns span too many binades"
    return Plan((*first.steps, *more), first.scratch_bytes + other.scratch_bytes, words, other.way)


def _size_bytes(request: Request, name: OperandName) -> int:
    """Of the pieces of an operand with its scales."""
    assert request.algorithm is not None
    splitting = _splitting_of(request, name)
    if not request.algorithm.shift:
        return _pieces_bytes(splitting)
    return _pieces_bytes(splitting) + round_up(_scaling(splitting).storage_elements("target") * F32.bytes, 256)


def _pieces_bytes(splitting: Splitting) -> int:
    """Of the pieces of an operand, rounded up to 256 bytes."""
    elements = splitting.to_step * splitting.count or splitting.storage_elements("target")
    return round_up(elements * splitting.out.bytes, 256)


def _moved(pointer: tuple[int, int], pieces: Mapping[int, tuple[int, int]], scratch: int) -> tuple[int, int]:
    """Where a pointer of the product of pieces lies among those of the call."""
    place, offset = pointer
    if place is Place.SCRATCH:
        return Place.SCRATCH, scratch + offset
    if place not in pieces:
        return pointer
    to, at = pieces[place]
    return to, at + offset


def _transposed(kernels: Kernels, request: Request, splitting: Splitting, name: OperandName, at: int) -> Step:
    """The launch that transposes an operand before it is split."""
    gemm, stack = request.gemm, request.stack
    step = 0 if stack is None or splitting.count == 1 else {"A": stack.a, "B": stack.b}[name]
    lies = gemm.size(gemm.operand(name).strided), gemm.size(gemm.operand(name).contiguous), gemm.leading(name)
    to = splitting.lines, splitting.length, splitting.leading
    copy = MatrixCopy(*lies, *to, transposed=True, step=step, to_step=splitting.step)
    problem = Relayout((copy,), F32, F32, splitting.count)
    config = RelayoutConfig.of(problem, [request.alignment.of(name)], overlapped=kernels.overlaps)
    launch = kernels.auxiliary(config, problem, request.guard)
    pointers = ((_PLACE[name], 0), (Place.SCRATCH, at), *guards_of(request.guard))
    return Step(launch, pointers, Role.TRANSPOSE, name, problem.compulsory_bytes, guard=request.guard)
