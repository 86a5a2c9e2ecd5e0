"""The call as an operator of PyTorch: its schema, its shapes without elements, `out`, and who must see it."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from exact import assert_product, exact  # noqa: E402
from torch import library  # noqa: E402

from tilewright.errors import ProblemError  # noqa: E402
from tilewright.frontend import matmul  # noqa: E402

pytestmark = pytest.mark.usefixtures("gpu")


def operators() -> Any:
    from tilewright.frontend.pytorch import operator

    assert operator._OPERATORS is not None
    return torch.ops.tilewright


CALLS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((7, 5), (5, 6), {}),
    ((5,), (5, 6), {}),
    ((2, 1, 7, 5), (3, 5, 6), {"alpha": 0.5}),
    ((7, 5), (5, 6), {"c": (7, 6), "beta": 0.5}),
    ((7, 5), (5, 6), {"bias": (6,), "activation": "relu"}),
    ((7, 5), (5, 6), {"bias": (7, 1), "activation": "gelu", "fixed_order": True}),
]


def arguments(case: Any, *, wants_gradients: bool, dtype: Any = torch.float32) -> tuple[list[Any], dict[str, Any]]:
    left, right, options = case
    a, b = (torch.randn(shape).to(dtype).requires_grad_(wants_gradients) for shape in (left, right))
    given = {
        name: torch.randn(x).to(dtype).requires_grad_(wants_gradients) if name in ("c", "bias") else x
        for name, x in options.items()
    }
    return [a, b], given


@pytest.mark.filterwarnings("ignore")  # of opcheck's own
@pytest.mark.parametrize("wants_gradients", [False, True])
@pytest.mark.parametrize("case", CALLS)
def test_pytorchs_own_checks_of_the_operator(case: Any, wants_gradients: bool) -> None:
    args, kwargs = arguments(case, wants_gradients=wants_gradients)
    library.opcheck(operators().matmul.default, args, kwargs)


@pytest.mark.filterwarnings("ignore")
def test_pytorchs_own_checks_of_the_operator_that_writes() -> None:
    for case in CALLS[:4]:
        args, kwargs = arguments(case, wants_gradients=False)
        out = torch.empty(torch.matmul(*args).shape)
        library.opcheck(operators().matmul_into.default, [out, *args], kwargs)


@pytest.mark.parametrize("case", CALLS)
def test_a_result_without_elements_is_like_the_real_one(case: Any) -> None:
    for dtype, wide in ((torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, torch.float32)):
        args, kwargs = arguments(case, wants_gradients=False, dtype=dtype)
        real = operators().matmul(*args, **kwargs, out_dtype=wide)
        on_meta = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in kwargs.items()}
        told = operators().matmul(*(x.to("meta") for x in args), **on_meta, out_dtype=wide)
        assert (told.shape, told.dtype, told.stride()) == (real.shape, real.dtype, real.stride())


def test_mistakes_are_told_without_elements() -> None:
    multiply = operators().matmul

    def on_meta(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.empty(shape, device="meta", dtype=dtype)

    with pytest.raises(ValueError, match="size 4 is different from 5"):
        multiply(on_meta(3, 5), on_meta(4, 6))
    with pytest.raises(TypeError, match="Cannot multiply f32 by bf16"):
        multiply(on_meta(3, 5), on_meta(5, 6, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"A bias of shape \(5,\) fits neither"):
        multiply(on_meta(3, 5), on_meta(5, 6), bias=on_meta(5))
    with pytest.raises(ValueError, match=r"c of shape \(5,\) does not broadcast"):
        multiply(on_meta(3, 5), on_meta(5, 6), c=on_meta(5))
    with pytest.raises(ProblemError, match="float64"):
        multiply(on_meta(3, 5, dtype=torch.float64), on_meta(5, 6, dtype=torch.float64))


def test_out_is_written_and_returned() -> None:
    a, b, out = torch.randn(7, 5), torch.randn(5, 6), torch.full((7, 6), float("nan"))
    assert matmul(a, b, out=out) is out
    assert_product(out, a, b)


def test_out_within_no_grad_takes_tensors_that_want_gradients() -> None:
    a, b = torch.randn(7, 5, requires_grad=True), torch.randn(5, 6)
    out = torch.empty(7, 6)
    with torch.no_grad():
        assert matmul(a, b, out=out) is out
    assert_product(out, a, b)
    assert not out.requires_grad


def test_out_may_be_of_inference() -> None:
    with torch.inference_mode():
        a, b, out = torch.randn(7, 5), torch.randn(5, 6), torch.empty(7, 6)
        assert_product(matmul(a, b, out=out), a, b)


def test_a_known_call_into_out_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, out = torch.randn(7, 5), torch.randn(5, 6), torch.empty(7, 6)
    matmul(a, b, out=out)
    monkeypatch.delattr("tilewright.frontend.compute.views_of")
    for call in (matmul, lambda x, y, *, out: torch.ops.tilewright.matmul_into(out, x, y)):
        x, version = torch.randn(7, 5), out._version
        call(x, b, out=out)
        assert_product(out, x, b)
        assert out._version > version


def test_out_with_gradients_is_refused_of_a_known_call_too() -> None:
    a, b, out = torch.randn(7, 5), torch.randn(5, 6), torch.empty(7, 6)
    matmul(a, b, out=out)
    for tensor in (a, b, out):
        tensor.requires_grad_()
        with pytest.raises(ProblemError, match="`out` has no gradients"):
            matmul(a, b, out=out)
        tensor.requires_grad_(False)


def test_out_with_gradients_is_refused() -> None:
    a, b, out = torch.randn(7, 5, requires_grad=True), torch.randn(5, 6), torch.empty(7, 6)
    with pytest.raises(ProblemError, match="`out` has no gradients") as told:
        matmul(a, b, out=out)
    assert told.value.hint == "leave out `out`, or call within torch.no_grad()."


@pytest.mark.parametrize("wants_gradients", [False, True])
def test_writing_into_out_is_noticed_by_autograd(wants_gradients: bool) -> None:
    a, b, out = torch.randn(7, 5, requires_grad=wants_gradients), torch.randn(5, 6), torch.randn(7, 6)
    weight = torch.randn(7, 6, requires_grad=True)
    loss = (out * weight).sum()  # keeps `out`, which is then written
    with torch.no_grad():
        matmul(a, b, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_tracer_sees_the_operator() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    a, b = torch.randn(7, 5), torch.randn(5, 6)
    matmul(a, b)  # known by now, and still traced
    graph = make_fx(lambda x, y: matmul(x, y, alpha=2.0))(a, b)
    assert torch.ops.tilewright.matmul.default in [node.target for node in graph.graph.nodes]
    assert_product(graph(2 * a, b), 2 * a, b, alpha=2.0)


@pytest.mark.filterwarnings("ignore")  # that TorchScript is old
def test_a_trace_of_torchscript_multiplies_what_it_is_given() -> None:
    a, b = torch.randn(7, 5), torch.randn(5, 6)
    matmul(a, b)
    traced = torch.jit.trace(lambda x, y: matmul(x, y), (a, b))
    assert_product(traced(a + 1, b), a + 1, b)


def test_fake_tensors_have_fake_products() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        result = matmul(torch.empty(7, 5), torch.empty(5, 6))
    assert result.shape == (7, 6) and type(result).__name__ == "FakeTensor"


def test_a_subclass_is_asked_by_pytorch() -> None:
    seen = []

    class Watched(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    a, b, c = torch.randn(7, 5), torch.randn(5, 6), torch.randn(7, 6)
    matmul(a, b, c=c)
    for given in ((a.as_subclass(Watched), b, c), (a, b.as_subclass(Watched), c), (a, b, c.as_subclass(Watched))):
        seen.clear()
        result = matmul(given[0], given[1], c=given[2])
        assert type(result) is Watched and "tilewright.matmul" in seen
        assert_product(result.as_subclass(torch.Tensor), a, b, c=c)


@pytest.mark.filterwarnings("ignore")  # forward_ad imports TorchScript
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_tangents_of_every_tensor(activation: str | None) -> None:
    import torch.autograd.forward_ad as forward

    tensors = {"a": torch.randn(7, 5), "b": torch.randn(5, 6), "c": torch.randn(6), "bias": torch.randn(7, 1)}
    options: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "activation": activation}
    matmul(**tensors, **options)  # known by now
    moved = {name: torch.randn_like(x) for name, x in tensors.items()}
    for names in (["a"], ["b"], ["c"], ["bias"], list(tensors)):
        with forward.dual_level():
            dual = {name: forward.make_dual(x, moved[name]) if name in names else x for name, x in tensors.items()}
            ours, theirs = (forward.unpack_dual(call(**dual, **options)).tangent for call in (matmul, exact))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_conjugates_and_negatives_are_refused() -> None:
    x = torch.randn(7, 5, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    with pytest.raises(ProblemError, match="negative of what lies in memory"):
        matmul(x, torch.randn(5, 6))


def test_tensors_without_memory_are_told_where_to_go() -> None:
    a = torch.ones(4, 4, device="meta")
    with pytest.raises(ProblemError, match="lies on meta") as refused:
        matmul(a, a)
    assert 'tensor.to("cuda")' in str(refused.value)
