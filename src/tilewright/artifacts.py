"""Plain values that cross from code generation to the runtime, so that neither imports the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.dtypes import DType


@dataclass(frozen=True, slots=True)
class Extent:
    """A size that a launch computes of a scalar argument: `ceil(argument / per) * times` elements.

    >>> str(Extent("K")), str(Extent("K", per=64, times=128)), Extent("K", per=64, times=128).of({"K": 65})
    ('K', '(K + 63) / 64 * 128', 256)
    """

    argument: str
    per: int = 1
    times: int = 1

    def of(self, arguments: Mapping[str, Any]) -> int:
        return -(-int(arguments[self.argument]) // self.per) * self.times

    def __str__(self) -> str:
        rounded = self.argument if self.per == 1 else f"({self.argument} + {self.per - 1}) / {self.per}"
        return rounded if self.times == 1 else f"{rounded} * {self.times}"


@dataclass(frozen=True, slots=True)
class TensorBox:
    """What the driver must be told for TMA: of which matrix, and the TMA box of one copy.

    pointer: the parameter that holds the address. extents, leading: the sizes along the contiguous and the strided
    dimension, and the leading dimension. dtype: of an element. box: elements of one copy along the two dimensions.
    swizzle: the name of the permutation in the driver API. step: the parameter with the elements from one matrix to the
    next, where there are several; empty for one matrix. stored: TMA writes the matrix, and does not read it. ragged:
    the matrix is cut into groups along its strided dimension.
    """

    pointer: str
    extents: tuple[Extent, Extent]
    leading: Extent
    dtype: DType
    box: tuple[int, int]
    swizzle: str
    step: str = ""
    stored: bool = False
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """One kernel argument, in launch order: a pointer, a scalar passed as its dtype, a tensor map (128 bytes), or where
    `words` is not 0, a table of so many 64-bit words. of_ranks: a pointer to pointers, one for each rank."""

    name: str
    dtype: DType
    is_pointer: bool = False
    tensor_map: TensorBox | None = None
    words: int = 0
    of_ranks: bool = False


@dataclass(frozen=True, slots=True)
class CudaSource:
    """CUDA C++ text of one kernel and what a compiler and a launcher must know of it.

    entry: the `extern "C"` name. threads_per_block: of a launch. static shared memory is in the text;
    dynamic_shared_bytes must be given at launch (0 for none). cluster: blocks along x that start together. resident:
    no more blocks are started than run at once; with equal_items no more than finish in as few rounds. overlapped: it
    waits by itself for the kernels before it, and starts before they have ended where the GPU can. must_fit: machine
    code that spills registers, or that waits after every wgmma, is refused.
    """

    text: str
    entry: str
    parameters: tuple[Parameter, ...]
    threads_per_block: int
    dynamic_shared_bytes: int = 0
    cluster: int = 1
    resident: bool = False
    overlapped: bool = False
    must_fit: bool = False
    equal_items: bool = False


@dataclass(frozen=True, slots=True)
class Resources:
    """What one compiled kernel uses, per thread unless the name says otherwise.

    Source: the log of ptxas (registers, stack, spills, shared memory) and ELF sections of the cubin (code, constants).
    shared_bytes is static shared memory per block, without the 1 KiB that the system keeps on sm_80 and later.
    """

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int
    constant_bytes: int
    barriers: int
    code_bytes: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled kernel: machine code for one architecture, and how it came about."""

    image: bytes = field(repr=False)
    entry: str
    arch: str
    resources: Resources
    log: str
    compiler: str
    compile_seconds: float
    from_cache: bool
