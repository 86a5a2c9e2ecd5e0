"""Calls that were made before: answered without being looked at.

A call is known again by all that decides it but addresses: what was asked, and of each array its shape, strides,
format, device and how its address is aligned. Then only the result is made, and the launches are started. Where the
result goes into an array of the user's, it must also lie apart from what is read, as it did when the call was planned.

The host's time for that is what small problems take. `python benchmarks/host_cost.py` measures it beside torch's, and
its `--no-gpu` the Python of it, which one flat key, options that are not looked up where nothing is asked, and
`empty_strided` in place of `empty` brought from 9.3 to 5.3 us in one sitting (torch 2.11 on a busy machine without a
GPU; 2.5 us on an idle one).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tilewright.frontend.libraries import TorchArrays, WorkspaceError, library_of
from tilewright.frontend.options import Options
from tilewright.frontend.recipes import Addresses, Recipe, start

MEMO: dict[Any, Remembered] = {}
"""What is known of each call, by its key."""

MOST = 4096
"""Calls that are remembered; a program whose shapes never come back must not fill the memory with them."""

FAST: dict[type, Callable[..., Any]] = {}
"""For types of arrays whose calls are remembered: a function of (a, b, out, c, bias, options) that gives the result, or
None where it knows nothing."""

Span = tuple[int, int]
"""The bytes that an array touches, from its address: of the first, and of the one behind the last."""

_ITSELF = "out"
"""In the key of a call, in place of the sign of a `c` that is `out`: what is added is what the result held."""

os.register_at_fork(after_in_child=MEMO.clear)  # CUDA does not work there


class Remembered:
    """A call: its launches, and the array to make, in C order. launch: of a plain product, with nothing around it.
    single: see `Recipe`. spans: of the result, A, B, the bias and c; needed where the result is not made here."""

    __slots__ = ("device", "dtype", "index", "launch", "recipe", "shape", "single", "spans", "strides")

    def __init__(self, library: Any, result: Any, recipe: Recipe, spans: tuple[Span, ...] = ()) -> None:
        view = library.view(result)
        self.spans = spans
        self.recipe = recipe
        self.shape, self.strides = view.shape, view.strides
        self.dtype = result.dtype if isinstance(library, TorchArrays) else view.dtype
        self.device = getattr(result, "device", None)
        self.index = view.device
        self.launch = recipe.direct
        self.single = recipe.single


def remember(
    library: Any, given: tuple[Any, Any, Any, Any], out: Any, options: Options, result: Any, recipe: Recipe
) -> None:
    """The next call like this one will be known. given: a, b, c, bias. out: the user's array for the result."""
    signs = tuple(None if array is None else library.sign(array) for array in (*given, out))
    # An f32 at an odd place may be one half of complex numbers, and the next one there the negative of it.
    if None in signs[:2] or any(sign is not None and sign[-1] & 7 == 4 for sign in signs):
        return
    if type(given[0]) not in FAST:
        _make_fast(library, type(given[0]))
    if len(MEMO) >= MOST:
        MEMO.clear()
    a, b, c, bias, into = signs
    if out is None:
        MEMO[key_of(options, a, b, c, bias)] = Remembered(library, result, recipe)
        return
    first, second, added, kept_bias = given
    if added is out:
        added, c = None, _ITSELF
    spans = tuple(_span(library, array) for array in (out, first, second, kept_bias, added))
    MEMO[key_of(options, a, b, c, bias, into)] = Remembered(library, result, recipe, spans)


def key_of(options: Options, a: Any, b: Any, c: Any, bias: Any, out: Any = ()) -> Any:
    """One tuple of all, which takes half the time of tuples in a tuple."""
    return (options, c, bias, *a, *b, *out)


def _span(library: Any, array: Any) -> Span:
    if array is None:
        return 0, 0
    view = library.view(array)
    low, high = view.span
    return low - view.pointer, high - view.pointer


def _make_fast(library: Any, kind: type) -> None:
    if isinstance(library, TorchArrays):
        from tilewright.frontend.torch_calls import fast_call

        FAST[kind] = fast_call(library)
    else:
        FAST[kind] = _fast_call(library)


def _fast_call(library: Any) -> Callable[..., Any]:
    def fast(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options) -> Any:
        kind = type(a)
        if type(b) is not kind or not (c is None or type(c) is kind) or not (bias is None or type(bias) is kind):
            return None
        if out is not None:
            return out if type(out) is kind and run_into(library, a, b, out, c, bias, options) else None
        sign = library.sign
        added = (None if c is None else sign(c), None if bias is None else sign(bias))
        found = MEMO.get((options, *added, *sign(a), *sign(b)))
        if found is None:
            return None
        result = library.empty(found.shape, found.dtype, a)
        return result if run(library, found, a, b, c, bias, result) else None

    return fast


def run_into(library: Any, a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options) -> bool:
    """Starts a known call whose result goes into `out`; False where none is known, or `out` shares memory."""
    sign, address = library.sign, library.address
    of_c = _ITSELF if c is out else None if c is None else sign(c)
    found = MEMO.get(key_of(options, sign(a), sign(b), of_c, None if bias is None else sign(bias), sign(out)))
    if found is None:
        return False
    # A `c` that is `out` is found by the kernel where it writes.
    of_added = 0 if bias is None else address(bias), 0 if c is None or c is out else address(c)
    into = address(out)
    read = address(a), address(b), *of_added
    (first, end), *spans = found.spans
    low, high = into + first, into + end
    for place, (first, end) in zip(read, spans, strict=True):
        if place + first < high and low < place + end:
            return False
    return _started(library, found, (read[0], read[1], into, *of_added), out)


def run(library: Any, known: Remembered, a: Any, b: Any, c: Any, bias: Any, result: Any) -> bool:
    """Starts a known call; False where there is no room for its workspace."""
    address = library.address
    added = (0 if bias is None else address(bias), 0 if c is None else address(c))
    return _started(library, known, (address(a), address(b), address(result), *added), result)


def _started(library: Any, known: Remembered, addresses: Addresses, result: Any) -> bool:
    if known.single is not None:
        launch, places = known.single
        launch(library.stream(known.index), *[addresses[place] for place in places])
        return True
    try:
        start(library, known.recipe, addresses, known.index, result)
    except WorkspaceError:
        return False
    return True


def words_of(a: Any, b: Any, options: Options) -> str:
    """What runs for a call that was made before, for people; empty where it is not known."""
    sign = library_of(a).sign
    signs = sign(a), sign(b)
    found = None if None in signs else MEMO.get(key_of(options, *signs, None, None))
    return found.recipe.words if found is not None else ""
