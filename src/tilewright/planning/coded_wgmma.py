"""Products with a coded weight by wgmma: the kernels worth trying, and the clocks of the busiest SM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilewright.device.spec import DeviceSpec
from tilewright.ir.kernel import WIDEST_BYTES
from tilewright.ir.register_budgets import budgets
from tilewright.kernels.coded_wgmma import MOST_ROWS, CodedWgmmaConfig
from tilewright.kernels.coded_wgmma_body import ATOM, needed_registers
from tilewright.problem.coded_product import TILE, CodedProduct
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

_MOST_TOGETHER = 2
"""Blocks of an SM at most that registers are shared out for."""

# Fitted to 79 kernels of twelve problems on an H200 (m = 1, 16, 32, 64; int4 and e4m3 in groups of 128): times differ
# by 4.1 % (root mean square).
_STEP_CLK = {4: 20.8, 8: 31.9}
"""Of 16 of k of a warpgroup that no row of A adds to: unpacking, and starting a wgmma; by the bits of a code."""
_ROWS_CLK = 2.9
"""Of 16 of k, of each 8 rows of A: the multiplication, and adding its sums to those of all groups."""
_GROUP_CLK = 38.0
"""Of a group: the wait for its last multiplication, the load of codes and scales."""
_ALONE = 2.225
"""Clocks of a warpgroup that waits for itself, over those that it takes from others on its SM."""
_SM_BYTES_PER_CLK = 31.0
_DRAM_SHARE = 0.82
"""Of the nominal bandwidth, that the weight is read with by all SMs."""
_BLOCK_CLK = 5660.0
"""Of a launch's start and end, and of each further block in the place of one that has ended."""
_SUM_CLK = 0.035
"""Of a sum that goes through shared memory, of a part of k."""
_CROWD = 0.92
"""Of a block, beside those that an SM needs to have where it has room for more: blocks of kernels that overlap are not
spread evenly."""


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
    for together in range(1, _MOST_TOGETHER + 1):
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
        return round(max(of_sm, _memory_clocks(problem, spec))), round(of_sm), -config.stages

    return min(wgmma_candidates(problem, spec), key=order, default=None)


def wgmma_clocks(config: CodedWgmmaConfig, problem: CodedProduct, spec: DeviceSpec) -> float:
    """Clocks of the product, about: of its busiest SM, or of reading the weight where all SMs take longer for it."""
    return max(sm_clocks(config, problem, spec), _memory_clocks(problem, spec))


def _memory_clocks(problem: CodedProduct, spec: DeviceSpec) -> float:
    bytes_per_clk = _DRAM_SHARE * spec.dram_gb_per_s * 1e3 / spec.tensor_clock_mhz
    return _BLOCK_CLK + problem.weight.bytes / bytes_per_clk


def sm_clocks(config: CodedWgmmaConfig, problem: CodedProduct, spec: DeviceSpec) -> float:
    """Clocks of the busiest SM, about: blocks one after the other. A stage takes as long as the longest of its bytes,
    of the work of all warpgroups of the SM, and of one warpgroup that waits for itself."""
    weight, c = problem.weight, config
    blocks = ceil_div(problem.n, c.columns) * ceil_div(max(problem.m, 1), c.rows) * c.cluster
    needed, room = ceil_div(blocks, spec.sm_count), blocks_of_sm(c, problem, spec)
    beside = min(room, needed) + (_CROWD if room > needed else 0.0)
    codes = c.columns * c.stage_k * weight.bytes / (weight.n * weight.k)
    a = min(problem.m, c.rows) * c.stage_k * problem.dtype.bytes
    work = warpgroup_clocks(c, problem)
    stage = max(beside * (codes + a) / _SM_BYTES_PER_CLK, beside * c.consumers * work, _ALONE * work)
    stages = ceil_div(ceil_div(problem.k, c.stage_k), c.cluster)
    sums = beside * c.rows * c.columns * (c.groups_k + c.cluster) * _SUM_CLK
    return ceil_div(needed, room) * (_BLOCK_CLK + stages * stage + sums)


def warpgroup_clocks(config: CodedWgmmaConfig, problem: CodedProduct) -> float:
    """Of an SM, that a warpgroup takes from others in a stage."""
    group = problem.weight.group or config.own_k
    step = _STEP_CLK[problem.weight.codes.bits] + _ROWS_CLK * config.rows / _CORE_ROWS
    return config.own_k / TILE * step + config.own_k / group * _GROUP_CLK


def blocks_of_sm(config: CodedWgmmaConfig, problem: CodedProduct, spec: DeviceSpec) -> int:
    """Blocks that an SM has room for."""
    shared = spec.shared_bytes_per_sm // (config.shared_bytes(problem) + spec.reserved_shared_bytes_per_block)
    needed = needed_registers(config.rows, problem.weight.codes)
    enough = budgets(config.threads, _MOST_TOGETHER)[1] >= needed
    return max(1, min(shared, _MOST_TOGETHER if enough else 1))
