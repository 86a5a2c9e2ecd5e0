"""One call, in one direction: arrays -> views -> requests -> plans -> launches.

What all calls that look alike share is settled once (`Settled`) and remembered. Calls look alike when they ask the same
and when their arrays agree in shape, strides, format, device and alignment: the next one starts at its addresses. An
`out` must also lie apart from what is read, which depends on addresses alone and is seen each time.

An array that no kernel reads as it lies is copied, and the call is made with the copy.

The host's time for a known call decides the speed of small problems: `python benchmarks/host_cost.py` measures it
beside PyTorch's. One flat key and `empty_strided` in place of `empty` keep it low.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import add, itemgetter
from typing import Any, NamedTuple

from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend.autotuning import ON_ENTRY, measured
from tilewright.frontend.guard_flags import FLAG_BYTES, FLAGS_BYTES, Flags, GuardFlags
from tilewright.frontend.layouts import CannotWrite
from tilewright.frontend.libraries import DTypeError, View, WorkspaceError, library_of
from tilewright.frontend.operands import argument_of, further_of
from tilewright.frontend.options import PLAIN, Options
from tilewright.frontend.remembered import Remembered, remembered
from tilewright.frontend.requests import Addresses, Piece, Views, checked, requests_of
from tilewright.frontend.shapes import NeedsCopy
from tilewright.notices import say_once
from tilewright.planning.dispatch import Dispatcher, dispatcher, refuse_capture
from tilewright.planning.plan import Place, Plan
from tilewright.units import type_name

MEMO: Remembered[Settled] = remembered()
"""What is settled of the calls made so far, by their keys."""

Span = tuple[int, int]
"""The bytes that an array touches, from its address: of the first, and of the one behind the last."""

_RESULTS = "f32, f16 or bf16"

ON_ENTRY.append(MEMO.clear)


class HostMemory(ProblemError):
    """The arrays lie in host memory, where no kernel reads them."""


def compute(
    library: Any, a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...] = ()
) -> Any:
    """The result of a call whose arrays are all of one library; a tuple of several. operands: of the function of the
    epilogue.

    Raises DTypeError, ShapeError and ProblemError for what cannot be asked, HostMemory for arrays on no GPU.
    """
    try:
        key = library.key(options, a, b, c, bias, out, operands)
    except (AttributeError, RuntimeError):  # of another library, or without memory
        key = None
    call = MEMO.get(key)
    if call is None:
        views = views_of(library, a, b, out, c, bias, operands)
        if c is not None and c is not out and views.out is not None and _lies_as(views.c, views.out):
            return compute(library, a, b, out, out, bias, options, operands)
        try:
            call = Settled(library, views, options, a)
        except NeedsCopy as needed:
            a, b, c, bias, *copied = _with_copy(needed, library, a, b, c, bias, operands)
            return compute(library, a, b, out, c, bias, options, tuple(copied))
        except CannotWrite:
            return _assigned(library, a, b, out, c, bias, options, operands)
        if not views.may_be_half_of_complex_numbers:
            MEMO.keep(key, call)
    result = call.make() if out is None else out
    others = call.make_others and tuple([make() for make in call.make_others])
    address = library.address
    at_bias, at_c = 0 if bias is None else address(bias), 0 if c is None or c is out else address(c)
    addresses: Addresses = (address(a), address(b), address(result), at_bias, at_c)
    if operands or others:
        addresses = (*addresses, *map(address, operands), *map(address, others))
    if out is not None and call.shares_memory(addresses):
        return _assigned(library, a, b, out, c, bias, options, operands)
    if call.launch is not None:
        call.launch(library.stream(call.device), *call.pick(addresses))
    else:
        call.start(library, addresses, result)
        library.finished(call.device)
    return (result, *others) if others else result


def _with_copy(needed: NeedsCopy, library: Any, a: Any, b: Any, c: Any, bias: Any, operands: tuple[Any, ...]) -> Any:
    """The arrays of a call, one of them copied."""
    arrays = {"a": a, "b": b, "c": c, "bias": bias}
    arrays |= {argument_of(number): operand for number, operand in enumerate(operands)}
    arrays[needed.name] = needed.copied(library, arrays[needed.name])
    return arrays.values()


def settle(
    library: Any, a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...] = ()
) -> Callable[[], Settled]:
    """What finds a call as `compute` starts it, which is settled and remembered here, and not started. Raises as
    `compute`."""
    key = library.key(options, a, b, c, bias, out, operands)
    call = MEMO.get(key)
    if call is None:
        try:
            call = Settled(library, views_of(library, a, b, out, c, bias, operands), options, a)
        except NeedsCopy as needed:
            a, b, c, bias, *copied = _with_copy(needed, library, a, b, c, bias, operands)
            return settle(library, a, b, out, c, bias, options, tuple(copied))
        except CannotWrite:
            return settle(library, a, b, None, c, bias, options, operands)
        MEMO[key] = call
    return lambda: MEMO.get(key, call)


def _assigned(
    library: Any, a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...]
) -> Any:
    """The result by way of an array of its own: no kernel writes `out` as it lies, or it is still to be read."""
    library.assign(out, compute(library, a, b, None, c, bias, options, operands))
    return out


def views_of(
    library: Any, a: Any, b: Any, out: Any = None, c: Any = None, bias: Any = None, operands: tuple[Any, ...] = ()
) -> Views:
    """Where the arrays of a call lie. Raises ProblemError for one of another library, and as `Library.view` does."""
    views: dict[str, View | None] = {"a": library.view(a)}
    for name, array in (("b", b), ("out", out), ("c", c), ("bias", bias)):
        if array is not None or name == "b":
            refuse_other_library(library, name, array)
        views[name] = None if array is None else library.view(array) if name != "out" else writable_view(library, out)
    for operand in operands:
        refuse_other_library(library, "an operand of the epilogue", operand)
    return Views(**views, operands=tuple(library.view(operand) for operand in operands))  # type: ignore[arg-type]


def device_of(library: Any, view: View) -> int:
    """The number of the GPU on which an array lies. Raises HostMemory if on none."""
    if view.device is None:
        raise HostMemory(
            f"The arrays of {library.name} lie in host memory, not on a GPU.", hint="move them to the GPU first."
        )
    return view.device


def refuse_other_library(library: Any, name: str, array: Any) -> None:
    """Raises ProblemError for an argument that is not an array of a library."""
    try:
        other = library_of(array)
    except ProblemError:
        raise ProblemError(
            f"{name} is {type_name(array)}, and a is an array of {library.name}.",
            hint="pass an array of that library.",
        ) from None
    if other is not library:
        raise ProblemError(
            f"{name} is an array of {other.name}, and a is one of {library.name}.",
            hint="convert one to the other's library: both take DLPack.",
        )


def writable_view(library: Any, out: Any) -> View:
    """Where `out` lies. Raises ProblemError where arrays of its library do not change, DTypeError for its format."""
    if not library.writes_in_place:
        raise ProblemError(f"Arrays of {library.name} do not change, so `out` cannot be given.")
    try:
        view: View = library.view(out)
    except DTypeError:
        raise DTypeError(f"`out` holds {out.dtype}, and results are {_RESULTS}.", hint="pass another out.") from None
    return view


def _lies_as(c: View | None, out: View) -> bool:
    return c is not None and c.lies_as(out)


class Settled:
    """What calls that look alike share: their plans, and how their result is made.

    device: the number of the GPU. make: makes the result; make_others: those behind it. launch: of a call that needs
    one launch and nothing around it; it is given the stream and `pick(addresses)`. spans: of the result, A, B, the bias
    and c.
    """

    __slots__ = ("_flags", "_parts", "_planner", "device", "launch", "make", "make_others", "pick", "spans")

    def __init__(
        self,
        library: Any,
        views: Views,
        options: Options,
        like: Any,
        known: Callable[[Sequence[Piece]], Sequence[Piece]] = tuple,
    ) -> None:
        """like: an array whose library and device are those of the result. known: says of requests what is prepared.

        Raises what `checked` and `requests_of` raise, HostMemory, and LaunchError where a kernel would have to be
        compiled while the stream is recording a graph.
        """
        product, dtype = checked(views, options)
        self.device = device_of(library, views.a)
        pieces = known(requests_of(views, product, dtype, options))
        self._planner = dispatcher(self.device)
        planner = self._planner
        self._parts = tuple(
            (piece, measured(planner, library, piece, views, like) or planned(planner, library, piece))
            for piece in pieces
        )
        guarded = sum(len(piece.starts) for piece, plan in self._parts if plan.asks_flags)
        self._flags = GuardFlags(planner.gpu, guarded) if guarded else None
        self.make: Callable[[], Any] = library.maker(product.shape, dtype, like)
        further = further_of(options, product, views.a.dtype)
        self.make_others = tuple(library.maker(one.view.shape, one.view.dtype, like) for one in further)
        given = (views.result(product, dtype), views.a, views.b, views.bias, views.c, *views.operands)
        self.spans = tuple(_span(view) for view in given)
        self.launch, self.pick = _single(self._parts if library.launches_alone else ())

    @property
    def words(self) -> str:
        """What runs, for people."""
        return "; ".join(dict.fromkeys(plan.words for _, plan in self._parts))

    @property
    def parts(self) -> Parts:
        """Its requests and their plans."""
        return self._parts

    def ran(self, library: Any) -> tuple[str, ...]:
        """What the device ran in the last call, of each launch in order: the algorithm of its pieces, or the plan.
        Waits for the GPU where the device chose. Raises LaunchError."""
        if self._flags is None:
            return tuple(plan.way for piece, plan in self._parts for _ in piece.starts)
        if library.capturing():
            raise LaunchError(
                "The stream is recording a CUDA graph: what it will run is not known yet.",
                hint="ask after a replay of the graph.",
            )
        if self._flags.last is None:
            raise LaunchError(
                "The device has not chosen a plan yet: no call of this kind was made.",
                hint="make the call, then ask what it ran.",
            )
        with self._planner.gpu.as_current():
            self._planner.gpu.synchronize()
            fell_back = iter(self._flags.last.fell_back())
        plans = (plan for piece, plan in self._parts for _ in piece.starts)
        return tuple(plan.other_way if plan.asks_flags and next(fell_back) else plan.way for plan in plans)

    def shares_memory(self, addresses: Addresses) -> bool:
        """Whether writing the result may change what is still to be read. addresses: 0 for a c that is the result."""
        a, b, out, *others = addresses
        (first, end), *spans = self.spans
        low, high = out + first, out + end
        for place, (first, end) in zip((a, b, *others), spans, strict=True):
            if place and place + first < high and low < place + end:
                return True
        return False

    def start(
        self, library: Any, addresses: Addresses, result: Any, prepared: int = 0, flag_of_b: Flags | None = None
    ) -> None:
        """Start all launches on the library's stream. result: the array that they write. prepared: where pieces of B
        lie that were made before; flag_of_b: the flag of their range."""
        with gpu_of(self._planner, library):
            flags = 0 if self._flags is None else self._flags.of_call(library, self.device).address
            kept = Kept(prepared, flags, 0 if flag_of_b is None else flag_of_b.address + FLAG_BYTES)
            try:
                run(library, self._parts, addresses, self.device, result, kept)
            except WorkspaceError as full:
                say_once(f"{full.headline} A slower kernel that needs none runs instead.")
                without = [
                    (piece, planned(self._planner, library, piece.without_workspace)) for piece, _ in self._parts
                ]
                if self._flags is not None:
                    self._flags.last = None
                run(library, tuple(without), addresses, self.device, result, kept)


_NOTHING = nullcontext()


def gpu_of(planner: Dispatcher, library: Any) -> AbstractContextManager[object]:
    """Makes the planner's GPU the current one where another may be."""
    if library.launches_alone or not library.elsewhere(planner.gpu.index):
        return _NOTHING
    return planner.gpu.as_current()


Parts = tuple[tuple[Piece, Plan], ...]


def planned(planner: Dispatcher, library: Any, piece: Piece) -> Plan:
    """The plan of a request. Raises LaunchError where it is new and the stream is recording a graph, or this process
    was forked."""
    plan = planner.known(piece.request)
    if plan is None:
        planner.refuse_fork()  # before the library is asked anything of the GPU
        refuse_capture(library.capturing(), f"no kernel for {piece.request.gemm}")
        plan = planner.plan(piece.request)
    return plan


class Kept(NamedTuple):
    """What a call has of its own on the device, by addresses: pieces of B; its flags, those of each guarded launch; the
    flag of B where its pieces are kept."""

    pieces: int = 0
    flags: int = 0
    flag_of_b: int = 0


_NOTHING_KEPT = Kept()


def run(library: Any, parts: Parts, addresses: Addresses, device: int, like: Any, own: Kept = _NOTHING_KEPT) -> None:
    """Start plans in order; they share a workspace. Raises WorkspaceError where there is no room for it."""
    prepared, flags, flag_of_b = own
    scratch_bytes = max((plan.scratch_bytes for _, plan in parts), default=0)
    scratch, kept = library.scratch(scratch_bytes, like) if scratch_bytes else (0, None)
    stream = library.stream(device)
    a, b, out, *others = addresses
    for piece, plan in parts:
        first, second = (b, a) if piece.swapped else (a, b)
        for x, y, z, *at in piece.starts:
            bias, residual, *operands = map(add, others, at)
            arrays = first + x, second + y, out + z, bias, residual, scratch
            if prepared or operands or flags:
                of_b = flag_of_b if piece.request.prepared and flag_of_b else flags + FLAG_BYTES
                fell_back = flags + 2 * FLAG_BYTES
                plan.run(stream, (*arrays, 0, prepared, 0, 0, flags, of_b, fell_back, *operands))
                flags += FLAGS_BYTES if flags and plan.asks_flags else 0
            else:
                plan.run(stream, arrays)
    del kept  # only now: the library may give the memory to whatever its stream does next


def _single(parts: Parts) -> tuple[Callable[..., None] | None, Callable[[Addresses], tuple[int, ...]]]:
    """The one launch of a call, and which of its addresses the launch is given; None where there are more."""
    if len(parts) == 1:
        (piece, plan) = parts[0]
        if piece.is_at_start and len(plan.steps) == 1 and not plan.scratch_bytes:
            (step,) = plan.steps
            numbers: dict[int, int] = {Place.A: 1, Place.B: 0} if piece.swapped else {}
            numbers |= {Place.OPERAND + number: 5 + number for number in range(len(piece.starts[0]) - 5)}
            places = [int(numbers.get(place, place)) for place, _ in step.pointers]
            return step.launch.launch, itemgetter(*places)
    return None, itemgetter(0)


def _span(view: View | None) -> Span:
    if view is None:
        return 0, 0
    low, high = view.span
    return low - view.pointer, high - view.pointer


def words_of(a: Any, b: Any, options: Options = PLAIN) -> str:
    """What runs for a call that was made before, for people; empty where it is not known."""
    found = MEMO.get(library_of(a).key(options, a, b, None, None, None))
    return "" if found is None else found.words
