"""Tests that run against the stand-in driver of fake_libcuda.c, with no GPU. `test_fake_driver.py` starts them
in a process of their own, as the stand-in must be found before anything loads the real driver."""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime_kernels import REVERSE, SCALE, pointer, rotate

from tilewright.artifacts import CudaSource, Parameter
from tilewright.bench.protocol import Repeated, RotatedOperands, measure
from tilewright.device.catalog import H200
from tilewright.dtypes import BF16, BOOL, F16, F32, F64, I64
from tilewright.errors import LaunchError, ProblemError
from tilewright.ir.kernel import PASSED_WORDS
from tilewright.runtime.driver import Gpu, gpu_count, gpu_problem, open_gpu
from tilewright.runtime.launch import LoadedKernel, load
from tilewright.runtime.memory import DeviceArray, borrow
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.runtime.probe import probe
from tilewright.runtime.timer import LaunchGraph, time_launches

LOG = Path(os.environ.get("FAKE_CUDA_LOG", os.devnull))
ONE_BLOCK = ((1, 1, 1), (256, 1, 1))


@pytest.fixture
def gpu() -> Gpu:
    LOG.write_text("")
    return open_gpu()


def calls(kind: str) -> list[dict[str, Any]]:
    lines = LOG.read_text().splitlines()
    return [call for call in map(json.loads, lines) if call["call"] == kind]


def failing(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setenv("FAKE_CUDA_FAIL", what)


def loaded(gpu: Gpu, source: CudaSource) -> LoadedKernel:
    sizes = [8 * p.words or (8 if p.is_pointer else p.dtype.bytes) for p in source.parameters]
    os.environ["FAKE_CUDA_ARG_BYTES"] = ",".join(map(str, sizes))
    return load(gpu, compile_cuda(source, gpu.arch), source)


def taking(*parameters: Parameter) -> CudaSource:
    """A kernel that takes `parameters` and does nothing."""
    c_type = {"f16": "unsigned short", "bf16": "unsigned short"}
    listed = ", ".join(f"{c_type.get(p.dtype.name, p.dtype.cuda)} {p.name}" for p in parameters)
    return CudaSource(f'extern "C" __global__ void k({listed}) {{}}', "k", parameters, 256)


# The driver and the GPU


def test_the_gpu_is_described(gpu: Gpu) -> None:
    assert gpu_problem() is None
    assert gpu_count() == 1
    assert (gpu.name, gpu.arch, gpu.compute_capability) == ("NVIDIA H200", "sm_90a", (9, 0))
    assert gpu.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert gpu.driver_version.endswith("CUDA 13.0") or gpu.driver_version.endswith("(CUDA 13.0)")
    assert gpu.attributes["multiprocessor_count"] == 132
    assert repr(gpu) == "Gpu(0, NVIDIA H200, sm_90a)"
    assert open_gpu(0) is gpu


@pytest.mark.parametrize(
    ("capability", "arch"), [((7, 5), "sm_75"), ((8, 6), "sm_86"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a")]
)
def test_the_architecture_follows_the_compute_capability(gpu: Gpu, capability: tuple[int, int], arch: str) -> None:
    other = Gpu(0)
    other.attributes = {"compute_capability_major": capability[0], "compute_capability_minor": capability[1]}
    assert other.arch == arch


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(LaunchError, match="There is no GPU 3: the driver shows 1, counted from 0"):
        open_gpu(3)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("FAKE_CUDA_FAIL", "cuInit:100", "The NVIDIA driver sees no GPU; check what `nvidia-smi` lists"),
        ("FAKE_CUDA_FAIL", "cuInit:999", "The NVIDIA driver does not start (CUDA_ERROR_UNKNOWN)"),
        ("FAKE_CUDA_GPUS", "0", "The NVIDIA driver shows no GPU"),
        ("FAKE_CUDA_VERSION", "12080", "The NVIDIA driver is too old: it supports CUDA 12.8 and kernels are compiled"),
    ],
)
def test_what_is_wrong_with_the_driver_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    problem = gpu_problem.__wrapped__()
    assert problem is not None
    assert problem.startswith(told)
    assert "\n" not in problem and problem.endswith(".")


def test_the_probe_reads_the_device_and_completes_it_from_the_catalogue(gpu: Gpu) -> None:
    spec = probe(gpu)
    assert spec == replace(H200, name="H200", sm_count=132)


def test_an_unknown_gpu_takes_its_rates_from_the_most_alike(gpu: Gpu) -> None:
    other = Gpu(0)
    other.name = "NVIDIA H20"
    other.attributes = {**gpu.attributes, "multiprocessor_count": 78, "memory_clock_rate": 2_619_000}
    spec = probe(other)
    assert (spec.name, spec.sm_count, spec.arch) == ("H20", 78, "sm_90a")
    assert spec.dram_gb_per_s == pytest.approx(2 * 2619e6 * 6144 / 8 / 1e9)
    assert spec.dram_bytes == gpu.memory_bytes
    assert spec.l2_latency_clk == H200.l2_latency_clk


# Launching


@pytest.mark.parametrize(("equal", "blocks"), [(False, 3 * 132), (True, 256)])  # the stand-in has 3 an SM
def test_a_resident_kernel_is_started_with_the_blocks_of_its_rounds(gpu: Gpu, equal: bool, blocks: int) -> None:
    source = CudaSource('extern "C" __global__ void k() {}', "k", (), 256, resident=True, equal_items=equal)
    kernel = loaded(gpu, source)
    assert kernel.prepare((512, 1, 1), (256, 1, 1), ()).grid == (blocks, 1, 1)
    assert kernel.prepare((100, 1, 1), (256, 1, 1), ()).grid == (100, 1, 1)


def test_a_table_of_words_is_an_argument_of_the_launch(gpu: Gpu) -> None:
    parameters = Parameter("problems", I64, words=PASSED_WORDS), Parameter("alpha", F32)
    text = f"struct T {{ long long words[{PASSED_WORDS}]; }};\n"
    text += 'extern "C" __global__ void k(const __grid_constant__ T problems, float alpha) {}'
    kernel = loaded(gpu, CudaSource(text, "k", parameters, 256))
    launch = kernel.prepare(*ONE_BLOCK, (0, 2.5))
    for words in (np.arange(18).reshape(2, 9), np.arange(9)[None] - 1):
        launch.launch_table(int(gpu.stream.handle), words)
        table, alpha = (bytes.fromhex(arg) for arg in calls("launch")[-1]["args"])
        np.testing.assert_array_equal(np.frombuffer(table, np.int64)[: words.size], words.reshape(-1))
        assert len(table) == 8 * PASSED_WORDS and alpha == struct.pack("<f", 2.5)
    with pytest.raises(LaunchError, match="takes a table of problems"):
        kernel.launch(gpu.stream, *ONE_BLOCK, (0, 2.5))


def test_arguments_arrive_as_the_kernel_declares_them(gpu: Gpu) -> None:
    kernel = loaded(gpu, SCALE)
    kernel.launch(gpu.stream, (3, 2, 1), (256, 1, 1), (0x7F00_1000, 0x2000, 2.5, -7, 1 << 40))
    (call,) = calls("launch")
    assert call["grid"] == [3, 2, 1] and call["block"] == [256, 1, 1] and call["shared_bytes"] == 0
    packed = [bytes.fromhex(arg) for arg in call["args"]]
    assert packed == [
        struct.pack("<Q", 0x7F00_1000),
        struct.pack("<Q", 0x2000),
        struct.pack("<f", 2.5),
        struct.pack("<i", -7),
        struct.pack("<q", 1 << 40),
    ]


def test_every_scalar_format_is_packed_in_its_own_size(gpu: Gpu) -> None:
    source = taking(Parameter("a", F16), Parameter("b", BF16), Parameter("c", F64), Parameter("d", BOOL))
    loaded(gpu, source).launch(gpu.stream, *ONE_BLOCK, (1.5, 1.5, 1.5, True))
    (call,) = calls("launch")
    assert call["args"] == ["003e", "c03f", struct.pack("<d", 1.5).hex(), "01"]


def test_numpy_scalars_are_taken_too(gpu: Gpu) -> None:
    args = (np.uint64(0x1000), np.int64(0x2000), np.float64(0.5), np.int16(3), np.int32(4))
    loaded(gpu, SCALE).launch(gpu.stream, *ONE_BLOCK, args)
    (call,) = calls("launch")
    assert call["args"][2:] == [struct.pack("<f", 0.5).hex(), "03000000", "0400000000000000"]


@pytest.mark.parametrize(
    ("position", "value", "told"),
    [
        (3, 2.5, "Argument 'n' of kernel 'scale' must be a number that fits i32, not 2.5."),
        (3, 1 << 31, "Argument 'n' of kernel 'scale' must be a number that fits i32, not 2147483648."),
        (2, "x", "Argument 'alpha' of kernel 'scale' must be a number that fits f32, not 'x'."),
        (0, 1.0, "Argument 'y' of kernel 'scale' must be an address (int), not 1.0."),
        (0, None, "Argument 'y' of kernel 'scale' must be an address (int), not None."),
    ],
)
def test_an_argument_that_would_be_misread_is_refused(gpu: Gpu, position: int, value: object, told: str) -> None:
    args: list[object] = [0x1000, 0x2000, 1.0, 7, 0]
    args[position] = value
    with pytest.raises(LaunchError) as refusal:
        loaded(gpu, SCALE).launch(gpu.stream, *ONE_BLOCK, tuple(args))
    assert str(refusal.value) == told
    assert calls("launch") == []


def test_too_few_arguments_are_refused_with_the_names(gpu: Gpu) -> None:
    with pytest.raises(LaunchError) as refusal:
        loaded(gpu, SCALE).launch(gpu.stream, *ONE_BLOCK, (0x1000, 0x2000, 1.0, 7))
    assert str(refusal.value) == (
        "Kernel 'scale' takes 5 arguments and was given 4.\n  parameters: y, x, alpha, n, offset"
    )


def test_a_block_of_another_size_is_refused(gpu: Gpu) -> None:
    with pytest.raises(LaunchError, match=r"built for blocks of 256 threads .* \(128, 1, 1\), which is 128"):
        loaded(gpu, REVERSE).launch(gpu.stream, (1, 1, 1), (128, 1, 1), (0x1000, 1))
    loaded(gpu, REVERSE).launch(gpu.stream, (1, 1, 1), (32, 8, 1), (0x1000, 1))
    assert calls("launch")[0]["block"] == [32, 8, 1]


@pytest.mark.parametrize(("grid", "told"), [((1, 65536, 1), "65536 blocks along y"), ((0, 1, 1), "0 blocks along x")])
def test_a_grid_that_does_not_fit_is_refused(gpu: Gpu, grid: tuple[int, int, int], told: str) -> None:
    with pytest.raises(LaunchError, match=f"Cannot launch {told}: NVIDIA H200 takes 1 to") as refusal:
        loaded(gpu, REVERSE).launch(gpu.stream, grid, (256, 1, 1), (0x1000, 1))
    assert refusal.value.hint


def test_a_prepared_launch_makes_its_configuration_once(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, stream = loaded(gpu, REVERSE), int(gpu.stream.handle)
    prepared = kernel.prepare(*ONE_BLOCK, (0, 1))
    prepared.launch(stream, 0x1000)
    monkeypatch.setattr(kernel, "packed_config", None)  # a second one could not be made
    prepared.launch(stream, 0x2000)
    assert [call["args"][0] for call in calls("launch")] == [struct.pack("<Q", at).hex() for at in (0x1000, 0x2000)]


def test_large_dynamic_shared_memory_is_opted_in_once(gpu: Gpu) -> None:
    kernel = loaded(gpu, rotate(200 * 1024))
    for _ in range(2):
        kernel.launch(gpu.stream, *ONE_BLOCK, (0x1000, 51200))
    assert calls("set") == [{"call": "set", "attribute": 8, "value": 204800}]
    assert {call["shared_bytes"] for call in calls("launch")} == {204800}


def test_small_dynamic_shared_memory_needs_no_opt_in(gpu: Gpu) -> None:
    loaded(gpu, rotate(48 * 1024)).launch(gpu.stream, *ONE_BLOCK, (0x1000, 12288))
    assert calls("set") == []
    assert calls("launch")[0]["shared_bytes"] == 48 * 1024


def test_more_shared_memory_than_a_block_may_have_is_refused(gpu: Gpu) -> None:
    with pytest.raises(LaunchError) as refusal:
        loaded(gpu, rotate(228 * 1024))
    assert str(refusal.value) == (
        "Kernel 'rotate' needs 233472 bytes of shared memory per block (0 static, 233472 dynamic); "
        "NVIDIA H200 has 232448.\n"
        "  Hint: use fewer stages or a smaller tile."
    )


def test_too_much_static_shared_memory_is_refused(gpu: Gpu) -> None:
    source = replace(REVERSE, text=REVERSE.text.replace("s[300]", "s[20000]"))
    with pytest.raises(LaunchError, match="declares 80000 bytes of static shared memory; a block may have 49152"):
        loaded(gpu, source)


def test_code_for_another_architecture_is_refused(gpu: Gpu) -> None:
    for arch in ("sm_80", "sm_100a", "sm_120"):
        with pytest.raises(LaunchError) as refusal:
            load(gpu, compile_cuda(SCALE, arch), SCALE)
        assert str(refusal.value) == (
            f"Kernel 'scale' was compiled for {arch} and cannot run on NVIDIA H200 (sm_90a).\n"
            "  Hint: compile it for 'sm_90a'."
        )
    load(gpu, compile_cuda(SCALE, "sm_90"), SCALE)


def test_a_launch_that_the_driver_refuses_names_its_error(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = loaded(gpu, REVERSE)
    failing(monkeypatch, "cuLaunchKernelEx:701")
    with pytest.raises(LaunchError) as refusal:
        kernel.launch(gpu.stream, *ONE_BLOCK, (0x1000, 1))
    assert str(refusal.value) == (
        "The driver reported CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES while launching kernel 'reverse' with grid (1, 1, 1), "
        "block (256, 1, 1) and 0 bytes of dynamic shared memory.\n"
        "  Note: one block needs more registers or shared memory than an SM has.\n"
        "  Hint: use fewer threads per block or a smaller tile."
    )


def test_a_cubin_that_the_driver_refuses_names_its_error(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "cuLibraryLoadData:209")
    with pytest.raises(LaunchError, match="CUDA_ERROR_NO_BINARY_FOR_GPU while loading kernel 'scale'"):
        loaded(gpu, SCALE)


def test_a_fault_in_a_kernel_is_told_by_the_next_wait(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "cuCtxSynchronize:700")
    with pytest.raises(LaunchError, match="CUDA_ERROR_ILLEGAL_ADDRESS while waiting for NVIDIA H200") as refusal:
        gpu.synchronize()
    assert "simulator" in refusal.value.hint


def test_streams_of_other_libraries_are_taken(gpu: Gpu) -> None:
    prepared = loaded(gpu, REVERSE).prepare(*ONE_BLOCK, (0, 1))
    for handle in (0x7777, 0):
        prepared.launch(handle, 0x1000)
    assert len(calls("launch")) == 2


def test_a_kernel_describes_itself_and_its_occupancy(gpu: Gpu) -> None:
    kernel = loaded(gpu, SCALE)
    assert repr(kernel) == "LoadedKernel('scale', sm_90a, on NVIDIA H200)"
    assert kernel.blocks_per_sm() == 3


# Memory


def test_what_is_uploaded_comes_back(gpu: Gpu) -> None:
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    with DeviceArray.of(gpu, host.T) as array:
        assert array.shape == (4, 3) and array.nbytes == 48
        assert np.array_equal(array.download(), host.T)
        array.upload(np.ones((4, 3), np.float32))
        assert array.download().sum() == 12
        assert calls("free") == []
    assert len(calls("free")) == 1
    array.close()
    assert len(calls("free")) == 1


def test_poison_is_nan_in_every_float(gpu: Gpu) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        array = DeviceArray(gpu, (5,), dtype)
        array.poison()
        assert np.isnan(array.download()).all()
    bits = DeviceArray(gpu, (5,), BF16.numpy)
    bits.poison()
    assert np.isnan(BF16.decode(bits.download())).all()


def test_an_empty_array_is_an_array(gpu: Gpu) -> None:
    array = DeviceArray.of(gpu, np.empty((0, 4), np.float32))
    array.poison()
    assert array.download().shape == (0, 4)


@pytest.mark.parametrize(("elements", "copies", "pitch"), [(1, 1, 512), (5, 1, 512), (23, 3, 512), (300, 7, 1536)])
def test_a_pattern_is_repeated_in_each_copy(gpu: Gpu, elements: int, copies: int, pitch: int) -> None:
    pattern = np.arange(1, 6, dtype=np.float32)
    array = DeviceArray.repeated(gpu, pattern, elements, copies=copies, pitch_bytes=pitch)
    each = pitch // 4
    for copy in range(copies):
        np.testing.assert_array_equal(array.download()[copy * each :][:elements], np.resize(pattern, elements))
    assert array.nbytes == (copies - 1) * pitch + elements * 4


def test_operands_are_rotated_through_copies_that_lie_apart(gpu: Gpu) -> None:
    """More of them than the L2 cache holds, in one allocation an operand."""
    few = [Repeated(np.full(3, value, np.float32), size) for value, size in ((1, 2000), (2, 500), (3, 77))]
    rotated = RotatedOperands(gpu, few, replace(H200, l2_bytes=30_000))
    assert rotated.copies == 12
    places = [rotated.next() for _ in range(12)]
    assert len(set(places)) == 12 and rotated.next() == places[0]
    for start in zip(*places, strict=True):
        assert all(one % 512 == start[0] % 512 for one in start)
    held = rotated.results.download()
    rotated.close()
    assert len(calls("free")) == 3  # one allocation an operand
    assert all(held[(c - rotated.results.pointer) // 4 :][:77].sum() == 231 for _, _, c in places)


def test_memory_is_freed_with_the_object(gpu: Gpu) -> None:
    array = DeviceArray(gpu, (8,))
    del array
    assert len(calls("free")) == 1


def test_an_upload_of_another_shape_or_type_is_refused(gpu: Gpu) -> None:
    array = DeviceArray(gpu, (2, 3), np.float32)
    for other in (np.zeros((3, 2), np.float32), np.zeros((2, 3))):
        with pytest.raises(ProblemError, match=r"into a device array of float32 \(2, 3\)"):
            array.upload(other)


def test_memory_that_is_not_there_is_told_with_its_size(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "cuMemAlloc:1")
    with pytest.raises(LaunchError, match=r"while allocating 4.0 GiB on NVIDIA H200"):
        DeviceArray(gpu, (1 << 30,), np.float32)


def test_our_own_arrays_can_be_borrowed(gpu: Gpu) -> None:
    array = DeviceArray(gpu, (3, 4), np.float32)
    borrowed = borrow(array)
    assert (borrowed.pointer, borrowed.shape, borrowed.strides) == (array.pointer, (3, 4), (4, 1))
    assert borrowed.owner is array


# Timing


def test_time_is_per_launch(gpu: Gpu) -> None:
    """The stand-in says 1.5 ms between any two events."""
    kernel = loaded(gpu, REVERSE)
    us = time_launches(gpu.stream, lambda: kernel.launch(gpu.stream, *ONE_BLOCK, (0x1000, 1)), launches=6)
    assert math.isclose(us, 250.0)
    assert len(calls("launch")) == 6


def test_a_graph_holds_the_launches_and_is_replayed(gpu: Gpu) -> None:
    kernel = loaded(gpu, REVERSE)
    graph = LaunchGraph.capture(gpu.stream, lambda: kernel.launch(gpu.stream, *ONE_BLOCK, (0x1000, 1)), launches=5)
    assert calls("graph") == [{"call": "graph", "launches": 5}]
    assert math.isclose(graph.time(gpu.stream, replays=3), 100.0)
    assert len(calls("replay")) == 3
    graph.close()
    assert len(calls("free graph")) == 1


def test_a_hopeless_candidate_is_timed_by_its_first_launches_alone(gpu: Gpu) -> None:
    kernel = loaded(gpu, REVERSE)
    operands = RotatedOperands(gpu, 3 * [Repeated(np.zeros(1, np.float32), 64)], replace(H200, l2_bytes=1000))
    launch: Any = lambda pointers: kernel.launch(gpu.stream, *ONE_BLOCK, (pointers[0], 1))  # noqa: E731
    slow = measure(gpu, {"it": launch}, operands, hopeless_us=700.0)["it"]
    assert (slow.median_us, slow.rounds, slow.launches_per_round, calls("replay")) == (750.0, 1, 2, [])
    good = measure(gpu, {"it": launch}, operands, hopeless_us=800.0, rounds=3)["it"]
    assert good.rounds == 3 and len(calls("replay")) == 4


def test_a_launch_that_fails_ends_the_capture(gpu: Gpu) -> None:
    kernel = loaded(gpu, REVERSE)
    with pytest.raises(LaunchError, match="takes 2 arguments"):
        LaunchGraph.capture(gpu.stream, lambda: kernel.launch(gpu.stream, *ONE_BLOCK, ()), launches=2)
    kernel.launch(gpu.stream, *ONE_BLOCK, (0x1000, 1))
    assert calls("graph") == []


def test_pointers_are_addresses_and_not_arrays(gpu: Gpu) -> None:
    source = taking(pointer("x"))
    source = replace(source, text='extern "C" __global__ void k(float* x) {}')
    array = DeviceArray(gpu, (4,), np.float32)
    with pytest.raises(LaunchError, match="must be an address"):
        loaded(gpu, source).launch(gpu.stream, *ONE_BLOCK, (array,))
    loaded(gpu, source).launch(gpu.stream, *ONE_BLOCK, (array.pointer,))
    assert calls("launch")[0]["args"] == [struct.pack("<Q", array.pointer).hex()]


@pytest.mark.parametrize(("capability", "attributes"), [((8, 9), 0), ((9, 0), 1), ((12, 0), 1)])
def test_only_gpus_that_know_of_it_are_asked_to_start_early(
    gpu: Gpu, capability: tuple[int, int], attributes: int
) -> None:
    """Older drivers and GPUs refuse a launch with an attribute that they do not know."""
    source, other = taking(Parameter("n", F16)), Gpu(0)
    other.attributes = {"compute_capability_major": capability[0], "compute_capability_minor": capability[1]}
    for overlapped in (False, True):
        kernel = loaded(gpu, replace(source, overlapped=overlapped))
        kernel.gpu = other
        assert kernel.packed_config(0, *ONE_BLOCK).numAttrs == attributes * overlapped
