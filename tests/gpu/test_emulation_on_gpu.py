"""f32 products by pieces on a real Hopper GPU: bounds, infinities, every kind of call, gradients, graphs, compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tilewright import plan, prepare, route_torch
from tilewright.frontend import matmul
from tilewright.frontend.compute import words_of
from tilewright.frontend.options import options_asked
from tilewright.problem.emulation import ALGORITHMS
from tilewright.runtime.driver import gpu_problem

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # of torch.compile itself

U = 2.0**-24
HOWS = pytest.mark.parametrize("precision", ALGORITHMS)


@pytest.fixture(autouse=True)
def gpu() -> None:
    assert gpu_problem() is None
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("pieces are multiplied by wgmma")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False


def normal(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda")


def uniform(*shape: int) -> Any:
    return torch.rand(*shape, device="cuda")


def log_uniform(*shape: int) -> Any:
    """Of 60 binades."""
    return (torch.sign(normal(*shape)) * torch.exp2((uniform(*shape) - 0.5) * 60)).float()


def one_huge(rows: int, columns: int) -> Any:
    """An element of 2**20 in each row."""
    found = normal(rows, columns)
    found[torch.arange(rows), torch.randint(columns, (rows,))] *= 2.0**20
    return found


def stagnating(rows: int, columns: int) -> Any:
    """One and then many that f32 is too short for."""
    found = torch.full((rows, columns), 2.0**-13 * (1 - 2.0**-11), device="cuda")
    found[:, 0] = found[0, :] = 1
    return found


def subnormal(*shape: int) -> Any:
    return (normal(*shape).double() * 2.0**-135).float()


def share(precision: str, a: Any, b: Any, c: Any) -> float:
    """The largest error of an element as a share of its bound."""
    how, wide, other = ALGORITHMS[precision], a.double(), b.double()
    largest = [each.cpu().numpy() for each in (wide.abs().amax(1), other.abs().amax(0))]
    underflow = torch.from_numpy(how.underflow(a.shape[1], *largest)).cuda()
    bound = how.units(a.shape[1]) * U * (wide.abs() @ other.abs()) + underflow
    assert torch.isfinite(c).all()
    return float(((c.double() - wide @ other).abs() / bound).amax())


@pytest.mark.parametrize("draw", [normal, uniform, log_uniform, one_huge, stagnating, subnormal])
@HOWS
def test_errors_are_within_the_bound(precision: Any, draw: Callable[..., Any]) -> None:
    for m, n, k in ((257, 129, 64), (192, 320, 1000), (128, 128, 4096)):
        a, b = draw(m, k), draw(k, n)
        b = (b.double() * 2.0**235).float() if draw is subnormal else b
        assert share(precision, a, b, matmul(a, b, precision=precision)) <= 1


@pytest.mark.parametrize("orders", ["NN", "NT", "TN", "TT"])
@HOWS
def test_every_order_and_awkward_sizes(precision: Any, orders: str) -> None:
    for m, n, k in ((517, 389, 773), (1, 300, 128), (1024, 8, 64), (20, 24, 3001), (2048, 1536, 512)):
        a = normal(m, k) if orders[0] == "N" else normal(k, m).t()
        b = normal(k, n) if orders[1] == "N" else normal(n, k).t()
        assert share(precision, a, b, matmul(a, b, precision=precision)) <= 1


@HOWS
def test_infinities_and_nan_are_those_of_f32(precision: Any) -> None:
    a, b = normal(64, 100), normal(100, 48)
    a[0, 3], a[1, 4], a[2, 5], a[3, 0], a[4, 7] = torch.inf, -torch.inf, torch.nan, torch.inf, 0.0
    b[7, 2], b[4, 3], b[3, 4] = torch.inf, 0.0, 1e-42
    a[5, :], a[5, 9], b[9, :] = 0.0, torch.finfo(torch.float32).max, torch.linspace(-0.9, 0.9, 48)
    expected, found = torch.mm(a, b), matmul(a, b, precision=precision)
    assert torch.equal(expected.isnan(), found.isnan())
    infinite = expected.isinf()
    assert torch.equal(infinite, found.isinf()) and torch.equal(expected[infinite], found[infinite])


@HOWS
def test_batches_out_bias_and_activation(precision: Any) -> None:
    a, b, bias = normal(300, 200), normal(200, 144), normal(144)
    out = torch.empty(300, 144, device="cuda")
    assert matmul(a, b, out=out, bias=bias, activation="relu", alpha=0.5, precision=precision) is out
    expected = torch.relu(0.5 * (a.double() @ b.double()) + bias)
    assert (out - expected).abs().max() < 1e-3
    stack, others = normal(6, 130, 200), normal(6, 200, 70)
    for found, left, right in zip(matmul(stack, others, precision=precision), stack, others, strict=True):
        assert share(precision, left, right, found) <= 1


@HOWS
def test_a_prepared_weight_gives_the_same_bits(precision: Any) -> None:
    weight = normal(1024, 768)
    kept = prepare(weight, precision=precision)
    for rows in (1, 64, 300):
        x = normal(rows, 1024)
        assert torch.equal(matmul(x, kept), matmul(x, weight, precision=precision))
    weight.mul_(2)
    assert torch.equal(matmul(x, kept), matmul(x, weight, precision=precision))


@HOWS
def test_a_cuda_graph_replays_new_operands(precision: Any) -> None:
    a, b = normal(512, 640), normal(640, 384)
    matmul(a, b, precision=precision)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = matmul(a, b, precision=precision)
    for _ in range(3):
        a.normal_(), b.normal_().mul_(1e6)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(c, matmul(a, b, precision=precision)) and share(precision, a, b, c) <= 1


@HOWS
def test_gradients_are_products_of_the_same_algorithm(precision: Any) -> None:
    a, b, weight = normal(256, 320).requires_grad_(), normal(320, 192).requires_grad_(), normal(256, 192)
    (matmul(a, b, precision=precision) * weight).sum().backward()
    assert share(precision, weight, b.detach().t(), a.grad) <= 1
    assert share(precision, a.detach().t(), weight, b.grad) <= 1


@HOWS
def test_torch_compile_sees_one_operator(precision: Any) -> None:
    def step(x: Any, y: Any) -> Any:
        return matmul(x, y, precision=precision) + 1

    torch.compiler.reset()
    a, b = normal(256, 320), normal(320, 192)
    assert torch.equal(torch.compile(step, fullgraph=True)(a, b), step(a, b))


def test_emulated_is_as_accurate_as_f32_and_routes_models() -> None:
    a, b = normal(2048, 4096), normal(4096, 2048)
    exact = a.double() @ b.double()
    with route_torch(precision="f32_emulated"):
        found = torch.mm(a, b)
    assert (found - exact).norm() <= (torch.mm(a, b) - exact).norm()
    matmul(a, b, precision="f32_emulated")
    options = options_asked(1.0, None, None, "f32_emulated", None, False, None, False)
    assert words_of(a, b, options).startswith("f16x3")


def test_rows_of_subnormal_numbers_are_as_accurate_as_any_others() -> None:
    """The guard of f32_emulated lets f16x3 multiply them, which scales rows; bf16x6 would lose most of them."""
    a, b = subnormal(1024, 4096), (normal(4096, 1024).double() * 2.0**100).float()
    a[::2] = normal(512, 4096)
    c = matmul(a, b, precision="f32_emulated")
    assert plan(a, b, precision="f32_emulated").ran() == ("f16x3",)
    exact = a.double() @ b.double()
    errors = (c.double() - exact).norm(dim=1) / exact.norm(dim=1)
    assert float(errors.max()) < 4e-7


def test_products_with_a_prepared_weight_start_while_the_other_operand_is_split() -> None:
    """Again and again, with other operands each time: what a call before left in the workspace is not read."""
    for precision in ("f16x3", "bf16x6"):
        weight = normal(1024, 768)
        prepared = prepare(weight, precision=precision)
        for rows in (1, 16, 64):
            given = [normal(rows, 1024) for _ in range(20)]
            found = [matmul(a, prepared) for a in given]
            for a, c in zip(given, found, strict=True):
                assert torch.equal(c, matmul(a, weight, precision=precision))


def test_the_gpu_chooses_anew_each_time_a_graph_is_replayed() -> None:
    """f32_emulated: by f16x3, but by bf16x6 where a number is too small beside its row or column."""
    a, b = normal(2048, 2048), normal(2048, 2048)
    a[a.abs() < 1e-4], b[b.abs() < 1e-4] = 1, 1
    kept = prepare(b, precision="f32_emulated")
    matmul(a, b, precision="f32_emulated"), matmul(a, kept)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c, d = matmul(a, b, precision="f32_emulated"), matmul(a, kept)
    asked = [plan(a, b, precision="f32_emulated"), plan(a, kept)]
    for number, precision in ((1.0, "f16x3"), (2.0**-60, "bf16x6"), (0.0, "f16x3"), (torch.inf, "f16x3")):
        a[17, 33] = number
        graph.replay()
        assert [one.ran() for one in asked] == [(precision,)] * 2
        expected = matmul(a, b, precision=precision)
        assert torch.equal(c.nan_to_num(), expected.nan_to_num()), number
        assert torch.equal(d.nan_to_num(), expected.nan_to_num()), number


def test_few_rows_beside_a_prepared_weight_fall_back_on_f32_arithmetic() -> None:
    """One launch, that splits nothing; and the next call finds the flags lowered."""
    a, weight = normal(64, 4096), normal(4096, 4096)
    for one in (a, weight):
        one[one.abs() < 1e-4] = 1
    kept, matrices = prepare(weight, precision="f32_emulated"), []
    for number in (1.0, 2.0**-60, 2.0**-60, 1.0):
        a[17, 33] = number
        c = matmul(a, kept)
        (ran,) = plan(a, kept).ran()
        assert ran.startswith("simt") if number != 1.0 else ran == "f16x3"
        assert share("f16x3" if number == 1.0 else "bf16x6", a, weight, c) <= 1
        matrices.append(c)
    assert torch.equal(matrices[0], matrices[3]) and torch.equal(matrices[1], matrices[2])


def test_two_streams_do_not_share_a_workspace() -> None:
    pairs = [(normal(1024, 1024), normal(1024, 1024)) for _ in range(2)]
    expected = [matmul(a, b, precision="f16x3") for a, b in pairs]
    streams = [torch.cuda.Stream() for _ in pairs]
    torch.cuda.synchronize()
    for _ in range(10):
        found = []
        for (a, b), stream in zip(pairs, streams, strict=True):
            with torch.cuda.stream(stream):
                found.append(matmul(a, b, precision="f16x3"))
        torch.cuda.synchronize()
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@HOWS
def test_complex_products_keep_the_bound_in_each_component(precision: Any) -> None:
    a, b = (torch.randn(300, 301, dtype=torch.complex64, device="cuda") for _ in range(2))
    b = b.mH[:, :200]
    c, wide = matmul(a[:, :300], b[:300], precision=precision), a[:, :300].cdouble() @ b[:300].cdouble()
    x, y = a[:, :300].cdouble(), b[:300].cdouble()
    units = ALGORITHMS[precision].units(600)
    sums = x.real.abs() @ y.real.abs() + x.imag.abs() @ y.imag.abs()
    assert bool(((c.real - wide.real).abs() <= units * U * sums).all())
    sums = x.real.abs() @ y.imag.abs() + x.imag.abs() @ y.real.abs()
    assert bool(((c.imag - wide.imag).abs() <= units * U * sums).all())
    assert plan(a[:, :300], b[:300], precision=precision).note
