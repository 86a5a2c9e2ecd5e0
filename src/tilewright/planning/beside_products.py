"""Launches that do not multiply: what makes FP8 codes and scales, what gathers and sums rows, and what ranks of a group
send each other by threads, parts of tiles where they share out k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.dtypes import F32
from tilewright.errors import LaunchError
from tilewright.kernels.exchange import ExchangeConfig
from tilewright.kernels.quantization import QuantizationConfig
from tilewright.kernels.row_sums import RowSumsConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.kernels import Kernels
from tilewright.planning.packing import Shards
from tilewright.planning.plan import Place, Plan, Role, Step
from tilewright.problem.exchange import Exchange
from tilewright.problem.quantization import Quantization
from tilewright.problem.row_sums import RowSums
from tilewright.units import ceil_div, round_up


@dataclass(frozen=True, slots=True)
class TileParts:
    """tiles: that a rank keeps, at most; tile_bytes: of a part."""

    tiles: int
    tile_bytes: int

    @classmethod
    def of(cls, shards: Shards, config: WgmmaConfig, columns: int, element_bytes: int) -> TileParts:
        """Of a kernel for C with so many columns and bytes of an element. Tiles of clusters' edges are sent, too."""
        across = ceil_div(columns, config.n * config.cluster_n) * config.cluster_n
        tiles = ceil_div(max(shards.rows), config.m * config.cluster_m) * config.cluster_m * across
        return cls(tiles, config.m * config.n * element_bytes)

    @property
    def slot_bytes(self) -> int:
        """Of all that a rank sends to another one, at most: what the next one sends or receives lies behind."""
        return self.tiles * self.tile_bytes


_ALIGNED = 256
"""Of what lies in a workspace, in bytes."""


def quantizing_plan(kernels: Kernels, problem: Quantization, aligned_bytes: int) -> Plan:
    """Codes at `Place.OUT` and scales at `Place.SCALE_A`. aligned_bytes: what the address and the lines of the source
    are multiples of."""

    def step(one: Quantization, aligned: int, *places: tuple[int, int]) -> Step:
        config = QuantizationConfig.of(one, aligned, overlapped=kernels.overlaps)
        return Step(kernels.auxiliary(config, one), places, Role.QUANTIZE, one.title)

    source, codes, scales = (Place.A, 0), (Place.OUT, 0), (Place.SCALE_A, 0)
    if problem.groups != "all":
        return Plan((step(problem, aligned_bytes, source, codes, scales),), 0, problem.title)
    lines, largest = (Place.SCRATCH, 0), (Place.SCRATCH, round_up(problem.lines * F32.bytes, _ALIGNED))
    of_lines = replace(problem, groups="largest")
    of_all = Quantization(1, problem.lines, problem.lines, problem.lines, F32, problem.out, "largest")
    steps = (
        step(of_lines, aligned_bytes, source, lines),
        step(of_all, _ALIGNED, lines, largest),
        step(problem, aligned_bytes, source, codes, scales, largest),
    )
    return Plan(steps, largest[1] + _ALIGNED, problem.title)


_SUMMED = {
    "source": Place.A,
    "index": Place.GROUP_ENDS,
    "weights": Place.SCALE_A,
    "begins": Place.SCALE_B,
    "sums": Place.OUT,
}


def row_sums_plan(kernels: Kernels, problem: RowSums, aligned_bytes: int) -> Plan:
    """Sums at `Place.OUT` of rows at `Place.A` that the indices at `Place.GROUP_ENDS` name, with weights at
    `Place.SCALE_A`; where the terms of each begin at `Place.SCALE_B`. aligned_bytes: what the addresses and rows of
    both matrices are multiples of."""
    config = RowSumsConfig.of(problem, aligned_bytes, overlapped=kernels.overlaps)
    places = tuple((_SUMMED[matrix.name], 0) for matrix in problem.matrices)
    launch = kernels.auxiliary(config, problem)
    return Plan((Step(launch, places, Role.ROWS, problem.title, problem.compulsory_bytes),), 0, problem.title)


_EXCHANGED = {
    "source": Place.A,
    "result": Place.OUT,
    "shard_starts": Place.SHARD_STARTS,
    "peer_received": Place.RANK_SUMS,
    "peer_flags": Place.RANK_FLAGS,
}


def exchange_plan(kernels: Kernels, problem: Exchange) -> Plan:
    """What the rank sends lies at `Place.A`; sums go to `Place.OUT`; the addresses of what ranks receive, and of their
    flags, lie at `Place.RANK_SUMS` and `Place.RANK_FLAGS`. All addresses are multiples of 16 bytes. Raises LaunchError
    for more ranks than the kernel is made for."""
    config = ExchangeConfig.of(problem, overlapped=kernels.overlaps)
    reasons = config.reasons_against(problem)
    if reasons:
        raise LaunchError(f"Threads cannot exchange {problem.title}: {reasons[0]}.")
    places = tuple((int(_EXCHANGED[matrix.name]), 0) for matrix in problem.matrices)
    launch = kernels.auxiliary(config, problem)
    return Plan((Step(launch, places, Role.EXCHANGE, problem.title, problem.moved_bytes),), 0, problem.title)
