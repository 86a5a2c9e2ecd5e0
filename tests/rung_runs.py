"""Rungs as tests see them: all of them by name, built and simulated at any shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tilewright.dtypes import TF32, Array
from tilewright.ir.kernel import Variant
from tilewright.ladders import LADDERS, Rung
from tilewright.problem import Gemm, Operands, Order, make_operands
from tilewright.simulator import Run
from tilewright.toolchain import Build, build, run_on_simulator

RUNGS: tuple[Rung, ...] = tuple(rung for ladder in LADDERS.values() for rung in ladder)

NEEDS_K_MAJOR = ("te/4", "te/5")
"""Rungs whose tiles lie as their operands do, so that 16-byte fragments need A and B with k as the slow index."""

ORDERS = [(a, b, c) for a in Order for b in Order for c in Order]


def rungs(*ladders: str) -> list[Any]:
    """The rungs of some ladders (none named: of all) as test parameters."""
    return [pytest.param(rung, id=rung.name) for rung in RUNGS if not ladders or rung.ladder in ladders]


def by_boxes(rung: Rung) -> bool:
    """Whether TMA loads a rung's tiles: it takes rows that begin at multiples of 16 bytes."""
    return rung.ladder == "hopper" and rung.label != "1"


def laid_out(rung: Rung, gemm: Gemm) -> Gemm:
    """The problem with rows as far apart as a rung takes them."""
    if not by_boxes(rung):
        return gemm
    each = {o.leading: 16 // o.dtype.bytes for o in gemm.operands}
    return replace(gemm, **{name: -(-getattr(gemm, name) // n) * n for name, n in each.items()})


def whole_tiles(rung: Rung) -> tuple[int, int, int]:
    """A size that is a multiple of a rung's tiles, for which it makes its claims."""
    if rung.name == "te/0":
        return 256, 1024, 16
    return (256, 768, 64) if rung.ladder == "hopper" else (256, 256, 64)


def takes(rung: Rung, gemm: Gemm) -> bool:
    """Whether a rung is for these storage orders and formats."""
    if rung.ladder == "hopper":
        rounds = by_boxes(rung) or gemm.multiplied is not TF32  # TMA rounds, ordinary copies do not
        return rounds and (not gemm.multiplies_tf32 or (gemm.a is Order.ROW and gemm.b is Order.COL))
    return rung.name not in NEEDS_K_MAJOR or (gemm.a is Order.COL and gemm.b is Order.ROW)


def variants() -> Iterator[Variant]:
    """Every set of assumptions; alignments between the extremes only without others, to save time."""
    for exact in ("", "m", "n", "k", "mn", "mk", "nk", "mnk"):
        for alignment_bytes in (1, 16) if exact else (1, 4, 8, 16):
            for near in (False, True):
                yield Variant(frozenset(exact), alignment_bytes, near)  # type: ignore[arg-type]


def simulated(
    rung: Rung, gemm: Gemm, *, variant: Variant | None = None, **options: Any
) -> tuple[Operands, Array, Run, Build]:
    """A rung on the simulator with every detector on: operands, C, the run and the build."""
    gemm = laid_out(rung, gemm)
    operands = make_operands(gemm)
    built = build(gemm, rung, variant=variant)
    computed, run = run_on_simulator(built, operands, **options)
    return operands, computed, run, built
