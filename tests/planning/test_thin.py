"""The kernels for few rows, as programs of the CPU: every width, order and edge against numpy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from cpu_gpu import STATE, CpuKernel

from tilewright.dtypes import F32
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.skinny import Skinny, skinny_for
from tilewright.planning.stack import Stack
from tilewright.problem.gemm import Gemm, Order
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.runtime.sass import disassemble, instruction_mix

ORDERS = ("NN", "NT", "TN", "TT")


def thin(m: int, n: int, k: int, orders: str, *, parts: int = 1, stack: Stack | None = None, **more: Any) -> Skinny:
    a, b = (Order.ROW if letter == "N" else Order.COL for letter in orders)
    gemm = Gemm(m, n, k, F32, a=a, b=b, **more)
    found = skinny_for(gemm, alignment_of_rows(gemm), None, stack, parts=parts)
    assert found is not None
    return found


def given(gemm_rows: int, gemm_columns: int, turned: bool, seed: int) -> tuple[Any, Any]:
    """Small whole numbers, so that every order of their sums is exact, and their storage at 16 bytes."""
    values = np.random.default_rng(seed).integers(-4, 5, (gemm_rows, gemm_columns)).astype(np.float32)
    room = np.full(values.size + 16, np.nan, np.float32)
    at = -room.ctypes.data % 16 // 4
    storage = room[at : at + values.size]
    storage[:] = (values.T if turned else values).ravel()
    return values, storage


def run(skinny: Skinny, a: Any, b: Any, out: Any) -> None:
    STATE.order = 2
    short, long = (a, b) if skinny.long == "B" else (b, a)
    CpuKernel(skinny.source).prepare(skinny.grid, skinny.block, skinny.arguments).launch(
        0, short.ctypes.data, long.ctypes.data, out.ctypes.data
    )


@pytest.mark.cross_section("m", "orders", every=3)
@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize(
    ("m", "n", "k", "parts"),
    [
        (16, 256, 512, 1),  # nothing is left over
        (16, 132, 300, 1),  # neither columns nor k fill a block
        (9, 100, 1032, 3),  # parts of k, the last one short; fewer rows than the kernel has
        (8, 70, 258, 1),  # loads of 8 bytes
        (5, 65, 257, 2),  # and of one element
        (70, 13, 260, 1),  # the long matrix is A
        (2, 132, 300, 1),  # few rows take the other kernel
    ],
)
def test_a_thin_product_is_the_product(m: int, n: int, k: int, parts: int, orders: str) -> None:
    skinny = thin(m, n, k, orders, parts=parts)
    assert skinny.parts == parts
    (a, stored_a), (b, stored_b) = given(m, k, orders[0] == "T", 1), given(k, n, orders[1] == "T", 2)
    out = np.full((parts, m * n + 8), np.nan, np.float32) if parts == 1 else np.full((parts, m * n), np.nan, np.float32)
    run(skinny, stored_a, stored_b, out)
    sums = out[:, : m * n].astype(np.float64).sum(axis=0)
    np.testing.assert_array_equal(sums.reshape(m, n), a.astype(np.float64) @ b)
    assert np.isnan(out[:, m * n :]).all(), "the kernel wrote behind C"


@pytest.mark.parametrize("orders", ORDERS)
def test_each_product_of_a_stack_has_its_own_matrices_and_keeps_its_c(orders: str) -> None:
    m, n, k, count = 12, 68, 264, 2
    skinny = thin(m, n, k, orders, stack=Stack(count, m * k, k * n, m * n), alpha=2.0, beta=3.0)
    pairs = [(given(m, k, orders[0] == "T", i), given(k, n, orders[1] == "T", 9 + i)) for i in range(count)]
    room_a, room_b = (given(count, one, False, 0)[1] for one in (m * k, k * n))
    room_a[:] = np.concatenate([a for (_, a), _ in pairs])
    room_b[:] = np.concatenate([b for _, (_, b) in pairs])
    out = np.ones((count, m, n), np.float32)
    run(skinny, room_a, room_b, out)
    for at, ((a, _), (b, _)) in enumerate(pairs):
        np.testing.assert_array_equal(out[at], 2 * (a @ b) + 3)


@pytest.mark.parametrize("orders", ORDERS)
def test_infinities_outside_k_are_not_multiplied_by_zero(orders: str) -> None:
    """What lies behind the last column or the last k must not be read as a factor."""
    m, n, k = 16, 68, 260
    (a, stored_a), (b, stored_b) = given(m, k, orders[0] == "T", 1), given(k, n, orders[1] == "T", 2)
    b[k - 1, n - 1] = np.inf
    stored_b[:] = (b.T if orders[1] == "T" else b).ravel()
    a[:, k - 1] = 1.0
    stored_a[:] = (a.T if orders[0] == "T" else a).ravel()
    out = np.empty((m, n), np.float32)
    run(thin(m, n, k, orders), stored_a, stored_b, out)
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize("orders", ["NN", "NT"])
def test_sixteen_bytes_of_the_few_rows_serve_sixteen_products(orders: str) -> None:
    """What keeps shared memory ahead of the FMA pipes, as the machine code of the H200 has it."""
    mix = instruction_mix(compile_cuda(thin(16, 8192, 8192, orders).source, "sm_90a"))
    assert 16 * mix["LDS.128"] <= mix["FFMA"] < 18 * mix["LDS.128"]
    assert mix["LDG.E.EF.128"] == 16  # a ring of 8, filled at the start and in the loop


@pytest.mark.parametrize("orders", ["NN", "NT"])
def test_loads_of_the_long_matrix_are_spread_over_the_products(orders: str) -> None:
    """All at the end of a turn, they would be waited for at once: ptxas puts them there unless it is kept from it."""
    text = disassemble(compile_cuda(thin(16, 8192, 8192, orders).source, "sm_90a"))
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", text)
    products = [at for at, opcode in enumerate(opcodes) if opcode == "FFMA"]
    loads = [at for at, opcode in enumerate(opcodes) if opcode == "LDG.E.EF.128" and at > products[0]]
    before = [sum(one < load for one in products) for load in loads]
    assert len(loads) == 8 and min(before) <= 256 <= max(before) - min(before), before
