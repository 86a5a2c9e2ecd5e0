"""Reading what Nsight Compute prints. The texts are made up after its documented formats: no GPU is needed."""

from __future__ import annotations

import stat
from pathlib import Path

import ncu
import pytest

from tilewright.errors import LaunchError

RAW_PAGE = """\
==PROF== Connected to process 4711 (/usr/bin/python3.12)
a line that the program printed, "quoted", and not ours
==PROF== Profiling "load_b128": 0%....50%....100% - 2 passes
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum","memory_l1_wavefronts_shared","gpu__time_duration.sum"
"","","","","","","","","","","","","","ns"
"0","4711","python3","host","load_b128","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0","64","64 (0; 48; 16)","1,234.50"
"1","4711","python3","host","load_b128","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0","1,024","n/a","2,000"
==PROF== Disconnected from process 4711
"""

SOURCE_PAGE = """\
"Kernel Name","load_b128(const int *)"
"#","Address","Source","Instructions Executed","# Samples","Instructions Executed","L1 Wavefronts Shared",\
"L1 Wavefronts Shared Ideal","memory_l1_tag_requests_global"
"0","7f00","      LDG.E R0, desc[UR4][R2.64]","1","0","1","0","0","1"
"1","7f10","      LDS.128 R4, [R0]","1","0","1","4","2","0"
"2","7f20","      LDS.128 R8, [R0+0x80]","1","0","1","1,004","2","-"
"Kernel Name","store_b32"
"#","Address","Source","Instructions Executed","L1 Wavefronts Shared"
"0","7f00","      STS [R0], R1","16","32"
"""

LISTING = """\
Device NVIDIA H200 (GH100)

------------------------------------------------- --------------- ---------------------------------------------
Metric Name                                       Metric Type     Metric Unit     Metric Description
------------------------------------------------- --------------- ---------------------------------------------
dram__bytes_read                                  Counter         byte            # of bytes read from DRAM
l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld  Counter                         # of shared memory wavefronts
l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st  Counter                         # of shared memory wavefronts
smsp__inst_executed                               Counter         inst            # of warp instructions
smsp__average_warp_latency                        Ratio           cycle           average latency of a warp
"""


def test_the_raw_page_gives_one_record_a_launch_with_totals() -> None:
    first, second = ncu.parse_raw_csv(RAW_PAGE)
    assert first.kernel == "load_b128"
    assert first.values == {
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 64,
        "memory_l1_wavefronts_shared": 64,
        "gpu__time_duration.sum": 1234.5,
    }
    assert second.values["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 1024
    assert "memory_l1_wavefronts_shared" not in second.values, "n/a is not a number"


def test_the_source_page_gives_each_instruction_its_counters() -> None:
    load, store = ncu.parse_source_csv(SOURCE_PAGE)
    assert (load.kernel, len(load.instructions)) == ("load_b128(const int *)", 3)
    assert load.instructions[1].sass == "LDS.128 R4, [R0]"
    assert load.instructions[1].values["memory_l1_wavefronts_shared"] == 4
    assert load.total("memory_l1_wavefronts_shared") == 1008
    assert load.total("memory_l1_tag_requests_global") == 1
    assert store.total("memory_l1_wavefronts_shared") == 32
    assert store.total("memory_l1_wavefronts_shared_ideal") is None


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("12", 12.0),
        ("1,234,567.5", 1234567.5),
        ("1.5e+06", 1.5e6),
        ("10 {2; 3; 5}", 10.0),
        ("10; 2; 3; 5", 10.0),
        ("(2; 3; 5)", 10.0),
        ("", None),
        ("-", None),
        ("no data", None),
    ],
)
def test_a_cell_is_a_total_before_its_instances_or_their_sum(cell: str, expected: float | None) -> None:
    assert ncu._number(cell) == expected


def test_output_without_a_table_is_an_error_that_shows_the_output() -> None:
    with pytest.raises(LaunchError, match="ERR_NVGPUCTRPERM"):
        ncu.parse_raw_csv("==ERROR== ERR_NVGPUCTRPERM - no permission to read the counters\n")


def test_metrics_that_the_chip_lacks_are_left_out_and_suffixes_kept() -> None:
    wanted = ["smsp__inst_executed.sum", "smsp__no_such_thing.sum", "dram__bytes_read.sum.per_second"]
    assert ncu.existing_metrics(wanted, listing=LISTING) == [wanted[0], wanted[2]]


def test_counters_are_found_by_pattern_and_ratios_left_out() -> None:
    assert ncu.matching_counters(r"l1tex__.*_op_(ld|st)|smsp__.*", listing=LISTING) == [
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st",
        "smsp__inst_executed",
    ]


def test_instrumented_metrics_are_told_by_their_name() -> None:
    assert ncu.is_instrumented("memory_l1_wavefronts_shared")
    assert not ncu.is_instrumented("l1tex__t_bytes.sum")


def _stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put an `ncu` on the PATH that runs a shell script."""
    program = tmp_path / "ncu"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    ncu._find_ncu.cache_clear()


@pytest.fixture(autouse=True)
def _forget_ncu() -> None:
    ncu._find_ncu.cache_clear()


def test_a_report_is_recorded_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw.csv").write_text(RAW_PAGE)
    _stand_in(
        tmp_path,
        monkeypatch,
        f"""echo "$@" >> {tmp_path}/calls
if [ "$1" = --import ]; then cat {tmp_path}/raw.csv; exit 0; fi
while [ $# -gt 0 ]; do [ "$1" = --export ] && : > "$2.ncu-rep"; shift; done""",
    )
    assert ncu.available()
    report = ncu.record(["./app", "--fast"], ["a.sum", "b.sum"], tmp_path / "report", flush_caches=False)
    assert [launch.kernel for launch in ncu.read_counters(report)] == ["load_b128", "load_b128"]
    recorded, read = (tmp_path / "calls").read_text().splitlines()
    assert "--clock-control none" in recorded
    assert "--cache-control none" in recorded
    assert "--metrics a.sum,b.sum" in recorded
    assert recorded.endswith("./app --fast")
    assert "--page raw --csv --print-units base" in read


def test_a_refusal_carries_what_ncu_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(tmp_path, monkeypatch, "echo '==ERROR== Failed to find metric nonsense.sum'; exit 1")
    with pytest.raises(LaunchError, match=r"exit status 1\.\n  ==ERROR== Failed to find metric nonsense"):
        ncu.record(["./app"], ["nonsense.sum"], tmp_path / "report")


def test_a_run_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(tmp_path, monkeypatch, "sleep 60")
    with pytest.raises(LaunchError, match="did not end within 0 s"):
        ncu.record(["./app"], ["a.sum"], tmp_path / "report", timeout_s=0.2)


def test_a_run_without_a_report_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(tmp_path, monkeypatch, "echo '==WARNING== No kernels were profiled.'")
    with pytest.raises(LaunchError, match="wrote no report"):
        ncu.record(["./app"], ["a.sum"], tmp_path / "report")


def test_a_missing_ncu_is_an_error_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "_find_ncu", lambda: None)
    assert not ncu.available()
    with pytest.raises(LaunchError, match=r"not installed\.\n  Hint: it comes with the CUDA toolkit"):
        ncu.record(["./app"], ["a.sum"], tmp_path / "report")


@pytest.mark.gpu
def test_the_listing_of_hopper_has_the_counters_the_project_uses() -> None:
    wanted = ["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", "smsp__inst_executed.sum"]
    assert ncu.existing_metrics(wanted) == wanted
