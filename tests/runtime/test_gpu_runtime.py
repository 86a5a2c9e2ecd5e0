"""The runtime on a real GPU: `pytest -m gpu tests/runtime`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime_kernels import REVERSE, SCALE, rotate

from tilewright.artifacts import CudaSource
from tilewright.dtypes import BF16, F16, F32
from tilewright.errors import LaunchError, ProblemError
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import Gpu, gpu_count, gpu_problem, open_gpu
from tilewright.runtime.launch import LoadedKernel, load
from tilewright.runtime.memory import DeviceArray, borrow
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.runtime.probe import known_spec, probe
from tilewright.runtime.timer import LaunchGraph, time_launches

# The warnings of PyTorch at its import are not ours to fail on.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.fixture
def gpu() -> Gpu:
    assert gpu_problem() is None
    return open_gpu()


def loaded(gpu: Gpu, source: CudaSource) -> LoadedKernel:
    return load(gpu, compile_cuda(source, gpu.arch), source)


def blocks_for(elements: int) -> tuple[int, int, int]:
    return -(-elements // 256), 1, 1


# What is there


def test_the_gpu_is_described(gpu: Gpu) -> None:
    assert gpu_count() >= 1
    assert gpu.arch.startswith("sm_")
    assert gpu.uuid.startswith("GPU-") and len(gpu.uuid) == 40
    assert "CUDA 1" in gpu.driver_version
    assert gpu.memory_bytes > 1 << 30
    assert gpu.attributes["multiprocessor_count"] > 0
    assert open_gpu(0) is gpu


def test_the_probe_agrees_with_the_catalogue(gpu: Gpu) -> None:
    """Where the catalogue knows the GPU, the driver must say the same limits and sizes."""
    known = known_spec(gpu)
    spec = probe(gpu)
    assert spec.arch == gpu.arch
    assert spec.dram_gb_per_s > 0 and spec.boost_clock_mhz > 0
    if known is None:
        pytest.skip(f"the catalogue has no {gpu.name}")
    assert spec == replace(known, name=spec.name, boost_clock_mhz=spec.boost_clock_mhz)


# Launching


@pytest.mark.parametrize("elements", [1, 255, 256, 257, 100_003])
def test_a_kernel_computes_what_it_says(gpu: Gpu, elements: int) -> None:
    host = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
    with DeviceArray.of(gpu, host) as x, DeviceArray(gpu, host.shape, np.float32) as y:
        y.poison()
        args = (y.pointer, x.pointer, -1.5, elements, 1 << 20)
        loaded(gpu, SCALE).launch(gpu.stream, blocks_for(elements), (256, 1, 1), args)
        np.testing.assert_allclose(y.download(), host * np.float32(-1.5) + np.float32(1 << 20), rtol=1e-6)


def test_elements_outside_the_guard_are_not_written(gpu: Gpu) -> None:
    with DeviceArray.of(gpu, np.ones(256, np.float32)) as x, DeviceArray(gpu, (256,), np.float32) as y:
        y.poison()
        loaded(gpu, SCALE).launch(gpu.stream, (1, 1, 1), (256, 1, 1), (y.pointer, x.pointer, 2.0, 100, 0))
        result = y.download()
    assert (result[:100] == 2).all() and np.isnan(result[100:]).all()


@pytest.mark.parametrize("shared_kib", [1, 48, 49, 96])
def test_dynamic_shared_memory_below_and_above_48_kib(gpu: Gpu, shared_kib: int) -> None:
    rotated_by_one(gpu, shared_kib * 1024)


def test_all_the_shared_memory_that_a_block_may_have(gpu: Gpu) -> None:
    rotated_by_one(gpu, gpu.attributes["max_shared_memory_per_block_optin"])


def rotated_by_one(gpu: Gpu, shared_bytes: int) -> None:
    elements = shared_bytes // 4
    host = np.arange(elements, dtype=np.float32)
    with DeviceArray.of(gpu, host) as x:
        loaded(gpu, rotate(shared_bytes)).launch(gpu.stream, (1, 1, 1), (256, 1, 1), (x.pointer, elements))
        assert np.array_equal(x.download(), np.roll(host, -1))


def test_more_shared_memory_than_there_is_is_refused(gpu: Gpu) -> None:
    most = gpu.attributes["max_shared_memory_per_block_optin"]
    with pytest.raises(LaunchError, match=f"{gpu.name} has {most}"):
        loaded(gpu, rotate(most + 16))


def test_the_driver_agrees_with_what_the_elf_says(gpu: Gpu) -> None:
    for source in (SCALE, REVERSE):
        kernel = loaded(gpu, source)
        told = kernel._kernel.attributes
        assert told.num_regs == kernel.cubin.resources.registers
        # Whether the driver counts the 1 KiB that the system keeps is its own affair.
        assert told.shared_size_bytes - kernel.cubin.resources.shared_bytes in (0, 1024)
        assert told.local_size_bytes == kernel.cubin.resources.stack_bytes
        assert kernel.blocks_per_sm() == gpu.attributes["max_threads_per_multiprocessor"] // 256


def test_wrong_arguments_are_refused_before_the_driver_sees_them(gpu: Gpu) -> None:
    kernel = loaded(gpu, SCALE)
    for args in [(1, 2, 1.0, 7), (1, 2, 1.0, 7.5, 0), (1.0, 2, 1.0, 7, 0), (1, 2, 1.0, 1 << 31, 0)]:
        with pytest.raises(LaunchError):
            kernel.launch(gpu.stream, (1, 1, 1), (256, 1, 1), args)
    with pytest.raises(LaunchError, match="blocks of 256 threads"):
        kernel.launch(gpu.stream, (1, 1, 1), (64, 1, 1), (1, 2, 1.0, 0, 0))
    gpu.synchronize()


def test_code_for_another_architecture_is_refused(gpu: Gpu) -> None:
    other = "sm_75" if gpu.compute_capability != (7, 5) else "sm_80"
    with pytest.raises(LaunchError, match=f"was compiled for {other} and cannot run on"):
        load(gpu, compile_cuda(SCALE, other), SCALE)


def test_what_the_driver_cannot_load_is_told_as_such(gpu: Gpu) -> None:
    cubin = replace(compile_cuda(SCALE, gpu.arch), image=b"no machine code\0")
    with pytest.raises(LaunchError, match=r"CUDA_ERROR_\w+ while loading kernel 'scale'"):
        load(gpu, cubin, SCALE)


def test_a_cubin_from_the_cache_runs(gpu: Gpu, tmp_path: Path) -> None:
    cache = CubinCache(tmp_path)
    compile_cuda(REVERSE, gpu.arch, cache=cache)
    hit = compile_cuda(REVERSE, gpu.arch, cache=cache)
    assert hit.from_cache
    host = np.arange(256, dtype=np.float32)
    with DeviceArray.of(gpu, host) as x:
        load(gpu, hit, REVERSE).launch(gpu.stream, (1, 1, 1), (256, 1, 1), (x.pointer, 3))
        assert np.array_equal(x.download(), 3 * host[::-1])


def test_a_kernel_can_be_launched_from_another_thread(gpu: Gpu) -> None:
    kernel = loaded(gpu, REVERSE)
    failures: list[BaseException] = []
    with DeviceArray.of(gpu, np.ones(256, np.float32)) as x:

        def launch() -> None:
            try:
                gpu.make_current()
                kernel.launch(gpu.stream, (1, 1, 1), (256, 1, 1), (x.pointer, 5))
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
        assert failures == []
        assert (x.download() == 5).all()


FAULT = """
import sys
sys.path.insert(0, sys.argv[1])
from runtime_kernels import SCALE
from tilewright.errors import LaunchError
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.launch import load
from tilewright.runtime.nvrtc import compile_cuda
gpu = open_gpu()
kernel = load(gpu, compile_cuda(SCALE, gpu.arch), SCALE)
kernel.launch(gpu.stream, (1, 1, 1), (256, 1, 1), (8, 8, 1.0, 256, 0))
try:
    gpu.synchronize()
except LaunchError as error:
    print(error)
"""


def test_an_illegal_access_is_told_by_the_next_wait() -> None:
    """In a process of its own: after such a fault no GPU call of the process works."""
    command = [sys.executable, "-c", FAULT, str(Path(__file__).parent)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS while waiting for" in ran.stdout, ran.stdout + ran.stderr


# Memory


def test_what_is_uploaded_comes_back(gpu: Gpu) -> None:
    host = np.random.default_rng(1).standard_normal((300, 70))
    with DeviceArray.of(gpu, host) as array:
        assert np.array_equal(array.download(), host)
        array.poison()
        assert np.isnan(array.download()).all()
    with DeviceArray.of(gpu, np.empty((0, 3), np.float32)) as empty:
        assert empty.download().shape == (0, 3)


def test_memory_that_is_not_there_is_told_with_its_size(gpu: Gpu) -> None:
    with pytest.raises(LaunchError, match="CUDA_ERROR_OUT_OF_MEMORY while allocating"):
        DeviceArray(gpu, (gpu.memory_bytes,), np.float64)


@needs_torch
@pytest.mark.parametrize(("name", "dtype"), [("float32", F32), ("float16", F16), ("bfloat16", BF16)])
def test_tensors_of_torch_are_borrowed(name: str, dtype: Any) -> None:
    import torch

    tensor = torch.zeros(6, 10, dtype=getattr(torch, name), device="cuda")
    view = tensor[1:, ::2].t()
    borrowed = borrow(view)
    assert borrowed.pointer == view.data_ptr()
    assert (borrowed.shape, borrowed.strides) == (tuple(view.shape), tuple(view.stride()))
    assert (borrowed.dtype, borrowed.device_index) == (dtype, 0)


@needs_torch
def test_tensors_of_torch_that_cannot_be_borrowed_say_why() -> None:
    import torch

    with pytest.raises(ProblemError, match="lies in host memory"):
        borrow(torch.zeros(3))
    with pytest.raises(ProblemError, match="does not give out its memory"):
        borrow(torch.zeros(3, device="cuda", requires_grad=True))


@needs_torch
def test_a_kernel_runs_on_tensors_and_on_the_stream_of_torch(gpu: Gpu) -> None:
    import torch

    kernel = loaded(gpu, SCALE)
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            x = torch.randn(1000, device="cuda")
            y = torch.full_like(x, float("nan"))
            args = (borrow(y).pointer, borrow(x).pointer, 2.0, 1000, 0)
            kernel.prepare((4, 1, 1), (256, 1, 1), args).launch(stream.cuda_stream, *args[:2])
            assert torch.equal(y, 2 * x)


@needs_torch
def test_torch_reads_our_arrays(gpu: Gpu) -> None:
    import torch

    with DeviceArray.of(gpu, np.arange(12, dtype=np.float32).reshape(3, 4)) as array:
        assert torch.as_tensor(array, device="cuda").sum().item() == 66


# Timing


def test_launches_are_timed_by_events_and_by_a_graph(gpu: Gpu) -> None:
    """Not how fast, only that the figures make sense: more work takes longer, and a graph takes no more than
    launches from the host do."""
    kernel = loaded(gpu, SCALE)
    elements = 1 << 24
    with DeviceArray(gpu, (elements,), np.float32) as x, DeviceArray(gpu, (elements,), np.float32) as y:

        def launch(count: int) -> None:
            args = (y.pointer, x.pointer, 1.0, count, 0)
            kernel.launch(gpu.stream, blocks_for(count), (256, 1, 1), args)

        def small() -> None:
            launch(256)

        def large() -> None:
            launch(elements)

        time_launches(gpu.stream, large, launches=5)  # warm up
        small_us = time_launches(gpu.stream, small, launches=50)
        large_us = time_launches(gpu.stream, large, launches=50)
        graph = LaunchGraph.capture(gpu.stream, small, launches=50)
        graph.time(gpu.stream)
        graph_us = graph.time(gpu.stream, replays=5)
        graph.close()
    assert 0 < graph_us <= 2 * small_us
    assert large_us > graph_us


def test_a_captured_launch_runs_only_when_replayed(gpu: Gpu) -> None:
    kernel = loaded(gpu, REVERSE)
    with DeviceArray.of(gpu, np.ones(256, np.float32)) as x:
        graph = LaunchGraph.capture(
            gpu.stream,
            lambda: kernel.launch(gpu.stream, (1, 1, 1), (256, 1, 1), (x.pointer, 2)),
            launches=3,
        )
        assert (x.download() == 1).all()
        graph.replay(gpu.stream)
        assert (x.download() == 2**3).all()
        graph.close()


def test_work_that_cannot_be_captured_is_refused_and_the_stream_lives_on(gpu: Gpu) -> None:
    kernel = loaded(gpu, REVERSE)
    with DeviceArray.of(gpu, np.ones(256, np.float32)) as x:
        with pytest.raises(LaunchError, match="CUDA_ERROR_STREAM_CAPTURE"):
            LaunchGraph.capture(gpu.stream, x.poison, launches=1)  # poison waits for the stream
        kernel.launch(gpu.stream, (1, 1, 1), (256, 1, 1), (x.pointer, 2))
        assert (x.download() == 2).all()


@needs_torch
def test_launches_of_torch_can_be_captured_on_its_stream(gpu: Gpu) -> None:
    import torch
    from cuda.core import Stream

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        a = torch.randn(256, 256, device="cuda")
        c = torch.empty_like(a)
        torch.mm(a, a, out=c)  # cuBLAS sets itself up at its first call
        torch.cuda.synchronize()
        stream = Stream.from_handle(side.cuda_stream)
        graph = LaunchGraph.capture(stream, lambda: torch.mm(a, a, out=c), launches=10)
        assert graph.time(stream, replays=3) > 0
        graph.close()
