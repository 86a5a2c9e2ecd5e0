"""Products with a coded weight by wgmma: the kernels worth trying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilewright.device.spec import DeviceSpec
from tilewright.ir.kernel import WIDEST_BYTES
from tilewright.kernels.coded_wgmma import MOST_ROWS, CodedWgmmaConfig
from tilewright.kernels.coded_wgmma_body import ATOM
from tilewright.planning.cost.coded import MOST_TOGETHER, memory_clocks, sm_clocks
from tilewright.problem.coded_product import CodedProduct
from tilewright.units import KIB, ceil_div

_CORE_ROWS = 8

_WARPGROUPS = ((2, 2), (4, 1), (2, 1), (1, 2), (1, 1))
"""That share out columns and k. Three of columns, and four of k, were slower in every problem that was timed;
with 8 rows, so were two of k on the whole."""

_STAGES = (6, 5, 4, 3)
_CLUSTERS = (1, 2, 4)
_VECTORS = (4, 2, 1)
_STEPS = 2
_RING_BYTES = 130 * KIB
"""Of a block's ring at most, but of the fewest stages. Deeper rings, and those of 7 and 8 stages, were slower."""

_LEAST_ROWS = {4: 9, 8: 1}
"""By the bits of a code, of a product: with fewer, these kernels have not been timed."""


def wgmma_candidates(problem: CodedProduct, spec: DeviceSpec) -> Iterator[CodedWgmmaConfig]:
    """Kernels worth trying for up to 128 rows, on GPUs with wgmma: all rows in a block, or half of them."""
    weight = problem.weight
    if not _LEAST_ROWS[weight.codes.bits] <= problem.m <= MOST_ROWS:
        return
    vector = next(one for one in _VECTORS if _is_stored_in(one, problem))
    whole = ceil_div(problem.m, _CORE_ROWS) * _CORE_ROWS
    halves = (ceil_div(whole, 2 * _CORE_ROWS) * _CORE_ROWS,) if whole > ATOM else ()
    most = max(weight.group, 2 * ATOM)
    for rows, warpgroups, cluster in product((whole, *halves), _WARPGROUPS, _CLUSTERS):
        if warpgroups[1] > 1 and rows <= _CORE_ROWS:
            continue
        config = CodedWgmmaConfig(rows, *warpgroups, most, min(_STAGES), cluster, _STEPS, vector)
        if config.stage_k * cluster <= max(problem.k, config.stage_k) and not config.reasons_against(problem, spec):
            yield from _rings(config, problem, spec)


def _is_stored_in(vector: int, problem: CodedProduct) -> bool:
    return not (problem.n % vector or problem.ldc % vector) and vector * problem.out.bytes <= WIDEST_BYTES


def _rings(config: CodedWgmmaConfig, problem: CodedProduct, spec: DeviceSpec) -> Iterator[CodedWgmmaConfig]:
    """The configuration with the deepest rings that leave room for one block in an SM, and for two."""
    made: set[int] = set()
    each = config.stage_bytes(problem)
    least = min(_STAGES) * each
    for together in range(1, MOST_TOGETHER + 1):
        room = spec.shared_bytes_per_sm // together - spec.reserved_shared_bytes_per_block
        deep = (replace(config, stages=stages) for stages in _STAGES if stages * each <= max(_RING_BYTES, least))
        ring = next((one for one in deep if one.shared_bytes(problem) <= room), None)
        if ring is not None and ring.stages not in made and not ring.reasons_against(problem, spec):
            made.add(ring.stages)
            yield ring


def chosen_wgmma(problem: CodedProduct, spec: DeviceSpec) -> CodedWgmmaConfig | None:
    """The kernel that takes the fewest clocks, of several the one whose SM takes the fewest, with most stages; None if
    there is none."""

    def order(config: CodedWgmmaConfig) -> tuple[int, int, int]:
        of_sm = sm_clocks(config, problem, spec)
        return round(max(of_sm, memory_clocks(problem, spec))), round(of_sm), -config.stages

    return min(wgmma_candidates(problem, spec), key=order, default=None)
