"""Descriptors of tiles in shared memory, as wgmma is told of them: sums of what is known of a buffer, and an offset.

From the end of a promotion to the first MMA of the next stage the tensor cores wait for a warpgroup. A descriptor made
of an address there takes a chain of seven instructions on a thread's scalar registers, one of a sum two.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.codegen.expr import CudaExpr
from tilewright.codegen.lines import Line
from tilewright.ir.async_stmt import SharedMatrix, Wgmma
from tilewright.ir.expr import ZERO, Expr
from tilewright.ir.stmt import Body
from tilewright.ir.visit import walk

_UNIT_BYTES = 16
"""What a descriptor counts in. Source: PTX ISA 9.0, wgmma, matrix descriptor."""


def declared(body: Body, expr: CudaExpr) -> list[Line]:
    """The lines that find where each buffer begins that wgmma reads."""
    found = dict.fromkeys((one.place.buffer.name, one.leading_bytes) for one in _matrices(body))
    if found:
        expr.used.add("matrix_start")
    return [Line(1, f"const unsigned {name}_start = matrix_start<{leading}>({name});") for name, leading in found]


def descriptor(matrix: SharedMatrix, expr: CudaExpr) -> str:
    """The descriptor of a tile."""
    expr.used.add("matrix_descriptor")
    numbers = f"{matrix.stride_bytes}, {matrix.swizzle.descriptor_code}"
    return f"matrix_descriptor<{numbers}>({matrix.place.buffer.name}_start + {expr(offset_of(matrix))})"


def offset_of(matrix: SharedMatrix) -> Expr:
    """Of a tile from the start of its buffer, in units of a descriptor. Each index counts whole units."""
    buffer, offset = matrix.place.buffer, ZERO + ZERO
    for position, stride in zip(matrix.place.index, buffer.strides, strict=True):
        size_bytes = stride * buffer.dtype.bytes
        units, rest = divmod(size_bytes, _UNIT_BYTES)
        offset = offset + (position * units if not rest else position // (_UNIT_BYTES // size_bytes))
    return offset


def _matrices(body: Body) -> Iterable[SharedMatrix]:
    for _, stmt in walk(body):
        if isinstance(stmt, Wgmma):
            yield from (one for one in (stmt.a, stmt.b) if isinstance(one, SharedMatrix))
