"""A constant operand whose pieces are kept: products with it split the other operand only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from tilewright.dtypes import F32
from tilewright.errors import ProblemError
from tilewright.frontend.compute import Settled, compute, device_of, settle, views_of
from tilewright.frontend.guard_flags import FLAG_BYTES, room_of
from tilewright.frontend.layouts import CannotWrite
from tilewright.frontend.libraries import HostArrays, TorchArrays, library_of
from tilewright.frontend.libraries.views import DTypeError, View
from tilewright.frontend.options import EMULATED, Guarding, Options, Precision, options_with, unguarded
from tilewright.frontend.requests import Piece, Views, checked, requests_of
from tilewright.frontend.shapes import NeedsCopy, ShapeError
from tilewright.planning.assembly import Request
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.emulated import pieces_of_b
from tilewright.planning.plan import Place
from tilewright.runtime.memory import c_strides

_ROWS = 128
"""Of the other operand of the product that pieces are asked for; they do not depend on it."""


def prepare(weight: Any, *, precision: Precision = EMULATED, guard: Guarding = "on") -> Prepared:
    """A constant operand b of `matmul(a, b, precision=...)`, with its pieces, which stay on the GPU.

    weight: f32, of shape (k, n), on a GPU; each piece takes 2 bytes of an element in bf16, 4 in tf32. precision: an
    algorithm, or "f32_emulated". guard: as of `matmul`. Where PyTorch counts that the weight was written, it is split
    again.
    Raises DTypeError, ShapeError and ProblemError for what cannot be prepared, LaunchError where there is no wgmma.
    """
    return Prepared(weight, unguarded(precision, guard))


class Prepared:
    """What `prepare` returns: `b` of products. weight: the operand. precision: of its products."""

    def __init__(self, weight: Any, precision: Precision) -> None:
        self.weight, self.precision = weight, precision
        self._library: Any = library_of(weight)
        self._calls: dict[Any, Settled] = {}
        if isinstance(self._library, HostArrays):
            raise ProblemError("A weight in host memory has no pieces on a GPU.", hint="move it to the GPU first.")
        self._split()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    def _split(self) -> None:
        self._version = _version(self.weight)
        request = self._request()
        self._device = self._library.view(self.weight).device
        planner, library = dispatcher(self._device), self._library
        plan, size_bytes = planner.splitting(request)
        self._lie = pieces_of_b(request)
        self._pieces, self._kept = library.scratch(size_bytes, self.weight)
        scratch, kept = library.scratch(plan.scratch_bytes, self.weight) if plan.scratch_bytes else (0, None)
        self._flag = room_of(planner.gpu).flags(1, capturing=library.capturing()) if request.fallback else None
        flag = 0 if self._flag is None else self._flag.address + FLAG_BYTES
        places = {Place.B: library.address(self.weight), Place.OUT: self._pieces, Place.SCRATCH: scratch}
        places[Place.GUARD_B] = flag
        with planner.gpu.as_current():
            plan.run(library.stream(self._device), [places.get(place, 0) for place in Place])
        library.finished(self._device)
        del kept

    def _request(self) -> Request:
        """A product with the weight."""
        view: View = self._library.view(self.weight)
        if view.dtype is not F32:
            raise DTypeError(f"A weight of {view.dtype} has no pieces.", hint="prepare weights of f32.")
        if len(view.shape) != 2 or 0 in view.shape:
            raise ShapeError(f"A weight of shape {view.shape} cannot be prepared.", hint="give one of shape (k, n).")
        options = options_with(precision=self.precision)
        if options.algorithm_of(F32, view.shape[0])[0] is None:
            raise ProblemError(
                f"precision={self.precision!r} multiplies no pieces of a weight of {view.shape[0]} rows.",
                hint="prepare larger weights, for 'f32_emulated' or an algorithm.",
            )
        shape = _ROWS, view.shape[0]
        views = Views(View(0, shape, c_strides(shape), F32, view.device), view)
        device_of(self._library, views.a)
        try:
            (piece,) = requests_of(views, *checked(views, options), options)
        except NeedsCopy as needed:
            self.weight = needed.copied(self._library, self.weight)
            return self._request()
        return piece.request

    def precise(self, options: Options) -> Options:
        """The options of a product with the weight. Raises ProblemError for those of another precision."""
        if options.precision not in ("default", self.precision):
            raise ProblemError(
                f"The weight was prepared for precision={self.precision!r}, not {options.precision!r}.",
                hint="leave out precision.",
            )
        return _precise(options, self.precision)

    def multiply(self, a: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...] = ()) -> Any:
        """The product of `a` with the weight."""
        options, library = self.precise(options), self._library
        if isinstance(library, TorchArrays) and not _is_plain(a, self.weight, out, c, bias, *operands):
            from tilewright.frontend.pytorch.entry import multiply

            return multiply(a, self.weight, out, c, bias, options, operands)  # PyTorch must see the call
        if _version(self.weight) != self._version:
            self._calls.clear()
            self._split()
        try:
            call = self._settled(a, out, c, bias, options, operands)
        except (NeedsCopy, CannotWrite):
            return compute(library, a, self.weight, out, c, bias, options, operands)
        result = call.make() if out is None else out
        given = (0 if array is None else library.address(array) for array in (bias, None if c is out else c, *operands))
        addresses: Any = (library.address(a), library.address(self.weight), library.address(result), *given)
        if out is not None and call.shares_memory(addresses):
            return compute(library, a, self.weight, out, c, bias, options, operands)
        call.start(library, addresses, result, self._pieces, self._flag)
        library.finished(call.device)
        return result

    def _settled(self, a: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...]) -> Settled:
        """What is remembered of such a call. Raises NeedsCopy and CannotWrite for arrays that lie otherwise."""
        key = self._library.key(options, a, self.weight, c, bias, out, operands)
        call = self._calls.get(key)
        if call is None:
            views = views_of(self._library, a, self.weight, out, c, bias, operands)
            call = self._calls[key] = Settled(self._library, views, options, a, self._known)
        return call

    def settle(
        self, a: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...]
    ) -> tuple[Settled, Callable[[], tuple[str, ...]]]:
        """A product with the weight as `multiply` starts it, not started, and what tells what ran of it."""
        library = self._library
        if _version(self.weight) != self._version:
            self._calls.clear()
            self._split()
        asked = a, out, c, bias, options, operands
        try:
            call = self._settled(*asked)
        except (NeedsCopy, CannotWrite):
            find = settle(library, a, self.weight, out, c, bias, options, operands)
            return find(), lambda: find().ran(library)
        return call, lambda: self._settled(*asked).ran(library)

    def multiply_by(self, a: Any, b: Any, *call: Any) -> Any:
        """`multiply` as a way of a call, whose b is this weight."""
        return self.multiply(a, *call)

    def _known(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Requests, told that the pieces of B are there, where they lie as the request needs them."""
        return tuple(replace(one, request=replace(one.request, prepared=self._serves(one))) for one in pieces)

    def _serves(self, piece: Piece) -> bool:
        if piece.swapped or piece.request.algorithm is None or any(start[1] for start in piece.starts):
            return False
        return pieces_of_b(piece.request) == self._lie


_PRECISE: dict[tuple[Options, str], Options] = {}
_BY_VALUES: dict[tuple[object, ...], Options] = {}


def _precise(options: Options, precision: Precision) -> Options:
    """The same options with a precision; the same value whether that was said or left out, as keys hold options by
    identity."""
    found = _PRECISE.get((options, precision))
    if found is None:
        found = replace(options, precision=precision)
        values = tuple(getattr(found, one.name) for one in fields(found))
        found = _PRECISE[options, precision] = _BY_VALUES.setdefault(values, found)
    return found


def _version(weight: Any) -> int:
    """How often PyTorch counts that a tensor was written; 0 for others."""
    try:
        return int(weight._version)
    except (AttributeError, RuntimeError):  # of another library, or made under inference mode
        return 0


def _is_plain(*arrays: Any) -> bool:
    from tilewright.frontend.pytorch.plain import is_plain

    return is_plain(*(array for array in arrays if array is not None))
