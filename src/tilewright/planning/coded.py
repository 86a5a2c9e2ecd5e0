"""Products with a coded weight: which kernel, by the bytes that the busiest SM reads; and what makes the codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.device.spec import DeviceSpec
from tilewright.errors import LaunchError
from tilewright.kernels.coded import EIGHT, MOST_ROWS, CodedConfig
from tilewright.kernels.weight_coding import WeightCodingConfig
from tilewright.planning.kernels import Kernels
from tilewright.planning.plan import Place, Plan, Role, Step
from tilewright.problem.coded_product import TILE, CodedProduct
from tilewright.problem.weight_coding import WeightCoding
from tilewright.units import ceil_div

_MOST_WARPS = 16
_TILES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
"""Tiles of a block."""

_SM_SHARED_BYTES = 220 * 1024

_DRAM_BYTES_PER_CLK = 18.0
_L2_BYTES_PER_CLK = 38.0
"""Of an SM of an H200, all of them reading at once."""

_STAGES = (6, 4, 3, 2)


def coded_plan(kernels: Kernels, problem: CodedProduct, config: CodedConfig | None = None) -> Plan:
    """The launch of a product: A at `Place.A`, codes at `B`, scales at `SCALE_B`, C at `OUT`, the bias at `BIAS`.

    Raises LaunchError where the GPU, or no kernel, can compute it.
    """
    chosen = replace(config or chosen_config(problem, kernels.spec), overlapped=kernels.overlaps)
    reasons = chosen.reasons_against(problem, kernels.spec)
    if reasons:
        raise LaunchError(f"A product of {problem.m} rows with a coded weight cannot run: {reasons[0]}.")
    places = {"A": Place.A, "codes": Place.B, "C": Place.OUT, "scales": Place.SCALE_B, "scale_n": Place.SCALE_B}
    places["bias"] = Place.BIAS
    pointers = tuple((int(places[matrix.name]), 0) for matrix in problem.matrices)
    launch = kernels.auxiliary(chosen, problem)
    return Plan((Step(launch, pointers, Role.PRODUCT, "C", problem.compulsory_bytes),), 0, words_of(chosen, problem))


def words_of(config: CodedConfig, problem: CodedProduct) -> str:
    """What runs, for people."""
    codes, c = problem.weight.codes, config
    return f"{codes} mma {c.rows}x{c.columns}, {c.warps_n}x{c.warps_k} warps, {c.own_k} of k, {c.stages} stages"


def coding_plan(kernels: Kernels, problem: WeightCoding) -> Plan:
    """The launch that makes codes at `Place.OUT` and scales at `Place.SCALE_B` of the weight at `Place.A`."""
    launch = kernels.auxiliary(WeightCodingConfig(), problem)
    pointers = (int(Place.A), 0), (int(Place.OUT), 0), (int(Place.SCALE_B), 0)
    return Plan((Step(launch, pointers, Role.QUANTIZE, problem.title, problem.compulsory_bytes),), 0, problem.title)


def chosen_config(problem: CodedProduct, spec: DeviceSpec) -> CodedConfig:
    """The kernel of a problem: whose busiest SM reads least, and of those the one with the most warps."""
    return min(candidates(problem, spec), key=lambda config: cost(config, problem, spec))


def candidates(problem: CodedProduct, spec: DeviceSpec) -> Iterator[CodedConfig]:
    """Kernels worth trying."""
    rows = next((r for r in (EIGHT, TILE, 2 * TILE) if problem.m <= r), MOST_ROWS)
    found = False
    for block_tiles in _TILES:
        for tiles in (1, 2):
            if block_tiles % tiles or (tiles == 2) != (block_tiles > _MOST_WARPS // 2 and rows < MOST_ROWS):
                continue
            config = _filled(problem, spec, CodedConfig(rows, tiles, block_tiles // tiles))
            if config is not None and not config.reasons_against(problem):
                found = True
                yield config
    if not found:
        yield CodedConfig(rows, 1, 4, 1, 64, 2)


def _filled(problem: CodedProduct, spec: DeviceSpec, config: CodedConfig) -> CodedConfig | None:
    """The configuration with as many warps along k and stages as fit."""
    blocks = _blocks_of_busiest(config, problem, spec)
    own_k = 128 if not problem.weight.group or problem.weight.group >= 64 else 64
    together = min(blocks, 4)
    for warps_k in (8, 4, 2, 1):
        warps = config.warps_n * warps_k
        if warps > 1 and (warps * together > 2 * _MOST_WARPS or warps > _MOST_WARPS):
            continue
        if warps_k > 1 and own_k * warps_k > problem.k:
            continue
        for stages in _STAGES:
            made = replace(config, warps_k=warps_k, own_k=own_k, stages=stages)
            if made.shared_bytes(problem) + 1024 <= _SM_SHARED_BYTES // together and not made.reasons_against(problem):
                if stages >= 3 or warps_k == 1:
                    return made
                break
    return None


def _blocks_of_busiest(config: CodedConfig, problem: CodedProduct, spec: DeviceSpec) -> int:
    """Blocks of the SM that has most of them."""
    blocks = ceil_div(problem.weight.tiles, config.block_tiles) * ceil_div(max(problem.m, 1), config.rows)
    return ceil_div(blocks, spec.sm_count)


def cost(config: CodedConfig, problem: CodedProduct, spec: DeviceSpec) -> float:
    """Clocks of the busiest SM for one of k, about: those of memory, or of the L2, which has A as well."""
    blocks = _blocks_of_busiest(config, problem, spec)
    codes = blocks * config.columns * problem.weight.codes.bits / 8
    a = blocks * min(problem.m, config.rows) * problem.dtype.bytes
    idle = 1e-3 / (config.warps_n * config.warps_k)
    return max(codes / _DRAM_BYTES_PER_CLK, (codes + a) / _L2_BYTES_PER_CLK) + idle
