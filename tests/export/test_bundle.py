"""What is exported, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from exports import project

from tilewright.device.catalog import device
from tilewright.errors import CompileError, LaunchError, ProblemError, TilewrightError
from tilewright.export import bundle
from tilewright.export.chosen import of_rung, of_shape
from tilewright.ladders import find_rung
from tilewright.problem.formats import format_options
from tilewright.problem.gemm import Gemm, Order
from tilewright.runtime.cubin_cache import CubinCache


def test_an_architecture_that_lacks_an_instruction_is_refused_in_words() -> None:
    gemm = find_rung("hopper/best").gemm(1024, 1024, 1024)
    with pytest.raises(CompileError, match=r"cannot be compiled for sm_80: it needs .*wgmma"):
        bundle(gemm, of_rung(find_rung("hopper/best"), gemm).schedule, ["sm_80"], origin="hopper/best")


def test_a_name_must_be_one_of_c() -> None:
    gemm = Gemm(64, 64, 64)
    with pytest.raises(ProblemError, match="cannot be the name of a C function"):
        bundle(gemm, of_rung(find_rung("worklog/6"), gemm).schedule, ["sm_80"], origin="worklog/6", name="my-gemm")


def test_one_kernel_is_the_one_that_takes_everything() -> None:
    gemm = Gemm(1024, 1024, 1024)
    made = bundle(
        gemm, of_rung(find_rung("worklog/6"), gemm).schedule, ["sm_80"], origin="worklog/6", only_general=True
    )
    assert [exported.label for exported in made.kernels] == ["any"]
    assert made.general.needs.anything


def test_a_shape_gets_what_matmul_would_take_in_one_launch() -> None:
    chosen = of_shape(Gemm(4096, 4096, 4096, **format_options("bf16")), device("H200"))
    assert chosen.origin.startswith("wgmma") and not chosen.passed_over
    long = [Gemm(m, 512, 16384, **format_options("bf16")) for m in (64, 256, 512, 1024)]
    made = [of_shape(gemm, device("H200")) for gemm in long]
    assert not any("split_k" in one.origin for one in made)
    assert any("split_k=" in one.passed_over for one in made), "no sum is split: are longer ones?"


def test_what_is_turned_first_takes_two_launches_and_is_passed_over() -> None:
    chosen = of_shape(Gemm(4096, 4096, 4096, b=Order.COL), device("H200"))
    assert chosen.passed_over.endswith("B transposed") and "transposed" not in chosen.origin


def test_a_shape_with_odd_rows_gets_a_kernel_that_takes_them() -> None:
    gemm = Gemm(4095, 4097, 4093, **format_options("bf16"))
    made = bundle(gemm, of_shape(gemm, device("H200")).schedule, ["sm_90a"], origin="x/y")
    assert made.general.needs.anything


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, cache: CubinCache) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(TilewrightError, match="holds other files"):
        project("simt", tmp_path, cache)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_exporting_again_replaces_what_was_exported_and_nothing_else(tmp_path: Path, cache: CubinCache) -> None:
    project("simt", tmp_path, cache)
    (tmp_path / "notes.txt").write_text("mine")
    project("simt", tmp_path, cache, only_general=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert [path.name for path in (tmp_path / "cubin").iterdir()] == ["worklog_best_f32_nn_any.sm_80.cubin"]


def test_the_general_kernel_has_a_schedule_for_unaligned_rows_that_fits_each_target() -> None:
    gemm = Gemm(1024, 1024, 1024, **format_options("bf16"))
    chosen = of_rung(find_rung("ampere/6"), gemm)
    for arch, name in (("sm_80", "A100 SXM 80 GB"), ("sm_90a", "H200")):
        made = bundle(gemm, chosen.schedule, [arch], origin="ampere/6", anywhere=chosen.anywhere)
        exact, edges, general = made.kernels
        assert exact.build.schedule == edges.build.schedule != general.build.schedule
        assert general.kernel.shared_bytes <= device(name).max_shared_bytes_per_block


def test_every_kernel_of_a_bundle_fits_into_the_shared_memory_of_its_targets() -> None:
    gemm = Gemm(1024, 1024, 1024, **format_options("bf16"))
    as_it_stands = of_rung(find_rung("ampere/6"), gemm)
    with pytest.raises(LaunchError, match=r"144\.0 KiB of shared memory per block exceed the 99\.0 KiB"):
        bundle(gemm, as_it_stands.schedule, ["sm_86"], origin="ampere/6", anywhere=as_it_stands.anywhere)
    chosen = of_rung(find_rung("ampere/6"), gemm, ["sm_80", "sm_86"])
    made = bundle(gemm, chosen.schedule, ["sm_80", "sm_86"], origin="ampere/6", anywhere=chosen.anywhere)
    assert all(one.kernel.shared_bytes <= device("RTX 3090").max_shared_bytes_per_block for one in made.kernels)
