"""What products and collectives take that nothing overlaps: what the plans of ranks are held against."""

from __future__ import annotations

from tilewright.distributed.overlap import LAUNCH_US, Costs, Work
from tilewright.units import ceil_div


def alone_us(work: Work, costs: Costs) -> float:
    """The time of the product of all rows, without any communication."""
    count, each = costs.tiles(sum(work.rows), work)
    return LAUNCH_US + ceil_div(count, costs.sms) * each


def in_turn_us(gathers: bool, work: Work, costs: Costs) -> float:
    """The time of a collective and a product, one after the other."""
    width = work.k * work.element_bytes if gathers else work.columns * work.result_bytes
    others = sum(work.rows) - min(work.rows)
    return alone_us(work, costs) + costs.link.collective_us + others * width / costs.link.collective_gb_per_s / 1e3
