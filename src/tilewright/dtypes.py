"""Number formats. A `DType` says all that a reader of a format may ask; what it does not say raises `FormatError`.

A reader asks the value, or has a case for each format that it knows. A list of formats whose last case is "any other"
would compute an unknown format as something else, without an error.

`bf16` has no NumPy type: the host holds its bit patterns as `uint16`, and `decode` / `encode` convert them to float32
and back (round to nearest, ties to even, as `cvt.rn.bf16.f32` does). `tf32` is a float32 of which tensor cores read 19
bits: memory holds float32, `encode` rounds as `cvt.rna.tf32.f32` does (ties away from zero), `as_mapped` as TMA does
(ties to even, measured on an H200). `tf32_truncated` is what a tensor core reads of a float32 that was not rounded: it
drops the lower 13 bits.

`e4m3` and `e5m2` are the FP8 formats of PyTorch's `float8_e4m3fn` and `float8_e5m2`; the host holds their bit patterns
as `uint8`. `encode` rounds to nearest, ties to even, and saturates: what is larger than the largest finite number, also
infinity, becomes that number, as in `cvt.rn.satfinite.e4m3x2.f32`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.errors import FormatError, UnknownName
from tilewright.roundings import Array as Array
from tilewright.roundings import (
    Rounding,
    as_stored,
    even_tf32,
    float32_of_bf16,
    fp8,
    nearest_bf16,
    nearest_tf32,
    numpy_rounding,
    truncated_tf32,
)


@dataclass(frozen=True, slots=True)
class Summation:
    """The rounding of a sum of products.

    unit_roundoff: the largest error of one addition, as a share of the largest addend. in_blocks: several products are
    added at once, each cut off to the width of the sum, as tensor cores do. fewest: products of such a block, at least
    (4 on V100, whose successors add more).
    fraction_bits: of a term, kept below the largest exponent of its block; of the result, where f32 holds more.
    """

    unit_roundoff: float
    in_blocks: bool
    fewest: int = 4
    fraction_bits: int = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What libraries and compilers call a format; None where they do not have it.

    array_name: in PyTorch, JAX, CuPy and ml_dtypes ("bfloat16"). ptx: PTX matrix instructions. sass: the first letter
    of the machine instruction that multiplies it (HMMA, HGMMA). rate: the prefix of the fields of `TensorRates`.
    tensor_map: CUtensorMapDataType. cublas: cudaDataType_t (library_types.h). dlpack: DLDataTypeCode. host: the C++
    type of an element on the host; header: that of CUDA's headers.
    """

    array_name: str | None = None
    ptx: str | None = None
    sass: str | None = None
    rate: str | None = None
    tensor_map: str | None = None
    cublas: int | None = None
    dlpack: int | None = None
    host: str | None = None
    header: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """A number format. Formats are compared by identity, in every process.

    name: as users write it. bits: of one stored element. storage: the NumPy type that holds it on the host. cuda: its
    C++ type in emitted CUDA.
    rounding: None for what is not a number. computed_in: the NumPy type of a register that holds one.
    unit_roundoff: half the distance from 1 to the next number; 0 for integers. smallest_normal: its smallest normal
    number. is_factor: A and B may have it. is_result: C may have it.
    sums: the formats in which sums of its products are kept, by name. products: the formats to which operands of this
    one may be rounded before they are multiplied, by name. read_as: what a tensor core makes of values in registers of
    this format. truncates: the tensor core itself makes it of wider operands, by dropping bits.
    names: what others call it.
    """

    name: str
    bits: int
    storage: str
    cuda: str
    rounding: Rounding | None = None
    computed_in: str | None = None
    unit_roundoff: float = 0.0
    smallest_normal: float | None = None
    is_float: bool = True
    is_factor: bool = False
    is_result: bool = False
    sums: Mapping[str, Summation] = field(default_factory=dict)
    products: tuple[str, ...] = ()
    read_as: Callable[[Array], Array] | None = None
    truncates: bool = False
    names: Names = field(default_factory=Names)
    bytes: int = field(init=False)
    """Of an element; 1 where it has fewer than 8 bits."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", max(1, self.bits // 8))

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.storage)

    @property
    def is_numpy(self) -> bool:
        """Whether NumPy has this format: its storage type is the format itself, not a container of bits."""
        return self.rounding is not None and self.rounding.is_numpy

    def decode(self, stored: Array) -> Array:
        """Stored values as a NumPy type that holds them exactly; bf16 becomes float32. Raises FormatError."""
        return self._rounding.decode(stored)

    def encode(self, values: Array) -> Array:
        """Values rounded to this format, in its storage type. Raises FormatError.

        >>> F16.encode(np.float32([1.0, 65504.0])).dtype, BF16.encode(np.float32([1.0])).tolist()
        (dtype('float16'), [16256])
        """
        return self._rounding.encode(values)

    @property
    def register(self) -> np.dtype[Any]:
        """The NumPy type of a register that holds a number of this format. Raises FormatError."""
        return np.dtype(str(self._known("computed_in", "type in registers")))

    @property
    def largest(self) -> float:
        """What larger numbers become: the largest number where it saturates, else infinity. Raises FormatError."""
        return float(self.decode(self.encode(np.array([np.inf], np.float32)))[0])

    @property
    def tiny(self) -> float:
        """The smallest normal number. Raises FormatError."""
        return float(self._known("smallest_normal", "smallest normal number"))

    def sum_in(self, accumulate: DType) -> Summation:
        """The rounding of sums of products of this format that are kept in another. Raises FormatError."""
        if accumulate.name not in self.sums:
            raise FormatError(
                f"Cannot sum products of {self} in {accumulate}.", hint=f"sums are kept in {_listed(self.sums)}."
            )
        return self.sums[accumulate.name]

    def as_multiplied(self, values: Array) -> Array:
        """Values in registers of this format as a tensor core reads them. Raises FormatError."""
        read: Callable[[Array], Array] = self._known("read_as", "meaning on tensor cores")
        return read(values)

    def as_mapped(self, values: Array) -> Array:
        """Elements as TMA writes them under a tensor map of this format. Raises FormatError.

        >>> tie = np.float32([1 + 2.0**-11])
        >>> float(TF32.as_mapped(tie)[0]), float(TF32.encode(tie)[0])
        (1.0, 1.0009765625)
        """
        return (self._rounding.mapped or self.encode)(values)

    @property
    def array_name(self) -> str:
        """PyTorch's name, which JAX, CuPy and ml_dtypes share. Raises FormatError."""
        return str(self._known("names.array_name", "name in PyTorch"))

    @property
    def ptx(self) -> str:
        """Its name in PTX matrix instructions. Raises FormatError."""
        return str(self._known("names.ptx", "name in PTX matrix instructions"))

    @property
    def sass(self) -> str:
        """The first letter of the machine instruction that multiplies it. Raises FormatError."""
        return str(self._known("names.sass", "machine instruction on tensor cores"))

    @property
    def rate(self) -> str:
        """Its name among the rates of tensor cores. Raises FormatError."""
        return str(self._known("names.rate", "rate on tensor cores"))

    @property
    def tensor_map(self) -> str:
        """Its name in a tensor map: CU_TENSOR_MAP_DATA_TYPE_... Raises FormatError."""
        return str(self._known("names.tensor_map", "type in a tensor map"))

    @property
    def cublas(self) -> int:
        """Its number in cudaDataType_t. Raises FormatError."""
        return int(self._known("names.cublas", "type in cuBLAS"))

    @property
    def host(self) -> str:
        """The C++ type of an element in host memory. Raises FormatError."""
        return str(self._known("names.host", "C++ type on the host"))

    @property
    def header(self) -> str:
        """The C++ type that CUDA's headers define for it. Raises FormatError."""
        return str(self._known("names.header", "type in CUDA's headers"))

    @property
    def _rounding(self) -> Rounding:
        found: Rounding = self._known("rounding", "rounding")
        return found

    def _known(self, field: str, what: str) -> Any:
        """The value of a field. Raises FormatError where it is None."""
        of = attrgetter(field)
        if of(self) is None:
            known = _listed(one.name for one in ALL if of(one) is not None)
            raise FormatError(f"The format {self} has no {what}.", hint=f"formats with one are {known}.")
        return of(self)

    def __repr__(self) -> str:
        return self.name


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


_F32_ROUNDED = Summation(2.0**-24, in_blocks=False)
_F32_ON_TENSOR_CORES = Summation(2.0**-23, in_blocks=True)
"""Addends are cut off at 24 bits or more. Source: `problem.tolerance`."""
_F32_OF_FP8 = Summation(2.0**-13, in_blocks=True, fewest=32, fraction_bits=13)
"""Sums of FP8 products keep 13 fraction bits. Source: `isa.summation`."""
_F16_ROUNDED = Summation(2.0**-11, in_blocks=False)


def _sums(**sums: Summation) -> Mapping[str, Summation]:
    return MappingProxyType(sums)


F32 = DType(
    "f32",
    32,
    "float32",
    "float",
    numpy_rounding("float32"),
    computed_in="float32",
    unit_roundoff=2.0**-24,
    smallest_normal=2.0**-126,
    is_factor=True,
    is_result=True,
    sums=_sums(f32=_F32_ROUNDED),
    products=("tf32", "tf32_truncated"),
    names=Names(
        array_name="float32", ptx="f32", tensor_map="FLOAT32", cublas=0, dlpack=2, host="float", header="float"
    ),
)
F16 = DType(
    "f16",
    16,
    "float16",
    "half_bits",
    numpy_rounding("float16"),
    computed_in="float32",
    unit_roundoff=2.0**-11,
    smallest_normal=2.0**-14,
    is_factor=True,
    is_result=True,
    sums=_sums(f32=_F32_ON_TENSOR_CORES, f16=_F16_ROUNDED),
    read_as=as_stored,
    names=Names(
        array_name="float16",
        ptx="f16",
        sass="H",
        rate="f16",
        tensor_map="FLOAT16",
        cublas=2,
        dlpack=2,
        host="uint16_t",
        header="__half",
    ),
)
BF16 = DType(
    "bf16",
    16,
    "uint16",
    "bf16_bits",
    Rounding(nearest_bf16, float32_of_bf16),
    computed_in="float32",
    unit_roundoff=2.0**-8,
    smallest_normal=2.0**-126,
    is_factor=True,
    is_result=True,
    sums=_sums(f32=_F32_ON_TENSOR_CORES),
    read_as=as_stored,
    names=Names(
        array_name="bfloat16",
        ptx="bf16",
        sass="H",
        rate="bf16",
        tensor_map="BFLOAT16",
        cublas=14,
        dlpack=4,
        host="uint16_t",
        header="__nv_bfloat16",
    ),
)
TF32 = DType(
    "tf32",
    32,
    "float32",
    "float",
    Rounding(nearest_tf32, as_stored, mapped=even_tf32),
    computed_in="float32",
    unit_roundoff=2.0**-11,
    smallest_normal=2.0**-126,
    sums=_sums(f32=_F32_ON_TENSOR_CORES),
    read_as=truncated_tf32,  # the hardware does not round: a kernel that wants that casts before
    names=Names(ptx="tf32", sass="H", rate="tf32", tensor_map="TFLOAT32"),
)
TF32_TRUNCATED = DType(
    "tf32_truncated",
    32,
    "float32",
    "float",
    Rounding(truncated_tf32, as_stored),
    computed_in="float32",
    unit_roundoff=2.0**-10,
    smallest_normal=2.0**-126,
    sums=_sums(f32=_F32_ON_TENSOR_CORES),
    read_as=truncated_tf32,
    truncates=True,
    names=Names(ptx="tf32", sass="H", rate="tf32"),
)


E4M3 = DType(
    "e4m3",
    8,
    "uint8",
    "e4m3_bits",
    fp8(4, 0x7E),
    computed_in="float32",
    unit_roundoff=2.0**-4,
    smallest_normal=2.0**-6,
    is_factor=True,
    is_result=True,
    sums=_sums(f32=_F32_OF_FP8),
    read_as=as_stored,
    names=Names(array_name="float8_e4m3fn", ptx="e4m3", sass="Q", rate="f8", tensor_map="UINT8", cublas=28),
)
E5M2 = DType(
    "e5m2",
    8,
    "uint8",
    "e5m2_bits",
    fp8(5, 0x7B),
    computed_in="float32",
    unit_roundoff=2.0**-3,
    smallest_normal=2.0**-14,
    is_factor=True,
    is_result=True,
    sums=_sums(f32=_F32_OF_FP8),
    read_as=as_stored,
    names=Names(array_name="float8_e5m2", ptx="e5m2", sass="Q", rate="f8", tensor_map="UINT8", cublas=29),
)
F64 = DType(
    "f64",
    64,
    "float64",
    "double",
    numpy_rounding("float64"),
    computed_in="float64",
    unit_roundoff=2.0**-53,
    smallest_normal=2.0**-1022,
    names=Names(array_name="float64", dlpack=2),
)


def _integer(name: str, bits: int, storage: str, cuda: str, dlpack: int) -> DType:
    names = Names(array_name=storage, dlpack=dlpack, tensor_map="INT32" if bits == 32 else None)
    return DType(name, bits, storage, cuda, numpy_rounding(storage), storage, is_float=False, names=names)


I32 = _integer("i32", 32, "int32", "int", dlpack=0)
I64 = _integer("i64", 64, "int64", "long long", dlpack=0)
BOOL = _integer("bool", 8, "bool", "bool", dlpack=6)
MBARRIER = DType("mbarrier", 64, "uint64", "unsigned long long", numpy_rounding("uint64"), "uint64", is_float=False)

ALL = (F32, F16, BF16, TF32, TF32_TRUNCATED, E4M3, E5M2, F64, I32, I64, MBARRIER, BOOL)
OPERAND_DTYPES = tuple(one for one in ALL if one.is_factor)
FP8_FORMATS = (E4M3, E5M2)
TF32_FORMATS = (TF32, TF32_TRUNCATED)
"""What f32 operands become on tensor cores: rounded by a conversion, or cut off by the multiplier itself."""
_BY_NAME = {one.name: one for one in ALL}


def dtype(name: str | DType) -> DType:
    """The number format called `name`.

    >>> dtype("f16").unit_roundoff == 2.0**-11
    True
    """
    if isinstance(name, DType):
        return name
    if name not in _BY_NAME:
        raise UnknownName("dtype", name, [known.name for known in OPERAND_DTYPES])
    return _BY_NAME[name]
