"""Clusters of blocks: neighbours along one or two loops of the grid that start together and share what they load."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from tilewright.problem.gemm import Dim, OperandName

if TYPE_CHECKING:
    from tilewright.ir.program import Program


@dataclass(frozen=True, slots=True)
class Clustered:
    """Neighbours along one or two grid loops run as a cluster, and share what they all read.

    loops: each with how many neighbours along it. The rank of a block counts along the first loop, then the second.
    """

    loops: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        """Blocks of a cluster."""
        return prod(size for _, size in self.loops)


def neighbours(program: Program, dim: Dim) -> int:
    """Blocks of a cluster that follow each other along a dimension; 1 without clusters."""
    loops = () if program.clustered is None else program.clustered.loops
    return prod(size for name, size in loops if program.loop(name).axes[0].dim == dim)


def readers(program: Program, name: OperandName) -> int:
    """Blocks of a cluster that read the same tile of an operand."""
    dims = program.gemm.operand(name).dims
    return prod(neighbours(program, dim) for dim in ("m", "n") if dim not in dims)


def cluster_size(program: Program) -> int:
    """Blocks of a cluster; 1 without clusters."""
    return 1 if program.clustered is None else program.clustered.size
