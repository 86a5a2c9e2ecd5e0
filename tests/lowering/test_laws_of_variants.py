"""What a kernel may assume of its arguments, held against what is true of each element."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tilewright.dtypes import BF16, F32, DType
from tilewright.ir.clusters import cluster_tile
from tilewright.ir.kernel import C_ODD
from tilewright.kernels.wgmma_presets import persistent
from tilewright.ladders import find_rung
from tilewright.lowering.coordinates import GROUP, GROUP_LANE, LANE, RANK, THREAD, bounds_of
from tilewright.lowering.variants import MAX_INDEX, ends_whole, variant_for, widest
from tilewright.problem import Epilogue, Gemm, Order
from tilewright.toolchain import build
from tilewright.units import round_up

ORDERS = tuple(product((Order.ROW, Order.COL), repeat=3))


def problem(dtype: DType, sizes: tuple[int, int, int], orders: Any = ORDERS[0], **options: Any) -> Gemm:
    a, b, c = orders
    return Gemm(*sizes, dtype, out=dtype, a=a, b=b, c=c, **options)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_the_widest_access_divides_addresses_and_rows(dtype: DType) -> None:
    gemm = problem(dtype, (8, 8, 8))
    for places in product((0, 2, 4, 6, 8, 12, 16, 24, 32, 40), repeat=2):
        legal = [size for size in (16, 8, 4) if all(place % size == 0 for place in places) and size > dtype.bytes]
        assert widest(gemm, places) == max(legal, default=1)


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("read_bytes", [(1, 1), (4, 4), (8, 8), (16, 16), (1, 16), (8, 4), (16, 8)])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_rows_end_where_vectors_do(dtype: DType, read_bytes: tuple[int, int], orders: Any) -> None:
    """Each operand's where its own do."""
    each = dict(zip(("A", "B"), read_bytes, strict=True))
    for sizes in product((4, 6, 8), (4, 6, 8), (4, 7, 8)):
        gemm = problem(dtype, sizes, orders)
        lengths = {name: gemm.size(gemm.operand(name).contiguous) for name in ("A", "B")}
        dims = {gemm.operand(name).contiguous for name in ("A", "B")}
        widths = {name: max(1, one // dtype.bytes) for name, one in each.items()}
        for exact, padded in product(({"m"}, {"n"}, {"k"}, {"m", "k"}, {"n", "k"}, set()), ((), ("A",), ("B",))):
            matters = max(widths.values()) > 1 and not dims <= exact
            expected = matters and all(lengths[name] % widths[name] == 0 for name in ("A", "B") if name not in padded)
            assert ends_whole(gemm, each, exact, frozenset(padded)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("orders", ORDERS)
def test_offsets_are_near_while_those_of_whole_tiles_fit_into_31_bits(orders: Any) -> None:
    """The last tile of the problem reaches past its end, and threads compute offsets there as well."""
    tight = problem(F32, (100, 60, 20), orders)
    program = build(tight, find_rung("worklog/6")).program
    covered = {dim: round_up(tight.size(dim), program.block_tile(dim)) for dim in ("m", "n", "k")}
    for name in ("A", "B", "C"):
        operand = tight.operand(name)
        rows, columns = covered[operand.strided], covered[operand.contiguous]
        most = (MAX_INDEX - columns) // rows
        for leading, near in ((most, True), (most + 1, False)):
            gemm = replace(tight, **{operand.leading: leading})
            assert variant_for(program, gemm).near is near


def test_exact_sizes_are_multiples_of_what_a_cluster_covers() -> None:
    program = build(Gemm(128, 128, 16), find_rung("worklog/6")).program
    tiles = {dim: cluster_tile(program, dim) for dim in ("m", "n", "k")}
    for more in product((-1, 0, 1), repeat=3):
        sizes = {dim: 2 * tile + extra for (dim, tile), extra in zip(tiles.items(), more, strict=True)}
        found = variant_for(program, Gemm(sizes["m"], sizes["n"], sizes["k"])).exact
        assert found == {dim for dim, size in sizes.items() if size % tiles[dim] == 0}


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("bytes_off", [0, 4, 8, 16])
def test_what_is_read_and_what_is_written_are_aligned_apart(bytes_off: int, at: int) -> None:
    """Pointers of A, B and C, or the rows of C."""
    gemm = Gemm(128, 128, 16)
    program = build(gemm, find_rung("worklog/6")).program
    pointers = [256, 512, 768]
    if at < 3:
        pointers[at] += bytes_off
    else:
        gemm = replace(gemm, ldc=gemm.ldc + bytes_off // 4)
    found = variant_for(program, gemm, pointers=pointers)
    expected = {0: 16, 16: 16, 8: 8, 4: 1}[bytes_off]
    assert found.aligned_bytes("A") == found.aligned_bytes("B") == (expected if at < 2 else 16)
    assert found.aligned_bytes("C") == (16 if at < 2 else expected)


def test_what_is_added_counts_as_what_is_written() -> None:
    gemm = Gemm(128, 128, 16, beta=0.5, epilogue=Epilogue(residual=True))
    program = build(gemm, find_rung("worklog/6")).program
    assert variant_for(program, gemm).aligned
    far = replace(gemm, ld_added=(130,))
    assert variant_for(program, far).aligned_bytes("C") == 8
    assert variant_for(program, far).aligned_bytes("A") == 16


def test_what_is_known_of_coordinates_and_digits() -> None:
    """Each bound is the last number that there is."""
    gemm = Gemm(300, 200, 104, BF16, out=BF16)
    config = replace(persistent(128, 64, 2, subtile=32), cluster=(2, 2), stages=3)
    built = build(gemm, config.schedule(gemm))
    bounds = bounds_of(built.program)
    x, y, z = built.kernel.block
    assert (x, y, z) == (384, 1, 1) and built.kernel.cluster == 4
    highs = {"threadIdx.x": 383, "threadIdx.y": 0, "threadIdx.z": 0, THREAD: 383}
    highs |= {LANE: 31, GROUP_LANE: 127, GROUP: 3, RANK: 3, C_ODD.name: 1, "blockIdx.x": None, "gridDim.x": None}
    assert {name: bounds[name].high for name in highs} == highs
    assert all(bound.low == (name == "gridDim.x") for name, bound in bounds.items())
    for loop in built.program.loops:
        for name, extent in ((loop.name, loop.extent), *((axis.name, axis.extent) for axis in loop.axes)):
            assert bounds[name].high == (None if extent is None else extent - 1)
