"""`route_torch`: which products of PyTorch run through tilewright, and which stay."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from exact import assert_close, assert_product  # noqa: E402

from tilewright import route_torch  # noqa: E402
from tilewright.integrations import torch_kernels, torch_mode  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("gpu"),
    pytest.mark.filterwarnings("ignore:Sparse"),  # that they are in beta
    pytest.mark.filterwarnings("ignore:`torch.jit.script"),  # of torch.func
]

functional = torch.nn.functional
X, W, COLUMN = (7, 5), (5, 6), (6,)
CALLS = {
    "@": (lambda a, b: a @ b, X, W),
    "@=": (lambda a, b: a.__matmul__(b), X, W),
    "matmul": (torch.matmul, (4, 7, 5), W),
    "linalg.matmul": (torch.linalg.matmul, X, W),
    "Tensor.matmul": (lambda a, b: a.matmul(b), (2, 3, 7, 5), (3, 5, 6)),
    "vector @ matrix": (lambda a, b: a @ b, (5,), W),
    "mm": (torch.mm, X, W),
    "Tensor.mm": (lambda a, b: a.mm(b), X, W),
    "mm by name": (lambda a, b: torch.mm(input=a, mat2=b), X, W),
    "bmm": (torch.bmm, (3, 7, 5), (3, 5, 6)),
    "Tensor.bmm": (lambda a, b: a.bmm(b), (3, 7, 5), (3, 5, 6)),
    "linear": (lambda a, b: functional.linear(a, b.T), (2, 3, 5), W),
    "transposed": (lambda a, b: a.T @ b, (5, 7), W),
}
ADDING = {
    "addmm": (lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2), X, W, (7, 6)),
    "addmm of a row": (lambda a, b, c: torch.addmm(c, a, b), X, W, COLUMN),
    "addmm of a scaled row": (lambda a, b, c: torch.addmm(c, a, b, beta=0.5), X, W, COLUMN),
    "addmm of a number": (lambda a, b, c: torch.addmm(c, a, b), X, W, ()),
    "Tensor.addmm": (lambda a, b, c: c.addmm(a, b, alpha=0.5), X, W, (7, 6)),
    "baddbmm": (lambda a, b, c: torch.baddbmm(c, a, b, beta=2, alpha=0.5), (3, 7, 5), (3, 5, 6), (3, 7, 6)),
    "baddbmm of a matrix": (lambda a, b, c: c.baddbmm(a, b), (3, 7, 5), (3, 5, 6), (7, 6)),
    "linear": (lambda a, b, c: functional.linear(a, b.T, c), (2, 3, 5), W, COLUMN),
}


@pytest.mark.parametrize("name", CALLS)
def test_products_are_routed(name: str, gpu: Any) -> None:
    call, left, right = CALLS[name]
    a, b = torch.randn(left), torch.randn(right)
    with route_torch():
        result = call(a, b)
    assert len(gpu.launches) == 1
    torch.testing.assert_close(result, call(a, b))
    assert len(gpu.launches) == 1, "behind the block nothing is routed"


@pytest.mark.parametrize("name", ADDING)
def test_products_that_add_are_routed(name: str, gpu: Any) -> None:
    call, *shapes = ADDING[name]
    given = [torch.randn(shape) for shape in shapes]
    with route_torch():
        result = call(*given)
    assert len(gpu.launches) == 1
    torch.testing.assert_close(result, call(*given))


@pytest.mark.parametrize("name", [*CALLS, *(f"adding {name}" for name in ADDING)])
def test_gradients_are_those_of_pytorch(name: str, gpu: Any) -> None:
    call, *shapes = ADDING[name.removeprefix("adding ")] if name.startswith("adding ") else CALLS[name]
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    with route_torch():
        routed = call(*given)
        assert len(gpu.launches) == 1
        ours = torch.autograd.grad(routed.square().sum(), given)
        assert len(gpu.launches) in (2, 3)  # a gradient of a vector is not a product of matrices
    theirs = torch.autograd.grad(call(*given).square().sum(), given)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_16_bit_formats(gpu: Any) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        a, b = torch.randn(X).to(dtype), torch.randn(W).to(dtype)
        with route_torch():
            assert_product(a @ b, a, b)
    assert len(gpu.launches) == 2


class Unlike(torch.Tensor):  # type: ignore[misc]
    """A subclass that is memory like any other."""


ROUTED = {
    "subclass": lambda: torch.randn(7, 5).as_subclass(Unlike) @ torch.randn(5, 6),
    "negative": lambda: torch.randn(7, 5).cfloat().conj().imag @ torch.randn(5, 6),
    "out": lambda: torch.mm(torch.randn(7, 5), torch.randn(5, 6), out=torch.empty(7, 6)),
    "out of addmm": lambda: torch.addmm(torch.ones(6), torch.randn(7, 5), torch.randn(5, 6), out=torch.empty(7, 6)),
    "out of bmm": lambda: torch.bmm(torch.randn(3, 7, 5), torch.randn(3, 5, 6), out=torch.empty(3, 7, 6)),
    "nothing to sum": lambda: torch.randn(7, 0) @ torch.randn(0, 6),
    "beta of 0": lambda: torch.addmm(torch.full((7, 6), torch.nan), torch.randn(7, 5), torch.randn(5, 6), beta=0),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUTED)
def test_what_reaches_the_dispatcher_as_a_product_is_routed(name: str, gpu: Any) -> None:
    torch.manual_seed(1)
    expected = ROUTED[name]()
    torch.manual_seed(1)
    with route_torch() as routed:
        result = ROUTED[name]()
    assert len(gpu.launches) == 1 and str(routed) == "1 product routed"
    assert type(result) is type(expected)
    torch.testing.assert_close(result, expected)


def test_a_block_tells_what_it_routed_and_why_not_others(gpu: Any) -> None:
    a, b = torch.randn(X), torch.randn(W)
    with route_torch() as routed:
        for _ in range(3):
            a @ b
        for _ in range(2):
            a.double() @ b.double()
        with pytest.raises(RuntimeError):
            a @ a
    assert routed.calls == 3 and routed.declined["float64"] == 2
    told = str(routed)
    assert told.startswith("3 products routed; 3 not: float64 (2), ") and "size 7 is different from 5" in told


def test_in_a_capture_a_cold_product_is_left_to_pytorch(gpu: Any) -> None:
    a, b = torch.randn(X), torch.randn(W)
    gpu.capturing = True
    with pytest.warns(UserWarning, match="leaves a product to PyTorch"), route_torch() as routed:
        result = a @ b
    torch.testing.assert_close(result, a @ b)
    assert not gpu.launches and routed.declined == {"first met in a CUDA graph capture": 1}


def test_behind_the_last_block_the_dispatcher_is_as_before() -> None:
    assert not torch_kernels._OPEN
    with route_torch(), route_torch():
        assert len(torch_kernels._OPEN) == 2
    assert not torch_kernels._OPEN


def test_a_mode_routes_where_pytorch_does_not_hand_out_its_kernels(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.library, "get_kernel")
    a, b = torch.randn(X), torch.randn(W)
    with route_torch() as routed:
        result = a @ b
        a.double() @ b.double()
    torch.testing.assert_close(result, a @ b)
    assert len(gpu.launches) == 1 and str(routed) == "1 product routed; 1 not: float64 (1)"


STAY = {
    "float64": lambda: torch.randn(7, 5).double() @ torch.randn(5, 6).double(),
    "int64": lambda: torch.ones(7, 5).long() @ torch.ones(5, 6).long(),
    "complex": lambda: torch.randn(7, 5).cfloat() @ torch.randn(5, 6).cfloat(),
    "sparse": lambda: torch.eye(5).to_sparse() @ torch.randn(5, 6),
    "compressed": lambda: torch.eye(5).to_sparse_csr() @ torch.randn(5, 6),
    "in place": lambda: torch.zeros(7, 6).addmm_(torch.randn(7, 5), torch.randn(5, 6)),
    "empty": lambda: torch.randn(0, 5) @ torch.randn(5, 6),
    "matrix by vector": lambda: torch.mv(torch.randn(7, 5), torch.randn(5)),
    "complex factor": lambda: torch.addmm(*(torch.randn(shape).cfloat() for shape in ((7, 6), X, W)), alpha=2j),
    "not a product": lambda: torch.relu(torch.randn(7, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", STAY)
def test_what_is_not_ours_runs_as_before(name: str, gpu: Any) -> None:
    torch.manual_seed(1)
    expected = STAY[name]()
    torch.manual_seed(1)
    with route_torch():
        result = STAY[name]()
    assert not gpu.launches
    assert type(result) is type(expected) and torch.equal(result.to_dense(), expected.to_dense())


def test_tensors_in_host_memory_stay(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_mode, "DEVICE", "cuda")
    monkeypatch.setattr(torch_kernels, "KEY", "CUDA")
    with route_torch():
        assert (torch.randn(7, 5) @ torch.randn(5, 6)).shape == (7, 6)
    assert not gpu.launches


MISTAKES = {
    "sizes": lambda: torch.randn(7, 5) @ torch.randn(4, 6),
    "formats": lambda: torch.randn(7, 5) @ torch.randn(5, 6).half(),
    "dimensions": lambda: torch.mm(torch.randn(2, 7, 5), torch.randn(5, 6)),
    "broadcasting of bmm": lambda: torch.bmm(torch.randn(1, 7, 5), torch.randn(3, 5, 6)),
    "what is added": lambda: torch.addmm(torch.randn(5), torch.randn(7, 5), torch.randn(5, 6)),
    "bias": lambda: functional.linear(torch.randn(7, 5), torch.randn(6, 5), torch.randn(5)),
    "arguments": lambda: torch.mm(torch.randn(7, 5)),
    "other arguments": lambda: torch.mm(torch.randn(7, 5), torch.randn(5, 6), beta=2),
    "twice the same": lambda: torch.mm(torch.randn(7, 5), torch.randn(5, 6), input=torch.randn(7, 5)),
    "no tensor": lambda: torch.randn(7, 5) @ 3,
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_in_the_words_of_pytorch(name: str) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError)) as theirs:
        MISTAKES[name]()
    with route_torch(), pytest.raises(theirs.type) as ours:
        MISTAKES[name]()
    assert str(ours.value) == str(theirs.value)


def test_blocks_may_be_nested_and_left_by_an_error(gpu: Any) -> None:
    a, b = torch.randn(X), torch.randn(W)
    with route_torch():
        with pytest.raises(ZeroDivisionError), route_torch():
            a @ b
            1 / 0  # noqa: B018
        a @ b
    assert len(gpu.launches) == 2
    a @ b
    assert len(gpu.launches) == 2


def test_one_block_may_be_entered_again(gpu: Any) -> None:
    routing = route_torch()
    for _ in range(2):
        with routing:
            torch.randn(X) @ torch.randn(W)
    assert len(gpu.launches) == 2


def test_each_thread_has_its_own_block(gpu: Any) -> None:
    a, b = torch.randn(X), torch.randn(W)
    results: dict[str, Any] = {}

    def outside() -> None:
        results["outside"] = a @ b

    def inside() -> None:
        with route_torch():
            results["inside"] = a @ b

    with route_torch():
        thread = threading.Thread(target=outside)
        thread.start()
        thread.join()
        assert not gpu.launches
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert len(gpu.launches) == 1
    for result in results.values():
        assert_product(result, a, b)


def test_many_threads_route_at_once(gpu: Any) -> None:
    a = [torch.randn(9 + i, 5) for i in range(8)]
    b = torch.randn(W)
    results: dict[int, Any] = {}

    def run(number: int) -> None:
        with route_torch():
            for _ in range(5):
                results[number] = a[number] @ b

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in results.items():
        assert_product(result, a[number], b)
    assert len(results) == 8 and len(gpu.launches) == 40


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_chooses_the_format(dtype: Any, gpu: Any) -> None:
    layer, x = torch.nn.Linear(5, 6), torch.randn(X)
    with torch.autocast("cpu", dtype), route_torch():
        result = layer(x)
        product = x @ layer.weight.T
        wide = x.double() @ layer.weight.T.double()
    assert result.dtype == product.dtype == dtype and wide.dtype in (torch.float64, dtype)
    assert len(gpu.launches) >= 2
    rounded = [t.detach().to(dtype) for t in (x, layer.weight.T, layer.bias)]
    assert_product(result, *rounded[:2], bias=rounded[2])
    (gradient,) = torch.autograd.grad(result.float().sum(), layer.weight)
    assert gradient.dtype == torch.float32
    expected = rounded[0].double().sum(0).expand(6, 5)
    assert_close(gradient, expected, rounded[0].double().abs().sum(0).expand(6, 5), 7, roundings=2**17)


def test_what_the_user_allowed_of_tf32_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    plain = torch_kernels.compute

    def compute(*given: Any) -> Any:
        asked.append("tf32" if given[-1].tf32 else "default")
        return plain(*given)

    monkeypatch.setattr(torch_kernels, "compute", compute)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(precision)
            with route_torch():
                torch.randn(X) @ torch.randn(W)
                torch.randn(X).bfloat16() @ torch.randn(W).bfloat16()
    finally:
        torch.set_float32_matmul_precision(before)
    assert asked == ["default", "default", "tf32", "default", "tf32", "default"]


@pytest.mark.filterwarnings("ignore")  # PyTorch's, that there are two ways to ask
def test_the_newer_way_to_allow_tf32_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = torch.backends.cuda.matmul
    if not hasattr(switch, "fp32_precision"):
        pytest.skip("it came with PyTorch 2.9")
    asked = []
    plain = torch_kernels.compute

    def compute(*given: Any) -> Any:
        asked.append("tf32" if given[-1].tf32 else "default")
        return plain(*given)

    monkeypatch.setattr(torch_kernels, "compute", compute)
    before = switch.fp32_precision
    try:
        for precision in ("tf32", "ieee"):
            switch.fp32_precision = precision
            with route_torch():
                torch.randn(X) @ torch.randn(W)
    finally:
        switch.fp32_precision = before
    assert asked == ["tf32", "default"]


def test_functions_that_are_transformed(gpu: Any) -> None:
    a, b = torch.randn(4, *X), torch.randn(W)
    with route_torch():
        result = torch.func.vmap(lambda x: x @ b)(a)
        gradient = torch.func.grad(lambda w: (a[0] @ w).square().sum())(b)
    assert len(gpu.launches) == 3
    torch.testing.assert_close(result, a @ b)
    torch.testing.assert_close(gradient, 2 * a[0].T @ (a[0] @ b), rtol=1e-4, atol=1e-4)


def test_without_torch_the_pip_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from tilewright import extras
    from tilewright.errors import MissingExtra

    monkeypatch.setattr(extras, "available", lambda package: False)
    monkeypatch.delitem(sys.modules, "tilewright.integrations.torch_kernels")
    with pytest.raises(MissingExtra, match="torch"):
        route_torch()
