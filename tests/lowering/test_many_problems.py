"""One launch for many problems: each block computes its own, and nothing of what it does is different."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.dtypes import BF16, F16, F32, DType
from tilewright.errors import LaunchError, LoweringError
from tilewright.ir.work import Problems, SplitK
from tilewright.ladders import find_rung
from tilewright.problem import Gemm, check, make_operands
from tilewright.problem.epilogue import Epilogue
from tilewright.runtime.tensor_map import encode
from tilewright.toolchain import Build, build

HOPPER = {"m": 64, "n": 64, "consumers": 1, "stages": 2}


def built(gemm: Gemm, rung: str, problems: Problems, point: dict[str, object] | None = None) -> Build:
    found = find_rung(rung)
    assert found.choices is not None or point is None
    schedule = found.schedule(gemm) if point is None else found.choices.schedule_at(gemm, point)  # type: ignore[union-attr]
    return replace(build(gemm, schedule), problems=problems)


def text_of(made: Build) -> str:
    return made.cuda[made.cuda.index('extern "C"') :]


def test_each_matrix_of_a_batch_has_a_base_of_64_bits() -> None:
    gemm = Gemm(256, 256, 256, epilogue=Epilogue("n", True))
    batch = built(gemm, "worklog/best", Problems.STRIDED)
    text = text_of(batch)
    for name in ("A", "B", "C", "residual"):
        assert f"(long long)problem_number * {name}_step" in " ".join(text.split())
    assert [p.name for p in batch.source.parameters][-5:] == ["A_step", "B_step", "C_step", "residual_step", "batch"]


def test_a_list_of_problems_is_an_argument() -> None:
    made = built(Gemm(256, 256, 256, F16, out=F16), "ampere/full", Problems.LISTED)
    assert [(p.name, p.words) for p in made.source.parameters] == [("problems", 504), ("alpha", 0), ("beta", 0)]
    assert "const __grid_constant__ PassedTable problems" in made.cuda
    text = text_of(made)
    assert "const long long* problem = problems.words + 9 * blockIdx.z;" in text
    assert "half_bits* __restrict__ C = (half_bits*)problem[2];" in text
    assert "const int ldc = int(problem[8]);" in text
    assert "return;" in text


@pytest.mark.parametrize("problems", [Problems.STRIDED, Problems.LISTED])
def test_one_problem_of_many_is_simulated_as_if_alone(problems: Problems) -> None:
    gemm = Gemm(70, 66, 40)
    operands = make_operands(gemm)
    run = built(gemm, "worklog/6", problems).simulate(operands, listeners=())
    assert check(operands, run.c.reshape(gemm.m, gemm.ldc)[:, : gemm.n]).ok


def test_tma_reads_a_batch_through_one_map() -> None:
    gemm = Gemm(72, 72, 200, BF16, out=BF16)
    made = built(gemm, "hopper/shared_b", Problems.STRIDED, HOPPER)
    assert "tma_load_3d(" in text_of(made)
    assert [p.tensor_map.step for p in made.source.parameters if p.tensor_map] == ["A_step", "B_step"]
    operands = make_operands(gemm)
    run = made.simulate(operands, listeners=())
    assert check(operands, BF16.decode(run.c.reshape(gemm.m, gemm.ldc)[:, : gemm.n])).ok


def test_a_map_of_a_stack_needs_steps_that_the_engine_can_take() -> None:
    made = built(Gemm(64, 64, 64, BF16, out=BF16), "hopper/shared_b", Problems.STRIDED, HOPPER)
    box = next(p.tensor_map for p in made.source.parameters if p.tensor_map)
    for step in (-4096, 4097):
        with pytest.raises(LaunchError, match=rf"that are {2 * step} bytes apart"):
            encode(box, 1 << 20, 64, 64, 64, step)


@pytest.mark.cross_section("rung", "problems", every=3)
@pytest.mark.parametrize("problems", [Problems.STRIDED, Problems.LISTED])
@pytest.mark.parametrize(("rung", "dtype"), [("worklog/best", F32), ("ampere/full", F16), ("hopper/shared_b", BF16)])
def test_kernels_of_many_problems_compile(rung: str, dtype: DType, problems: Problems) -> None:
    gemm = Gemm(256, 256, 256, dtype, out=dtype)
    if rung != "hopper/shared_b" or problems is not Problems.LISTED:
        assert built(gemm, rung, problems).compile("sm_90a").resources.spill_load_bytes == 0


@pytest.mark.parametrize(
    ("rung", "problems", "split_k", "said"),
    [
        ("worklog/6", Problems.LISTED, SplitK.PARTIALS, "neither split k nor"),
        ("hopper/persistent", Problems.LISTED, SplitK.NONE, "be computed by a persistent kernel"),
        ("hopper/shared_b", Problems.LISTED, SplitK.NONE, "cannot be read by clusters of blocks, nor by TMA"),
    ],
)
def test_what_a_list_of_problems_cannot_be_is_refused(
    rung: str, problems: Problems, split_k: SplitK, said: str
) -> None:
    found = find_rung(rung)
    gemm = Gemm(256, 256, 256, **{**found.problem, "out": F32})  # type: ignore[arg-type]
    with pytest.raises(LoweringError, match=said):
        _ = replace(build(gemm, found), problems=problems, split_k=split_k).kernel
