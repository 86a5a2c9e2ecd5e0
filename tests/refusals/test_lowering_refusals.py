"""Legal schedules that make no kernel: what `lower` refuses, word for word."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.dtypes import BF16, F16, F32, TF32, DType
from tilewright.errors import FormatError, LoweringError
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import SAFE
from tilewright.ir.program import Level
from tilewright.layout.arrangement import Xor
from tilewright.lowering import lower
from tilewright.problem import check, make_operands
from tilewright.problem.emulation import BF16X6
from tilewright.problem.gemm import Gemm
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Relayout,
    Reorder,
    Schedule,
    Split,
    Stage,
    Step,
    Tensorize,
)
from tilewright.toolchain import build, run_on_simulator

K = Split("k", 8, into=("k_tile", "k_in"))


def refusal(schedule: Schedule, gemm: Gemm) -> str:
    program = schedule.apply(gemm)
    with pytest.raises(LoweringError) as refused:
        lower(program, SAFE)
    return str(refused.value)


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_a_sum_in_a_narrow_c_would_be_rounded_at_every_step(dtype: DType) -> None:
    assert refusal(Schedule(K), Gemm(8, 8, 64, dtype, out=dtype)) == (
        f"The sum is kept in C, which holds {dtype}, and sums of this problem are kept in f32.\n"
        "  Note: C would be rounded after every product.\n"
        "  Hint: Accumulate(over='k_tile') keeps the sum in registers."
    )


@pytest.mark.parametrize(
    ("gemm", "schedule"),
    [
        (Gemm(4, 3, 200, F16, out=F16, beta=0.5), Schedule(K, Accumulate("k_tile"))),
        (Gemm(4, 3, 200, F16, out=F32, beta=0.5), Schedule()),
        (Gemm(4, 3, 200, F16, accumulate=F16, out=F16, beta=0.5), Schedule()),
    ],
    ids=["kept in registers", "kept in a wide C", "asked for in f16"],
)
def test_a_sum_that_is_kept_well_is_within_its_bound(gemm: Gemm, schedule: Schedule) -> None:
    operands = make_operands(gemm)
    computed, run = run_on_simulator(build(gemm, schedule), operands)
    verdict = check(operands, computed)
    assert verdict.ok, verdict.message
    assert not run.errors


def test_tiles_that_no_block_has_room_for() -> None:
    steps = Schedule(
        Split("m", 512, into=("m_block", "m_in")),
        Split("m_in", 8, into=("m_thread", "m_reg")),
        Split("k", 128, into=("k_tile", "k_in")),
        Reorder("n", "k_tile", "m_reg"),
        Bind("m_thread", Level.BLOCK_X),
        Stage("A", Space.SHARED, under="k_tile"),
        Distribute("A_tile"),
    )
    assert refusal(steps, Gemm(1024, 1024, 1024)) == (
        "The shared tiles take 262144 bytes, and no device gives a block more than 232448: A_tile 262144.\n"
        "  Hint: use smaller tiles of m, n or k."
    )


def test_warps_without_lanes() -> None:
    steps = Schedule(Split("m", 4, into=("m_block", "m_warp")), Bind("m_warp", Level.WARP))
    assert refusal(steps, Gemm(64, 64, 64)) == (
        "Loop 'm_warp' is bound to warps, and no loop is bound to their lanes.\n"
        "  Note: the 32 threads of a warp would all compute, and store, the same results.\n"
        "  Hint: Bind(..., Level.LANE) a loop of 32 iterations, or bind this one to block.x."
    )


MMA = Tensorize("m_mma", "n_mma", "k_mma", using="mma.m16n8k16")
WMMA = Tensorize("m_mma", "n_mma", "k_mma", using="wmma.m16n16k16")
INSTRUCTED = (
    Split("m", 16, into=("m_block", "m_mma")),
    Split("k", 16, into=("k_tile", "k_mma")),
    Reorder("m_block", "n_block", "k_tile", "m_mma", "n_mma", "k_mma"),
    Bind("m_block", Level.GRID_Y),
    Bind("n_block", Level.GRID_X),
)
OF_MMA = (Split("n", 8, into=("n_block", "n_mma")), *INSTRUCTED, MMA, Accumulate("k_tile"))
OF_WMMA = (Split("n", 16, into=("n_block", "n_mma")), *INSTRUCTED, WMMA, Accumulate("k_tile"))
IN_SHARED = (Stage("A", Space.SHARED, under="k_tile"), Stage("B", Space.SHARED, under="k_tile"))
IN_REGISTERS = (Stage("A", Space.REGISTER, under="k_tile"), Stage("B", Space.REGISTER, under="k_tile"))
HALF = Gemm(64, 64, 64, F16, out=F16)

NO_KERNEL_OF_TENSOR_CORES: dict[str, tuple[Gemm, tuple[Step, ...]]] = {
    "tf32 and no instruction": (Gemm(64, 64, 64, product=TF32), (K, Accumulate("k_tile"))),
    "alpha before the sum": (HALF, (*OF_MMA, *IN_REGISTERS)),
    "beta alone behind it": (HALF, (*OF_MMA, Epilogue(alpha=False), *IN_REGISTERS)),
    "no fragments": (HALF, (*OF_MMA, Epilogue(), *IN_SHARED)),
    "fragments of one operand": (HALF, (*OF_MMA, Epilogue(), *IN_SHARED, IN_REGISTERS[0])),
    "whole tiles of global memory": (HALF, (*OF_WMMA, Epilogue(), *IN_REGISTERS)),
    "results nobody can store": (HALF, (*OF_WMMA, Epilogue(), *IN_SHARED, *IN_REGISTERS)),
    "whole tiles permuted": (
        HALF,
        (*OF_WMMA, Epilogue(), *IN_SHARED, *IN_REGISTERS, Relayout("A_tile", arrangement=Xor(bits=1, base=3))),
    ),
    "tiles of an unaligned leading dimension": (
        HALF,
        (*OF_WMMA, Epilogue(), *IN_SHARED, *IN_REGISTERS, Relayout("A_tile", pad=8)),
    ),
}


def test_what_tensor_cores_need_is_asked_for(golden: Callable[[str, str], None]) -> None:
    cases = NO_KERNEL_OF_TENSOR_CORES.items()
    texts = [f"## {name}\n{refusal(Schedule(*steps), gemm)}\n" for name, (gemm, steps) in cases]
    golden("tensor_core_lowering_refusals.txt", "\n".join(texts))


def test_fragments_of_mma_may_come_from_global_memory() -> None:
    """Slow, and right: each lane loads its own elements."""
    gemm = Gemm(33, 17, 45, F16, out=F16)
    operands = make_operands(gemm)
    computed, run = run_on_simulator(build(gemm, Schedule(*OF_MMA, Epilogue(), *IN_REGISTERS)), operands)
    assert check(operands, computed).ok and not run.errors


def test_products_of_pieces_need_wgmma_and_a_promotion_of_each_stage() -> None:
    assert refusal(Schedule(K, Accumulate("k_tile")), Gemm(8, 8, 64, BF16, pieces=BF16X6)) == (
        "Products of pieces (bf16x6) are summed stage by stage by wgmma, and promoted with each.\n"
        "  Note: what small products of infinities and NaN sum to is replaced before the last product of the stage.\n"
        "  Hint: Tensorize(..., using='wgmma...'), Pipeline('k_tile'), Accumulate('k_tile', promote_every=...) "
        "with the k of a stage."
    )


def test_pieces_are_of_their_format() -> None:
    with pytest.raises(FormatError, match="Pieces of bf16x6 are bf16, and operands are multiplied as f16"):
        Gemm(8, 8, 8, F16, pieces=BF16X6)
