"""`tilewright.matmul` on a real GPU, against float64, for every library that is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend import grouped_matmul, linear, matmul
from tilewright.runtime.driver import gpu_problem

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

FORMATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SHAPES = [
    (1, 1, 1), (2, 3, 5), (7, 130, 65), (131, 67, 19), (257, 129, 100), (128, 256, 64), (1, 300, 400), (300, 1, 400),
    (3, 999, 1030), (16, 512, 4096), (15, 515, 1111), (512, 13, 2048), (64, 64, 8192), (192, 128, 16384),
    (1, 8193, 4097), (4097, 1, 515), (7, 4096, 4096), (4096, 9, 1024), (520, 776, 1040),
    (512, 512, 512), (1000, 1000, 1000), (1023, 1025, 511),
]  # fmt: skip


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    assert gpu_problem() is None
    torch.manual_seed(0)
    yield


def drawn(*shape: int, dtype: Any, order: str = "N") -> Any:
    if order == "T":
        return torch.randn(*shape[:-2], shape[-1], shape[-2], device="cuda", dtype=dtype).mT
    return torch.randn(*shape, device="cuda", dtype=dtype)


def assert_close(computed: Any, a: Any, b: Any, *, extra: Any = 0.0, alpha: float = 1.0) -> None:
    expected = alpha * (a.double() @ b.double()) + extra
    magnitude = abs(alpha) * (a.double().abs() @ b.double().abs()) + abs(extra)
    k = a.shape[-1]
    bound = (2 * k + 8) * 2.0**-23 * magnitude + 2 * UNIT[computed.dtype] * magnitude + 1e-30
    assert computed.shape == expected.shape
    worst = ((computed.double() - expected).abs() / bound).max() if computed.numel() else torch.zeros(())
    assert bool(torch.isfinite(computed).all()) and float(worst) <= 1, float(worst)


@pytest.mark.parametrize("orders", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("name", FORMATS)
def test_shapes_and_orders(name: str, orders: str) -> None:
    for m, n, k in SHAPES:
        a = drawn(m, k, dtype=FORMATS[name], order=orders[0])
        b = drawn(k, n, dtype=FORMATS[name], order=orders[1])
        for _ in range(2):  # planned, then remembered
            assert_close(matmul(a, b), a, b)


@pytest.mark.parametrize("orders", ["NN", "NT", "TN", "TT"])
def test_large_odd_sizes_in_whole_tiles(orders: str) -> None:
    """Too large for kernels that guard edges to be the best: see `planning.packing.pads_to_tiles`."""
    a = drawn(2001, 1999, dtype=torch.float32, order=orders[0])
    b = drawn(1999, 2003, dtype=torch.float32, order=orders[1])
    c = drawn(2001, 2003, dtype=torch.float32)
    assert_close(matmul(a, b), a, b)
    assert_close(matmul(a, b, c=c, beta=-0.5, alpha=2.0), a, b, extra=-0.5 * c.double(), alpha=2.0)
    around = torch.full((2003, 2011), float("nan"), device="cuda")
    target = around[1:-1, 3:-5]
    assert_close(matmul(a, b, out=target), a, b)
    target.fill_(float("nan"))
    assert bool(torch.isnan(around).all()), "something was written beside C"


@pytest.mark.parametrize("name", FORMATS)
def test_views_out_and_factors(name: str) -> None:
    dtype = FORMATS[name]
    whole = torch.randn(300, 400, device="cuda", dtype=dtype)
    for a in (whole[3:203, 5:133], whole[::2, :130], whole[:, 7], whole[1:129, 1:65].t(), whole[:64, ::3]):
        b = drawn(a.shape[-1], 72, dtype=dtype)
        assert_close(matmul(a, b), a, b)
    a, b = drawn(130, 70, dtype=dtype), drawn(70, 90, dtype=dtype)
    for target in (torch.full((130, 90), float("nan"), device="cuda", dtype=dtype),
                   torch.full((90, 130), float("nan"), device="cuda", dtype=dtype).t(),
                   torch.full((130, 120), float("nan"), device="cuda", dtype=dtype)[:, 4:94]):  # fmt: skip
        assert matmul(a, b, out=target, alpha=-0.5) is target
        assert_close(target, a, b, alpha=-0.5)
    c = drawn(130, 90, dtype=dtype)
    assert_close(matmul(a, b, c=c, alpha=0.5, beta=2.0), a, b, alpha=0.5, extra=2.0 * c.double())
    if name != "f32":
        wide = matmul(a, b, out_dtype="f32")
        assert wide.dtype == torch.float32
        assert_close(wide, a, b)


@pytest.mark.parametrize("name", FORMATS)
def test_what_lies_beside_out_stays(name: str) -> None:
    """TMA writes whole pieces of 16 bytes, so rows that end inside one must not go through it."""
    dtype = FORMATS[name]
    for m, n, k in ((256, 197, 128), (1024, 2045, 512), (1, 393, 256), (300, 1, 64), (512, 776, 128)):
        a, b = drawn(m, k, dtype=dtype), drawn(k, n, dtype=dtype)
        wide = (n + 15) // 8 * 8 + 8
        for options in ({}, {"batch_invariant": True}):
            room = torch.full((m, wide), 7.0, device="cuda", dtype=dtype)
            for _ in range(2):  # planned, then remembered
                assert_close(matmul(a, b, out=room[:, 8 : 8 + n], **options), a, b)
                assert bool((room[:, :8] == 7).all() and (room[:, 8 + n :] == 7).all()), (m, n, k, options)


@pytest.mark.parametrize("name", FORMATS)
def test_batches(name: str) -> None:
    dtype = FORMATS[name]
    for left, right in (
        ((4, 33, 40), (4, 40, 50)), ((2, 3, 33, 40), (40, 50)), ((33, 40), (5, 40, 50)), ((2, 1, 33, 40), (3, 40, 50)),
        ((40,), (3, 40, 50)), ((3, 33, 40), (40,)), ((40,), (40,)),
    ):  # fmt: skip
        a = torch.randn(left, device="cuda", dtype=dtype)
        b = torch.randn(right, device="cuda", dtype=dtype)
        assert_close(matmul(a, b), a, b)
    x, w, bias = drawn(2, 30, 64, dtype=dtype), drawn(96, 64, dtype=dtype), drawn(96, dtype=dtype)
    assert_close(linear(x, w, bias), x, w.T, extra=bias.double())


@pytest.mark.parametrize("name", FORMATS)
def test_stacks_through_every_kernel(name: str) -> None:
    """Large and small tiles, by TMA, padded first (rows of 130 and 129 elements), skinny, shared operands."""
    dtype = FORMATS[name]
    for count, m, n, k in (
        (12, 512, 512, 256),
        (6, 130, 258, 130),
        (5, 129, 257, 129),
        (40, 1, 512, 768),
        (7, 33, 17, 64),
    ):
        a, b = (
            torch.randn(count, m, k, device="cuda", dtype=dtype),
            torch.randn(count, k, n, device="cuda", dtype=dtype),
        )
        turned = torch.randn(count, n, k, device="cuda", dtype=dtype).mT
        for right in (b, turned, b[:1].expand(count, k, n), b.flip(0)[::2] if count % 2 == 0 else b):
            left = a[: right.shape[0]]
            assert_close(matmul(left, right), left, right)
        one = torch.randn(1, m, k, device="cuda", dtype=dtype)
        assert_close(matmul(one, b), one, b)
    a, b = torch.randn(3, 5, 64, 48, device="cuda", dtype=dtype), torch.randn(3, 5, 48, 40, device="cuda", dtype=dtype)
    a, b = a.transpose(0, 1), b.transpose(0, 1)
    assert_close(matmul(a, b), a, b)


@pytest.mark.parametrize("name", FORMATS)
def test_fused_epilogues(name: str) -> None:
    dtype, functional = FORMATS[name], torch.nn.functional
    functions = {
        "relu": functional.relu, "gelu": functional.gelu, "silu": functional.silu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }  # fmt: skip
    for m, n, k in ((512, 768, 256), (65, 129, 33), (64, 64, 8192), (1, 512, 1024), (4096, 4096, 512)):
        a, b, c = drawn(m, k, dtype=dtype), drawn(k, n, dtype=dtype), drawn(m, n, dtype=dtype)
        column, row = drawn(n, dtype=dtype), drawn(m, 1, dtype=dtype)
        for bias in (column, row):
            assert_close(matmul(a, b, bias=bias, c=c, beta=0.5), a, b, extra=bias.double() + 0.5 * c.double())
        for activation, function in functions.items():
            computed = matmul(a, b, bias=column, activation=activation)
            wide = a.double() @ b.double() + column.double()
            magnitude = a.double().abs() @ b.double().abs() + column.double().abs()
            bound = 1.13 * ((2 * k + 40) * 2.0**-23 + 2 * UNIT[dtype]) * magnitude + 1e-7
            assert float(((computed.double() - function(wide)).abs() / bound).max()) <= 1, (activation, m, n, k)


@pytest.mark.parametrize("name", FORMATS)
def test_groups_are_products_of_their_own(name: str) -> None:
    dtype = FORMATS[name]
    sizes = [(512, 256, 128), (3, 256, 128), (0, 64, 64), (130, 77, 1000), (64, 64, 0), (1, 1, 1)]
    a, b = [drawn(m, k, dtype=dtype) for m, _, k in sizes], [drawn(k, n, dtype=dtype) for _, n, k in sizes]
    for _ in range(2):
        for result, x, y in zip(grouped_matmul(a, b), a, b, strict=True):
            assert_close(result, x, y)


def test_results_at_any_address() -> None:
    """C that TMA cannot store, and operands that it cannot read."""
    for at in (0, 1, 4, 8):
        room = torch.full((1024 * 1024 + 16,), float("nan"), device="cuda", dtype=torch.bfloat16)
        out = room[at : at + 1024 * 1024].view(1024, 1024)
        left = torch.randn(1024 * 512 + 16, device="cuda", dtype=torch.bfloat16)[at : at + 1024 * 512].view(1024, 512)
        b = drawn(512, 1024, dtype=torch.bfloat16)
        matmul(left, b, out=out)
        assert_close(out, left, b)
        assert bool(torch.isnan(room[at + 1024 * 1024 :]).all())


def test_out_that_is_also_an_operand() -> None:
    a, b = drawn(256, 256, dtype=torch.float32), drawn(256, 256, dtype=torch.float32)
    before = a.clone()
    assert matmul(a, b, out=a) is a
    assert_close(a, before, b)


def test_a_forked_process_is_told() -> None:
    a = drawn(64, 64, dtype=torch.float32)
    matmul(a, a)
    child = os.fork()
    if child == 0:
        try:
            matmul(a, a)
        except Exception as error:
            os.write(2, repr(error).encode())
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_current_gpu_stays() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    a, b = torch.randn(70, 80, device="cuda:1"), torch.randn(80, 90, device="cuda:1")
    for _ in range(2):
        assert_close(matmul(a, b), a, b)
        assert torch.cuda.current_device() == 0


def test_empty_products() -> None:
    for m, n, k in ((0, 4, 5), (4, 0, 5), (4, 5, 0)):
        a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
        assert torch.equal(matmul(a, b), a @ b)


def test_tf32() -> None:
    for orders in ("NN", "NT", "TN", "TT"):
        for m, n, k in (
            (300, 200, 256),
            (4096, 4096, 1024),
            (1023, 1025, 511),
        ):  # the larger ones are transposed in a pre-pass
            a = drawn(m, k, dtype=torch.float32, order=orders[0])
            b = drawn(k, n, dtype=torch.float32, order=orders[1])
            c = matmul(a, b, precision="tf32")
            error = float((c.double() - a.double() @ b.double()).norm() / (a.double() @ b.double()).norm())
            assert 1e-5 < error < 1e-3, (orders, m, n, k)


def test_mistakes() -> None:
    a = torch.randn(4, 5, device="cuda")
    with pytest.raises(ValueError, match="size 4 is different from 5"):
        matmul(a, a)
    with pytest.raises(TypeError, match="f32 by f16"):
        matmul(a, torch.randn(5, 4, device="cuda").half())
    with pytest.raises(ProblemError, match="different devices"):
        matmul(a, torch.randn(5, 4))
    with pytest.raises(ProblemError, match="b is an array of NumPy, and a is one of PyTorch"):
        matmul(a, np.zeros((5, 4), np.float32))
    with pytest.raises(ProblemError, match="float64"):
        matmul(a.double(), a.double().T)


def test_the_current_stream_and_graphs() -> None:
    a, b = drawn(520, 16384, dtype=torch.bfloat16), drawn(16384, 200, dtype=torch.bfloat16)
    expected = matmul(a, b)  # splits k, and so takes a workspace
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert torch.equal(matmul(a, b), expected)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = matmul(a, b)
    a.copy_(torch.randn_like(a))
    graph.replay()
    assert torch.equal(captured, matmul(a, b))


def test_a_cold_call_in_a_capture_is_refused() -> None:
    a = torch.randn(333, 77, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(LaunchError, match="recording a CUDA graph"), torch.cuda.graph(graph):
        matmul(a, a.t())
    assert_close(matmul(a, a.t()), a, a.t())


def test_rows_do_not_depend_on_how_many_there_are() -> None:
    a, b = drawn(300, 1000, dtype=torch.float32), drawn(1000, 700, dtype=torch.float32)
    whole = matmul(a, b, batch_invariant=True)
    for rows in (1, 7, 64, 200):
        assert torch.equal(matmul(a[:rows], b, batch_invariant=True), whole[:rows])


def test_numpy_and_cupy_and_jax() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((70, 130), np.float32), rng.standard_normal((130, 50), np.float32)
    np.testing.assert_allclose(matmul(a, b), a.astype(float) @ b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(matmul(a.T, b.T[:, :70].T), a.T.astype(float) @ b.T[:, :70].T, rtol=1e-4, atol=1e-4)
    cupy = pytest.importorskip("cupy")
    x, y = cupy.asarray(a), cupy.asarray(b)
    np.testing.assert_allclose(cupy.asnumpy(matmul(x, y)), a.astype(float) @ b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(cupy.asnumpy(matmul(y.T, x.T)), (a.astype(float) @ b).T, rtol=1e-4, atol=1e-4)
    jax = pytest.importorskip("jax")
    try:
        p, q = jax.numpy.asarray(a), jax.numpy.asarray(b)
    except RuntimeError as broken:
        pytest.skip(str(broken))
    np.testing.assert_allclose(np.asarray(matmul(p, q)), a.astype(float) @ b, rtol=1e-4, atol=1e-4)
