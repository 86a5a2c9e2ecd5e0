"""What the simulator tells the time model of one block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import BF16
from tilewright.ir.expr import Var, as_expr
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Barrier, Body, For, Move
from tilewright.ir.visit import edited, walk
from tilewright.kernels.wgmma_presets import at_depth, one_tile
from tilewright.kernels.work import Access, Work
from tilewright.ladders import find_rung
from tilewright.prediction.counting import _counted, kept_in_registers, work_of
from tilewright.problem import Gemm
from tilewright.problem.reference import make_operands
from tilewright.simulator import FloatArithmetic, Run, counting, simulate
from tilewright.toolchain import build


def work(name: str, size: int = 4096, **formats: object) -> Work:
    rung = find_rung(name)
    return work_of(build(rung.gemm(size, size, size, **formats), rung))


def access(found: Work, name: str, kind: str, space: str = "shared") -> Access:
    return next(one for one in found.step.accesses if (one.name, one.kind, one.space) == (name, kind, space))


def test_a_step_of_a_block_is_counted_line_by_line() -> None:
    found = work("worklog/6")
    assert (found.steps, found.warps, found.blocks, found.load_groups) == (512, 8, 1024, 1)
    assert found.step.fp32 == 128 * 128 * 8 / 32
    loads = access(found, "B_frag", "load")
    assert (loads.requests, loads.wavefronts, loads.ideal) == (128, 1024, 512)
    assert found.strip_bytes == 2 * 128 * 8 * 4


def test_neighbouring_loads_of_an_unrolled_loop_are_joined_as_the_compiler_joins_them() -> None:
    # The schedule says 16 loads of 4 bytes for each k; machine code has four of 16 bytes, as the vectorised rung.
    single, wide = work("worklog/5"), work("worklog/6")
    for name in ("A_frag", "B_frag"):
        assert access(single, name, "load").requests == access(wide, name, "load").requests
        assert access(single, name, "load").wavefronts == access(wide, name, "load").wavefronts


def test_a_pad_that_breaks_alignment_leaves_narrow_loads() -> None:
    assert access(work("worklog/8"), "B_frag", "load").requests > access(work("worklog/5"), "B_frag", "load").requests


@pytest.mark.parametrize("name", ["worklog/6", "ampere/4", "te/5"])
def test_counts_of_a_step_do_not_depend_on_the_size(name: str) -> None:
    assert work(name, 1024).step == work(name, 8192).step


def test_copies_ahead_are_seen_in_the_schedule() -> None:
    assert work("worklog/6").steps_ahead == 0
    assert (work("swizzle/opt").steps_ahead, work("swizzle/opt").load_groups) == (1, 0)
    assert (work("ampere/4").steps_ahead, work("hopper/best").steps_ahead) == (2, 3)


def test_a_thread_loads_as_many_values_at_a_time_as_it_has_registers_for() -> None:
    assert work("hopper/1").load_groups == 4  # 16 loads of 16 bytes, in machine code 4 at a time
    assert (work("worklog/10").load_groups, work("te/2b").load_groups) == (2, 1)


def test_what_all_iterations_of_a_loop_share_is_kept_in_a_register() -> None:
    """The sum of te/0 is an element of C, which its loop over k reads and writes: machine code does so once."""
    found = work("te/0")
    assert {one.name for one in found.step.accesses} == {"A", "B"}
    once = {one.kind: one.requests for one in found.rest.accesses if one.name == "C"}
    assert once == {"load": 32, "store": 64}  # and before the loop what beta says
    for name in ("te/1", "worklog/6", "hopper/2"):
        rung = find_rung(name)
        assert not kept_in_registers(build(rung.gemm(4096, 4096, 4096), rung).kernel)


def test_an_element_that_moves_on_is_loaded_each_time() -> None:
    whole = build(find_rung("te/0").gemm(1024, 1024, 1024), find_rung("te/0")).kernel
    (path, loop) = next((path, stmt) for path, stmt in walk(whole.body) if isinstance(stmt, For))
    assert len(kept_in_registers(whole)) == 2

    def with_stores(change: Callable[[Move], Body]) -> Kernel:
        stores = {at for at, stmt in walk(loop.body, path) if isinstance(stmt, Move) and stmt.dst.buffer.name == "C"}
        (store,) = stores
        return replace(whole, body=edited(whole.body, store, lambda stmt: change(stmt)))  # type: ignore[arg-type]

    moved = with_stores(lambda stmt: (replace(stmt, dst=replace(stmt.dst, index=(*stmt.dst.index[:-1], Var("k")))),))
    guarded = with_stores(lambda stmt: (replace(stmt, guard=as_expr(1)),))
    heard = with_stores(lambda stmt: (stmt, Barrier()))
    assert not kept_in_registers(moved) and not kept_in_registers(guarded) and not kept_in_registers(heard)


def test_products_are_awaited_where_nobody_else_copies() -> None:
    names = ("hopper/1", "hopper/2", "hopper/3", "hopper/best", "ampere/1")
    assert [work(name).products_awaited for name in names] == [True, True, False, False, False]


def test_a_warpgroup_reads_its_operands_from_shared_memory() -> None:
    found = work("hopper/4")
    assert found.warpgroups and found.inputs == "bf16"
    assert found.step.matrix_flops == 2 * 128 * 256 * 64
    assert found.step.operand_bytes == 2 * 4 * (64 + 256) * 32  # warpgroups, instructions, rows of A and columns of B
    assert found.step.tma_bytes == (128 + 256) * 64 * 2


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
def test_a_cluster_is_counted_whole_wherever_it_lies(cluster: tuple[int, int]) -> None:
    """Its blocks do the same, but for the share of a tile that each loads."""
    gemm = Gemm(1024, 1024, 1024, BF16, out=BF16)
    config = replace(at_depth(one_tile(128, 128, 2), gemm), cluster=cluster)
    found = work_of(build(gemm, config.schedule(gemm)))
    assert found.blocks == 64 and found.step.matrix_flops == 2 * 128 * 128 * 64


@pytest.mark.parametrize(
    ("name", "instructions"),
    [
        ("worklog/10", 2048 + 152),  # FFMAs of the main loop, and its other instructions: `show worklog/10 --sass`
        ("worklog/12", 2048 + 177),
        ("worklog/11", 128 + 60),  # its loop over k within a tile is not written out
        ("worklog/9", 512 + 56),
    ],
)
def test_the_code_of_a_step_is_as_long_as_the_compiler_makes_it(name: str, instructions: int) -> None:
    rung = find_rung(name)
    assert work_of(build(rung.gemm(256, 256, 64), rung)).code == pytest.approx(instructions, rel=0.08)


@pytest.mark.parametrize(
    ("name", "ahead"),
    [("swizzle/stages_2", 1), ("swizzle/stages_4", 3), ("ampere/4", 2), ("worklog/best", 0), ("hopper/best", 0)],
)
def test_steps_wait_for_copies_by_cp_async(name: str, ahead: int) -> None:
    """Not for those through registers, which wait where they are stored, nor for those of another warp."""
    assert work(name).awaited_ahead == ahead


def test_a_kernel_is_counted_once_for_all_sizes_with_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Kernel] = []

    def counted(kernel: Kernel, *asked: Any, **options: Any) -> Run:
        runs.append(kernel)
        return simulate(kernel, *asked, **options)

    monkeypatch.setattr("tilewright.prediction.counting.simulate", counted)
    _counted.cache_clear()
    first, second = work("worklog/3", 512), work("worklog/3", 2048)
    assert len(runs) == 2 and first.step == second.step and first.blocks != second.blocks
    work("worklog/4", 512)
    assert len(runs) == 4


@pytest.mark.parametrize("name", ["worklog/6", "te/5", "ampere/4", "hopper/4"])
def test_a_run_that_only_counts_counts_the_same(name: str) -> None:
    rung = find_rung(name)
    one = build(rung.gemm(128, 128, 64), rung)
    operands = make_operands(one.gemm)
    resident = one.kernel.cluster if one.kernel.resident else None
    full, counts = (
        simulate(one.kernel, operands, detectors=False, arithmetic=arithmetic, resident_blocks=resident)
        for arithmetic in (FloatArithmetic(), counting())
    )
    assert counts.counters == full.counters and counts.completed
    assert not np.array_equal(counts.c, full.c)
