"""Products with a weight in codes of 4 or 8 bits.

    C[m, n] = f(sum over groups of k: scale[n, group] * sum_k A[m, k] * code[k, n])

A weight has a scale for each column of B and `group` neighbours of k, or one for each column. Codes and scales lie as
the lanes of a warp take them: tiles of 16 columns one after the other, in each the units of k, in each 16 bytes for
every lane, which are its parts of the 16 x 16 operands of mma.m16n8k16 (layout of the instruction: `layout.fragment`).
So a warp reads 512 neighbouring bytes, and no lane exchanges anything.

Codes are exact in bf16 and f16, and so are their products in f32. The scale multiplies the sum of a group, in f32, when
it is added to the sum of all groups: no weight is rounded but by its code. So the error of a result is that of a
product whose sums are promoted every group (`problem.tolerance`), of the same A and of B = code * scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.artifacts import Extent
from tilewright.dtypes import BF16, F16, F32, I32, Array, DType
from tilewright.errors import FormatError, ProblemError
from tilewright.problem.block_scales import BlockScales
from tilewright.problem.epilogue import PLAIN, Epilogue
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.problem import (
    NamedMatrix,
    PlainProblem,
    Scalar,
    ScalarKind,
    TmaMatrix,
    check_apart,
    elements_of,
)
from tilewright.problem.reference import Operands
from tilewright.problem.storages import Storages
from tilewright.problem.weight_codes import FRAGMENT_CODES, Codes, CodesName
from tilewright.units import ceil_div

TILE = 16
"""Columns of B of a tile, and elements of k of one multiplication."""

LANES = 32

LANE_WORDS = 4
"""Words of a lane in a unit: one access of 16 bytes."""

GROUPS = (32, 64, 128)
"""Neighbours of k that may share a scale."""

SCALE = BF16
"""The format of the scales of groups: 2 bytes of memory, and the range of f32. A code is of the rounded scale."""


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """How a weight lies. n, k: of B, (k, n). group: neighbours of k that share a scale; 0: a column has one scale."""

    n: int
    k: int
    codes: Codes
    group: int = 128

    def __post_init__(self) -> None:
        if self.group not in (0, *GROUPS):
            raise ProblemError(f"Groups of {self.group} have no scales.", hint="groups are 32, 64 or 128, or rows.")
        multiple = self.group or min(GROUPS)
        if self.k % multiple or not self.k or not self.n:
            raise ProblemError(
                f"k = {self.k} of a weight is not a multiple of {multiple}, or n = {self.n} is 0.",
                hint="choose smaller groups, or pad the weight and the activations with zeros along k.",
            )

    @property
    def tiles(self) -> int:
        return ceil_div(self.n, TILE)

    @property
    def words_of_step(self) -> int:
        """Words of a lane for one multiplication."""
        return FRAGMENT_CODES // self.codes.per_word

    @property
    def unit(self) -> int:
        """Elements of k of a unit."""
        return TILE * LANE_WORDS // self.words_of_step

    @property
    def units(self) -> int:
        return ceil_div(self.k, self.unit)

    @property
    def groups(self) -> int:
        """Scales of a column."""
        return self.k // self.group if self.group else 1

    @property
    def words(self) -> int:
        return self.tiles * self.units * LANES * LANE_WORDS

    @property
    def scale_elements(self) -> int:
        """Of groups, padded to whole tiles; of columns, one each."""
        return self.tiles * self.groups * TILE if self.group else self.n

    @property
    def scale_dtype(self) -> DType:
        return SCALE if self.group else F32

    @property
    def bytes(self) -> int:
        return self.words * I32.bytes + self.scale_elements * self.scale_dtype.bytes

    def pack(self, numbers: Array) -> Array:
        """The words of codes given as numbers, (n, k), as they lie in memory; 0 where there are none."""
        padded = np.zeros((self.tiles * TILE, self.units * self.unit), np.float32)
        padded[: self.n, : self.k] = numbers
        steps = self.unit // TILE
        blocks = padded.reshape(self.tiles, TILE, self.units, steps, TILE).transpose(0, 2, 3, 1, 4)
        row, column = fragment_places()
        words = self.codes.pack(blocks[..., row, column])  # tiles, units, steps, lanes, words of a step
        return np.ascontiguousarray(words.transpose(0, 1, 3, 2, 4)).reshape(-1)

    def unpack(self, words: Array) -> Array:
        """The codes in memory as numbers, (n, k)."""
        steps = self.unit // TILE
        laid = np.asarray(words).reshape(self.tiles, self.units, LANES, steps, self.words_of_step)
        numbers = self.codes.unpack(laid).reshape(*laid.shape[:-1], FRAGMENT_CODES).transpose(0, 1, 3, 2, 4)
        row, column = fragment_places()
        blocks = np.empty((self.tiles, self.units, steps, TILE, TILE), np.float32)
        blocks[..., row, column] = numbers
        whole = blocks.transpose(0, 3, 1, 2, 4).reshape(self.tiles * TILE, -1)
        return whole[: self.n, : self.k]

    def lay_scales(self, scales: Array) -> Array:
        """Scales, (n, groups), in the order of memory: those of a lane's two columns side by side. 1 where none are."""
        if not self.group:
            return np.asarray(scales, np.float32).reshape(-1)
        padded = np.ones((self.tiles * TILE, self.groups), np.float32)
        padded[: self.n] = scales
        laid = padded.reshape(self.tiles, 2, TILE // 2, self.groups).transpose(0, 3, 2, 1)
        return self.scale_dtype.encode(np.ascontiguousarray(laid).reshape(-1))

    def read_scales(self, stored: Array) -> Array:
        """Stored scales as (n, groups), float32."""
        values = self.scale_dtype.decode(stored).astype(np.float32)
        if not self.group:
            return values.reshape(-1, 1)
        laid = values.reshape(self.tiles, self.groups, TILE // 2, 2).transpose(0, 3, 2, 1)
        return laid.reshape(self.tiles * TILE, self.groups)[: self.n]


def fragment_places() -> tuple[Array, Array]:
    """Row and column of each element of a lane, (lanes, 8), in the 16 x 16 left operand of mma.m16n8k16."""
    lane, element = np.indices((LANES, FRAGMENT_CODES))
    return lane // 4 + 8 * (element // 2 % 2), 2 * (lane % 4) + element % 2 + 8 * (element // 4)


_OF_TILES = f"of tiles of {TILE} columns"


@dataclass(frozen=True, slots=True)
class CodedProduct(PlainProblem):
    """A: (m, k), rows lda elements apart. C: (m, n), rows ldc apart, with an epilogue of ready-made parts. dtype: of A,
    bf16 or f16, to which codes are unpacked; out: of C. alpha, beta: as of a `Gemm`."""

    m: int
    weight: CodedWeight
    dtype: DType = BF16
    out: DType = BF16
    lda: int = 0
    ldc: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    epilogue: Epilogue = PLAIN

    def __post_init__(self) -> None:
        if self.dtype not in (BF16, F16):
            raise FormatError(f"Codes are not unpacked to {self.dtype}.", hint="activations are bf16 or f16.")
        epilogue = self.epilogue
        if epilogue.residual or epilogue.function is not None or epilogue.results:
            raise ProblemError("A product with a coded weight takes a bias and an activation, no other epilogue.")
        if epilogue.scale != (() if self.weight.group else ("n",)):
            raise ProblemError("The epilogue has the scales of columns where a weight has no groups, and only there.")
        object.__setattr__(self, "lda", self.lda or self.k)
        object.__setattr__(self, "ldc", self.ldc or self.n)
        check_apart((self.k, self.lda), (self.n, self.ldc))

    @property
    def n(self) -> int:
        return self.weight.n

    @property
    def k(self) -> int:
        return self.weight.k

    @property
    def matrices(self) -> tuple[NamedMatrix, ...]:
        weight, dtype, out = self.weight, self.dtype, self.out
        a, c = elements_of(self.m, self.k, self.lda), elements_of(self.m, self.n, self.ldc)
        found = [
            NamedMatrix("A", dtype, a, f"{dtype}, M x K, rows lda elements apart"),
            NamedMatrix("codes", I32, weight.words, f"{weight.codes}, {_OF_TILES}, in words as lanes unpack them"),
            NamedMatrix("C", out, c, f"{out}, M x N, rows ldc elements apart", written=True),
        ]
        if weight.group:
            lie = f"{weight.scale_dtype}, {_OF_TILES}, {TILE} for each group"
            found.append(NamedMatrix("scales", weight.scale_dtype, weight.scale_elements, lie))
        for one in self.epilogue.operands:
            of = one.dtype or out
            found.append(NamedMatrix(one.name, of, self.n, f"{of}, one for each column"))
        return tuple(found)

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        sizes = (Scalar(name.upper(), getattr(self, name), ScalarKind.SIZE) for name in ("m", "n", "k"))
        factors = (Scalar(name, getattr(self, name), ScalarKind.FACTOR) for name in ("alpha", "beta"))
        return *sizes, *self.offsets("lda", "ldc"), *factors

    @property
    def formats(self) -> tuple[DType, DType, CodesName, int, Epilogue]:
        """What a kernel is made for, beside its configuration."""
        return self.dtype, self.out, self.weight.codes.name, self.weight.group, self.epilogue

    def tma_matrix(self, name: str) -> TmaMatrix:
        """A by its rows; codes and scales by tiles of columns, each a line."""
        if name == "A":
            return TmaMatrix(Extent("K"), Extent("M"), Extent("lda"), self.dtype, self.dtype)
        weight, tiles = self.weight, Extent("N", per=TILE)
        if name == "codes":
            words = Extent("K", per=weight.unit, times=LANES * LANE_WORDS)
            return TmaMatrix(words, tiles, words, I32, I32)
        scales = Extent("K", per=weight.group, times=TILE)
        return TmaMatrix(scales, tiles, scales, weight.scale_dtype, weight.scale_dtype)

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def compulsory_bytes(self) -> int:
        """A and the weight read once, C written once."""
        return self.m * (self.k * self.dtype.bytes + self.n * self.out.bytes) + self.weight.bytes

    @property
    def title(self) -> str:
        shared = f"{self.weight.group} of k" if self.weight.group else "a column"
        return f"C = A @ B, B in codes of {self.weight.codes}, a scale for {shared}"

    @property
    def gemm(self) -> Gemm:
        """The product that this is: of A, of codes as numbers of its format, and of scales of blocks."""
        scales = BlockScales(a=128, b=1, depth=self.weight.group) if self.weight.group else None
        return Gemm(
            *(self.m, self.n, self.k, self.dtype, F32, self.out),
            b=Order.COL,
            alpha=self.alpha,
            beta=self.beta,
            lda=self.lda,
            ldc=self.ldc,
            epilogue=self.epilogue,
            block_scales=scales,
        )


def meant(storages: Storages) -> Operands:
    """The operands of `CodedProduct.gemm`: their reference and error bound are those of the product."""
    problem = storages.problem
    assert isinstance(problem, CodedProduct)
    weight = problem.weight
    added = {name: storages.storage(name) for name in (one.name for one in problem.epilogue.operands)}
    if weight.group:
        added["block_scale_a"] = np.ones(problem.gemm.storage_elements("block_scale_a"), np.float32)
        added["block_scale_b"] = weight.read_scales(storages.storage("scales")).T.reshape(-1)
    codes = problem.dtype.encode(weight.unpack(storages.storage("codes"))).reshape(-1)
    return Operands(problem.gemm, storages.storage("A"), codes, storages.storage("C"), added)
