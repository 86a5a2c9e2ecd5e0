"""Expressions as CUDA C++."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.codegen.conversions import conversion, cuda_format, is_storage
from tilewright.codegen.names import Names
from tilewright.dtypes import F32, I32, DType
from tilewright.errors import FormatError, LoweringError
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import (
    ZERO,
    Apply,
    Binary,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Lookup,
    Op,
    RandomNumber,
    Ref,
    Select,
    Var,
)
from tilewright.ir.kernel import BUILTINS
from tilewright.ir.text import ExprText
from tilewright.ir.visit import sub_exprs, walk_expr

_CALL = 100.0
_PREFIX = 11.0


@dataclass(frozen=True)
class CudaExpr(ExprText):
    """Prints expressions as C++.

    used: the names of the prelude that were printed so far. bare: built-in coordinates, which are unsigned in
    CUDA, are printed without the cast to int that comparisons and 64-bit arithmetic need.
    """

    names: Names
    used: set[str] = field(default_factory=set)
    bare: bool = False

    def type(self, dtype: DType) -> str:
        self.used.add(dtype.cuda)
        return dtype.cuda

    def integer(self, value: Expr) -> str:
        """`value` as the initialiser of an int, whose arithmetic may wrap around on the way."""
        return replace(self, bare=_is_modular(value))(value)

    def bound(self, value: Expr) -> str:
        """`value` as it stands behind a `<`."""
        return self._inside(value, Op.LT.strength + 0.1)

    def place(self, ref: Ref) -> str:
        name = self.names.buffer(ref.buffer)
        if is_scalar(ref.buffer):
            return name
        if ref.buffer.of_ranks:  # a table of addresses
            return f"{name}[{self(ref.index[0])}][{self(ref.index[1])}]"
        if ref.buffer.space is Space.GLOBAL:
            pointer, rest = pointer_of(ref.index[-1])
            if pointer is not None:
                return f"{self.place(Ref(pointer.buffer, pointer.index))}[{self(rest)}]"
            if len(ref.index) == 2:  # the base of a matrix among several: the offset in it keeps its 32 bits
                return f"({name} + {self._inside(ref.index[0], 9)})[{self(ref.index[1])}]"
        return name + "".join(f"[{self(i)}]" for i in ref.index)

    def stepped(self, ref: Ref) -> str:
        """The address of a place as that of the first term of its last index, and a step from there.

        The step is known when a loop is unrolled. Added to the address, and not to the index, it becomes a part of the
        instruction; the compiler makes an address of its own for each index.
        """
        pointer, step = pointer_of(ref.index[-1])
        if pointer is not None:
            base = self.place(Ref(pointer.buffer, pointer.index))
        else:
            first, step = _first_term(ref.index[-1])
            base = f"&{self.place(Ref(ref.buffer, (*ref.index[:-1], first)))}"
        return base if step == ZERO else f"{base} + {self._inside(step, 9)}"

    def element_type(self, buffer: Buffer) -> str:
        """What an element of a buffer is declared as."""
        if buffer.offsets_into is None:
            return self.type(buffer.dtype)
        return f"const {self.type(buffer.offsets_into.dtype)}*"

    def assigned(self, dst: Buffer, value: Expr) -> str:
        """A value as it is assigned to an element of `dst`: a pointer where that holds offsets."""
        if dst.offsets_into is None:
            return self(value)
        pointer, rest = pointer_of(value)
        if pointer is None:
            return f"&{self.place(Ref(dst.offsets_into, (value,)))}"
        return f"{self.place(Ref(pointer.buffer, pointer.index))} + {self._inside(rest, 9)}"

    def zero(self, dtype: DType) -> str:
        return self.const(Const(0.0 if dtype.is_float else 0, dtype))

    def const(self, expr: Const) -> str:
        text = cuda_format(expr.dtype).literal(expr.value)
        if text.startswith(expr.dtype.cuda):  # a literal of bits names its type
            self.type(expr.dtype)
        return text

    def cast(self, expr: Cast) -> tuple[str, float]:
        source, target = expr.value.dtype, expr.dtype
        if source == target:
            return self._text(expr.value)
        if is_storage(source):
            widened = self.call(conversion(source, F32), self(expr.value))
            return self._converted(F32, target, widened, _CALL)
        is_called = bool(conversion(source, target))  # its argument needs no brackets of its own
        return self._converted(
            source, target, self(expr.value) if is_called else self._inside(expr.value, _PREFIX), _PREFIX
        )

    def _converted(self, source: DType, target: DType, text: str, strength: float) -> tuple[str, float]:
        if source == target:
            return text, strength
        function = conversion(source, target)
        if function:
            return self.call(function, text), _CALL
        return f"({self.type(target)}){text}", _PREFIX

    def call(self, function: str, *arguments: str) -> str:
        """A call of a function of the prelude."""
        self.used.add(function)
        return f"{function}({', '.join(arguments)})"

    def fma(self, expr: Fma) -> tuple[str, float]:
        function = cuda_format(expr.dtype).fma
        if not (function and is_storage(expr.dtype)):
            _refuse_storage_arithmetic(expr)
        if not function:
            raise FormatError(f"Emitted CUDA has no multiply-add in {expr.dtype}.", hint="accumulate in f32.")
        return self.call(function, self(expr.a), self(expr.b), self(expr.c)), _CALL

    def product(self, expr: Fma) -> str:
        """`a * b` of an `a * b + c` that is printed as `c += a * b`."""
        _refuse_storage_arithmetic(expr)
        return f"{self._inside(expr.a, 10)} * {self._inside(expr.b, 10.1)}"

    def apply(self, expr: Apply) -> str:
        return self.call(expr.function.value, self(expr.value))

    def uniform(self, expr: RandomNumber) -> str:
        return self.call("uniform", *(self(part) for part in sub_exprs(expr)))

    def lookup(self, expr: Lookup) -> str:
        return f"{self.names.table(expr.table)}[{self(expr.index)}]"

    def select(self, expr: Select) -> tuple[str, float]:
        return self.choose(expr.condition, self(expr.a), self(expr.b)), 1.0

    def choose(self, condition: Expr, yes: str, no: str) -> str:
        """`condition ? yes : no`, a compound condition in brackets."""
        return f"{self._inside(condition, 4)} ? {yes} : {no}"

    def _text(self, expr: Expr) -> tuple[str, float]:
        match expr:
            case Var(name=name) if name in BUILTINS:
                return (name, _CALL) if self.bare else (f"int({name})", _CALL)
            case Var() if expr.dtype is I32 and self.names.is_wide(expr.name):
                return f"int({self.names.var(expr.name)})", _CALL
            case Var():
                return self.names.var(expr.name), _CALL
            case Binary(op=Op.MIN | Op.MAX):
                _refuse_storage_arithmetic(expr)
                a, b = (self(part if part.dtype == expr.dtype else Cast(expr.dtype, part)) for part in (expr.a, expr.b))
                return f"{expr.op.text}({a}, {b})", _CALL
            case Binary():
                _refuse_storage_arithmetic(expr)
                return super()._text(expr)
            case _:
                return super()._text(expr)


def is_scalar(buffer: Buffer) -> bool:
    """Registers of one element are printed as a plain variable."""
    return buffer.space is Space.REGISTER and buffer.elements == 1


def _first_term(offset: Expr) -> tuple[Expr, Expr]:
    """The first term of a sum, and the sum of the others."""
    if isinstance(offset, Binary) and offset.op is Op.ADD:
        first, rest = _first_term(offset.a)
        return first, rest + offset.b
    return offset, ZERO


def pointer_of(offset: Expr) -> tuple[Load | None, Expr]:
    """The offset among the terms of a sum that is held as a pointer, and what is added to it."""
    if isinstance(offset, Load) and offset.buffer.offsets_into is not None:
        return offset, ZERO
    if isinstance(offset, Binary) and offset.op is Op.ADD:
        for one, other in ((offset.a, offset.b), (offset.b, offset.a)):
            pointer, rest = pointer_of(one)
            if pointer is not None:
                return pointer, rest + other
    return None, offset


def _is_modular(value: Expr) -> bool:
    """Whether the result modulo 2**32 is the same for signed and unsigned operands."""
    return all(
        part.dtype is I32 and not (isinstance(part, Binary) and part.op in (Op.MIN, Op.MAX))
        if isinstance(part, (Const, Var, Binary))
        else False
        for part in walk_expr(value)
    )


def _refuse_storage_arithmetic(expr: Binary | Fma) -> None:
    parts = (expr.a, expr.b, expr.c) if isinstance(expr, Fma) else (expr.a, expr.b)
    for part in parts:
        if is_storage(part.dtype):
            raise LoweringError(
                f"Cannot compute in {part.dtype}: registers of that type hold bits.",
                note="f16 and bf16 are storage formats; a cast to f32 makes a number of them.",
            )
