"""Vectors that the producer's other warps bring to shared memory: scales with each stage, operands of the epilogue with
each tile of C."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.dtypes import BF16, E4M3, F32
from tilewright.errors import SimulationError
from tilewright.ir.async_stmt import ArriveBarrier, InitBarrier, WaitBarrier
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Move, Stmt
from tilewright.ir.visit import rewrite, walk
from tilewright.kernels.wgmma import WgmmaConfig, deepest_ring, fits
from tilewright.problem import Gemm, check, make_operands
from tilewright.problem.block_scales import BlockScales
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.gemm import Order
from tilewright.simulator import Kind, simulate
from tilewright.toolchain import build

TILE = WgmmaConfig((64, 64, 128), 1, stages=2, subtile=64)
KINDS: dict[str, WgmmaConfig] = {
    "persistent": TILE,
    "one tile": replace(TILE, persistent=False, subtile=0),
    "cooperative": replace(TILE, tile=(128, 64, 128), consumers=2, subtile=32),
    "ping-pong": replace(TILE, consumers=2, ping_pong=True),
    "swap-AB": replace(TILE, tile=(32, 64, 128), swap_ab=True),
    "cluster": replace(TILE, cluster=(2, 1)),
    "fragments in turn": replace(TILE, tile=(256, 64, 128), consumers=2, subtile=16),
}
VECTORS = Epilogue(scale=("m", "n"), bias="n")
ROWS = Gemm(200, 136, 272, E4M3, out=BF16, b=Order.COL, epilogue=VECTORS)
BLOCKS = replace(ROWS, epilogue=Epilogue(bias="n"), block_scales=BlockScales(1, 128))


def kernel_of(gemm: Gemm, config: WgmmaConfig) -> Kernel:
    if gemm.block_scales is not None:
        config = replace(config, promote_every=128)
    assert not config.reasons_against(gemm)
    return build(gemm, config.schedule(gemm)).kernel


def found(kernel: Kernel, gemm: Gemm) -> set[Kind]:
    """What a run finds; a wrong result counts as a race."""
    operands = make_operands(gemm)
    resident = max(1, kernel.cluster) if kernel.resident else None
    try:
        run = simulate(kernel, operands, listeners=(), on_finding="collect", resident_blocks=resident)
    except SimulationError as error:
        return {finding.kind for finding in error.findings} or {Kind.DEADLOCK}
    kinds = {finding.kind for finding in run.errors}
    if not run.completed or kinds:
        return kinds or {Kind.DEADLOCK}
    every = 128 if gemm.block_scales is not None else 0
    right = check(operands, gemm.out.decode(run.c).reshape(gemm.m, gemm.n), promote_every=every).ok
    return set() if right else {Kind.RACE}


@pytest.mark.cross_section("gemm", "kind", every=3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gemm", [ROWS, BLOCKS], ids=["rows", "blocks"])
def test_nothing_is_found_where_nothing_is_broken(gemm: Gemm, kind: str) -> None:
    assert found(kernel_of(gemm, KINDS[kind]), gemm) == set()


@pytest.mark.parametrize("kind", ["persistent", "ping-pong", "swap-AB"])
def test_vectors_are_read_from_shared_memory(kind: str) -> None:
    kernel = kernel_of(ROWS, KINDS[kind])
    held = {buffer.name: buffer for buffer in kernel.shared if buffer.name.endswith("_vector")}
    tile, slots = KINDS[kind].tile, 2 if kind == "ping-pong" else 1
    assert {name: buffer.shape for name, buffer in held.items()} == {
        "scale_m_vector": (slots, tile[0]),
        "scale_n_vector": (slots, tile[1]),
        "bias_vector": (slots, tile[1]),
    }
    assert held["bias_vector"].dtype is BF16 and held["scale_m_vector"].dtype is F32
    read = [stmt.src.buffer for _, stmt in walk(kernel.body) if isinstance(stmt, Move)]
    per_thread = {b.name for b in read if b.space is Space.GLOBAL}
    assert per_thread == {"scale_m", "scale_n", "bias"}  # by the warps that copy
    assert set(held) <= {b.name for b in read if b.space is Space.SHARED}


def test_vectors_stay_in_global_memory_where_the_ring_leaves_no_room() -> None:
    wide = replace(TILE, tile=(128, 152, 128), consumers=2, subtile=32)
    full = replace(wide, stages=int(deepest_ring(wide)))
    with_room = replace(full, stages=full.stages - 1)
    names = [{buffer.name for buffer in kernel_of(ROWS, one).shared} for one in (full, with_room)]
    assert "scale_m_vector" not in names[0] and "scale_m_vector" in names[1]


def test_scales_take_room_in_each_stage() -> None:
    both = replace(BLOCKS, block_scales=BlockScales(1, 1))
    config = WgmmaConfig((128, 128, 128), 2, subtile=64, subtile_stages=1, promote_every=128, stages=6)
    assert fits(config) and fits(config, gemm=BLOCKS)
    stages = int(deepest_ring(replace(config, subtile=48), 1, both))
    assert fits(replace(config, subtile=48, stages=stages), gemm=both)
    kernel = build(both, replace(config, subtile=64, stages=5).schedule(both)).kernel
    entries = {buffer.name: buffer.shape for buffer in kernel.shared if "block_scale" in buffer.name}
    assert entries == {"block_scale_a_tile": (5, 128), "block_scale_b_tile": (5, 128)}


@pytest.mark.cross_section("columns", every=2, at=1)
@pytest.mark.parametrize(("columns", "entries"), [(192, 3), (96, 3), (160, 5)])
def test_blocks_of_columns_that_end_inside_a_tile(columns: int, entries: int) -> None:
    """Tiles begin and end inside blocks of 128 columns: each run of columns between has an entry."""
    gemm = replace(BLOCKS, n=400, ldb=0, ldc=0)
    kernel = kernel_of(gemm, replace(TILE, tile=(64, columns, 128), subtile=16))
    held = next(buffer for buffer in kernel.shared if buffer.name == "block_scale_b_tile")
    assert held.shape == (2, entries)
    assert found(kernel, gemm) == set()


# -- planted faults ----------------------------------------------------------------------------------------------------


def _sites(kernel: Kernel, kind: type[Stmt]) -> list[Stmt]:  # type: ignore[valid-type]
    return [stmt for _, stmt in walk(kernel.body) if isinstance(stmt, kind)]


def _without(kernel: Kernel, kind: type[Stmt], number: int) -> Kernel:  # type: ignore[valid-type]
    """The kernel without its statement of a kind that has this number."""
    seen = iter(range(1 << 30))
    drop = lambda stmt: () if isinstance(stmt, kind) and next(seen) == number else None  # noqa: E731
    return replace(kernel, body=rewrite(kernel.body, drop))


def test_scales_are_told_of_when_they_have_landed() -> None:
    """An arrival that does not wait for the copies of its thread lets consumers read what is still on its way."""
    kernel = kernel_of(BLOCKS, KINDS["fragments in turn"])
    late = [stmt for stmt in _sites(kernel, ArriveBarrier) if stmt.behind_copies]  # type: ignore[attr-defined]
    assert len(late) == 1
    at_once = lambda stmt: (replace(stmt, behind_copies=False),) if stmt == late[0] else None  # noqa: E731
    assert Kind.RACE in found(replace(kernel, body=rewrite(kernel.body, at_once)), BLOCKS)


@pytest.mark.cross_section("gemm", "which", "kind", every=2)
@pytest.mark.parametrize("kind", [WaitBarrier, ArriveBarrier])
@pytest.mark.parametrize("which", ["persistent", "ping-pong", "fragments in turn"])
@pytest.mark.parametrize("gemm", [ROWS, BLOCKS], ids=["rows", "blocks"])
def test_each_wait_and_arrival_is_needed(gemm: Gemm, which: str, kind: type[Stmt]) -> None:  # type: ignore[valid-type]
    kernel = kernel_of(gemm, KINDS[which])
    count = len(_sites(kernel, kind))
    assert count >= 4
    for number in range(count):
        assert found(_without(kernel, kind, number), gemm), f"{kind.__name__} {number}"


@pytest.mark.parametrize("gemm", [ROWS, BLOCKS], ids=["rows", "blocks"])
def test_too_few_arrivals_are_noticed(gemm: Gemm) -> None:
    """A stage, or a vector, that is full before all warps have stored: the arrivals of a warp less."""
    kernel = kernel_of(gemm, KINDS["cooperative"])
    made = {stmt.place.buffer.name: stmt.arrivals for stmt in _sites(kernel, InitBarrier)}  # type: ignore[attr-defined]
    names = {name for name, arrivals in made.items() if arrivals > 32}
    assert names == {"vectors_full"} | ({"k_tile_full"} if gemm is BLOCKS else set())
    for name in names:

        def fewer(stmt: Stmt, name: str = name) -> tuple[Stmt, ...] | None:
            if isinstance(stmt, InitBarrier) and stmt.place.buffer.name == name:
                return (replace(stmt, arrivals=stmt.arrivals - 32),)
            return None

        assert found(replace(kernel, body=rewrite(kernel.body, fewer)), gemm), name
