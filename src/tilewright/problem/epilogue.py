"""What is done with a finished sum: `C = activation(alpha * sum * scales + beta * R + bias)`, or any function of it.

R is C itself, or a matrix of its own (`residual`). A bias is one number for each column (`bias="n"`, as in a linear
layer) or for each row (`bias="m"`), in the format of C. A scale is in f32: one number for each row ("m"), one for each
column ("n"), or one for all of A ("a") or of B ("b"); each lies in memory, where the kernel reads it.
A function takes what these make of the sum, other accumulators, and operands of any name: matrices, vectors, numbers.
More functions of the same may be written beside C, or be folded along rows or columns.

An `Epilogue` says two things, and every reader asks for these alone: the list of what it reads and writes (`operands`),
and expressions over that (`value`, `value_of`), of the nodes of `problem.values`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.dtypes import F32
from tilewright.problem.functions import Activation, Operation
from tilewright.problem.values import (
    Accumulated,
    Added,
    AddedName,
    Along,
    Applied,
    Combined,
    Constant,
    Element,
    Factor,
    Formula,
    PlusBetaTimes,
    TimesAlpha,
    Value,
    draws_of,
    evaluate,
    leaves_of,
    rotations_of,
    with_leaves,
)

Scale = Literal["m", "n", "a", "b"]
"""What there is one scale for: each row or column of C, or all of A or B."""

READY_MADE: tuple[AddedName, ...] = ("bias", "residual", "scale_m", "scale_n", "scale_a", "scale_b")


@dataclass(frozen=True, slots=True)
class Result:
    """What is written beside C: a matrix that lies as C does, or partial results of a fold. value: of an element, over
    the leaves of `Epilogue.function`."""

    operand: Added
    value: Value


@dataclass(frozen=True, slots=True)
class Epilogue:
    """bias: the dimension along which it runs. residual: whether R is another matrix than C. scale: what has
    scales: a dimension for each index, or a whole operand. twice: the product of all scales is a factor twice, so that
    large and small ones meet before either makes a sum overflow. own: the scales of which each of many problems has its
    own. function: of C as all of these make it, which it has
    as accumulator 0, of alpha times other accumulators, and of operands of its own. results: beside C, by further
    functions of the same."""

    bias: Along | None = None
    residual: bool = False
    activation: Activation | None = None
    scale: tuple[Scale, ...] = ()
    twice: bool = False
    own: tuple[Scale, ...] = ()
    function: Value | None = None
    results: tuple[Result, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.operands) or self.activation is not None or self.function is not None

    @property
    def operands(self) -> tuple[Added, ...]:
        """What it reads and writes beside C, in the order of a kernel's arguments."""
        bias = (Added("bias", self.bias),) if self.bias else ()
        residual = (Added("residual"),) if self.residual else ()
        return (*bias, *residual, *self._scales, *self.named, *self.written)

    @property
    def written(self) -> tuple[Added, ...]:
        """What is written beside C."""
        return tuple(result.operand for result in self.results)

    @property
    def scales(self) -> Result | None:
        """The scales of blocks of C, which is codes."""
        return next((one for one in self.results if one.operand.fold and one.operand.fold.codes), None)

    @property
    def named(self) -> tuple[Added, ...]:
        """The operands of the functions."""
        found = (leaf.operand for leaf in self._leaves if isinstance(leaf, Element))
        return tuple(dict.fromkeys(found))

    @property
    def factors(self) -> tuple[str, ...]:
        """The names of the scalars of the functions, in the order of a kernel's arguments."""
        return tuple(dict.fromkeys(leaf.name for leaf in self._leaves if isinstance(leaf, Factor)))

    @property
    def accumulators(self) -> int:
        """Sums that an element of C is made of."""
        return 1 + max((leaf.number for leaf in self._leaves if isinstance(leaf, Accumulated)), default=0)

    @property
    def _leaves(self) -> Iterator[Accumulated | Element | Constant | Factor]:
        return (leaf for one in self._functions for leaf in leaves_of(one))

    @property
    def has_pairs(self) -> bool:
        """Whether an element is made of its neighbour's values too."""
        return any(True for one in self._functions for _ in rotations_of(one))

    @property
    def has_draws(self) -> bool:
        """Whether an element is made of a number that is drawn for its place."""
        return any(True for one in self._functions for _ in draws_of(one))

    @property
    def _functions(self) -> tuple[Value, ...]:
        first = () if self.function is None else (self.function,)
        return (*first, *(result.value for result in self.results)) if self.results else first

    @property
    def is_whole(self) -> bool:
        """Whether the kernel that multiplies finishes C itself: it writes several results, makes them of pairs, or
        draws numbers for their places."""
        return bool(self.results) or self.has_pairs or self.has_draws

    @property
    def matrices(self) -> tuple[Added, ...]:
        """The operands that have a leading dimension."""
        return tuple(operand for operand in self.operands if not operand.is_vector)

    @property
    def addend(self) -> Literal["C", "residual"]:
        """The matrix that beta multiplies."""
        return "residual" if self.residual else "C"

    @property
    def reads(self) -> tuple[Added, ...]:
        """What is read for each element, whatever beta is."""
        return tuple(one for one in self.operands if one.name != self.addend and one not in self.written)

    @property
    def vectors(self) -> tuple[Added, ...]:
        """The rows and columns among what it reads."""
        return tuple(one for one in self.reads if one.is_vector and not one.single)

    @property
    def value(self) -> Value:
        """An element of C, before it is rounded."""
        return self._sum if self.function is None else _over(self.function, self._sum)

    def value_of(self, name: str) -> Value:
        """An element of C, or of a result beside it before it is folded or rounded."""
        if name == "C":
            return self.value
        return _over(next(one.value for one in self.results if one.operand.name == name), self._sum)

    @property
    def _sum(self) -> Value:
        """What functions have as accumulator 0."""
        value: Value = TimesAlpha(Accumulated())
        if self.twice:
            first, *others = self._scales
            together: Value = Element(first)
            for scale in others:
                together = Combined(Operation.TIMES, together, Element(scale))
            value = Combined(Operation.TIMES, Combined(Operation.TIMES, value, together), together)
        else:
            for scale in self._scales:
                value = Combined(Operation.TIMES, value, Element(scale))
        value = PlusBetaTimes(value, self.addend)
        if self.bias:
            value = Combined(Operation.PLUS, value, Element(Added("bias", self.bias)))
        return value if self.activation is None else Applied(self.activation, value)

    @property
    def _scales(self) -> tuple[Added, ...]:
        if not self.scale:
            return ()
        known: dict[Scale, Added] = {
            "a": Added("scale_a", "n", F32, single=True),
            "b": Added("scale_b", "n", F32, single=True),
            "m": Added("scale_m", "m", F32),
            "n": Added("scale_n", "n", F32),
        }
        own = ("m", "n") if self.twice else self.own
        return tuple(replace(scale, own=of in own) for of, scale in known.items() if of in self.scale)

    def formula(self, *totals: str, indexed: bool = False) -> str:
        """C as text.

        >>> Epilogue(bias="n", activation=Activation.RELU, scale=("m",)).formula("A @ B")
        'relu(alpha * A @ B * scale_m + beta * C + bias)'
        """
        return evaluate(self.value, Formula(totals, indexed))

    def __str__(self) -> str:
        words = [f"bias along {self.bias}"] if self.bias else []
        words += ["residual"] if self.residual else []
        words += [f"scale along {of}" if of in ("m", "n") else f"scale of {of.upper()}" for of in self.scale]
        words += [self.activation.value] if self.activation else []
        return ", ".join([*words, *(["a function"] if self.function is not None else [])])


def _over(function: Value, first: Value) -> Value:
    """A function of a value in place of accumulator 0, and of alpha times the others."""

    def change(leaf: Accumulated | Element) -> Value:
        if isinstance(leaf, Element):
            return leaf
        return TimesAlpha(leaf) if leaf.number else first

    return with_leaves(function, change)


PLAIN = Epilogue()
"""C = alpha * sum + beta * C."""
