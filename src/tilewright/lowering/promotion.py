"""Promotion of a running sum: the sum of a group of k is added to registers of f32, and starts anew.

    sum = 0
    for k_tile:                             # the loop whose iterations are counted
        products -> sum_group               # the first of a group overwrites it, or it has been set to zero
        if (k_tile + 1) % iterations == 0:  sum += sum_group
    if K_tiles % iterations != 0:           sum += sum_group

MMAs that run beside the threads must have ended before their registers are read.
"""

from __future__ import annotations

from tilewright.ir.accumulators import Promotion
from tilewright.ir.async_stmt import WgmmaCommit, WgmmaFence, WgmmaWait
from tilewright.ir.expr import Binary, Expr, Fma, Load, Op, Ref, Select, binary, real
from tilewright.ir.finish import as_format
from tilewright.ir.stmt import Assign, Body, If
from tilewright.lowering.block_scales import scale_of_running
from tilewright.lowering.kernel_parts import if_any
from tilewright.lowering.products import reads_shared
from tilewright.lowering.sums import Sums
from tilewright.problem.gemm import Product


def counted_by(sums: Sums | None, loop: str) -> Promotion | None:
    """The promotion of a sum, if it counts the iterations of this loop."""
    promotion = None if sums is None else sums.accumulator.promotion
    return promotion if promotion is not None and promotion.loop == loop else None


def promote(sums: Sums) -> Body:
    """`sum += sum_group`, times its scales, in each register; a group that the next product does not overwrite is set
    to zero."""
    place, group = Ref(sums.buffer, sums.index), sums.in_group(sums.index)
    value = as_format(Load(group.buffer, group.index), place.buffer.dtype)
    before, scale = Load(place.buffer, place.index), scale_of_running(sums)
    total = Binary(Op.ADD, before, value) if scale is None else Fma(value, scale, before)
    body: Body = (Assign(place, total, origin=sums.name),)
    if not reads_shared(sums.program):
        body = (*body, Assign(group, real(0, group.buffer.dtype), origin=sums.name))
    return sums.over_registers(body)


def rescaled(sums: Sums, factor: float) -> Body:
    """The terms so far of each sum of a group times a power of two, and 0 for NaN: what infinities and NaN are worth is
    said by the product that follows."""
    group = sums.in_group(sums.index)
    value = Load(group.buffer, group.index)
    scaled = value if factor == 1 else Binary(Op.MUL, value, real(factor))
    told = Select(Binary(Op.EQ, value, value), scaled, real(0.0))
    return sums.over_registers((Assign(group, told, origin=sums.name),))


def before_product(sums: Sums, product: Product) -> Body:
    """In a run of wgmma, in front of the products of a stage that change what was summed before."""
    if not product.rescale:
        return ()
    ended = (WgmmaCommit(), WgmmaWait(0, sums.first, origin=sums.name))
    return (*ended, *rescaled(sums, product.rescale), WgmmaFence())


def at_group_ends(promotion: Promotion, number: Expr, body: Body, otherwise: Body = ()) -> Body:
    """`body` at the end of iteration `number` where it ends a group, else `otherwise`."""
    if promotion.iterations == 1:
        return body
    return (If(binary(Op.EQ, binary(Op.MOD, number + 1, promotion.iterations), 0), body, otherwise),)


def after_iteration(sums: Sums, promotion: Promotion, number: Expr) -> Body:
    """Behind iteration `number` of the products of threads, or of MMAs that have ended."""
    return at_group_ends(promotion, number, promote(sums))


def among_wgmma(sums: Sums, promotion: Promotion, number: Expr) -> Body:
    """Behind iteration `number` of a loop inside a run of wgmma: those of the group are waited for, others follow."""
    wait = (WgmmaCommit(), WgmmaWait(0, sums.first, origin=sums.name))
    return at_group_ends(promotion, number, (*wait, *promote(sums), WgmmaFence()))


def left_over(sums: Sums, loop: str, count: Expr) -> Body:
    """Behind `count` iterations of a loop: the last group, where it has fewer."""
    promotion = counted_by(sums, loop)
    if promotion is None or promotion.iterations == 1:
        return ()
    return if_any(binary(Op.NE, binary(Op.MOD, count, promotion.iterations), 0), promote(sums))
