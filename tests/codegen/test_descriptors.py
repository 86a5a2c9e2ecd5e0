"""Descriptors of wgmma: the start of a buffer, and an offset that counts 16 bytes."""

from __future__ import annotations

import random
import re

import pytest

from tilewright.codegen.async_calls import offset_of
from tilewright.dtypes import BF16, E4M3, F32, TF32
from tilewright.ir.async_stmt import SharedMatrix, Wgmma
from tilewright.ir.expr import Const, Expr, Var
from tilewright.ir.visit import simplify, substitute, walk, walk_expr
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.problem import Gemm, Order
from tilewright.toolchain import Build, build

COLUMNS = Order.COL
KERNELS = {
    "K-major": (Gemm(512, 512, 512, BF16, out=BF16, b=COLUMNS), WgmmaConfig((128, 192, 64), subtile=32, stages=4)),
    "MN-major": (
        Gemm(512, 512, 512, BF16, out=BF16, a=COLUMNS),
        WgmmaConfig((256, 96, 64), subtile=32, stages=3, cluster=(2, 1)),
    ),
    "fp8": (
        Gemm(512, 512, 512, E4M3, out=BF16, b=COLUMNS),
        WgmmaConfig((256, 128, 128), subtile=16, stages=4, promote_every=128),
    ),
    "tf32": (Gemm(512, 512, 512, F32, product=TF32, b=COLUMNS), WgmmaConfig((128, 128, 32), stages=4, swap_ab=True)),
}


def built(name: str) -> Build:
    gemm, config = KERNELS[name]
    return build(gemm, config.schedule(gemm))


def value(expr: Expr, names: dict[str, Expr]) -> int:
    found = simplify(substitute(expr, names))
    assert isinstance(found, Const)
    return int(found.value)


@pytest.mark.parametrize("name", KERNELS)
def test_an_offset_is_that_of_the_place(name: str) -> None:
    """In any stage, and for each step of k: whole units of 16 bytes."""
    products = [stmt for _, stmt in walk(built(name).kernel.body) if isinstance(stmt, Wgmma)]
    matrices = [side for one in products for side in (one.a, one.b) if isinstance(side, SharedMatrix)]
    assert len(matrices) >= 2
    drawn = random.Random(0)
    for matrix in matrices:
        names = {part.name for index in matrix.place.index for part in walk_expr(index) if isinstance(part, Var)}
        for _ in range(20):
            values: dict[str, Expr] = {each: Const(drawn.randrange(2)) for each in names}
            size_bytes = value(matrix.place.flat, values) * matrix.place.buffer.dtype.bytes
            assert value(offset_of(matrix), values) * 16 == size_bytes


@pytest.mark.parametrize("name", KERNELS)
def test_each_buffer_is_looked_for_once(name: str) -> None:
    """No address is made into a descriptor where products start."""
    text = built(name).cuda
    starts = re.findall(r"const unsigned (\w+)_start = wgmma_descriptor_base<\d+>\((\w+)\);", text)
    assert starts == [("A_tile", "A_tile"), ("B_tile", "B_tile")] or starts == [
        ("B_tile", "B_tile"),
        ("A_tile", "A_tile"),
    ]
    body = text[text.index('extern "C"') :]
    used = re.findall(r"wgmma_descriptor<\s*\d+,\s*\d>\((\w+)", body)
    assert sorted(set(used)) == ["A_tile_start", "B_tile_start"]
    assert body.index("B_tile_start") < body.index("wgmma_fence")
