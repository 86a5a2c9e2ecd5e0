"""Ladder `swizzle`: from a double-buffered kernel to conflict-free reads, asynchronous copies and block order."""

from tilewright.ladders.rung import Rung
from tilewright.ladders.swizzle.async_copy import ASYNC_COPY
from tilewright.ladders.swizzle.base import BASE
from tilewright.ladders.swizzle.block_order import BLOCK_ORDER
from tilewright.ladders.swizzle.conflict_free import CONFLICT_FREE
from tilewright.ladders.swizzle.opt import OPT

SWIZZLE: tuple[Rung, ...] = (BASE, OPT, CONFLICT_FREE, ASYNC_COPY, BLOCK_ORDER)
