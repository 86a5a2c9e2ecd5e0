"""`tilewright explain`: each count beside the line that caused it."""

from __future__ import annotations

import pytest
from command_runs import Cli

from tilewright.device.catalog import H200, T4
from tilewright.ladders import find_rung
from tilewright.problem import make_operands
from tilewright.report.explain import Explanation, explain
from tilewright.toolchain import build


def explained(name: str, *size: int) -> Explanation:
    rung = find_rung(name)
    return explain(build(rung.gemm(*(size or (128, 128, 32))), rung), H200)


def sentences_at(explanation: Explanation, step: str) -> list[str]:
    (found,) = [entry for entry in explanation.steps if repr(entry.step) == step]
    return found.sentences


def test_vectorised_names_the_bank_conflicts_and_their_cause() -> None:
    told = explained("worklog/6", 256, 256, 256)
    assert sentences_at(told, "Vectorize('A_frag', 4)") == [
        "A_frag: 2 loads of 16 bytes a thread from shared memory each k_in; "
        "2 wavefronts each, the fewest: no bank conflicts."
    ]
    assert sentences_at(told, "Vectorize('B_frag', 4)") == [
        "B_frag: 2 loads of 16 bytes a thread from shared memory each k_in; "
        "8 wavefronts each where 4 would do: lanes 4 apart share a bank."
    ]
    assert sentences_at(told, "Relayout('A_tile', rows='k')") == [
        "A_tile: 4 stores of 4 bytes a thread to shared memory each k_tile; "
        "2 wavefronts each where 1 would do: neighbouring lanes share a bank."
    ]
    assert sentences_at(told, "Distribute('A_tile', vector=4)") == [
        "A_tile: 1 load of 16 bytes a thread from global memory each k_tile; "
        "16 sectors a request, the fewest that hold its 512 bytes."
    ]
    assert told.summary[-1] == (
        "The largest cost is the loads of B_frag from shared memory: 65% of the load/store unit. "
        "65,536 of its 131,072 wavefronts are bank conflicts: lanes 4 apart share a bank."
    )


@pytest.mark.parametrize("name", ["worklog/8", "worklog/12", "te/0", "swizzle/async_copy", "ampere/6", "hopper/best"])
def test_counts_without_numbers_are_those_of_a_run_with_all_detectors(name: str) -> None:
    """At edges in every direction."""
    rung = find_rung(name)
    built = build(rung.gemm(72, 136, 40, beta=0.5), rung)
    assert explain(built, H200).counters == built.simulate(make_operands(built.gemm)).counters


def test_a_simulation_says_how_far_it_is() -> None:
    rung = find_rung("worklog/6")
    said: list[tuple[int, int]] = []
    explain(build(rung.gemm(4096, 4096, 8), rung), H200, lambda done, total: said.append((done, total)))
    assert said[-1] == (1024, 1024) and len(said) > 1


def test_naive_blames_the_step_that_numbers_the_lanes() -> None:
    told = explained("worklog/1")
    first, second, *_ = sentences_at(told, "Bind('m_thread', Level.BLOCK_X)")
    assert first == (
        "A: 1 load of 4 bytes a thread from global memory each k; "
        "32 sectors a request where 4 would do, 128 of 1,024 bytes used: neighbouring lanes are 128 bytes apart."
    )
    assert second == (
        "B: 1 load of 4 bytes a thread from global memory each k; "
        "1 sector a request, the fewest that hold its 4 bytes, which its lanes share."
    )
    assert sentences_at(told, "Accumulate('k')") == [
        "sum: 1 assignment a thread.",
        "sum: 1 multiply-add a thread each k.",
    ]


def test_counts_are_whole_and_what_touches_nothing_is_not_told() -> None:
    told = explained("worklog/11", 128, 256, 96)
    assert sentences_at(told, "Distribute('A_tile', vector=4)")[1] == (
        "A_tile: 10 loads of 16 bytes a thread from global memory in 3 iterations of k_tile_pair; "
        "16 sectors a request, the fewest that hold its 512 bytes."
    )
    assert [line.partition(";")[0] for line in sentences_at(told, "Vectorize('C', 4)")] == [
        "C: 32 stores of 16 bytes a thread to global memory"
    ]


def test_barriers_stand_at_the_tile_they_guard() -> None:
    told = sentences_at(explained("worklog/3"), "Stage('A', Space.SHARED, under='k_tile')")
    assert told[:2] == [
        "1 barrier each k_tile: A_tile read by all: may be overwritten.",
        "1 barrier each k_tile: A_tile and B_tile complete.",
    ]


@pytest.mark.cross_section("rung", "size", every=6)
@pytest.mark.parametrize("rung", ["worklog/1", "worklog/3", "worklog/6", "worklog/11", "worklog/12", "te/1"])
@pytest.mark.parametrize("size", [(128, 128, 32), (67, 130, 9)])
def test_nothing_is_lost_and_nothing_counted_twice(rung: str, size: tuple[int, ...]) -> None:
    told = explained(rung, *size)
    costs = [cost for entry in told.steps for cost in entry.costs]
    for name in ("executions", "requests", "sectors", "wavefronts", "ideal_wavefronts", "guarded_off", "bytes_used"):
        lines = sum(getattr(line, name) for line in told.counters.lines if line.kind not in ("loop", "branch"))
        assert sum(getattr(cost, name) for cost in costs) == lines, name
    assert all(entry.step is not None for entry in told.steps), "every count has a line of the schedule"


def test_a_pipeline_owns_its_barriers_and_an_asynchronous_copy_has_two_sides() -> None:
    told = explained("worklog/12", 256, 256, 64)
    assert sentences_at(told, "Pipeline('k_tile')") == [
        "1 barrier: the first tiles are complete.",
        "1 barrier each k_tile: the next tiles are complete, these are no longer read.",
    ]
    (read, *_), (written, *_) = (
        sentences_at(told, step) for step in ("Distribute('A_tile', vector=4)", "Relayout('A_tile', rows='k')")
    )
    assert read.startswith(
        "A_tile: 16 asynchronous copies of 4 bytes a thread from global memory; 16 sectors a request"
    )
    assert written.startswith("A_tile: 16 asynchronous copies of 4 bytes a thread to shared memory; 11 wavefronts each")


def test_edges_say_how_many_lanes_they_hold_back(cli: Cli) -> None:
    data = cli("explain", "worklog/1", "--size", "33x32x4", "--json").json
    costs = [cost for step in data["steps"] for cost in step["costs"]]
    store = next(cost for cost in costs if cost["origin"] == "C" and cost["kind"] == "store")
    assert store["guarded_off"] == 31 * 32
    assert store["sentence"].endswith(" 992 lanes predicated off at the edge.")


def test_what_is_estimated_is_called_so() -> None:
    told = explained("worklog/6", 256, 256, 256)
    assert told.l2 is not None and told.l2.dram_read_bytes == 2 * 256 * 256 * 4
    assert told.summary[-2] == (
        "Estimated, by the order of the blocks: 50% of what the L2 cache of H200 is asked for hits, "
        "and 512.0 KiB of the 1.0 MiB that blocks read come from DRAM."
    )
    naive = explained("worklog/1")
    assert naive.l2 is None and not any("stimated" in line for line in naive.summary)


def test_a_gpu_that_cannot_run_the_kernel_gets_no_estimate() -> None:
    rung = find_rung("worklog/12")
    told = explain(build(rung.gemm(128, 128, 32), rung), T4)
    assert told.l2 is None and told.summary


def test_json(cli: Cli) -> None:
    assert cli("explain", "worklog/6", "--size", "256", "--json").json["estimated_l2"] == {
        "hit_rate": 0.5,
        "requested_bytes": 1 << 20,
        "dram_read_bytes": 1 << 19,
    }
    data = cli("explain", "worklog/6", "--json").json
    assert (data["rung"], data["blocks"], data["threads_per_block"]) == ("worklog/6", 4, 256)
    assert data["largest"]["origin"] == "B_frag" and data["largest"]["excess_wavefronts"] == 65536
    assert [entry["step"] for entry in data["steps"]] == list(range(1, 25))


def test_text(cli: Cli) -> None:
    ran = cli("explain", "worklog/6")
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    lines = ran.out.splitlines()
    assert lines[2] == "256 x 256 x 256, 4 blocks of 256 threads"
    assert " 21  Vectorize('B_frag', 4)" in lines
    assert max(map(len, lines)) <= 100 and all(line == line.rstrip() for line in lines)


def test_an_empty_problem_costs_nothing(cli: Cli) -> None:
    ran = cli("explain", "worklog/6", "--size", "0x4x4")
    assert (ran.code, ran.err) == (0, "")


def test_the_asynchronous_units_are_told_with_the_steps_that_ask_for_them() -> None:
    rung = find_rung("hopper/7")
    built = build(rung.gemm(512, 512, 256), rung)
    told = explain(built, H200)
    assert [step.step for step in told.steps if step.number is None and step.costs] == []
    said = {repr(step.step).partition("(")[0]: " ".join(step.sentences) for step in told.steps if step.costs}
    assert "TMA copies of 8.0 KiB from shared memory" in said["Transfer"]
    assert "1 end of a wgmma group, by a warp each k_tile." in said["Tensorize"]
    assert "on mbarriers, by all warps together in loop k_tile." in said["Pipeline"]
    assert said["Specialize"] == "1 change of the number of registers, by a warp."
    # 2 * 512 * 512 * 256 operations at 4096 a clock and SM.
    assert "its tensor cores for 32,768 and" in told.summary[0]


def test_the_gpu_can_be_chosen(cli: Cli) -> None:
    said = " ".join(cli("explain", "worklog/2", "--size", 64, "--device", "RTX 3090").out.split())
    assert "If one SM of RTX 3090" in said and "Predicted on RTX 3090 at 4096 x 4096 x 4096:" in said
