"""`Bundle`: one scheduled problem as the kernels that a launcher chooses among, the most assuming first.

What must be true of a call's arguments for a kernel to be right: what its variant assumes, and its tensor maps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.artifacts import Cubin
from tilewright.codegen import print_together
from tilewright.codegen.names import RESERVED, identifier
from tilewright.device.arch import Arch
from tilewright.device.arch import arch as known_arch
from tilewright.device.catalog import DEVICES
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import ALL
from tilewright.errors import ProblemError
from tilewright.ir.kernel import SAFE, Kernel, Variant
from tilewright.problem.formats import format_name
from tilewright.problem.gemm import Dim, Gemm, Order
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.tensor_map import ALIGNMENT_BYTES
from tilewright.schedule import Schedule
from tilewright.toolchain import Build, build, check_compilable, check_launchable


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
            multiples.setdefault(operand.contiguous, own[operand.name] // operand.dtype.bytes)
    return Needs(
        multiples,
        {name: max(size, ALIGNMENT_BYTES) if name in by_tma else size for name, size in own.items()},
        {o.name: o.dtype.bytes for o in operands},
        kernel.variant.near,
    )


VARIANTS = {"exact": Variant(exact=frozenset({"m", "n", "k"})), "edges": Variant(), "any": SAFE}
"""Whole tiles only; any sizes, in vectors of 16 bytes; whatever the schedule can take at all."""

TAKEN = ("A", "B", "C", "bias", "residual")
"""The matrices that an exported launcher has arguments for."""

FORMATS = tuple(one for one in ALL if one.is_factor and one.names.header)
"""What matrices in C++ can hold: `float`, or 16 bits that a `__half*` or `__nv_bfloat16*` points to."""


@dataclass(frozen=True, slots=True)
class Exported:
    """One kernel of a bundle. label: its key in VARIANTS."""

    label: str
    build: Build
    needs: Needs

    @property
    def kernel(self) -> Kernel:
        return self.build.kernel

    @property
    def entry(self) -> str:
        return self.build.source.entry

    @property
    def source_digest(self) -> str:
        """SHA-256 of the CUDA text that the cubin was compiled from."""
        return hashlib.sha256(self.build.cuda.encode()).hexdigest()


@dataclass(frozen=True)
class Bundle:
    """name: the C function. origin: the rung, or the kernel's configuration, for people. kernels: the launcher tries
    them in this order."""

    name: str
    origin: str
    gemm: Gemm
    schedule: Schedule
    kernels: tuple[Exported, ...]
    archs: tuple[Arch, ...]

    @property
    def prefix(self) -> str:
        """Of the names of constants."""
        return self.name.upper()

    @property
    def general(self) -> Exported:
        """The kernel that takes whatever the bundle takes."""
        return self.kernels[-1]

    @cached_property
    def cuda(self) -> str:
        """All kernels as one text; the schedule, which is theirs together, stands in the file's own header."""
        return print_together([replace(exported.kernel, heading=()) for exported in self.kernels])

    def cubin(self, exported: Exported, arch: Arch, cache: CubinCache | None = None) -> Cubin:
        return exported.build.compile(arch.name, cache=cache)


def bundle(
    gemm: Gemm,
    schedule: Schedule,
    archs: Sequence[str],
    *,
    origin: str,
    name: str = "",
    only_general: bool = False,
    anywhere: Schedule | None = None,
) -> Bundle:
    """The kernels of a schedule for a class of problems: the formats, orders and epilogue of `gemm`, of any size.

    only_general: one kernel, that which assumes the least. anywhere: the schedule of that one, where it is another and
    the kernel is started alike. Raises ProblemError for formats that have no type in C++,
    LaunchError or CompileError where an architecture cannot run them.
    """
    for operand in gemm.matrices:
        if operand.name not in TAKEN:
            raise ProblemError(f"An exported launcher has no argument for {operand.name}.")
        if operand.dtype not in FORMATS:
            raise ProblemError(
                f"{operand.name} is {operand.dtype}, which an exported launcher cannot take.",
                hint=f"use {', '.join(dtype.name for dtype in FORMATS)}.",
            )
    name = name or default_name(gemm, origin)
    if not name.isidentifier() or not name.isascii() or name in RESERVED:
        raise ProblemError(
            f"{name!r} cannot be the name of a C function.",
            hint="use letters, digits and underscores, and no word of C++.",
        )
    targets = tuple(dict.fromkeys(known_arch(arch) for arch in archs))
    labels = ["any"] if only_general else list(VARIANTS)
    resolved = build(gemm, schedule).schedule  # a layout that it leaves open is searched once, for all variants
    found = [_exported(gemm, resolved, f"{name}_{label}", label) for label in labels]
    if anywhere is not None:
        other = _exported(gemm, build(gemm, anywhere).schedule, found[-1].entry, labels[-1])
        if all(_start(other.kernel) == _start(before.kernel) for before in found[:-1]):
            found[-1] = other
    kernels = tuple(_useful(found))
    for target in targets:
        for exported in kernels:
            _check_target(exported, target, gemm)
    return Bundle(name, origin, gemm, resolved, kernels, targets)


def default_name(gemm: Gemm, origin: str) -> str:
    """The rung or the family, the formats, the orders of A and B.

    >>> default_name(Gemm(8, 8, 8, b=Order.COL), "simt(tile=64x64x16)")
    'simt_f32_nt'
    """
    orders = "".join("n" if order is Order.ROW else "t" for order in (gemm.a, gemm.b))
    return identifier(f"{origin.partition('(')[0]}_{format_name(gemm)}_{orders}")


def _exported(gemm: Gemm, schedule: Schedule, entry: str, label: str) -> Exported:
    built = build(gemm, schedule, variant=VARIANTS[label], name=entry)
    return Exported(label, built, needs_of(built.kernel))


def _useful(found: Sequence[Exported]) -> list[Exported]:
    """The general kernel, and those before it that do better: another body, started as the general one is."""
    general = found[-1]
    kept = [general]
    for exported in reversed(found[:-1]):
        is_new = all(exported.kernel.body != other.kernel.body for other in kept)
        if is_new and _start(exported.kernel) == _start(general.kernel):
            kept.insert(0, exported)
    return kept


def _start(kernel: Kernel) -> tuple[object, ...]:
    """What a launch must know of a kernel beside its name, its arguments, its shared memory and whether it is
    persistent."""
    return kernel.grid, kernel.block, kernel.maps, kernel.cluster, kernel.overlapped


def spec_of(target: Arch) -> DeviceSpec | None:
    """A GPU that machine code for a target is meant for, the largest that we know; None where we know none."""
    known = [spec for spec in DEVICES if spec.compute_capability == target.compute_capability]
    return max(known, key=lambda spec: (spec.sm_count, spec.dram_gb_per_s), default=None)


def _check_target(exported: Exported, target: Arch, gemm: Gemm) -> None:
    check_compilable(exported.entry, exported.kernel, target)
    spec = spec_of(target)
    if spec is not None:
        check_launchable(exported.build, spec, gemm)
