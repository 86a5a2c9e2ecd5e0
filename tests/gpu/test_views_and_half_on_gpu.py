"""Operands that start in the middle of an allocation, and half precision, on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest

from rung_runs import RUNGS, by_boxes
from tilewright.dtypes import F16, F32, DType
from tilewright.ladders import LADDERS
from tilewright.ladders.rung import Rung
from tilewright.problem import check, make_operands
from tilewright.problem.reference import view
from tilewright.runtime.driver import Gpu, gpu_problem, open_gpu
from tilewright.runtime.memory import DeviceArray
from tilewright.toolchain import arguments, build, grid_of, run_on_simulator, variant_for, verify_on_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    problem = gpu_problem()
    if problem is not None:
        pytest.skip(problem)
    found = open_gpu()
    found.make_current()
    return found


@pytest.mark.parametrize("rung", [rung for rung in RUNGS if not by_boxes(rung)], ids=lambda rung: rung.name)
def test_views_that_start_at_element_one(gpu: Gpu, rung: Rung) -> None:
    gemm = rung.gemm(130, 257, 40, alpha=-0.5, beta=2.0)
    operands = make_operands(gemm)
    hosts = [np.concatenate([host[:1], host]) for host in (operands.a, operands.b, operands.c)]
    arrays = [DeviceArray.of(gpu, host) for host in hosts]
    pointers = [array.pointer + array_host.itemsize for array, array_host in zip(arrays, hosts, strict=True)]
    variant = variant_for(build(gemm, rung).program, gemm, pointers=pointers)
    assert not variant.aligned
    built = build(gemm, rung, variant=variant)
    built.load(gpu).launch(gpu.stream, grid_of(built.kernel, gemm), built.kernel.block, arguments(gemm, pointers))
    gpu.synchronize()
    verdict = check(operands, gemm.out.decode(view(gemm, "C", arrays[2].download()[1:])))
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("accumulate", [F32, F16], ids=str)
@pytest.mark.parametrize("rung", LADDERS["hierarchy"], ids=lambda rung: rung.name)
def test_half_precision_with_either_sum(gpu: Gpu, rung: Rung, accumulate: DType) -> None:
    for size in ((128, 256, 64), (70, 130, 21)):
        gemm = rung.gemm(*size, dtype=F16, out=F16, accumulate=accumulate, alpha=0.5, beta=1.0)
        built, operands = build(gemm, rung), make_operands(gemm)
        assert verify_on_gpu(built, gpu, operands).ok
        from_simulator, _ = run_on_simulator(built, operands, detectors=False)
        assert check(operands, from_simulator).ok
