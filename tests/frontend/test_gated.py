"""`linear_gated`: two sums of one x, in one kernel or after each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.planned import paper_dispatcher
from tests.planning.simulated import computed, simulated_dispatcher
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, F32, DType
from tilewright.errors import TilewrightError
from tilewright.frontend.gated import _GATED
from tilewright.frontend.libraries import View
from tilewright.frontend.options import options_of
from tilewright.frontend.requests import Piece, Views, checked, requests_of
from tilewright.frontend.shapes import NeedsCopy
from tilewright.ir.async_stmt import Wgmma
from tilewright.ir.visit import walk
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.gated import in_one_kernel
from tilewright.problem import Activation, Order, check, make_operands
from tilewright.toolchain import build, run_on_simulator


def piece_of(m: int, n: int, k: int, dtype: DType, activation: str = "silu", *, rows_apart: int = 0) -> Piece:
    options = options_of(1.0, None, None, "default", None, False, None, False, _GATED[activation])
    weight = View(1 << 20, (k, n), (1, rows_apart or k), dtype, 0)
    views = Views(View(1 << 20, (m, k), (k, 1), dtype, 0), weight, operands=(weight,))
    (piece,) = requests_of(views, *checked(views, options), options)
    return piece


@pytest.mark.cross_section("shape", "device_name", every=2)
@pytest.mark.parametrize("device_name", ["H200", "A100"])
@pytest.mark.parametrize(
    ("shape", "dtype", "activation"),
    [
        ((136, 264, 136), BF16, "silu"),
        ((65, 72, 64), F16, "gelu"),
        ((33, 35, 37), BF16, "relu"),
        ((1, 96, 256), BF16, "silu"),
        ((40, 72, 48), F32, "gelu_tanh"),
    ],
)
def test_plans_of_every_kind(shape: tuple[int, int, int], dtype: DType, activation: str, device_name: str) -> None:
    piece = piece_of(*shape, dtype, activation)
    gemm, operands = piece.request.gemm, make_operands(piece.request.gemm)
    assert gemm.accumulators == 2 and operands.matrix("B1").shape == (shape[2], shape[1])
    result = computed(simulated_dispatcher(device_name), piece.request, operands)
    verdict = check(operands, gemm.out.decode(result).reshape(shape[0], -1)[:, : shape[1]])
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("order", [Order.ROW, Order.COL])
@pytest.mark.parametrize(
    "config",
    [
        WgmmaConfig((128, 96, 64), ping_pong=True, stages=4, subtile=16, cluster=(2, 1), accumulators=2),
        WgmmaConfig((128, 128, 64), stages=3, cluster=(1, 2), accumulators=2),
        WgmmaConfig((256, 64, 64), stages=3, subtile=32, accumulators=2),
    ],
    ids=lambda config: f"{config.tile}",
)
def test_one_instruction_multiplies_by_both(config: WgmmaConfig, order: Order) -> None:
    """Tiles of B and B1 lie one behind the other in a stage, K-major and MN-major, and are read together."""
    gemm = replace(piece_of(168, 136, 200, BF16).request.gemm, b=order, ldb=0)
    assert config.reasons_against(gemm) == ()
    built, operands = build(gemm, config.schedule(gemm)), make_operands(gemm)
    widths = {stmt.instruction.n for _, stmt in walk(built.kernel.body) if isinstance(stmt, Wgmma)}
    assert widths == {2 * config.tile[1]}
    result, _ = run_on_simulator(built, operands)
    verdict = check(operands, result)
    assert verdict.ok, verdict.message


def test_each_of_two_tiles_is_multiplied_by_itself_where_no_instruction_is_so_wide() -> None:
    """Rows of an instruction along n; or more columns than there are."""
    gemm = piece_of(168, 136, 200, BF16).request.gemm
    for config in (
        WgmmaConfig((144, 128, 64), stages=3, swap_ab=True, raster_rows=16, subtile=64, accumulators=2),
        WgmmaConfig((64, 136, 64), 1, stages=3, subtile=0, accumulators=2, persistent=False),
    ):
        assert config.reasons_against(gemm) == ()
        body = build(gemm, config.schedule(gemm)).kernel.body
        widths = {stmt.instruction.n for _, stmt in walk(body) if isinstance(stmt, Wgmma)}
        assert widths == {config.tile[0] if config.swap_ab else config.tile[1]}


@pytest.mark.parametrize(
    "config",
    [
        WgmmaConfig((144, 128, 64), stages=3, swap_ab=True, raster_rows=16, subtile=64, accumulators=2),
        WgmmaConfig((128, 96, 64), ping_pong=True, stages=5, subtile=16, cluster=(2, 1), accumulators=2),
        WgmmaConfig((128, 64, 64), stages=3, accumulators=2, persistent=False),
        MmaConfig((64, 64, 64), (32, 32), stages=3, accumulators=2, store="quad_shuffle"),
        WgmmaConfig((16, 64, 64), 1, stages=3, swap_ab=True, accumulators=2, persistent=False, cluster_k=4),
        WgmmaConfig((64, 64, 64), 1, stages=3, accumulators=2, persistent=False, cluster_k=2),
        MmaConfig((64, 64, 64), (32, 32), stages=2, accumulators=2, cluster_k=2),
    ],
    ids=lambda config: f"{config.kind} {config.tile}",
)
def test_kernels_of_two_accumulators(config: WgmmaConfig | MmaConfig) -> None:
    """Also without races, deadlocks or words that nothing wrote: the simulator would say so."""
    gemm = piece_of(168, 136, 136, BF16).request.gemm
    assert config.reasons_against(gemm) == ()
    assert replace(config, accumulators=1).reasons_against(gemm) != ()
    operands = make_operands(gemm)
    result, _ = run_on_simulator(build(gemm, config.schedule(gemm)), operands)
    verdict = check(operands, result)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("shape", [(8192, 14336, 4096), (4096, 11008, 4096), (2048, 5632, 2048)])
def test_large_ones_are_one_kernel_of_two_accumulators(shape: tuple[int, int, int]) -> None:
    piece = piece_of(*shape, BF16)
    plan = paper_dispatcher(device("H200")).plan(piece.request)
    assert len(plan.steps) == 1 and "accumulators=2" in plan.words and "wgmma" in plan.words


def test_the_first_ones_fit_registers_and_shared_memory() -> None:
    spec = device("H200")
    found = [config.kernel for _, config in in_one_kernel(piece_of(8192, 14336, 4096, BF16).request, spec)][:20]
    assert len(found) == 20
    for one in found:
        assert isinstance(one, WgmmaConfig) and one.accumulators == 2 and one.promote_every == 0


def test_rows_that_tensor_cores_do_not_read_are_multiplied_one_after_the_other() -> None:
    piece = piece_of(256, 512, 512, BF16, rows_apart=513)
    plan = paper_dispatcher(device("H200")).plan(piece.request)
    assert "then" in plan.words and plan.scratch_bytes >= 256 * 512 * 4


def test_weights_that_lie_otherwise_are_copied() -> None:
    options = options_of(1.0, None, None, "default", None, False, None, False, _GATED["silu"])
    a, b = View(0, (4, 8), (8, 1), BF16, 0), View(0, (8, 16), (1, 8), BF16, 0)
    views = Views(a, b, operands=(View(0, (8, 16), (16, 1), BF16, 0),))
    with pytest.raises(NeedsCopy) as needed:
        requests_of(views, *checked(views, options), options)
    assert needed.value.name == "b"


@pytest.mark.filterwarnings("ignore:.*computes with NumPy")
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_numpy_on_the_host(activation: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 7), np.float32)
    gate, up = rng.standard_normal((2, 9, 7), np.float32)
    expected = Activation(activation).of(x.astype(float) @ gate.T) * (x.astype(float) @ up.T)
    np.testing.assert_allclose(tw.linear_gated(x, gate, up, activation=activation), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("gate", "up", "activation", "words"),
    [
        ((3, 4), (5, 4), "silu", "differ"),
        ((3, 4), (4,), "silu", "w_up is not a matrix"),
        ((3, 4), (3, 4), "exp", "activation"),
        ((3, 4), (3, 4), None, "activation"),
        ((3, 5), (3, 5), "silu", "size 5 is different from 4"),
    ],
)
def test_what_cannot_be_asked(gate: Any, up: Any, activation: Any, words: str) -> None:
    x = np.ones((2, 4), np.float32)
    with pytest.raises(TilewrightError, match=words):
        tw.linear_gated(x, np.ones(gate, np.float32), np.ones(up, np.float32), activation=activation)
