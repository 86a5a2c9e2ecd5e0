"""What a program needs before TMA loads its tiles or stores its result. Asked of finished programs only.

A schedule may declare its steps in any order, so what they must add up to is asked here, not of each step.
"""

from __future__ import annotations

from tilewright.errors import LoweringError
from tilewright.ir.buffer import Space
from tilewright.ir.program import Pipelined, Program, Route, Staged
from tilewright.lowering.check_epilogue import check_epilogue
from tilewright.lowering.products import reads_shared

BOX_BYTES = 16
"""What addresses and leading dimensions of boxes are multiples of. Source: CUDA driver API, cuTensorMapEncodeTiled."""


def check_engine(program: Program) -> None:
    """Raise LoweringError where TMA would load, or store, something else than is needed."""
    brought = [s for s in program.staged if s.route is Route.TMA and s.operand != "C"]
    result = program.staged_result
    for staged in brought:
        _check_ring(program, staged)
    if result is not None:
        check_epilogue(program, result)
    if program.specialized is not None and program.specialized.ping_pong > 1 and not program.persistent:
        raise LoweringError(
            f"{program.specialized.ping_pong} warpgroups run in ping-pong, and a block has only one tile.",
            hint="put Persist() after Specialize(...): a persistent block computes several tiles.",
        )
    for staged in (*brought, *([result] if result is not None and result.route is Route.TMA else [])):
        _check_rows(program, staged)


def _check_ring(program: Program, staged: Staged) -> None:
    """The ring of stages is the whole loop nest of a thread, and all its tiles come the same way."""
    if not reads_shared(program):
        raise LoweringError(
            f"{staged.name!r} comes by TMA, and nothing multiplies it straight from shared memory.",
            note="who waits for a box is worked out for wgmma only.",
            hint='Tensorize(..., using="wgmma.m64n128k16"), or copy it by Route.ASYNC.',
        )
    ring = program.pipelined
    if ring is None or ring.loop != staged.under:
        raise LoweringError(
            f"{staged.name!r} comes by TMA under {staged.under!r}, which is not pipelined.",
            note="a TMA box lands some time after it is issued, in a stage with an mbarrier of its own.",
            hint=f"Pipeline({staged.under!r}, 4).",
        )
    others = [s for s in program.staged if s.under == ring.loop and s.space is Space.SHARED]
    for other in others:
        if other.route is not Route.TMA:
            raise LoweringError(
                f"{staged.name!r} comes by TMA and {other.name!r} by {other.route.value}, under the same loop.",
                note="one mbarrier says that a stage is full.",
                hint=f"Transfer({other.name!r}, Route.TMA) as well.",
            )
    _check_nest(program, ring)


def _check_nest(program: Program, ring: Pipelined) -> None:
    outermost = program.thread_serial_loops[0]
    if outermost.name != ring.loop:
        raise LoweringError(
            f"Loop {outermost.name!r} runs around {ring.loop!r}, whose tiles come by TMA.",
            note="slots are numbered by the iterations of one loop.",
            hint=f"Reorder {outermost.name!r} inward, or Bind it.",
        )
    if program.accumulation is not None and program.accumulation.over != ring.loop:
        raise LoweringError(
            f"The sum is kept over {program.accumulation.over!r}, and tiles come by TMA under {ring.loop!r}.",
            hint=f"Accumulate(over={ring.loop!r}).",
        )


def _check_rows(program: Program, staged: Staged) -> None:
    """TMA takes only rows that begin at multiples of 16 bytes."""
    operand = program.gemm.operand(staged.operand)
    leading = program.gemm.leading(staged.operand)
    row_bytes = leading * operand.dtype.bytes
    if row_bytes % BOX_BYTES:
        each = BOX_BYTES // operand.dtype.bytes
        raise LoweringError(
            f"{staged.operand} cannot go by TMA: its {operand.order.value}s are {row_bytes} bytes apart "
            f"({operand.leading} = {leading} of {operand.dtype}).",
            note=f"TMA takes strides that are multiples of {BOX_BYTES} bytes.",
            hint=f"pad {operand.leading} to a multiple of {each}, {-(-leading // each) * each} here.",
        )
