"""The work items of all blocks of a hybrid kernel, found by computing its scheduler's statements for each block."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.lowering.test_ordered_sums import KINDS, schedule_at
from tilewright.dtypes import BF16
from tilewright.ir.expr import Const, Expr, Load, Ref
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, If, Let, Move
from tilewright.ir.visit import rebuild, simplify, sub_exprs, substitute
from tilewright.ir.work import SplitK
from tilewright.lowering.coordinates import K_FIRST, K_SIZE
from tilewright.lowering.scheduler import ITEM, USES, Scheduler
from tilewright.problem import Gemm
from tilewright.toolchain import build


class Statements:
    """Runs `Let`, `Assign` and `Move` on integers."""

    def __init__(self, **names: int) -> None:
        self.names: dict[str, Expr] = {name.replace("_x", ".x"): Const(value) for name, value in names.items()}
        self.memory: dict[tuple[str, int], Expr] = {}

    def value(self, expr: Expr) -> int:
        found = simplify(substitute(self.read(expr), self.names))
        assert isinstance(found, Const), found
        return int(found.value)

    def read(self, expr: Expr) -> Expr:
        if isinstance(expr, Load):
            return self.memory[expr.buffer.name, self.value(expr.index[0])]
        return rebuild(expr, tuple(map(self.read, parts))) if (parts := sub_exprs(expr)) else expr

    def place(self, ref: Ref) -> tuple[str, int]:
        return ref.buffer.name, self.value(ref.index[0])

    def run(self, body: Body) -> None:
        for stmt in body:
            match stmt:
                case Let():
                    self.names[stmt.name] = Const(self.value(stmt.value))
                case Assign():
                    self.memory[self.place(stmt.dst)] = Const(self.value(stmt.value))
                case Move():
                    self.memory[self.place(stmt.dst)] = self.memory[self.place(stmt.src)]
                case If():
                    self.run(stmt.then if self.value(stmt.condition) else stmt.otherwise)
                case Alloc() | Barrier():
                    pass
                case _:
                    raise AssertionError(stmt)


def items_of(scheduler: Scheduler, names: dict[str, int], block: int) -> list[tuple[int, int, int, int]]:
    """Of each item of a block: its tile, its first k, how many it sums, uses of the ring before it."""
    run = Statements(**names, blockIdx_x=block, threadIdx_x=0)
    run.run(scheduler.prepare())
    found = []
    for number in range(run.value(scheduler.items)):
        run.run(scheduler._in_range(Const(number)))
        found.append(tuple(run.value(run.names[name]) for name in (ITEM, K_FIRST.name, K_SIZE.name, USES)))
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["ping-pong", "cluster"])
@pytest.mark.parametrize("k", [1, 64, 200, 1000])
@pytest.mark.parametrize("blocks", [2, 4, 6, 14])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 7, 13])
def test_items_cover_every_tile_once_and_wait_for_none_that_waits_for_them(
    rows: int, blocks: int, k: int, name: str
) -> None:
    gemm = Gemm(128 * rows - 1, 128 * 3, k, BF16, out=BF16)
    program = build(gemm, schedule_at(gemm, KINDS[name])).program
    scheduler = Scheduler(replace(program, split_k=SplitK.ORDERED, stream_k=True, whole_waves=True))
    size = scheduler.plan.cluster
    sizes = {"M": gemm.m, "N": gemm.n, "K": k, "K_part": 64, "gridDim_x": blocks}
    items = [items_of(scheduler, sizes, block) for block in range(0, blocks, size)]
    covered = Counter(
        (tile, at // 64) for own in items for tile, first, count, _ in own for at in range(first, first + count, 64)
    )
    tiles = -(-rows // 1) * 3 if size == 1 else Statements(**sizes, blockIdx_x=0).value(scheduler.tiles)
    assert covered == Counter((tile, at) for tile in range(tiles) for at in range(-(-k // 64)))
    for own in items:
        uses = [-(-count // 64) for _, _, count, _ in own]
        assert [before for *_, before in own] == [sum(uses[:at]) for at in range(len(uses))]
    assert all(tile < 2 * len(items) for own in items for tile, _, count, _ in own if count < k)
    ended: set[tuple[int, int]] = set()  # a tile, and the k up to which it is summed
    left = [list(own) for own in items]
    while any(left):
        ready = [own for own in left if own and (own[0][1] == 0 or (own[0][0], own[0][1]) in ended)]
        assert ready, "all blocks wait"
        for own in ready:
            tile, first, count, _ = own.pop(0)
            ended.add((tile, first + count))
