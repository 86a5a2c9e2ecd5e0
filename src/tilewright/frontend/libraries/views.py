"""What the front end asks of a library of arrays, and the errors that it raises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.dtypes import BF16, F16, F32, Array, DType
from tilewright.errors import LaunchError, ProblemError
from tilewright.units import format_bytes, type_name

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """Where an array lies. pointer: of its first element. strides: in elements. device: the GPU; None is the host."""

    pointer: int
    shape: Shape
    strides: Shape
    dtype: DType
    device: int | None

    @property
    def place(self) -> str:
        """The device, for people."""
        return "the host" if self.device is None else f"GPU {self.device}"

    @property
    def span(self) -> tuple[int, int]:
        """The bytes that it may touch: the address of the first, and the one behind the last."""
        if 0 in self.shape:
            return self.pointer, self.pointer
        reach = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        return self.pointer + low * self.dtype.bytes, self.pointer + (high + 1) * self.dtype.bytes

    def overlaps(self, other: View) -> bool:
        """Whether the two may share memory."""
        (mine, my_end), (theirs, their_end) = self.span, other.span
        return self.device == other.device and mine < their_end and theirs < my_end

    def lies_as(self, other: View) -> bool:
        """Whether the two are the same elements in the same place."""
        mine, theirs = ((v.pointer, v.shape, v.dtype, v.device) for v in (self, other))
        steps = zip(self.shape, self.strides, other.strides, strict=False)
        return mine == theirs and all(extent == 1 or own == step for extent, own, step in steps)


class Library(Protocol):
    """A library of arrays."""

    name: str
    writes_in_place: bool
    """Whether its arrays may be given as `out`."""
    launches_alone: bool
    """Whether a launch needs neither `elsewhere` before it nor `finished` behind it."""

    def view(self, array: Any) -> View:
        """Raises ProblemError for an array that no kernel can read where it lies."""
        ...

    def key(self, options: Any, a: Any, b: Any, c: Any, bias: Any, out: Any, operands: tuple[Any, ...] = ()) -> Any:
        """What calls that look alike have in common: what is asked, and of each array all but its address, and that
        modulo 16. None where calls are not remembered.

        One flat tuple, which is hashed in half the time of nested ones. Raises AttributeError or RuntimeError for
        arrays that are not memory, or none of this library.
        """
        ...

    def address(self, array: Any) -> int: ...
    def maker(self, shape: Shape, dtype: DType, like: Any) -> Callable[[], Any]:
        """Makes new arrays in C order on the device of `like`, their elements anything. It does not keep `like`."""
        ...

    def tight(self, array: Any) -> Any:
        """A copy in C order."""
        ...

    def spread(self, array: Any, shape: Shape) -> Any:
        """A copy in C order, broadcast to a shape."""
        ...

    def convert(self, array: Any, dtype: DType) -> Any:
        """A copy in another number format."""
        ...

    def assign(self, target: Any, value: Any) -> None:
        """`target[...] = value`, on the user's stream."""
        ...

    def elsewhere(self, device: int) -> bool:
        """Whether another GPU than this may be the current one of the thread."""
        ...

    def stream(self, device: int) -> int:
        """The address of the stream on which the user's work runs."""
        ...

    def scratch(self, size_bytes: int, like: Any) -> tuple[int, Any]:
        """Memory that this call may use on its stream, its address and what keeps it. Raises WorkspaceError if full."""
        ...

    def upload(self, words: Array, like: Any) -> tuple[int, Any]:
        """A copy of some words on the device of `like`, its address and what keeps it."""
        ...

    def capturing(self) -> bool:
        """Whether the user's stream is recording a graph."""
        ...

    def deterministic(self) -> bool:
        """Whether the user asked the library for the same bits in every run."""
        ...

    def finished(self, device: int) -> None:
        """Called after the last launch, for libraries that share no streams."""
        ...


class Signed(ABC):
    """`Library.key` of a library that has a sign for each array: a tuple of its shape, strides, format, device and
    alignment."""

    @abstractmethod
    def sign(self, array: Any) -> tuple[Any, ...]:
        """The sign of one array."""

    def key(self, options: Any, a: Any, b: Any, c: Any, bias: Any, out: Any, operands: tuple[Any, ...] = ()) -> Any:
        sign = self.sign
        return (
            options,
            None if c is None else "out" if c is out else sign(c),  # the kernel adds what the result held
            None if bias is None else sign(bias),
            *sign(a),
            *sign(b),
            *(() if out is None else sign(out)),
            *(field for operand in operands for field in sign(operand)),
        )


FORMATS: dict[str, DType] = {"float32": F32, "float16": F16, "bfloat16": BF16}
NAMES: dict[DType, str] = {dtype: name for name, dtype in FORMATS.items()}


class DTypeError(ProblemError, TypeError):
    """A number format that no kernel takes; a TypeError, as other libraries raise it."""


class ComplexNumbers(DTypeError):
    """Operands of complex64, which `matmul` takes apart, and other calls do not take."""


class NoMemory(ProblemError):
    """An array stands for others: PyTorch traces it, or maps a function over it."""


class WorkspaceError(LaunchError):
    """The GPU has no room for a workspace; a kernel that needs none may run instead."""


def format_named(name: str, array: Any) -> DType:
    """The format that a library calls `name`. Raises DTypeError for one that no kernel multiplies."""
    if name.removeprefix("torch.") == "complex64":
        raise ComplexNumbers(
            f"{type_name(array, 'A')} of complex64 is multiplied by matmul and linear, and by no other call.",
            hint="call matmul, or multiply real and imaginary parts.",
        )
    found = FORMATS.get(name)
    if found is None:
        formats = "complex64, which matmul and linear multiply" if "complex" in name else ", ".join(FORMATS)
        raise DTypeError(f"Cannot multiply {type_name(array)} of {name}.", hint=f"use {formats}: convert it first.")
    return found


def no_room(size_bytes: int) -> WorkspaceError:
    return WorkspaceError(f"There is no room for a workspace of {format_bytes(size_bytes)} on the GPU.")
