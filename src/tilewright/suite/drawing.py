"""Problems drawn from a distribution: linear layers at token counts, random sizes, batches and groups.

A layer of `out` x `in` features at `tokens` rows is the product tokens x out x in. Random sizes are log-uniform in
8 .. 8192; every other one is rounded to a multiple of 8, the rest keep any residue. A seed names a whole drawing.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

from tilewright.errors import TilewrightError
from tilewright.files import read_text
from tilewright.problem.formats import FP8
from tilewright.suite.problems import Problem, problems

LEAST_SIZE, MOST_SIZE = 8, 8192
VECTOR = 8
"""Elements of 2 bytes in 16: sizes that are multiples of it are aligned in every format."""

MOST_BYTES = 16 << 30
"""Operands and result of one problem; larger ones are not drawn."""

VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer of a model: y (tokens, out) = x (tokens, in) @ W (out, in) transposed."""

    model: str
    out_features: int
    in_features: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """A problem and where it comes from: a model, `random`, or `random, multiples of 8`."""

    problem: Problem
    source: str

    @property
    def kind(self) -> str:
        """The class of its figures: `linear` or `random`, with its order and whether it is aligned."""
        family = "random" if self.source.startswith("random") else "linear"
        return f"{family} {self.problem.orders} {'aligned' if self.is_aligned else 'unaligned'}"

    @property
    def is_aligned(self) -> bool:
        """Whether every row of A, B and C is a multiple of 16 bytes long."""
        gemm = self.problem.gemm
        rows = (gemm.leading(o.name) * o.dtype.bytes for o in gemm.operands)
        return all(row % VECTOR_BYTES == 0 for row in rows)


def layers_of(path: Path) -> tuple[Layer, ...]:
    """The layers of a CSV file with columns model, out_features, in_features. Raises TilewrightError."""
    found = []
    for row in csv.DictReader(read_text(path).splitlines()):
        try:
            layer = Layer(str(row["model"]), int(row["out_features"]), int(row["in_features"]))
        except (KeyError, TypeError, ValueError):
            layer = Layer("", 0, 0)
        if min(layer.out_features, layer.in_features) < 1:
            raise TilewrightError(
                f"{path.name}: {dict(row)!r} is not a layer.",
                hint="a CSV file whose first line is model,out_features,in_features.",
            )
        found.append(layer)
    return tuple(found)


def tokens_of(path: Path) -> tuple[int, ...]:
    """The token counts of a text file, separated by white space. Raises TilewrightError."""
    words = read_text(path).split()
    wrong = next((word for word in words if not word.isdecimal() or not int(word)), None)
    if wrong is not None or not words:
        raise TilewrightError(
            f"{path.name}: {wrong!r} is not a token count." if words else f"{path.name} is empty.",
            hint="positive integers, one a line.",
        )
    return tuple(int(word) for word in words)


def shapes_of_layers(layers: Iterable[Layer], tokens: Sequence[int]) -> Iterator[tuple[tuple[int, int, int], str]]:
    """M, N, K of each layer at each token count, with the name of its model."""
    for layer in layers:
        for count in tokens:
            yield (count, layer.out_features, layer.in_features), layer.model


def random_shapes(count: int, seed: int) -> Iterator[tuple[tuple[int, int, int], str]]:
    """`count` random M, N, K; every other one is rounded to multiples of 8.

    >>> [shape for shape, _ in random_shapes(2, seed=1)]
    [(20, 2845, 1593), (40, 248, 176)]
    """
    rng = random.Random(seed)
    for number in range(count):
        sizes = [round(exp(rng.uniform(log(LEAST_SIZE), log(MOST_SIZE)))) for _ in range(3)]
        aligned = number % 2 == 1
        m, n, k = (max(VECTOR, size // VECTOR * VECTOR) if aligned else size for size in sizes)
        yield (m, n, k), "random, multiples of 8" if aligned else "random"


def drawn(
    shapes: Iterable[tuple[tuple[int, int, int], str]],
    formats: Sequence[str],
    orders: Sequence[str],
    *,
    seed: int,
    sample: int | None = None,
) -> tuple[Drawn, ...]:
    """Problems of each format and order; sample: so many of each, chosen by the seed. Raises UnknownName.

    >>> layers = [((1, 64, 64), "tiny"), ((3, 64, 64), "tiny")]
    >>> [str(one.problem) for one in drawn(layers, ["bf16"], ["NT"], seed=0, sample=1)]
    ['3x64x64 bf16 NT']
    """
    sources = dict(shapes)
    problems((), [name for name in formats if name not in FP8], orders)  # refuses unknown names
    found: list[Drawn] = []
    for name in formats:
        for order in orders:
            fitting = [shape for shape in sources if _bytes(Problem(*shape, name, order)) <= MOST_BYTES]
            chosen = fitting if sample is None else random.Random(seed).sample(fitting, min(sample, len(fitting)))
            found += [Drawn(Problem(*shape, name, order), sources[shape]) for shape in chosen]
    return tuple(found)


def _bytes(problem: Problem) -> int:
    gemm = problem.gemm
    return sum(rows * columns * size for rows, columns, size in (
        (gemm.m, gemm.k, gemm.dtype.bytes), (gemm.k, gemm.n, gemm.dtype.bytes), (gemm.m, gemm.n, gemm.out.bytes)
    ))  # fmt: skip
