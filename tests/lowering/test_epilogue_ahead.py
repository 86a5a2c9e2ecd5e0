"""Matrices that functions of an epilogue read, some chunks ahead."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.dtypes import BF16, F32
from tilewright.frontend import ops
from tilewright.frontend.symbols import Symbol
from tilewright.ir.stmt import For, Move
from tilewright.ir.visit import walk
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.problem import Epilogue, Gemm, Order, check, make_operands
from tilewright.problem.values import Accumulated, Added, Element
from tilewright.simulator import simulate
from tilewright.toolchain import build

ACC = Symbol(Accumulated())
ONE, OTHER = (Symbol(Element(Added(f"{name}_operand", None, of))) for name, of in (("one", BF16), ("other", F32)))
CONFIGS: dict[str, Any] = {
    "several subtiles": WgmmaConfig((128, 96, 64), stages=2, subtile=32),
    "a narrower one": WgmmaConfig((128, 80, 64), stages=2, subtile=64),
    "two fragments": WgmmaConfig((256, 64, 64), stages=2, subtile=16),
    "ping-pong": WgmmaConfig((128, 128, 64), ping_pong=True, stages=2, subtile=32),
    "swap-AB": WgmmaConfig((104, 128, 64), stages=2, subtile=64, swap_ab=True),
    "no room": WgmmaConfig((128, 176, 64), ping_pong=True, stages=2, subtile=16),
}
EPILOGUES = {
    "one": Epilogue(function=(ACC + ONE).value),
    "two": Epilogue(function=(ops.silu(ACC) * ONE + OTHER).value),
}


def ahead_of(kernel: Any) -> set[str]:
    """The matrices that are loaded ahead, by the names of registers."""
    moves = (stmt for _, stmt in walk(kernel.body) if isinstance(stmt, Move))
    return {move.dst.buffer.name for move in moves if move.dst.buffer.name.endswith("_ahead")}


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("config", CONFIGS)
def test_each_element_is_read_in_time(config: str, epilogue: str) -> None:
    """Of ragged tiles, several of a block."""
    gemm = Gemm(300, 200, 40, BF16, out=BF16, b=Order.COL, epilogue=EPILOGUES[epilogue])
    kernel = build(gemm, CONFIGS[config].schedule(gemm)).kernel
    names = {"one_operand_ahead"} | ({"other_operand_ahead"} if epilogue == "two" else set())
    assert ahead_of(kernel) == (set() if config == "no room" else names)
    operands = make_operands(gemm)
    run = simulate(kernel, operands)
    assert run.completed and not run.errors
    assert check(operands, gemm.out.decode(run.stored["C"][: 300 * 200]).reshape(300, 200)).ok


def test_loads_are_spread_over_the_chunks() -> None:
    """Of 12 chunks of 16 columns in four subtiles, four are ahead: one loop before all, one behind each chunk."""
    config = WgmmaConfig((128, 192, 64), stages=2, subtile=48)
    gemm = Gemm(256, 384, 64, BF16, out=BF16, b=Order.COL, epilogue=EPILOGUES["one"])
    kernel = build(gemm, config.schedule(gemm)).kernel
    loops = [stmt for _, stmt in walk(kernel.body) if isinstance(stmt, For) and stmt.var == "ahead"]
    assert len(loops) == 2 and ahead_of(kernel) == {"one_operand_ahead"}
