"""`torch._scaled_mm` and `torch.nn.functional.scaled_mm` inside `route_torch`, on a simulated H200."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from cpu_gpu import FakeGpu  # noqa: E402
from simulated import SimulatedKernels  # noqa: E402
from torch.nn import functional  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.device.catalog import device  # noqa: E402
from tilewright.frontend import known_calls  # noqa: E402
from tilewright.planning import dispatch  # noqa: E402

pytestmark = pytest.mark.skipif(
    not hasattr(torch.library, "get_kernel") or not hasattr(torch.ops.aten, "_scaled_mm_v2"), reason="an older PyTorch"
)

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def h200(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "Kernels", lambda gpu: SimulatedKernels(FakeGpu(), device("H200")))
    known_calls.KNOWN.clear()


def drawn(*shape: int, dtype: Any = torch.float8_e4m3fn) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


M, N, K = 24, 32, 48
A, B = drawn(M, K), drawn(N, K).T
ONE, TWO = torch.tensor(0.5), torch.tensor([2.0])
ROWS, COLUMNS = torch.rand(M, 1), torch.rand(1, N)
BIAS = torch.randn(N, dtype=BF16)
TENSOR, ROW = functional.ScalingType.TensorWise, functional.ScalingType.RowWise


def into(*given: Any, **named: Any) -> Any:
    return torch.ops.aten._scaled_mm.out(*given, **named, out=torch.empty(M, N, dtype=BF16))


ROUTED: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch._scaled_mm(A, B, ONE, TWO, out_dtype=BF16),
    "row": lambda: torch._scaled_mm(A, B, ROWS, COLUMNS, out_dtype=BF16, use_fast_accum=True),
    "bias": lambda: torch._scaled_mm(A, B, ONE, TWO, bias=BIAS, out_dtype=BF16),
    "f32": lambda: torch._scaled_mm(A, B, ONE, TWO, out_dtype=torch.float32),
    "FP8": lambda: torch._scaled_mm(A, B, ONE, TWO),
    "out": lambda: into(A, B, ONE, TWO, out_dtype=BF16),
    "scaled_mm tensor": lambda: functional.scaled_mm(A, B, ONE, TENSOR, TWO, TENSOR),
    "scaled_mm row": lambda: functional.scaled_mm(A, B, ROWS, ROW, COLUMNS, ROW, output_dtype=torch.float32),
    "scaled_mm columns": lambda: functional.scaled_mm(A, B, ROWS, ROW, COLUMNS.T.contiguous(), ROW),
}


BIG_A, BIG_B = drawn(24, 272), drawn(144, 272).T
BY_ROWS, OF_B = torch.rand(3, 24).T, torch.rand(2, 3).T
BY_COLUMNS = torch.rand(3, 144)
PADDED = torch.cat([OF_B.T, torch.full((2, 1), 7.0)], dim=1).T
BLOCK_1, BLOCK_128 = functional.ScalingType.BlockWise1x128, functional.ScalingType.BlockWise128x128
BLOCKS: dict[str, tuple[Callable[[], Any], Any]] = {
    "1x128 by 128x128": (lambda: torch._scaled_mm(BIG_A, BIG_B, BY_ROWS, OF_B, out_dtype=BF16), OF_B),
    "1x128 both": (lambda: torch._scaled_mm(BIG_A, BIG_B, BY_ROWS, BY_COLUMNS, out_dtype=BF16), BY_COLUMNS),
    "scaled_mm 128x128": (lambda: functional.scaled_mm(BIG_A, BIG_B, BY_ROWS, BLOCK_1, PADDED, BLOCK_128), OF_B),
    "scaled_mm 1x128": (
        lambda: functional.scaled_mm(BIG_A, BIG_B, BY_ROWS, BLOCK_1, BY_COLUMNS.T, BLOCK_1),
        BY_COLUMNS,
    ),
}


@pytest.mark.parametrize("first", [True, False])
def test_scales_of_128_x_128_of_a_are_routed(first: bool) -> None:
    of_a = torch.rand(1, 3)
    padded = torch.cat([of_a, torch.full((1, 1), 7.0)], dim=1).T  # k first, padded to a multiple of 4
    with tw.route_torch() as routed:
        if first:
            found = torch._scaled_mm(BIG_A, BIG_B, of_a, BY_COLUMNS, out_dtype=BF16)
        else:
            found = functional.scaled_mm(BIG_A, BIG_B, padded, BLOCK_128, BY_COLUMNS.T, BLOCK_1)
    assert (routed.calls, routed.declined) == (1, {})
    left = BIG_A.double() * of_a.repeat_interleave(128, 1)[:, :272]
    exact = left @ (BIG_B.double() * BY_COLUMNS.repeat_interleave(128, 0)[:272])
    torch.testing.assert_close(found.double(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", BLOCKS)
def test_products_with_scales_of_blocks_are_routed(name: str) -> None:
    call, scale_b = BLOCKS[name]
    with tw.route_torch() as routed:
        found = call()
    assert (routed.calls, routed.declined) == (1, {})
    of_a = BY_ROWS.repeat_interleave(128, 1)[:, :272]
    of_b = scale_b.repeat_interleave(1 if scale_b.shape[1] == 144 else 128, 1)[:, :144].repeat_interleave(128, 0)[:272]
    exact = (BIG_A.double() * of_a) @ (BIG_B.double() * of_b)
    torch.testing.assert_close(found.double(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ROUTED)
def test_products_with_scales_are_routed(name: str) -> None:
    with tw.route_torch() as routed:
        found = ROUTED[name]()
    assert (routed.calls, routed.declined) == (1, {}), name
    row, column = (ROWS, COLUMNS) if "row" in name or "columns" in name else (ONE, TWO)
    exact = A.double() @ B.double() * row * column + (BIAS if name == "bias" else 0)
    kinds = {"f32": torch.float32, "scaled_mm row": torch.float32, "FP8": torch.float8_e4m3fn}
    assert found.dtype == kinds.get(name, BF16)
    if name == "FP8":
        assert torch.equal(found.float(), exact.to(torch.float8_e4m3fn).float())
    torch.testing.assert_close(found.double(), exact, rtol=7e-2 if name == "FP8" else 2e-2, atol=2e-2)


DECLINED: dict[str, tuple[Callable[[], Any], str]] = {
    "FP8 out of rows": (lambda: torch._scaled_mm(A, B, ROWS, COLUMNS), "a result of float8_e4m3fn"),
    "e5m2 out": (lambda: torch._scaled_mm(A, B, ONE, TWO, out_dtype=torch.float8_e5m2), "a result of float8_e5m2"),
    "scaled result": (lambda: torch._scaled_mm(A, B, ONE, TWO, scale_result=ONE), "a scale of the result"),
    "e5m2 alone": (
        lambda: torch._scaled_mm(A.to(torch.float8_e5m2), B.to(torch.float8_e5m2), ONE, TWO, out_dtype=BF16),
        "float8_e5m2 by float8_e5m2",
    ),
    "k": (lambda: torch._scaled_mm(A[:, :40], B[:40], ONE, TWO, out_dtype=BF16), "sizes that PyTorch does not take"),
    "order": (
        lambda: torch._scaled_mm(A, B.contiguous(), ONE, TWO, out_dtype=BF16),
        "orders that PyTorch does not take",
    ),
    "shapes": (
        lambda: torch._scaled_mm(A, B[:32], ONE, TWO, out_dtype=BF16),
        "sizes that PyTorch does not take",
    ),
    "bias": (
        lambda: torch._scaled_mm(A, B, ONE, TWO, bias=BIAS.float(), out_dtype=BF16),
        "a bias that PyTorch does not take",
    ),
    "scales": (lambda: torch._scaled_mm(A, B, ROWS.T, COLUMNS, out_dtype=BF16), "scales of other shapes"),
    "recipes": (lambda: functional.scaled_mm(A, B, ONE, TENSOR, COLUMNS, ROW), "scales of other recipes"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_pytorch_refuses_or_we_do_not_compute_stays_with_pytorch(name: str) -> None:
    call, why = DECLINED[name]

    def told() -> Any:
        try:
            return call()
        except (RuntimeError, ValueError) as error:
            return str(error).partition("\n")[0]

    alone = told()
    with tw.route_torch() as routed:
        within = told()
    assert routed.declined == {why: 1}  # PyTorch's own kernel for the CPU calls mm, which is routed
    assert isinstance(within, str) is isinstance(alone, str)
    if isinstance(alone, str):
        assert within == alone
    else:
        torch.testing.assert_close(within.float(), alone.float(), rtol=0.1, atol=0.1)


def test_outside_of_a_block_nothing_is_routed() -> None:
    with tw.route_torch():
        pass
    assert torch.equal(ROUTED["tensor"](), ROUTED["tensor"]())


TOKENS, ENDS = 48, torch.tensor([9, 9, 25, 48], dtype=torch.int32)
GROUP_A, GROUP_B = drawn(TOKENS, K), drawn(4, N, K).mT
OF_TOKENS, OF_GROUPS = torch.rand(TOKENS), torch.rand(4, N)


def by_groups() -> Any:
    rows = [slice(0, 9), slice(9, 9), slice(9, 25), slice(25, 48)]
    return torch.cat(
        [
            (GROUP_A[own].float() @ GROUP_B[i].float()) * OF_TOKENS[own, None] * OF_GROUPS[i]
            for i, own in enumerate(rows)
        ]
    )


def grouped_mm(a: Any, b: Any, of_a: Any, of_b: Any, **named: Any) -> Any:
    return torch._scaled_grouped_mm(a, b, of_a, of_b, offs=ENDS, **({"out_dtype": BF16} | named))


@pytest.fixture
def pytorchs_own() -> Iterator[None]:
    """In the place of PyTorch's kernels of grouped FP8 products, which the CPU does not have."""

    def own(*given: Any, **named: Any) -> Any:
        raise RuntimeError("PyTorch computes it")

    registered = torch.library.Library("aten", "IMPL")
    for name in ("_scaled_grouped_mm", "_scaled_grouped_mm_v2"):
        registered.impl(name, own, "CPU")
    yield
    registered._destroy()


GROUPS: dict[str, Callable[[], Any]] = {
    "rows": lambda: grouped_mm(GROUP_A, GROUP_B, OF_TOKENS, OF_GROUPS),
    "columns": lambda: grouped_mm(GROUP_B.mT, GROUP_A.T, OF_GROUPS, OF_TOKENS, use_fast_accum=True).T,
    "scaled_grouped_mm": lambda: functional.scaled_grouped_mm(
        GROUP_A, GROUP_B, OF_TOKENS, ROW, OF_GROUPS, ROW, offs=ENDS, output_dtype=BF16
    ),
}


@pytest.mark.skipif(not hasattr(torch, "_scaled_grouped_mm"), reason="this PyTorch has no grouped FP8 products")
@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_routed(name: str, pytorchs_own: None) -> None:
    if name == "scaled_grouped_mm" and not hasattr(functional, "scaled_grouped_mm"):
        pytest.skip("this PyTorch has no scaled_grouped_mm")
    with tw.route_torch() as routed:
        found = GROUPS[name]()
    assert (routed.calls, routed.declined) == (1, {})
    torch.testing.assert_close(found.float(), by_groups(), rtol=2e-2, atol=2e-2)


@pytest.mark.skipif(not hasattr(torch, "_scaled_grouped_mm"), reason="this PyTorch has no grouped FP8 products")
def test_groups_that_are_not_ours_stay(pytorchs_own: None) -> None:
    a = drawn(M, TOKENS)
    with tw.route_torch() as routed:
        for call in (
            lambda: torch._scaled_grouped_mm(a, drawn(N, TOKENS).T, torch.rand(96), torch.rand(128), offs=ENDS),
            lambda: grouped_mm(GROUP_A, GROUP_B, OF_TOKENS, OF_GROUPS, out_dtype=torch.float32),
            lambda: grouped_mm(GROUP_A, GROUP_B, torch.rand(TOKENS, 1), OF_GROUPS),
        ):
            with pytest.raises(RuntimeError, match="PyTorch computes it"):
                call()
    assert routed.calls == 0 and sum(routed.declined.values()) == 3
