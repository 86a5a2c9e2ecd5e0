"""The recorder: every moment's state is what the machine held, and faults lead to the moments that show them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hopper_kernels import ring

from tilewright.dtypes import Array
from tilewright.errors import SimulationError
from tilewright.ir.async_stmt import ArriveBarrier, ExpectBytes, TmaLoad, WaitBarrier
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Barrier
from tilewright.ir.visit import edited, walk
from tilewright.ladders import find_rung
from tilewright.problem import Gemm, Operands, make_operands
from tilewright.simulator import simulate
from tilewright.simulator.context import Context
from tilewright.simulator.control import ObservedInstruction, ObservedOperation
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Site
from tilewright.simulator.recorder import Recording, record
from tilewright.simulator.recorder.cells import runs_of
from tilewright.simulator.recorder.recorder import Recorder
from tilewright.simulator.recorder.units import UnderWay
from tilewright.simulator.warps import Batch
from tilewright.toolchain import Build, build


@cache
def built(name: str, size: tuple[int, int, int]) -> Build:
    rung = find_rung(name)
    return build(rung.gemm(*size), rung)


@cache
def recorded(name: str, size: tuple[int, int, int]) -> Recording:
    one = built(name, size)
    return record(one.kernel, make_operands(one.gemm))


def without(kernel: Kernel, kind: type, number: int = 0) -> Kernel:
    """The kernel without its statement of this kind with this number."""
    paths = [path for path, stmt in walk(kernel.body) if isinstance(stmt, kind)]
    return replace(kernel, body=edited(kernel.body, paths[number], lambda stmt: ()))


class Witness(Recorder):
    """Copies all state after each moment, as the machine holds it."""

    copies: list[tuple[dict[str, Array], list[tuple[int, dict[str, Array]]]]]

    def begun(self, context: Context, batch: Batch) -> None:
        super().begun(context, batch)
        self.context, self.copies = context, []

    def stepped(self, site: Site, convoy: Convoy) -> None:
        super().stepped(site, convoy)
        memory = self.context.memory
        held = {
            buffer.name: buffer.dtype.decode(memory.arrays[buffer.name]).copy()
            for buffer, _ in memory.shared_places()
            if buffer.dtype.is_float
        }
        registers = [
            (
                warp,
                {a.buffer.name: a.data[:, row * 32 : row * 32 + 32].copy() for a in convoy.registers if a is not None},
            )
            for row, warp in enumerate(convoy.warps.numbers.tolist())
        ]
        self.copies.append((held, registers))


WITNESSED: tuple[Any, ...] = (
    ("worklog/3", (64, 64, 64)),
    ("worklog/6", (128, 128, 16)),
    ("te/3", (64, 64, 32)),
    ("hopper/2", (128, 128, 128)),
    ("ampere/3", (128, 128, 64)),
)


@pytest.mark.cross_section("name", every=2, at=1)
@pytest.mark.parametrize(("name", "size"), WITNESSED)
def test_every_moment_has_the_state_of_the_machine(name: str, size: tuple[int, int, int]) -> None:
    one = built(name, size)
    witness = Witness((0, 0, 0), lambda moment: True)
    operands = make_operands(one.gemm)
    simulate(one.kernel, operands, listeners=(witness,), observer=witness, blocks=[(0, 0, 0)])
    recording = record(one.kernel, operands)
    steps = [at for at, moment in enumerate(recording.moments) if moment.kind == "step"]
    assert len(steps) == len(witness.copies)
    for at, (shared, registers) in list(zip(steps, witness.copies, strict=True))[:: max(1, len(steps) // 40)]:
        for buffer, values in recording.shared(at).items():
            np.testing.assert_array_equal(values.reshape(-1), shared[buffer])
        for warp, held in registers:
            known = {region.name: values for region, values in recording.registers(at, warp)}
            for buffer, values in held.items():
                if [region.name for region in recording.regions].count(buffer) == 1:
                    np.testing.assert_array_equal(known[buffer], values.astype(np.float32))


def test_the_shared_tile_at_the_barrier_is_the_tile_of_the_operand() -> None:
    recording = recorded("worklog/3", (64, 64, 64))
    a = make_operands(built("worklog/3", (64, 64, 64)).gemm).matrix("A")
    barriers = recording.executions("A_tile and B_tile complete")
    assert len(barriers) == 2
    for k_tile, at in enumerate(barriers):
        assert recording.moments[at].loops == (("k_tile", k_tile),)
        np.testing.assert_array_equal(recording.shared(at)["A_tile"], a[:32, 32 * k_tile : 32 * k_tile + 32])
    assert np.isnan(recording.shared(recording.executions("sum[0] = 0")[0])["A_tile"]).all()


@pytest.mark.parametrize(("name", "size"), [("worklog/6", (128, 128, 16)), ("hopper/2", (128, 128, 128))])
def test_a_recording_is_plain_data_and_back(name: str, size: tuple[int, int, int]) -> None:
    recording = recorded(name, size)
    again = Recording.from_data(json.loads(json.dumps(recording.to_data())))
    assert replace(again, changes=recording.changes) == recording
    last = len(recording.moments) - 1
    np.testing.assert_array_equal(again.state(last), recording.state(last))


def test_a_long_run_keeps_its_beginning_and_its_end_and_says_so() -> None:
    one, whole = built("worklog/3", (64, 64, 64)), recorded("worklog/3", (64, 64, 64))
    short = record(one.kernel, make_operands(one.gemm), most_moments=60)
    assert short.moments[:30] == whole.moments[:30] and short.moments[-30:] == whole.moments[-30:]
    assert short.moments[30].kind == "skipped" and short.skipped == len(whole.moments) - 60
    assert f"{short.skipped} steps" in short.moments[30].note
    for back in (30, 15, 1):
        ours, all_of = short.state(len(short.moments) - back), whole.state(len(whole.moments) - back)
        np.testing.assert_array_equal(ours, all_of)


def test_accesses_are_the_addresses_of_lanes() -> None:
    recording = recorded("worklog/3", (64, 64, 64))
    (shown,) = recording.moments[recording.executions("A_value[0] <- A_tile")[3]].accesses
    assert (shown.buffer, shown.space, shown.store, shown.width_bytes) == ("A_tile", "shared", False, 4)
    warp, picture, base, source = shown.places[2]
    assert (warp, source) == (2, -1)
    # Every lane of warp 2 reads element (2, 3) of rows of 32 floats.
    assert {base + at for at in recording.pictures[picture].at} == {(2 * 32 + 3) * 4}


def test_the_warps_of_a_moment_are_those_that_take_part() -> None:
    recording = recorded("hopper/3", (128, 128, 256))
    boxes = recording.executions("box A_map")
    assert {recording.moments[at].warps for at in boxes} == {(4,)}
    assert {recording.moments[at].lanes for at in boxes} == {(1,)}
    products = recording.executions("# wgmma")
    assert {recording.moments[at].warps for at in products} == {(0, 1, 2, 3)}


def test_boxes_are_in_flight_until_their_barrier_has_all_bytes() -> None:
    recording = recorded("hopper/3", (128, 128, 256))
    loads = [flight for flight in recording.flights if flight.kind == "TMA load"]
    assert len(loads) == 12
    assert {flight.size_bytes for flight in loads if flight.buffer == "A_tile"} == {128 * 64 * 2}
    assert sum(count for _, count in loads[0].runs) == 128 * 64
    for flight in loads:
        barrier = recording.barriers.index(flight.barrier)
        states = {one.moment: one for one in recording.barrier_states if one.barrier == barrier}
        before = max((one for at, one in states.items() if at < flight.last), key=lambda one: one.moment)
        assert before.bytes == 32768
        assert (states[flight.last].bytes, states[flight.last].phase) == (0, before.phase + 1)
        assert recording.moments[flight.last].kind == "landing"
    waits = [stall for stall in recording.stalls if stall.barrier == "k_tile_full[0]"]
    assert {stall.warp for stall in waits} == {0, 1, 2, 3}
    assert all("k_tile_full[0], parity 0" in stall.what and stall.last > stall.first for stall in waits)


def test_copies_are_in_flight_until_their_group_is_waited_for() -> None:
    recording = recorded("ampere/6", (256, 128, 64))
    copies = [flight for flight in recording.flights if flight.kind == "cp.async"]
    assert {flight.warp for flight in copies} == set(range(recording.warps))
    waited_for = [flight for flight in copies if flight.last >= 0]  # the kernel ends before it waits for the last group
    assert {flight.note for flight in waited_for} == {"group 0", "group 1"}
    for flight in waited_for:
        assert flight.first < flight.committed < flight.last
        assert "wait until at most" in recording.lines[recording.moments[flight.last].line - 1]
        assert flight.size_bytes == 2 * sum(count for _, count in flight.runs)


def test_wgmma_are_in_flight_until_their_group_is_waited_for() -> None:
    recording = recorded("hopper/3", (128, 128, 256))
    products = [flight for flight in recording.flights if flight.kind == "wgmma"]
    assert [flight.note for flight in products] == [f"group {group} of warpgroup 0: 8 wgmma" for group in range(4)]
    assert all("wgmma group(s)" in recording.lines[recording.moments[flight.last].line - 1] for flight in products)


@pytest.mark.parametrize("number", [0, 1])
def test_a_race_leads_to_both_accesses(number: int) -> None:
    one = built("worklog/3", (64, 64, 96))
    recording = record(without(one.kernel, Barrier, number), make_operands(one.gemm))
    fault = recording.faults[0]
    assert (fault.kind, fault.is_error) == ("race", True)
    now, earlier = recording.moments[fault.moment], recording.moments[fault.earlier]
    assert fault.earlier < fault.moment
    assert (now.line, earlier.line) == (fault.line, fault.earlier_line)
    assert fault.warp in now.warps and fault.earlier_warp in earlier.warps
    for moment in (now, earlier):
        assert [shown.buffer for shown in moment.accesses] == [fault.buffer]
    assert {shown.store for moment in (now, earlier) for shown in moment.accesses} == {True, False}


def test_a_race_in_a_long_run_is_kept() -> None:
    one = built("worklog/3", (64, 64, 256))
    recording = record(without(one.kernel, Barrier, 0), make_operands(one.gemm), most_moments=80)
    fault = recording.faults[0]
    assert recording.moments[fault.moment].line == fault.line and recording.moments[fault.earlier].kind == "step"


def test_what_happened_after_a_finding_is_not_the_earlier_access(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first moment is the line of the earlier access, the last one is that line again, on the element."""
    moments = [SimpleNamespace(line=line, kind="step", warps=(0,)) for line in (3, 9, 3)]
    module: Any = sys.modules[record.__module__]
    monkeypatch.setattr(module, "_touches", lambda recorder, moment, earlier, finding: moment is moments[2])
    recorder: Any = SimpleNamespace(block=(0, 0, 0), moments=moments)
    earlier: Any = SimpleNamespace(block=(0, 0, 0), line=3, warp=0)
    assert module._earlier(recorder, cast("Any", None), earlier, 1) == 0


def _ring(kernel: Kernel) -> Recording:
    gemm = Gemm(64, 64, 512, kernel.gemm.dtype, out=kernel.gemm.out)
    return record(kernel, make_operands(gemm))


def test_a_wait_that_never_ends_says_who_should_have_arrived() -> None:
    recording = _ring(without(ring(), ArriveBarrier))
    fault = recording.faults[0]
    assert fault.kind == "deadlock" and recording.moments[fault.moment].kind == "fault"
    assert fault.moment == len(recording.moments) - 1
    stuck = {stall.warp: stall for stall in recording.stalls if stall.last < 0}
    assert stuck and all(recording.lines[stall.line - 1].strip().startswith("wait for") for stall in stuck.values())
    empty = next(stall.barrier for stall in stuck.values() if "empty" in stall.barrier or "free" in stall.barrier)
    assert f"No statement of the kernel arrives at {empty.partition('[')[0]}." in fault.missing


def test_bytes_that_never_come_are_missing_from_a_line_that_was_never_executed() -> None:
    kernel = ring()
    paths = [path for path, stmt in walk(kernel.body) if isinstance(stmt, TmaLoad)]
    broken = replace(kernel, body=edited(kernel.body, paths[0], lambda stmt: ()))
    recording = _ring(broken)
    fault = next(one for one in recording.faults if one.kind == "deadlock")
    waits = [stall for stall in recording.stalls if stall.last < 0]
    assert any("bytes missing" in stall.what for stall in waits)
    arriving = [n for n, line in enumerate(recording.lines, 1) if "bytes to come" in line]
    assert any(f"Line {arriving[0]} arrived there last at step" in said for said in fault.missing)


def test_a_barrier_that_warps_have_left_names_them() -> None:
    from simulated_kernels import THREAD_X, kernel, less

    from tilewright.ir.stmt import If

    gemm = Gemm(1, 1, 1)
    one = kernel((If(less(THREAD_X, 64), (Barrier(),)),), block=(96, 1, 1), gemm=gemm)
    recording = record(one, make_operands(gemm))
    assert recording.faults[0].missing == (
        "Warps 0-1 wait for the barrier.",
        "Warp 2 has ended: it should have arrived.",
    )


def test_a_block_that_is_not_in_the_grid_is_refused() -> None:
    one = built("worklog/3", (64, 64, 64))
    with pytest.raises(SimulationError, match=r"Block \(2, 0, 0\) is not in the grid \(2, 2, 1\)"):
        record(one.kernel, make_operands(one.gemm), block=(2, 0, 0))


def test_another_block_is_another_tile() -> None:
    one = built("worklog/3", (64, 64, 64))
    recording = record(one.kernel, make_operands(one.gemm), block=(1, 0, 0))
    a = make_operands(one.gemm).matrix("A")
    at = recording.executions("A_tile and B_tile complete")[0]
    np.testing.assert_array_equal(recording.shared(at)["A_tile"], a[32:, :32])


def test_warps_in_a_drawn_order_wait_for_each_other() -> None:
    one = built("worklog/3", (32, 32, 32))
    recording = record(one.kernel, make_operands(one.gemm), schedule="warps", seed=3, most_moments=10_000)
    assert {len(moment.warps) for moment in recording.moments} == {1}
    stalls = [stall for stall in recording.stalls if stall.barrier == "__syncthreads"]
    assert len(stalls) == 2 * (recording.warps - 1)
    assert all(stall.last > stall.first for stall in stalls)


def test_a_run_that_nobody_observes_has_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for kind in (ObservedOperation, ObservedInstruction):
        monkeypatch.setattr(kind, "__init__", lambda self, *_: made.append(type(self).__name__))
    one = built("hopper/2", (128, 128, 128))
    operands: Operands = make_operands(one.gemm)
    simulate(one.kernel, operands, listeners=())
    assert made == []


def test_waits_and_arrivals_name_their_barriers() -> None:
    recording = recorded("hopper/3", (128, 128, 256))
    for kind, word in ((WaitBarrier, "wait for k_tile_full"), (ExpectBytes, "bytes to come")):
        notes = [recording.moments[at].note for at in recording.executions(word)]
        assert [note for note in notes if note.startswith("k_tile_full[")] == notes, kind


@pytest.mark.parametrize("gap", range(3))
def test_runs_of_elements_begin_and_end_where_they_do(gap: int) -> None:
    """Of all sets of nine elements; copies under way name the runs of their elements with no gap."""
    for bits in range(1, 1 << 9):
        inside = [place for place in range(9) if bits >> place & 1]
        found: list[list[int]] = []
        for place in inside:
            if found and place - found[-1][1] <= gap:
                found[-1][1] = place + 1
            else:
                found.append([place, place + 1])
        starts, ends = runs_of(np.array([place in inside for place in range(9)]), gap)
        assert [list(one) for one in zip(starts.tolist(), ends.tolist(), strict=True)] == found
        if gap == 0:
            runs = UnderWay("cp.async", 0, 0, elements=np.array(inside)).runs
            assert runs == tuple((start, end - start) for start, end in found)
