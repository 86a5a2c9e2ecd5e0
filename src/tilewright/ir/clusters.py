"""What blocks of a cluster have together."""

from __future__ import annotations

from math import prod

from tilewright.ir.program import Program
from tilewright.problem.gemm import Dim, OperandName


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


def cluster_tile(program: Program, dim: Dim) -> int:
    """Elements of a dimension that the blocks of a cluster cover together; one block, where there is none.

    Clusters start whole: only a size that is a multiple of this leaves no block outside the matrix. Of k, that of
    one block: those that share out k may have unequally many tiles.
    """
    return program.block_tile(dim) * (neighbours(program, dim) if dim != "k" else 1)
