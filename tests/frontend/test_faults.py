"""What goes wrong around a call: no room, kernels that do not compile, a capture, a fork, a broken database."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cpu_gpu import CpuArrays, State, cpu_gpu
from test_matmul import assert_right, drawn

from tilewright import notices
from tilewright.artifacts import CudaSource
from tilewright.errors import CompileError, LaunchError, TilewrightError
from tilewright.frontend import grouped_matmul, matmul
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning import dispatch, kernels
from tilewright.problem.gemm import Gemm
from tilewright.winners.plan_config import PlanConfig


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    monkeypatch.setattr(notices, "_SAID", set())
    with cpu_gpu() as state:
        yield state


def said(record: list[warnings.WarningMessage]) -> list[str]:
    return [str(warning.message) for warning in record]


def test_without_room_for_a_workspace_a_kernel_runs_that_needs_none(gpu: State) -> None:
    a, b = drawn(20, 3000), drawn(3000, 40)
    gpu.has_room = False
    with pytest.warns(UserWarning, match=r"no room for a workspace of .* on the GPU\. A slower kernel") as record:
        assert_right(matmul(a, b), a, b)
        assert_right(matmul(a, b), a, b)
    assert len(record) == 1
    assert not any(name.startswith("reduce") for name in gpu.launches)
    gpu.has_room = True
    assert_right(matmul(a, b), a, b)
    assert gpu.launches[-1].startswith("reduce")


def test_a_remembered_call_that_finds_no_room_falls_back(gpu: State) -> None:
    a, b = drawn(20, 3000), drawn(3000, 40)
    matmul(a, b)
    gpu.has_room = False
    with pytest.warns(UserWarning, match="no room"):
        assert_right(matmul(a, b), a, b)


@pytest.mark.parametrize(("shape", "later"), [((64, 64, 64), (64, 64, 48)), ((1, 128, 300), (1, 128, 200))])
def test_a_kernel_that_does_not_compile_is_left_out(
    gpu: State, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], later: tuple[int, int, int]
) -> None:
    m, n, k = shape
    tried: list[CudaSource] = []

    def compile_cuda(source: CudaSource, arch: str, *, cache: Any = None) -> None:
        tried.append(source)
        if source.entry != "simt_64x64":
            raise CompileError("ptxas has had enough.")

    monkeypatch.setattr(kernels, "compile_cuda", compile_cuda)
    a, b = drawn(m, k), drawn(k, n)
    with pytest.warns(UserWarning, match=r"is left out for .*, and another one runs: ptxas has had enough"):
        assert_right(matmul(a, b), a, b)
    assert gpu.launches == ["simt_64x64"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a, b = drawn(later[0], later[2]), drawn(later[2], later[1])
        assert_right(matmul(a, b), a, b)
    assert len(tried) == len(set(tried)), "kernels that failed are tried again"


def test_a_pass_that_breaks_a_rule_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.ir.verify import BrokenRule

    plain = kernels.Kernels._loaded

    def broken(self: Any, built: Any) -> Any:
        if built.name == "simt_32x64":
            raise BrokenRule("The pass 'expand' broke a rule: it is empty.")
        return plain(self, built)

    monkeypatch.setattr(kernels.Kernels, "_loaded", broken)
    a, b = drawn(64, 64), drawn(64, 64)
    with pytest.warns(UserWarning, match="The pass 'expand' broke a rule"):
        assert_right(matmul(a, b), a, b)


def test_if_no_kernel_compiles_the_last_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_cuda(source: CudaSource, arch: str, *, cache: Any = None) -> None:
        raise CompileError("NVRTC is not at home.")

    monkeypatch.setattr(kernels, "compile_cuda", compile_cuda)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(CompileError, match="not at home"):
            matmul(drawn(64, 64), drawn(64, 64))


def test_in_a_capture_a_cold_call_is_refused_and_a_warm_one_runs(gpu: State) -> None:
    a, b = drawn(40, 50), drawn(50, 60)
    gpu.capturing = True
    with pytest.raises(LaunchError, match=r"The stream is recording a CUDA graph, and no kernel for 40x60x50") as told:
        matmul(a, b)
    assert "once before the capture" in told.value.hint
    assert not gpu.compiled and not gpu.launches
    gpu.capturing = False
    matmul(a, b)
    gpu.capturing = True
    assert_right(matmul(a, b), a, b)
    assert_right(matmul(a, b, out=drawn(40, 60)), a, b)


def test_in_a_capture_no_workspace_is_asked_for_by_a_cold_call(gpu: State, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise AssertionError("memory was asked for")

    monkeypatch.setattr("cpu_gpu.CpuArrays.scratch", refuse)
    gpu.capturing = True
    with pytest.raises(LaunchError, match="recording a CUDA graph"):
        matmul(drawn(20, 3000), drawn(3000, 40))
    with pytest.raises(LaunchError, match="recording a CUDA graph"):
        matmul(drawn(20, 3000), drawn(3000, 40), bias=drawn(40), activation="gelu")
    assert not gpu.compiled


def test_a_kernel_that_needs_too_much_workspace_is_passed_over(gpu: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.planning.assembly._SCRATCH_LIMIT", 1024)
    a, b = drawn(20, 3000), drawn(3000, 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_right(matmul(a, b), a, b)
    assert not any(name.startswith("reduce") for name in gpu.launches)


def test_a_kernel_that_does_not_load_is_left_out_and_said(gpu: State, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = kernels.load

    def load(device: Any, cubin: Any, source: CudaSource) -> Any:
        if source.entry != "simt_64x64":
            raise LaunchError("The driver reported CUDA_ERROR_INVALID_IMAGE while loading it.")
        return plain(device, cubin, source)

    monkeypatch.setattr(kernels, "load", load)
    a, b = drawn(64, 64), drawn(64, 64)
    assert_right(matmul(a, b), a, b)
    assert gpu.launches == ["simt_64x64"]
    assert_right(matmul(a, b), a, b)


def test_a_group_without_a_kernel_that_compiles_falls_back_too(gpu: State, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_cuda(source: CudaSource, arch: str, *, cache: Any = None) -> None:
        if source.entry != "simt_64x64":
            raise CompileError("ptxas has had enough.")

    monkeypatch.setattr(kernels, "compile_cuda", compile_cuda)
    a, b = [drawn(20, 30), drawn(7, 50)], [drawn(30, 24), drawn(50, 9)]
    with pytest.warns(UserWarning, match="is left out for"):
        results = grouped_matmul(a, b)
    for result, x, y in zip(results, a, b, strict=True):
        assert_right(result, x, y)


def test_a_forked_process_says_why_it_cannot(gpu: State, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(40, 50), drawn(50, 60)
    matmul(a, b)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this process has threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            # PyTorch answers no question about streams in a forked process.
            monkeypatch.delattr(CpuArrays, "capturing")
            matmul(a, b)
        except LaunchError as error:
            code = 0 if "forked" in error.headline and "spawn" in error.hint else 2
        except BaseException:
            code = 3
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_right(matmul(a, b), a, b)


MEASURED = SimtConfig((32, 64, 16), (16, 32), unroll=8, stages=3, b_transport="cp_async")


class Winners:
    """A database with one answer, or none but an error."""

    def __init__(self, *answer: PlanConfig, error: str = "") -> None:
        self.answer, self.error = answer, error
        self.asked: list[tuple[str, int, str | None]] = []

    def winner(self, device: str, gemm: Gemm, alignment_bytes: int, order: str | None = None) -> Any:
        self.asked.append((device, alignment_bytes, order))
        if self.error:
            raise TilewrightError(self.error)
        return next((SimpleNamespace(config=one) for one in self.answer), None)


def test_a_measured_kernel_comes_first(gpu: State) -> None:
    winners = Winners(PlanConfig(MEASURED))
    dispatch.use_database(winners)
    a, b = drawn(40, 50), drawn(50, 60)
    assert_right(matmul(a, b), a, b)
    assert gpu.launches == ["simt_32x64"] and winners.asked == [("a CPU", 8, None)]


def test_a_measured_split_of_k_is_kept(gpu: State) -> None:
    dispatch.use_database(Winners(PlanConfig(MEASURED.with_split_k(4))))
    a, b = drawn(64, 512), drawn(512, 64)
    assert_right(matmul(a, b), a, b)
    assert gpu.launches == ["simt_32x64", "reduce_f32_4_by_2_4"]


def test_a_measured_kernel_that_cannot_be_built_is_passed_over(gpu: State) -> None:
    dispatch.use_database(Winners(PlanConfig(WgmmaConfig((128, 256, 64)))))
    a, b = drawn(40, 50), drawn(50, 60)
    assert_right(matmul(a, b), a, b)
    assert [name.split("_")[0] for name in gpu.launches] == ["simt"]


def test_a_measured_kernel_of_another_order_is_not_used_where_bits_must_stay(gpu: State) -> None:
    winners = Winners(PlanConfig(MEASURED.with_split_k(4)))
    dispatch.use_database(winners)
    a, b = drawn(64, 512), drawn(512, 64)
    assert_right(matmul(a, b, deterministic="bitwise"), a, b)
    assert [name.split("_")[0] for name in gpu.launches] == ["simt"] and winners.asked[0][2] is not None


def test_a_database_that_cannot_be_read_is_said_once_and_done_without(gpu: State) -> None:
    dispatch.use_database(Winners(error="winners.sqlite is locked."))
    with pytest.warns(UserWarning, match=r"chosen by estimate: winners\.sqlite is locked") as record:
        for n in (60, 61):
            a, b = drawn(40, 50), drawn(50, n)
            assert_right(matmul(a, b), a, b)
    assert len(said(list(record))) == 1
