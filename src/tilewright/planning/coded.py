"""Products with a coded weight: which kernel, by the clocks of the busiest SM; and what makes the codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilewright.device.spec import DeviceSpec
from tilewright.errors import LaunchError
from tilewright.kernels.coded import EIGHT, MOST_ROWS, CodedConfig
from tilewright.kernels.coded_wgmma import CodedWgmmaConfig
from tilewright.kernels.weight_coding import WeightCodingConfig
from tilewright.planning.coded_wgmma import chosen_wgmma
from tilewright.planning.cost.coded import Coded, product_clocks, registers_of, sm_clocks
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


def coded_plan(kernels: Kernels, problem: CodedProduct, config: Coded | None = None) -> Plan:
    """The launch of a product: A at `Place.A`, codes at `B`, scales at `SCALE_B`, C at `OUT`, the bias at `BIAS`,
    all of which begin at multiples of 16 bytes.

    Raises LaunchError where the GPU, or no kernel, can compute it.
    """
    asked = config or chosen_config(problem, kernels.spec)
    chosen: Coded = replace(asked, overlapped=kernels.overlaps)
    reasons = chosen.reasons_against(problem, kernels.spec)
    if reasons:
        raise LaunchError(f"A product of {problem.m} rows with a coded weight cannot run: {reasons[0]}.")
    places = {"A": Place.A, "codes": Place.B, "C": Place.OUT, "scales": Place.SCALE_B, "scale_n": Place.SCALE_B}
    places["bias"] = Place.BIAS
    pointers = tuple((int(places[matrix.name]), 0) for matrix in problem.matrices)
    launch = kernels.auxiliary(chosen, problem)
    return Plan((Step(launch, pointers, Role.PRODUCT, "C", problem.compulsory_bytes),), 0, words_of(chosen, problem))


def words_of(config: Coded, problem: CodedProduct) -> str:
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


def chosen_config(problem: CodedProduct, spec: DeviceSpec) -> Coded:
    """The kernel of a problem: whose busiest SM takes the fewest clocks."""
    by_mma = min(candidates(problem, spec), key=lambda config: sm_clocks(config, problem, spec))
    by_wgmma = chosen_wgmma(problem, spec)
    both: tuple[Coded, ...] = (by_mma,) if by_wgmma is None else (by_mma, by_wgmma)
    return min(both, key=lambda config: product_clocks(config, problem, spec))


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
    fits = warps <= _MOST_WARPS and registers_of(config) <= spec.max_registers_per_block
    return fits and warps >= spec.schedulers_per_sm and ceil_div(warps, spec.schedulers_per_sm) >= least


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
