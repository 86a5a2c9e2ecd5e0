"""What a loop of machine code waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tilewright.device.catalog import device
from tilewright.kernels.work import Work
from tilewright.ladders import find_rung
from tilewright.prediction.counting import work_of
from tilewright.prediction.waits import CONSTANT_CLOCKS, awaited_clocks, followed, with_waits
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.machine_code import Instruction, Kind
from tilewright.runtime.nvrtc import compiler_version
from tilewright.toolchain import build

H200 = device("H200")
of_this_compiler = pytest.mark.skipif(
    not compiler_version().startswith("NVRTC 13."), reason="another compiler may move loads to other places"
)


def load(scoreboard: int, awaits: int = 0) -> Instruction:
    return Instruction(Kind.LOAD, scoreboard, awaits)


def other(awaits: int = 0) -> Instruction:
    return Instruction(Kind.OTHER, None, awaits)


ARITHMETIC = Instruction(Kind.MULTIPLY_ADD, None, 0)
USES_0, USES_1 = other(0b1), other(0b10)


@pytest.mark.parametrize(
    ("loop", "waited"),
    [
        ([other(), ARITHMETIC], 0),
        ([load(0), USES_0], 500),
        ([load(0), load(1), USES_0, USES_1], 500),  # together: the second came one clock after the first
        ([load(0), USES_0, load(1), USES_1], 1000),  # one after the other
        ([load(0), ARITHMETIC, ARITHMETIC, USES_0], 500 - 2 * 100),  # behind arithmetic
        ([load(0), *[ARITHMETIC] * 6, USES_0], 0),
        ([USES_0, load(0), *[ARITHMETIC] * 3], 500 - 3 * 100),  # used in the next iteration
        ([load(0), load(0), other(0b10), USES_0], 499),  # of one scoreboard: the last to arrive, and none of another
    ],
)
def test_waits_of_an_iteration(loop: Sequence[Instruction], waited: float) -> None:
    assert awaited_clocks(loop, 500.0, 100.0) == pytest.approx(waited, abs=1)


def test_waits_are_told_by_what_is_waited_for() -> None:
    fragment, constant = Instruction(Kind.SHARED_LOAD, 0, 0), Instruction(Kind.CONSTANT, 1, 0)
    arrivals = {Kind.SHARED_LOAD: 23.0, Kind.CONSTANT: 50.0}
    waited = followed(
        [fragment, constant, USES_0, *[other()] * 5, USES_1, load(2), other(0b100)], arrivals, lambda _: 1.0
    )
    assert waited == {Kind.SHARED_LOAD: 22, Kind.CONSTANT: 50 - 22 - 6}  # and not for the load
    assert followed([fragment, USES_0], arrivals, lambda one: 10.0 * one.clocks) == {Kind.SHARED_LOAD: 23}


def rounds(name: str, size: int = 1024) -> tuple[Work, Work]:
    """What is counted of a rung, and what its machine code for the H200 waits for."""
    rung = find_rung(name)
    built = build(rung.gemm(size, size, size), rung)
    work = work_of(built)
    return work, with_waits(work, built, built.compile(H200.arch, cache=CubinCache()), H200)


@of_this_compiler
@pytest.mark.parametrize("name", ["worklog/3", "worklog/6", "worklog/10", "hierarchy/v02_vectorised", "te/4"])
def test_machine_code_waits_as_often_as_is_counted_where_the_compiler_leaves_loads_in_place(name: str) -> None:
    counted, read = rounds(name)
    assert read.load_groups == pytest.approx(counted.load_groups, rel=0.1)
    assert replace(read, load_groups=counted.load_groups, read=None) == counted


@of_this_compiler
def test_what_the_compiler_moves_is_seen() -> None:
    """NVRTC 13: it loads 16 halves in two rounds; two steps at once; and behind the MMAs that were to cover it."""
    assert [rounds("hierarchy/v07")[at].load_groups for at in (0, 1)] == pytest.approx([1, 1.9], abs=0.15)
    assert [rounds("hierarchy/v07_vectorised")[at].load_groups for at in (0, 1)] == pytest.approx([1, 0.5], abs=0.1)
    counted, read = rounds("hierarchy/v07_double_buffered")
    assert not counted.load_groups and 0.3 < read.load_groups < 0.6
    assert rounds("worklog/best")[1].load_groups == 0


@of_this_compiler
def test_an_element_of_c_that_each_step_reads_and_writes_is_waited_for() -> None:
    """Where its loop is guarded: at 1024^3 it is kept in a register."""
    assert rounds("te/0", 896)[1].load_groups == pytest.approx(1, abs=0.05)
    assert rounds("te/0", 1024)[1].load_groups < 0.2


@pytest.mark.parametrize("name", ["hopper/best", "ampere/5", "worklog/11"])
def test_what_copies_otherwise_is_left_as_it_is_counted(name: str) -> None:
    """TMA and cp.async load no registers; where halves of a block alternate, one loop is the code of both."""
    counted, read = rounds(name)
    assert replace(read, read=None) == counted


@of_this_compiler
def test_a_step_of_a_warp() -> None:
    """worklog/6 multiplies 8 x 8 by 8 elements in a step; te/4 and te/5 have a loop inside."""
    _, whole = rounds("worklog/6")
    assert whole.read is not None
    assert 512 * whole.read.ffma < whole.read.issued < 700 and 1 < whole.read.ffma < 1.4
    assert 0 < whole.read.covered < whole.read.issued
    assert whole.read.constants == 0 and whole.read.code < 640
    _, inner = rounds("te/4")
    assert inner.read is not None and not inner.read.issued and not inner.read.covered and not inner.read.code
    _, mma = rounds("ampere/3")
    assert mma.read is not None and mma.read.issued and not mma.read.ffma and not mma.read.code


@of_this_compiler
def test_fragments_that_are_loaded_right_before_they_are_multiplied_are_waited_for() -> None:
    """worklog/7 loads elements of B one by one."""
    alone = [rounds(name)[1].read for name in ("worklog/6", "worklog/7")]
    assert alone[0] is not None and alone[1] is not None
    assert alone[1].covered > 1.5 * alone[0].covered


@of_this_compiler
def test_guards_read_sizes_in_each_step() -> None:
    guarded = rounds("worklog/6", 960)[1].read
    assert guarded is not None and guarded.constants > CONSTANT_CLOCKS / 2


@pytest.mark.parametrize("name", ["hopper/best", "worklog/1"])
def test_warps_that_wait_for_others_or_stage_nothing_are_not_followed(name: str) -> None:
    assert rounds(name)[1].read is None
