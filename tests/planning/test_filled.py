"""Odd problems in whole tiles: operands filled up with zeros, and a kernel that guards no load."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from cpu_gpu import State, cpu_gpu
from planned import alignment_of, asked
from test_matmul import assert_right, drawn

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F32
from tilewright.frontend import matmul
from tilewright.ir.buffer import Space
from tilewright.ir.stmt import Move
from tilewright.ir.visit import walk
from tilewright.kernels.simt import SimtConfig
from tilewright.planning import dispatch
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.cost.plans import packing_seconds
from tilewright.planning.estimates import estimated
from tilewright.planning.on_paper import PaperKernels, launches_of
from tilewright.planning.packing import Alignment, Packing, Stack, as_read, fitted, pads_to_tiles
from tilewright.planning.ranking import ranked
from tilewright.problem import Gemm, Order
from tilewright.problem.functions import Activation
from tilewright.problem.gemm import FACTORS
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
BOTH = frozenset(("A", "B"))
SMALL = SimtConfig((32, 64, 16), (16, 32), unroll=8)


def whole(gemm: Gemm, kernel: SimtConfig = SMALL, splits: int = 1) -> PlanConfig:
    return fitted(PlanConfig(kernel.with_split_k(splits), BOTH, tile_multiples=True), gemm, Alignment(4, 4, 4))


@pytest.fixture
def gpu() -> Iterator[State]:
    with cpu_gpu() as state:
        yield state


@pytest.mark.cross_section("splits", "orders", "shape", every=6)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("orders", ["CC", "CT", "TC", "TT"])
@pytest.mark.parametrize("shape", [(33, 65, 131), (1, 1, 1), (64, 130, 7)], ids=str)
def test_the_product_is_right(
    gpu: State, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], orders: str, splits: int
) -> None:
    """In each storage order, alone, with what is added, with an epilogue; split-K."""
    monkeypatch.setattr(dispatch, "estimated", lambda request, spec: iter([whole(request.gemm, splits=splits)]))
    m, n, k = shape
    a, b, c = drawn(m, k, order=orders[0]), drawn(k, n, order=orders[1]), drawn(m, n)
    assert_right(matmul(a, b), a, b)
    assert gpu.launches[-1].startswith("reduce_f32" if splits > 1 else "simt_32x64")
    assert_right(matmul(a, b, c=c), a, b, added=np.asarray(c))
    bias = drawn(n)
    assert_right(matmul(a, b, bias=bias, activation="relu"), a, b, added=np.asarray(bias), activation=Activation.RELU)
    around = drawn(m + 2, n + 3)
    before = np.array(around)
    assert_right(matmul(a, b, out=around[1:-1, 2:-1]), a, b)
    before[1:-1, 2:-1] = np.asarray(around)[1:-1, 2:-1]
    np.testing.assert_array_equal(np.asarray(around), before, err_msg="something was written beside C")


def test_the_kernel_guards_no_load_and_reads_what_was_turned() -> None:
    gemm = Gemm(515, 517, 513, F32, b=Order.COL)
    config = whole(gemm, SimtConfig())
    kernels = PaperKernels(H200)
    plan = plan_of(kernels, Request(gemm, alignment_of(gemm)), config)
    copy, product = launches_of(plan)
    assert copy.source.entry == "copy_transposed_f32x1_transposed_f32x1"
    built = kernels.products[product.source]
    assert built.variant.filled and built.variant.exact == frozenset("k")
    assert (built.gemm.a, built.gemm.b) == (Order.COL, Order.ROW)
    assert (built.gemm.m, built.gemm.n, built.gemm.k) == (515, 517, 528)
    moves = [stmt for _, stmt in walk(built.kernel.body) if isinstance(stmt, Move)]
    loads = [move for move in moves if move.src.buffer.name in FACTORS and move.src.buffer.space is Space.GLOBAL]
    assert loads and all(load.guard is None and load.width == 4 for load in loads)
    assert any(move.guard is not None for move in moves if move.dst.buffer.name == "C")
    # M x K of A as it lies; of its copy, K x M in whole tiles
    assert copy.arguments[4:8] == (515, 513, 528, 640) and copy.arguments[12:16] == (517, 513, 528, 768)
    assert plan.scratch_bytes == 4 * (528 * 640 + 528 * 768)
    assert plan.words.endswith("A and B transposed, padded to tile multiples")


def test_large_odd_problems_of_ffma_are_filled_and_others_are_not() -> None:
    for orders in ("NN", "NT", "TN"):
        assert next(estimated(asked(4095, 4097, 4093, "f32", orders), H200)).tile_multiples
    for shape in ((4096,) * 3, (1000,) * 3, (255, 257, 253)):
        assert not next(estimated(asked(*shape, "f32", "NN"), H200)).tile_multiples
    assert not next(estimated(asked(4095, 4097, 4093, "bf16", "NN"), H200)).tile_multiples
    assert not pads_to_tiles("wgmma", Gemm(33, 33, 33, F32)) and not pads_to_tiles("simt", Gemm(33, 33, 33, BF16))


def test_a_stack_is_not_filled() -> None:
    gemm = Gemm(1025, 1023, 1021)
    for stack in (None, Stack(3, 1025 * 1021, 1021 * 1023, 1025 * 1023)):
        found = ranked(gemm, H200, Alignment(4, 4, 4), stack=stack)
        assert any(config.tile_multiples for _, config in found) is (stack is None)


def test_what_is_moved_is_counted() -> None:
    gemm = Gemm(4095, 4097, 4093)
    filled = whole(gemm, SimtConfig())
    padded = Packing(filled.packed, filled.transposed, tile_multiples=True)
    more, less = (packing_seconds("simt", SimtConfig(), gemm, H200, packing) for packing in (padded, Packing(BOTH)))
    assert 0 < more - less < 5e-6  # B by 255 columns more
    assert as_read(gemm, filled).ldb == 17 * 256


def test_a_filled_choice_is_data_and_needs_both_copies() -> None:
    filled = PlanConfig(SimtConfig(), BOTH, BOTH, tile_multiples=True)
    assert PlanConfig.from_data(filled.as_data()) == filled
    assert "tile_multiples" not in PlanConfig(SimtConfig()).as_data()
    for wrong in ({"tile_multiples": 1}, {"packed": ["A"], "transposed": []}):
        with pytest.raises(ValueError, match="tile_multiples is"):
            PlanConfig.from_data({**filled.as_data(), **wrong})
