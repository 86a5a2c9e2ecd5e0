"""What must be true of a call's arguments for a kernel to be right: what its variant assumes, and its tensor maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.kernel import Kernel
from tilewright.problem.gemm import Dim
from tilewright.runtime.tensor_map import ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class Needs:
    """multiples: of which numbers sizes must be multiples. alignment_bytes: of the address and the rows of each matrix,
    by its parameter; element_bytes: what that is at least. near: every element offset fits in 31 bits."""

    multiples: Mapping[Dim, int]
    alignment_bytes: Mapping[str, int]
    element_bytes: Mapping[str, int]
    near: bool

    @property
    def aligned(self) -> Mapping[str, int]:
        """Matrices that must be aligned to more than their elements, and to how many bytes."""
        return {name: size for name, size in self.alignment_bytes.items() if size > self.element_bytes[name]}

    @property
    def anything(self) -> bool:
        """Whether every call fits."""
        return not self.multiples and not self.near and not self.aligned

    @property
    def words(self) -> tuple[str, ...]:
        """The same for people."""
        found = []
        if self.multiples:
            dims = ", ".join(dim.upper() for dim in self.multiples)
            found.append(f"{dims} multiples of {', '.join(map(str, self.multiples.values()))}")
        for size_bytes in sorted(set(self.aligned.values()), reverse=True):
            names = [name for name, size in self.aligned.items() if size == size_bytes]
            found.append(f"addresses and rows of {', '.join(names)} at multiples of {size_bytes} bytes")
        if self.near:
            found.append("offsets below 2^31 elements")
        return tuple(found) or ("nothing",)


def needs_of(kernel: Kernel) -> Needs:
    """What a kernel needs of its arguments."""
    exact = sorted(kernel.variant.exact, key="mnk".index)
    by_tma = {known.operand for known in kernel.maps}
    operands = (*kernel.gemm.operands, *kernel.gemm.added)
    own = {o.name: max(kernel.variant.aligned_bytes(o.name), o.dtype.bytes) for o in operands}
    multiples: dict[Dim, int] = {dim: kernel.cluster_tile[dim] for dim in exact}
    c = kernel.gemm.operand("C")
    if c.name in by_tma:  # it writes whole pieces, so rows of C must end where one does
        multiples.setdefault(c.contiguous, ALIGNMENT_BYTES // c.dtype.bytes)
    if kernel.variant.whole:
        for operand in (kernel.gemm.operand(name) for name in kernel.gemm.factors):
            multiples.setdefault(operand.contiguous, kernel.variant.alignment_bytes // operand.dtype.bytes)
    return Needs(
        multiples,
        {name: max(size, ALIGNMENT_BYTES) if name in by_tma else size for name, size in own.items()},
        {o.name: o.dtype.bytes for o in operands},
        kernel.variant.near,
    )
