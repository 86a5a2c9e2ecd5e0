"""How long products with a coded weight take: clocks of the busiest SM, whose blocks run one round after the other, a
stage as long as the slowest of what happens in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tilewright.device.spec import DeviceSpec
from tilewright.ir.register_budgets import budgets
from tilewright.kernels.coded import EIGHT, PAD, CodedConfig
from tilewright.kernels.coded_wgmma import CodedWgmmaConfig
from tilewright.kernels.coded_wgmma_body import needed_registers
from tilewright.problem.coded_product import TILE, CodedProduct
from tilewright.units import ceil_div

Coded: TypeAlias = CodedConfig | CodedWgmmaConfig


@dataclass(frozen=True, slots=True)
class _Constants:
    """What was fitted for a family.

    crowd: of a block, beside those that an SM needs to have where it has room for more: the scheduler does not spread
    the blocks of kernels that overlap evenly. block_clk: of a launch's start and end, and of each further block in the
    place of one that has ended. sum_clk: of a sum of a warp that goes through shared memory, of a part of k.
    sm_bytes_per_clk: that an SM takes. dram_share: of the nominal bandwidth. chosen: what the kernels that are chosen
    take over the estimate, by which families that were fitted apart are compared.
    """

    crowd: float
    block_clk: float
    sum_clk: float
    sm_bytes_per_clk: float
    dram_share: float
    chosen: float = 1.0

    def dram_bytes_per_clk(self, spec: DeviceSpec) -> float:
        return self.dram_share * spec.dram_gb_per_s * 1e3 / spec.tensor_clock_mhz


# Fitted to 96 kernels of six problems on an H200 (m = 1, 16 and 64, int4); times differ by 6 % (root mean square).
# chosen: the mean of fourteen problems.
_MMA = _Constants(0.578, 4770.0, 0.334, 23.6, 0.87, 1.06)

_UNPACK = {4: 9, 8: 18}
"""Instructions that unpack the codes of a lane for one multiplication, by the bits of a code."""
_MULTIPLY = 2.0
"""Issue slots of a multiplication."""
_ISSUE_CLK = 0.88
"""Of an instruction, of a scheduler."""
_LOAD_A = 11.0
"""Issue slots of an ldmatrix, with the wait of the multiplications behind it."""
_COPY = 35.0
"""Issue slots of a copy of 16 bytes a lane: its address, its guard, and its own."""
_STAGE_CLK = 410.0
"""Of a stage beside its instructions: the wait for copies and the barrier."""
_LATENCY_CLK = 2260.0
"""From a copy to its use, all SMs copying."""

# Fitted to 79 kernels of twelve problems on an H200 (m = 1, 16, 32, 64; int4 and e4m3 in groups of 128): times differ
# by 4.1 % (root mean square).
_WGMMA = _Constants(0.92, 5660.0, 0.035, 31.0, 0.82)

_STEP_CLK = {4: 20.8, 8: 31.9}
"""Of 16 of k of a warpgroup that no row of A adds to: unpacking, and starting a wgmma; by the bits of a code."""
_ROWS_CLK = 2.9
"""Of 16 of k, of each 8 rows of A: the multiplication, and adding its sums to those of all groups."""
_GROUP_CLK = 38.0
"""Of a group: the wait for its last multiplication, the load of codes and scales."""
_ALONE = 2.225
"""Clocks of a warpgroup that waits for itself, over those that it takes from others on its SM."""

MOST_TOGETHER = 2
"""Blocks of an SM at most that registers are shared out for, of kernels of wgmma."""


def product_clocks(config: Coded, problem: CodedProduct, spec: DeviceSpec) -> float:
    """Of the product, about: of its busiest SM, or of reading the weight where all SMs take longer for it."""
    clocks = sm_clocks(config, problem, spec)
    if isinstance(config, CodedConfig):
        return _MMA.chosen * clocks
    return max(clocks, memory_clocks(problem, spec))


def memory_clocks(problem: CodedProduct, spec: DeviceSpec) -> float:
    """Of reading the weight, by kernels of wgmma."""
    return _WGMMA.block_clk + problem.weight.bytes / _WGMMA.dram_bytes_per_clk(spec)


def sm_clocks(config: Coded, problem: CodedProduct, spec: DeviceSpec) -> float:
    """Of the busiest SM: rounds of blocks, each of so many stages, and of the reduction of split-K."""
    c, weight = config, problem.weight
    at, parts, cluster = (_MMA, c.warps_k, 1) if isinstance(c, CodedConfig) else (_WGMMA, c.groups_k, c.cluster)
    blocks = ceil_div(problem.n, c.columns) * ceil_div(max(problem.m, 1), c.rows) * cluster
    needed, room = ceil_div(blocks, spec.sm_count), blocks_of_sm(c, problem, spec)
    beside = min(room, needed) + (at.crowd if room > needed else 0.0)
    codes = c.columns * c.stage_k * weight.bytes / (weight.n * weight.k)
    a = min(problem.m, c.rows) * c.stage_k * problem.dtype.bytes
    stage = beside * (codes + a) / at.sm_bytes_per_clk
    if isinstance(c, CodedConfig):
        of_dram = beside * (codes / (at.dram_bytes_per_clk(spec) / min(blocks, spec.sm_count)))
        warps = ceil_div(c.warps_n * c.warps_k, spec.schedulers_per_sm)
        issued = beside * warps * _instructions(c, problem) * _ISSUE_CLK + _STAGE_CLK
        stage = max(stage, of_dram, issued, _LATENCY_CLK / (c.stages - 1))
    else:
        work = _warpgroup_clocks(c, problem)
        stage = max(stage, beside * c.consumers * work, _ALONE * work)
    stages = ceil_div(ceil_div(problem.k, c.stage_k), cluster)
    sums = beside * c.rows * c.columns * (parts + cluster) * at.sum_clk
    return ceil_div(needed, room) * (at.block_clk + stages * stage + sums)


def blocks_of_sm(config: Coded, problem: CodedProduct, spec: DeviceSpec) -> int:
    """Blocks that an SM has room for."""
    c = config
    shared = spec.shared_bytes_per_sm // (c.shared_bytes(problem) + spec.reserved_shared_bytes_per_block)
    if isinstance(c, CodedConfig):
        warps = spec.max_warps_per_sm // (c.warps_n * c.warps_k)
        return max(1, min(shared, warps, int(spec.registers_per_sm / registers_of(c))))
    enough = budgets(c.threads, MOST_TOGETHER)[1] >= needed_registers(c.rows, problem.weight.codes)
    return max(1, min(shared, MOST_TOGETHER if enough else 1))


def registers_of(config: CodedConfig) -> float:
    """Of a block, about: those of the sums, their operands, and the rest."""
    return config.threads * (38 + 1.55 * config.rows * config.tiles)


def _instructions(config: CodedConfig, problem: CodedProduct) -> float:
    """Issue slots of a warp in a stage."""
    steps, across = config.own_k // TILE, config.rows // EIGHT
    groups = ceil_div(config.own_k, problem.weight.group) if problem.weight.group else 1
    multiplied = config.tiles * (_UNPACK[problem.weight.codes.bits] + across * _MULTIPLY) + _LOAD_A * across / 2
    promoted = groups * 8 * config.tiles * across
    copied = config.rows * config.stage_k / PAD / config.threads + config.tiles * config.own_k / problem.weight.unit
    return steps * multiplied + promoted + _COPY * copied


def _warpgroup_clocks(config: CodedWgmmaConfig, problem: CodedProduct) -> float:
    """Of an SM, that a warpgroup takes from others in a stage."""
    group = problem.weight.group or config.own_k
    step = _STEP_CLK[problem.weight.codes.bits] + _ROWS_CLK * config.rows / EIGHT
    return config.own_k / TILE * step + config.own_k / group * _GROUP_CLK
