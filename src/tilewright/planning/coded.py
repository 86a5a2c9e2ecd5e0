"""Products with a coded weight: which kernel, by the clocks of the busiest SM; and what makes the codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilewright.device.spec import DeviceSpec
from tilewright.errors import LaunchError
from tilewright.kernels.coded import EIGHT, MOST_ROWS, CodedConfig
from tilewright.kernels.coded_body import PAD
from tilewright.kernels.coded_wgmma import CodedWgmmaConfig
from tilewright.kernels.weight_coding import WeightCodingConfig
from tilewright.planning.coded_wgmma import chosen_wgmma, wgmma_clocks
from tilewright.planning.kernels import Kernels
from tilewright.planning.plan import Place, Plan, Role, Step
from tilewright.problem.coded_product import TILE, CodedProduct
from tilewright.problem.weight_coding import WeightCoding
from tilewright.units import KIB, ceil_div

_SUMS = 128
"""Rows of A times tiles of a warp, at most: so many registers of a lane hold sums, of a group and of all groups."""

_TILES = 8
"""Of a warp at most."""

_BLOCK_TILES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28)
_MOST_WARPS = 16
_WARPS_K = (1, 2, 4, 8, 16)
_OWN_K = (128, 64)
_STAGES = (8, 7, 6, 5, 4, 3, 2)
_RING_BYTES = 184 * KIB
"""Of shared memory that a block alone on an SM takes at most: the fastest kernels that were timed take less."""
_TOGETHER = (1, 2, 3, 4)
"""Blocks of an SM that rings are sized for."""

_UNPACK = {4: 9, 8: 18}
"""Instructions that unpack the codes of a lane for one multiplication, by the bits of a code."""

_MULTIPLY = 2.0
"""Issue slots of a multiplication."""

_DRAM_SHARE = 0.87
"""Of the nominal bandwidth, of a kernel that only reads."""

# Fitted to 96 kernels of six problems on an H200 (m = 1, 16 and 64, int4); times differ by 6 % (root mean square).
_ISSUE_CLK = 0.88
"""Of an instruction, of a scheduler."""
_LOAD_A = 11.0
"""Issue slots of an ldmatrix, with the wait of the multiplications behind it."""
_COPY = 35.0
"""Issue slots of a copy of 16 bytes a lane: its address, its guard, and its own."""
_STAGE_CLK = 410.0
"""Of a stage beside its instructions: the wait for copies and the barrier."""
_SM_BYTES_PER_CLK = 23.6
_LATENCY_CLK = 2260.0
"""From a copy to its use, all SMs copying."""
_BLOCK_CLK = 4770.0
"""Of a launch's start and end, and of each further block in the place of one that has ended."""
_SUM_CLK = 0.334
"""Of a sum of a warp that goes through shared memory."""
_CROWD = 0.578
"""Of a block, beside those that an SM needs to have where it has room for more: the scheduler does not spread the
blocks of kernels that overlap evenly."""

_CHOSEN_MORE = 1.06
"""What the kernels of mma.sync that are chosen take, over the estimate: the mean of fourteen problems on an H200. By it
they are compared with those of wgmma, which were fitted apart."""


def coded_plan(kernels: Kernels, problem: CodedProduct, config: CodedConfig | CodedWgmmaConfig | None = None) -> Plan:
    """The launch of a product: A at `Place.A`, codes at `B`, scales at `SCALE_B`, C at `OUT`, the bias at `BIAS`,
    all of which begin at multiples of 16 bytes.

    Raises LaunchError where the GPU, or no kernel, can compute it.
    """
    asked = config or chosen_config(problem, kernels.spec)
    chosen: CodedConfig | CodedWgmmaConfig = replace(asked, overlapped=kernels.overlaps)
    reasons = chosen.reasons_against(problem, kernels.spec)
    if reasons:
        raise LaunchError(f"A product of {problem.m} rows with a coded weight cannot run: {reasons[0]}.")
    places = {"A": Place.A, "codes": Place.B, "C": Place.OUT, "scales": Place.SCALE_B, "scale_n": Place.SCALE_B}
    places["bias"] = Place.BIAS
    pointers = tuple((int(places[matrix.name]), 0) for matrix in problem.matrices)
    launch = kernels.auxiliary(chosen, problem)
    return Plan((Step(launch, pointers, Role.PRODUCT, "C", problem.compulsory_bytes),), 0, words_of(chosen, problem))


def words_of(config: CodedConfig | CodedWgmmaConfig, problem: CodedProduct) -> str:
    """What runs, for people."""
    codes, c = problem.weight.codes, config
    if isinstance(c, CodedWgmmaConfig):
        tile, shared = f"{c.rows}x{c.columns}", f"clusters of {c.cluster}, " if c.cluster > 1 else ""
        ends = f"{c.own_k} of k, {c.stages} stages, {c.steps} steps, stores of {c.vector}"
        return f"{codes} wgmma {tile}, {c.groups_n}x{c.groups_k} warpgroups, {shared}{ends}"
    return f"{codes} mma {c.rows}x{c.columns}, {c.warps_n}x{c.warps_k} warps, {c.own_k} of k, {c.stages} stages"


def coding_plan(kernels: Kernels, problem: WeightCoding) -> Plan:
    """The launch that makes codes at `Place.OUT` and scales at `Place.SCALE_B` of the weight at `Place.A`."""
    launch = kernels.auxiliary(WeightCodingConfig(), problem)
    pointers = (int(Place.A), 0), (int(Place.OUT), 0), (int(Place.SCALE_B), 0)
    return Plan((Step(launch, pointers, Role.QUANTIZE, problem.title, problem.compulsory_bytes),), 0, problem.title)


def chosen_config(problem: CodedProduct, spec: DeviceSpec) -> CodedConfig | CodedWgmmaConfig:
    """The kernel of a problem: whose busiest SM takes the fewest clocks."""
    best = min(candidates(problem, spec), key=lambda config: clocks(config, problem, spec))
    by_wgmma = chosen_wgmma(problem, spec)
    if by_wgmma is None:
        return best
    fewest = _CHOSEN_MORE * clocks(best, problem, spec)
    return by_wgmma if wgmma_clocks(by_wgmma, problem, spec) < fewest else best


def candidates(problem: CodedProduct, spec: DeviceSpec) -> Iterator[CodedConfig]:
    """Kernels worth trying. A warp has as many tiles as its registers hold: each of them uses the same part of A."""
    smallest = next((r for r in (EIGHT, TILE) if problem.m <= r), 2 * TILE)
    found = False
    for rows, block_tiles in product((smallest, MOST_ROWS) if problem.m > 2 * TILE else (smallest,), _BLOCK_TILES):
        tiles = max(t for t in range(1, min(_TILES, _SUMS // rows) + 1) if block_tiles % t == 0)
        for warps_k, own_k in product(_WARPS_K, _OWN_K):
            config = CodedConfig(rows, tiles, block_tiles // tiles, warps_k, own_k)
            if _has_good_warps(config, spec) and (warps_k == 1 or config.stage_k <= problem.k):
                for ring in _rings(config, problem, spec):
                    found = True
                    yield ring
    if not found:
        yield CodedConfig(smallest, 1, 4, 1, 64, 2)


def _has_good_warps(config: CodedConfig, spec: DeviceSpec) -> bool:
    """A warp for every scheduler, two where a block has more tiles than a warp may; no more than registers hold."""
    warps = config.warps_n * config.warps_k
    least = 1 if config.block_tiles <= _TILES else 2
    fits = warps <= _MOST_WARPS and _registers(config) <= spec.max_registers_per_block
    return fits and warps >= spec.schedulers_per_sm and ceil_div(warps, spec.schedulers_per_sm) >= least


def _registers(config: CodedConfig) -> float:
    """Of a block, about: those of the sums, their operands, and the rest."""
    return config.threads * (38 + 1.55 * config.rows * config.tiles)


def _rings(config: CodedConfig, problem: CodedProduct, spec: DeviceSpec) -> Iterator[CodedConfig]:
    """The configuration with the deepest rings that leave room for one block in an SM, for two, and so on."""
    made: set[int] = set()
    for together in _TOGETHER:
        room = spec.shared_bytes_per_sm // together - spec.reserved_shared_bytes_per_block
        room = min(room, _RING_BYTES, spec.max_shared_bytes_per_block)
        deep = (replace(config, stages=stages) for stages in _STAGES)
        ring = next((one for one in deep if one.shared_bytes(problem) <= room), None)
        if ring is not None and ring.stages not in made and not ring.reasons_against(problem):
            made.add(ring.stages)
            yield ring


def clocks(config: CodedConfig, problem: CodedProduct, spec: DeviceSpec) -> float:
    """Clocks of the busiest SM, about: blocks one after the other, each stage as long as the slowest of its
    instructions, its bytes, and the latency that the stages before it hide."""
    weight, c = problem.weight, config
    blocks = ceil_div(weight.tiles, c.block_tiles) * ceil_div(max(problem.m, 1), c.rows)
    needed = ceil_div(blocks, spec.sm_count)
    room = _blocks_of_sm(config, problem, spec)
    beside = min(room, needed) + (_CROWD if room > needed else 0.0)
    codes = c.columns * c.stage_k * weight.bytes / (weight.n * weight.k)
    a = min(problem.m, c.rows) * c.stage_k * problem.dtype.bytes
    dram_bytes_per_clk = _DRAM_SHARE * spec.dram_gb_per_s * 1e3 / spec.tensor_clock_mhz / min(blocks, spec.sm_count)
    memory = beside * max((codes + a) / _SM_BYTES_PER_CLK, codes / dram_bytes_per_clk)
    warps = ceil_div(c.warps_n * c.warps_k, spec.schedulers_per_sm)
    issued = beside * warps * _instructions(config, problem) * _ISSUE_CLK + _STAGE_CLK
    stage = max(issued, memory, _LATENCY_CLK / (c.stages - 1))
    sums = beside * c.rows * c.columns * (c.warps_k + 1) * _SUM_CLK
    return ceil_div(needed, room) * (_BLOCK_CLK + ceil_div(problem.k, c.stage_k) * stage + sums)


def _blocks_of_sm(config: CodedConfig, problem: CodedProduct, spec: DeviceSpec) -> int:
    """Blocks that an SM has room for."""
    shared = spec.shared_bytes_per_sm // (config.shared_bytes(problem) + spec.reserved_shared_bytes_per_block)
    warps = spec.max_warps_per_sm // (config.warps_n * config.warps_k)
    return max(1, min(shared, warps, int(spec.registers_per_sm / _registers(config))))


def _instructions(config: CodedConfig, problem: CodedProduct) -> float:
    """Issue slots of a warp in a stage."""
    steps, across = config.own_k // TILE, config.rows // EIGHT
    groups = ceil_div(config.own_k, problem.weight.group) if problem.weight.group else 1
    multiplied = config.tiles * (_UNPACK[problem.weight.codes.bits] + across * _MULTIPLY) + _LOAD_A * across / 2
    promoted = groups * 8 * config.tiles * across
    copied = config.rows * config.stage_k / PAD / config.threads + config.tiles * config.own_k / problem.weight.unit
    return steps * multiplied + promoted + _COPY * copied
