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


KNOWN = {
    "mm": lambda a, b, c: torch.mm(a, b),
    "bmm": lambda a, b, c: torch.bmm(a[None], b[None]),
    "addmm": lambda a, b, c: torch.addmm(c, a, b),
    "addmm with factors": lambda a, b, c: torch.addmm(c, a, b, alpha=2, beta=0.5),
    "addmm of a row": lambda a, b, c: torch.addmm(c[0], a, b),
    "baddbmm": lambda a, b, c: torch.baddbmm(c[None], a[None], b[None]),
    "linear": lambda a, b, c: functional.linear(a, b.T, c[0]),
    "layer": lambda a, b, c: functional.linear(a[None], b.T, c[0]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_call_that_was_made_before_is_started_at_once(name: str, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other tensors of the same kind, whose results are their own."""
    given = [[torch.randn(shape) for shape in (X, W, (7, 6))] for _ in range(3)]
    with route_torch() as routed:
        KNOWN[name](*given[0])
        monkeypatch.setattr(torch_kernels, "compute", None)
        for one in given:
            torch.testing.assert_close(KNOWN[name](*one).reshape(7, 6), _unrouted(name, one))
    assert routed.calls == len(gpu.launches) == 4


def test_a_known_call_into_a_tensor_sees_whether_it_is_read(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same strides and alignment, with an `out` that lies apart, and one that is an operand."""
    a, b, c, wide = torch.randn(8, 8), torch.randn(8, 8), torch.empty(8, 8), torch.empty(8, 9)[:, :8]
    expected = (a.double() @ b.double()).float()
    with route_torch() as routed:
        for out in (c, wide):
            torch.mm(a, b, out=out)
        again = torch.empty(8, 8)
        with monkeypatch.context() as patch:
            patch.setattr(torch_kernels, "compute", None)
            assert torch.mm(a, b, out=again) is again
        torch.mm(a, b, out=a)
    for result in (c, wide, again, a):
        torch.testing.assert_close(result, expected)
    assert routed.calls == 4


def _unrouted(name: str, given: list[Any]) -> Any:
    return KNOWN[name](*(one.double() for one in given)).float().reshape(7, 6)


def test_calls_that_differ_in_what_a_kernel_assumes_are_not_taken_for_each_other(gpu: Any) -> None:
    """Strides, alignment, formats, and what is added: each asked the second time."""
    wide, added = torch.randn(9, 12), torch.randn(7, 6)
    pairs = [
        (torch.randn(7, 5), torch.randn(5, 6)),
        (torch.randn(5, 7).T, torch.randn(5, 6)),
        (wide[1:8, 1:6], torch.randn(5, 6)),
        (wide[1:8, 2:7], torch.randn(6, 5).T),
    ]
    for _ in range(2):
        for a, b in pairs:
            for c in (added, added[:1], added[0], added.T.contiguous().T, torch.ones(())):
                for factors in ({}, {"alpha": 2}, {"beta": 2}, {"beta": 0}):
                    with route_torch():
                        result = torch.addmm(c, a, b, **factors)
                    torch.testing.assert_close(result, torch.addmm(c, a, b, **factors), rtol=1e-5, atol=1e-5)
    assert len(gpu.launches) >= 100


GROUPED = {
    "rows": (lambda a, b, ends: torch._grouped_mm(a, b, offs=ends), (48, 32), (3, 32, 16)),
    "transposed": (lambda a, b, ends: torch._grouped_mm(a, b.mT, offs=ends), (48, 32), (3, 16, 32)),
    "columns": (lambda a, b, ends: torch._grouped_mm(a, b, offs=ends), (3, 16, 32), (32, 48)),
    "sums": (lambda a, b, ends: torch._grouped_mm(a.T, b, offs=ends), (48, 32), (48, 16)),
}


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this PyTorch has no grouped products")
@pytest.mark.parametrize("name", GROUPED)
def test_grouped_products_are_routed(name: str, gpu: Any) -> None:
    """As PyTorch computes them, their gradients too."""
    call, left, right = GROUPED[name]
    ends = torch.tensor([16, 16, 48], dtype=torch.int32)
    given = [torch.randn(shape).bfloat16().requires_grad_() for shape in (left, right)]
    with route_torch() as routed:
        result = call(*given, ends)
        assert routed.calls == 1 and gpu.launches
        ours = torch.autograd.grad(result.float().square().sum(), given)
        assert routed.calls == 3
    expected = call(*given, ends)
    theirs = torch.autograd.grad(expected.float().square().sum(), given)
    for own, other in zip((result, *ours), (expected, *theirs), strict=True):
        torch.testing.assert_close(own, other, rtol=0.05, atol=0.5)


ODD_ROWS = {
    "rows": (lambda: (drawn(48, 32), drawn(3, 20, 32).mT), 48),
    "columns": (lambda: (drawn(3, 16, 32), drawn(44, 32).T), 44),
    "sums": (lambda: (drawn(48, 32).T, drawn(48, 24)[:, :20]), 48),
}
"""Results whose rows do not end at a multiple of 16 bytes."""


def drawn(*shape: int) -> Any:
    return torch.randn(shape).bfloat16()


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this PyTorch has no grouped products")
@pytest.mark.parametrize("name", ODD_ROWS)
def test_grouped_results_lie_as_compiled_code_expects_them(
    name: str, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, last = ODD_ROWS[name]
    a, b = made()
    ends = torch.tensor([16, 16, last], dtype=torch.int32)
    nowhere = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in (a, b, ends)]
    monkeypatch.setattr(torch.version, "cuda", "13.0")  # what is said of results on a GPU
    expected = torch._grouped_mm(nowhere[0], nowhere[1], offs=nowhere[2])
    with route_torch() as routed:
        result = torch._grouped_mm(a, b, offs=ends)
    assert routed.calls == 1
    assert (result.shape, result.stride()) == (expected.shape, expected.stride())
    torch.testing.assert_close(result, torch._grouped_mm(a, b, offs=ends), rtol=0.05, atol=0.5)


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this PyTorch has no grouped products")
def test_grouped_products_that_are_not_ours_stay(gpu: Any) -> None:
    a, b = torch.randn(3, 16, 32).bfloat16(), torch.randn(3, 32, 16).bfloat16()
    with route_torch() as routed:
        result = torch._grouped_mm(a, b)  # PyTorch makes a bmm of it on the CPU
    assert [why.partition(" ")[0] for why in routed.declined] == ["_grouped_mm"]
    torch.testing.assert_close(result, torch._grouped_mm(a, b))


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


def test_what_the_user_allowed_of_tf32_is_asked_for(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a call that was made before, which asks nothing else."""
    asked = []
    plain = torch_kernels.compute

    def compute(*given: Any) -> Any:
        asked.append("tf32" if given[-1].tf32 else "default")
        return plain(*given)

    monkeypatch.setattr(torch_kernels, "compute", compute)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "medium", "highest"):
            torch.set_float32_matmul_precision(precision)
            with route_torch():
                torch.randn(X) @ torch.randn(W)
                torch.randn(X).bfloat16() @ torch.randn(W).bfloat16()
    finally:
        torch.set_float32_matmul_precision(before)
    assert asked == ["default", "default", "tf32"]
    kept = [(str(key[2]), key[1]) for key in torch_kernels.MEMO if key[0] == "mm"]
    assert kept == [("torch.float32", "default"), ("torch.bfloat16", False), ("torch.float32", True)]
    assert len(gpu.launches) == 8


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
