"""Products with weights of 4 and 8 bits on a real GPU, held to their codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import linear, matmul, quantize_weight
from tilewright.dtypes import F32
from tilewright.problem.storages import Storages
from tilewright.problem.weight_coding import WeightCoding, coded
from tilewright.runtime.driver import gpu_problem

torch: Any = pytest.importorskip("torch")

from benchmarks.few_bits import values_of  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def gpu() -> None:
    assert gpu_problem() is None
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 128), (4, "column"), (8, 64), (8, 128), (8, "column")])
def test_products_keep_the_bound_of_their_codes(bits: int, group: Any, dtype: Any) -> None:
    for n, k in ((1000, 1024), (17, 384), (4100, 8192)):
        weight = quantize_weight(torch.randn(k, n, device="cuda", dtype=dtype), bits=bits, group=group)
        values = torch.from_numpy(values_of(weight, n)).cuda()
        for m in (1, 7, 16, 33, 64, 130):
            a, bias = (torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((m, k), (n,)))
            exact, sizes = a.double() @ values, a.double().abs() @ values.abs()
            unit = torch.finfo(dtype).eps
            found = matmul(a, weight).double()
            assert ((found - exact).abs() <= unit * exact.abs() + 1e-5 * sizes + 1e-6).all(), (n, k, m)
            wide = matmul(a, weight, out_dtype="f32").double()
            assert ((wide - exact).abs() <= 1e-5 * sizes + 1e-6).all(), (n, k, m)
            shifted = linear(a, weight.T, bias).double() - bias.double()
            assert ((shifted - exact).abs() <= 2 * unit * (exact.abs() + bias.double().abs() + sizes * 1e-3)).all()


def test_codes_and_scales_are_those_of_the_host() -> None:
    """Bit by bit but for NaN, whose bits differ: a GPU makes 0x7fffffff of any."""
    source = torch.randn(640, 72, device="cuda") * torch.exp2(torch.randint(-12, 4, (1, 72), device="cuda"))
    source[:128, 0], source[200, 3] = 0, torch.nan
    for bits, group in ((4, 32), (8, 64), (4, "column"), (8, "column")):
        weight = quantize_weight(source, bits=bits, group=group)
        problem = WeightCoding(weight._kind, F32, *source.stride())
        storages = Storages(problem, {"source": source.cpu().numpy().reshape(-1)})
        expected, memory = coded(storages), weight._memory.cpu().numpy().view("uint8")
        wanted = expected["codes"].view("uint8")
        np.testing.assert_array_equal(memory[: wanted.size], wanted, f"codes, {bits}, {group}")
        scales, dtype = expected["scales"], weight._kind.scale_dtype
        found = memory[weight._scales_at : weight._scales_at + scales.nbytes].view(scales.dtype)
        assert np.isnan(dtype.decode(scales)).any()
        np.testing.assert_array_equal(dtype.decode(found), dtype.decode(scales), f"scales, {bits}, {group}")


def test_a_graph_records_a_product() -> None:
    weight = quantize_weight(torch.randn(1024, 512, device="cuda"))
    a = torch.randn(4, 1024, device="cuda", dtype=torch.bfloat16)
    expected = matmul(a, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = matmul(a, weight)
    found.zero_()
    graph.replay()
    assert torch.equal(found, expected)
