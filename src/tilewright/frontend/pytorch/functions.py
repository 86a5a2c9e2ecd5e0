"""Products with a function as their epilogue, as PyTorch sees them: with gradients, by differentiating the expression.

    z = alpha * a @ b + beta * c + bias        result = f(z, operands)
    gradient of z           f'(z, operands) * gradient: the product is computed again, with f' as its epilogue
    gradient of an operand  df/d(operand) * gradient, likewise, summed to the operand's shape

Of several results these are sums over all. The gradient of a sum of rows is a number for each row; the largest of a row
has none.

The gradients are made of such products themselves, so that gradients of gradients need nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from tilewright import extras
from tilewright.dtypes import F32, FP8_FORMATS, DType
from tilewright.errors import ProblemError
from tilewright.frontend.libraries import NoMemory
from tilewright.frontend.options import PLAIN, Options, options_with
from tilewright.frontend.pytorch.gradients import gradients, keep
from tilewright.frontend.pytorch.operator import multiply, refuse_gradients, words_of
from tilewright.frontend.pytorch.plain import LIBRARY, activated, compute_plain, is_plain
from tilewright.frontend.tracing import Traced, factor_name, operand_name, traced_of
from tilewright.problem.derivative import derivative, gradient, plus, times
from tilewright.problem.functions import Activation, Elementary, Function, Operation
from tilewright.problem.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, WORDS
from tilewright.problem.values import Accumulated, Added, Applied, Constant, Element, Value, evaluate, leaves_of

torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")


def with_function(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...]) -> Any:
    """A call with tensors of PyTorch, and a function as its epilogue."""
    tensors = [x for x in (a, b, out, c, bias, *operands) if x is not None]
    if not all(isinstance(x, torch.Tensor) for x in tensors):
        return compute_plain(a, b, out, c, bias, options, operands)  # which says what is wrong
    try:
        if is_plain(*tensors):
            return compute_plain(a, b, out, c, bias, options, operands)
        if torch.is_grad_enabled() and is_plain(*(x.detach() for x in tensors)):
            if out is not None:
                refuse_gradients()
            kind = _Gated if options.has_second else _Function
            return kind.apply(options, a, b, c, bias, *operands)
    except NoMemory:
        pass
    raise ProblemError(
        "A product with a function as its epilogue is of plain tensors: PyTorch's tracers, modes and torch.func do not "
        "see into it.",
        hint="call it outside of them; gradients by backward() and torch.autograd.grad it has.",
    )


@torch.compiler.disable  # type: ignore[untyped-decorator]
def apart(call: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """A call that compiled code makes: between two graphs, as PyTorch's compiler does not see into it."""
    return call(*arguments, **named)


class _Function(torch.autograd.Function):  # type: ignore[misc]
    """f(alpha * a @ b + beta * c + bias, operands)."""

    @staticmethod
    def forward(ctx: Any, options: Options, a: Any, b: Any, c: Any, bias: Any, *operands: Any) -> Any:
        ctx.options = options
        ctx.save_for_backward(a, b, c, bias, *operands)
        ctx.set_materialize_grads(False)
        a, b, c, bias = _detached(a, b, c, bias)
        made = compute_plain(a, b, None, c, bias, options, _detached(*operands))
        results = made if options.others else (made,)
        flat = zip(results, (True, *(other.has_gradient for other in options.others)), strict=True)
        ctx.mark_non_differentiable(*(one for one, has in flat if not has or LIBRARY.format_of(one) in FP8_FORMATS))
        return made

    @staticmethod
    def backward(ctx: Any, *gradient: Any) -> tuple[Any, ...]:
        a, b, c, bias, *operands = ctx.saved_tensors
        if all(one is None for one in gradient):
            return (None,) * (5 + len(operands))
        options, (_, *needs) = ctx.options, ctx.needs_input_grad
        wanted: dict[str | None, Any] = {} if not any(needs[:4]) else {None: None}
        wanted |= {name: None for name, need in zip(options.names, needs[4:], strict=True) if need}
        found = _derivatives((a, b, c, bias), options, operands, gradient, tuple(wanted))
        for_sum: tuple[Any, ...] = (None,) * 4
        if None in found:
            for_sum = _of_sum(a, b, c, bias, options, found[None].to(a.dtype), needs[:4])
        given = zip(options.names, operands, strict=True)
        return (None, *for_sum, *(_summed(found[name], one) if name in found else None for name, one in given))


def _derivatives(
    sources: Sequence[Any],
    options: Options,
    operands: Sequence[Any],
    gradients: Sequence[Any],
    wanted: Sequence[str | None],
) -> dict[str | None, Any]:
    """By each operand, and by the sum (None), times the gradients of the results. sources: a, b, c and bias.

    One that depends on the sum is the epilogue of the product; the sum of several is computed once, in f32.
    """
    assert options.traced is not None
    known = tuple(number for number, one in enumerate(gradients) if one is not None)
    parts = {name: _derived(options.traced, name, known) for name in wanted}
    asked = [name for name, traced in parts.items() if _reads_sum(traced)]
    given = dict(zip(options.names, operands, strict=True))
    given |= {_gradient_name(options.traced, number): gradients[number] for number in known}
    numbers = dict(zip(options.traced.factors, options.numbers, strict=True))
    total = None
    if len(asked) > 1:
        plain = replace(options, traced=None, numbers=(), out_dtype=F32)
        total = multiply(*sources, *words_of(plain))
    found = {}
    shape = _shape_of(*sources[:2])
    for name, traced in parts.items():
        arrays = tuple(given[one] for one in traced.names)
        if [name] == asked:
            own = tuple(numbers[one] for one in traced.factors)
            a, b, c, bias = sources
            found[name] = with_function(a, b, None, c, bias, _with(options, traced, own, f32=name is not None), arrays)
        else:
            read = dict(zip(map(operand_name, traced.names), arrays, strict=True))
            meaning = _Tensors(total, read, numbers, shape, sources[0].device)
            found[name] = evaluate(traced.value, meaning).to(sources[0].device).expand(shape)
    return found


def _reads_sum(traced: Traced) -> bool:
    return any(isinstance(leaf, Accumulated) for leaf in leaves_of(traced.value))


def _shape_of(a: Any, b: Any) -> tuple[int, ...]:
    """The shape of a product."""
    rows, columns = tuple(a.shape[-2:-1]), tuple(b.shape[-1:]) if b.dim() > 1 else ()
    return (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *rows, *columns)


def _gradient_name(traced: Traced, number: int) -> str:
    """What the gradient of a result is called among the operands."""
    name = f"gradient{number or ''}"
    while name in traced.names:
        name += "_"
    return name


@lru_cache(maxsize=1024)
def _derived(traced: Traced, name: str | None, known: tuple[int, ...]) -> Traced:
    """The derivatives of results, each times its gradient, summed. known: the results that have one."""
    by = Accumulated() if name is None else Element(Added(operand_name(name)))
    total: Value = Constant.of(0.0)
    for number in known:
        seed = Element(Added(operand_name(_gradient_name(traced, number))))
        total = plus(total, gradient(traced.values[number], by, seed))
    return traced_of(total)


def _with(options: Options, traced: Traced, numbers: tuple[float, ...], *, f32: bool) -> Options:
    """The same call with another function."""
    return options_with(
        alpha=options.alpha,
        beta=options.beta or None,
        out_dtype="f32" if f32 else None,
        precision=options.precision,
        fixed_order=options.fixed_order,
        traced=traced,
        numbers=numbers,
    )


def _of_sum(a: Any, b: Any, c: Any, bias: Any, options: Options, slope: Any, needs: Sequence[bool]) -> tuple[Any, ...]:
    """The gradients of a, b, c and bias, from that of their sum."""
    words = words_of(options)
    kept = SimpleNamespace(needs_input_grad=tuple(needs), saved_tensors=())
    kept.save_for_backward = lambda *tensors: setattr(kept, "saved_tensors", tensors)
    keep(kept, (a, b, c, bias, *words), None)
    return gradients(multiply, kept, slope)[:4]


def _summed(whole: Any, operand: Any) -> Any:
    """What was broadcast from an operand."""
    if operand.numel() == 1:
        return whole.sum(dtype=torch.float32).reshape(operand.shape).to(operand.dtype)
    return whole.float().sum_to_size(operand.shape).to(operand.dtype)


@dataclass(frozen=True)
class _Tensors:
    """An expression as tensors in f32, which PyTorch differentiates. total: the sum, where it is read; shape: its;
    device: where numbers are drawn."""

    total: Any
    operands: Mapping[str, Any]
    numbers: Mapping[str, float]
    shape: tuple[int, ...]
    device: Any

    def accumulated(self, number: int) -> Any:
        return self.total

    def element(self, operand: Added) -> Any:
        return self.operands[operand.name].float()

    def times_alpha(self, value: Any) -> Any:
        return value

    def plus_beta_times(self, value: Any, matrix: str) -> Any:
        return value

    def constant(self, number: float) -> Any:
        return torch.tensor(number)

    def factor(self, name: str) -> Any:
        return torch.tensor(self.numbers[name.removesuffix(factor_name(""))])

    def combined(self, operation: Operation, a: Any, b: Any) -> Any:
        return _OPERATIONS[operation](a, b)

    def applied(self, function: Function, value: Any) -> Any:
        return activated(function.value, value) if isinstance(function, Activation) else _FUNCTIONS[function](value)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return torch.where(condition, a, b)

    def rounded(self, dtype: DType, value: Any) -> Any:
        return value.to(LIBRARY.to_torch[dtype]).float()

    def drawn(self, seed: Any, offset: Any) -> Any:
        return uniform_tensor(int(seed), int(offset), self.shape, self.device)

    def rotated(self, value: Any) -> Any:
        pairs = value.expand(self.shape).unflatten(-1, (-1, 2))
        return torch.stack((-pairs[..., 1], pairs[..., 0]), -1).flatten(-2)


def uniform_tensor(seed: int, offset: int, shape: tuple[int, ...], device: Any) -> Any:
    """The numbers of `problem.philox.uniform` for a result, as a tensor."""
    columns = torch.arange(shape[-1], device=device).expand(shape)
    rows = torch.arange(math.prod(shape[:-1]), device=device).reshape(*shape[:-1], 1).expand(shape)
    words = [columns // WORDS, rows, torch.zeros_like(rows), torch.zeros_like(rows)]
    keys = [seed, offset]
    for _ in range(ROUNDS):
        high, low = zip(*(_product_of_words(words[2 * one], MULTIPLIERS[one]) for one in (0, 1)), strict=True)
        words = [high[1] ^ words[1] ^ keys[0], low[1], high[0] ^ words[3] ^ keys[1], low[0]]
        keys = [(key + step) & _WORD for key, step in zip(keys, KEY_STEPS, strict=True)]
    chosen = torch.stack(words).gather(0, (columns % WORDS).unsqueeze(0))[0]
    return (chosen >> 8).float() * 2.0**-24


_WORD = 0xFFFFFFFF


def _product_of_words(words: Any, factor: int) -> tuple[Any, Any]:
    """The upper and the lower 32 bits of a product, in integers of 64 bits with a sign."""
    by_low, by_high = words * (factor & 0xFFFF), words * (factor >> 16)  # of 48 bits each
    middle = (by_low >> 16) + by_high
    return middle >> 16, (by_low & 0xFFFF) | (middle & 0xFFFF) << 16


_OPERATIONS: Mapping[Operation, Callable[[Any, Any], Any]] = {
    Operation.PLUS: torch.add,
    Operation.MINUS: torch.sub,
    Operation.TIMES: torch.mul,
    Operation.OVER: torch.div,
    Operation.MINIMUM: torch.minimum,
    Operation.MAXIMUM: torch.maximum,
    Operation.LESS: torch.lt,
    Operation.AT_MOST: torch.le,
    Operation.EQUAL: torch.eq,
    Operation.UNEQUAL: torch.ne,
    Operation.BOTH: torch.logical_and,
    Operation.EITHER: torch.logical_or,
}

_FUNCTIONS: Mapping[Elementary, Callable[[Any], Any]] = {
    Elementary.NEGATIVE: torch.neg,
    Elementary.ABSOLUTE: torch.abs,
    Elementary.EXP: torch.exp,
    Elementary.LOG: torch.log,
    Elementary.SQRT: torch.sqrt,
    Elementary.TANH: torch.tanh,
    Elementary.ERF: torch.erf,
    Elementary.SIGMOID: torch.sigmoid,
}


class _Gated(torch.autograd.Function):  # type: ignore[misc]
    """act(x @ b) * (x @ b1).

    Backward, one product is computed again as it is, and the other with what makes the gradient of the first of it.
    """

    @staticmethod
    def forward(ctx: Any, options: Options, x: Any, b: Any, c: Any, bias: Any, b1: Any) -> Any:
        ctx.options = options
        ctx.save_for_backward(x, b, b1)
        x, b, b1 = _detached(x, b, b1)
        return compute_plain(x, b, None, None, None, options, (b1,))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        x, b, b1 = ctx.saved_tensors
        _, for_x, for_b, _, _, for_b1 = ctx.needs_input_grad
        function = ctx.options.function.a.function
        before = multiply(x, b, None, None, *words_of(PLAIN))
        slope = with_function(
            x, b1, None, None, None, _with(PLAIN, _slope_of(function), (), f32=False), (before, gradient)
        )
        other = gradient * activated(function.value, before)
        first = _of_sum(x, b, None, None, PLAIN, slope, (for_x, for_b, False, False))
        last = _of_sum(x, b1, None, None, PLAIN, other, (for_x, for_b1, False, False))
        return None, first[0] + last[0] if for_x else None, first[1], None, None, last[1]


@lru_cache(maxsize=16)
def _slope_of(function: Any) -> Traced:
    """The gradient of the sum that goes into an activation, from the other sum, the one itself, and the result's."""
    before, gradient = (Element(Added(operand_name(name))) for name in ("before", "gradient"))
    slope: Value = derivative(Applied(function, before), before)
    found = traced_of(times(times(slope, Accumulated()), gradient))
    assert found.names == ("before", "gradient")
    return found


def _detached(*tensors: Any) -> tuple[Any, ...]:
    return tuple(None if x is None else x.detach() for x in tensors)
