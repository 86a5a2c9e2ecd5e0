"""Where a work item lies: the values that its loops, loads, stores and guards are written with.

An item is located by names that `scheduler` declares in front of its statements. Every emitter asks here instead of
assuming that a block has all of M, N and K: `size` is what loops count over, `origin` what indices begin at, `end` what
guards compare them with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.dtypes import I64
from tilewright.ir.env import HERE, Env
from tilewright.ir.expr import ZERO, Binary, Cast, Expr, Op, Select, Var, binary
from tilewright.ir.kernel import PART_OF_K, SIZES, is_stepped, step_of
from tilewright.ir.program import Program
from tilewright.ir.work import Problems, SplitK, Walk
from tilewright.problem.block_scales import BlockScaleName
from tilewright.problem.gemm import Dim, OperandName
from tilewright.problem.values import AddedName

K_FIRST, K_SIZE = Var("k_first"), Var("k_size")
"""The first k of an item and how many it sums, where items share out k."""

PART, PARTS = Var("k_part"), Var("k_parts")
"""The number of an item among those that share out the k of one tile of C, and how many these are."""

M_FIRST, M_SIZE = Var("m_first"), Var("m_size")
"""The first row of an item's group and how many it has, where groups are ragged along m."""

PROBLEM = Var("problem_number")
"""The number of an item's problem."""


@dataclass(frozen=True, slots=True)
class Located:
    """IR values of the running work item.

    size: elements of a dimension that the item's problem, or its range of k, has. origin: the index of the first one in
    the matrices; 0 where not named. end: the index behind the last one.
    """

    size: dict[Dim, Expr] = field(default_factory=lambda: dict(SIZES))
    origin: dict[Dim, Expr] = field(default_factory=dict)
    end: dict[Dim, Expr] = field(default_factory=lambda: dict(SIZES))


def located(program: Program, env: Env = HERE) -> Located:
    """The values of the running work item of a program."""
    if program.problems.along_m:
        first, size = env[M_FIRST.name], env[M_SIZE.name]
        return Located({**SIZES, "m": size}, {"m": first}, {**SIZES, "m": first + size})
    if program.problems is Problems.GROUPED_K:
        first, size = env[K_FIRST.name], env[K_SIZE.name]
        return Located({**SIZES, "k": size}, {"k": first}, {**SIZES, "k": first + size})
    if program.split_k in (SplitK.NONE, SplitK.RANKS):
        return Located()
    is_equal = program.split_k.by_items and program.walk is Walk.PERSISTENT
    first, size = env[K_FIRST.name], equal_part() if is_equal else env[K_SIZE.name]
    # Copies that run ahead load nothing of the next part, but where they run on into the item that comes next.
    end = first + size if program.walk is Walk.ONE_TILE else SIZES["k"]
    return Located({**SIZES, "k": size}, {"k": first}, {**SIZES, "k": end})


def equal_part() -> Expr:
    """How many products each item of a persistent kernel sums, the last one of a tile as well: behind K are zeros. So
    items use the rings equally often, and uses are counted by a product."""
    return Select(binary(Op.EQ, SIZES["k"], 0), ZERO, PART_OF_K)


def size_of(program: Program, dim: Dim) -> Expr:
    """Elements of a dimension that the running work item covers, all tiles of its problem together."""
    return located(program).size[dim]


def origin_of(program: Program, dim: Dim, env: Env = HERE) -> Expr:
    """The index at which the work item's problem, or its range of k, begins: of the running one, or that of `env`."""
    return located(program, env).origin.get(dim, ZERO)


def end_of(program: Program, dim: Dim) -> Expr:
    """The index behind the last one of the running work item's problem."""
    return located(program).end[dim]


def matrix_of(program: Program, name: OperandName | AddedName | BlockScaleName, env: Env = HERE) -> tuple[Expr, ...]:
    """Which of several matrices an operand of the running work item is; nothing where there is only one."""
    number: list[Expr] = []
    if is_stepped(program.problems, program.gemm.operand(name)):
        number.append(env[PROBLEM.name])
    if program.split_k is SplitK.PARTIALS and name == "C":
        number = [number[0] * PARTS + env[PART.name]] if number else [env[PART.name]]
    return tuple(number)


def base_of(program: Program, name: OperandName | AddedName | BlockScaleName, number: Expr) -> Expr:
    """The element at which matrix `number` of an operand begins."""
    wide = Cast(I64, number)
    if name == "C" and program.split_k is SplitK.PARTIALS:  # one matrix below the other
        return Binary(Op.MUL, Binary(Op.MUL, wide, SIZES["m"]), Var(program.gemm.operand("C").leading))
    return Binary(Op.MUL, wide, Var(step_of(name), I64))
