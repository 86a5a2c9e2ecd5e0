"""Compiling with no GPU: machine code, PTX, refusals with their line, many at a time."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from runtime_kernels import REVERSE, SCALE, SPILLING, broken

from tilewright.artifacts import CudaSource
from tilewright.errors import CompileError, UnknownName
from tilewright.runtime import nvrtc
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.nvrtc import (
    compile_cuda,
    compile_ptx,
    compiler_version,
    supported_architectures,
)


def test_a_kernel_becomes_machine_code_with_no_gpu() -> None:
    cubin = compile_cuda(SCALE, "sm_90a")
    assert cubin.image.startswith(b"\x7fELF")
    assert (cubin.entry, cubin.arch, cubin.from_cache) == ("scale", "sm_90a", False)
    assert cubin.compiler == compiler_version()
    assert cubin.compile_seconds > 0
    assert "Compiling entry function 'scale' for 'sm_90a'" in cubin.log


def test_the_compiler_names_itself_and_its_architectures() -> None:
    assert compiler_version().startswith("NVRTC 13.")
    known = supported_architectures()
    assert {"sm_75", "sm_80", "sm_90", "sm_90a", "sm_100a", "sm_120"} <= set(known)
    assert "sm_80a" not in known


def test_the_code_does_not_depend_on_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = compile_cuda(REVERSE, "sm_90a").image
    monkeypatch.chdir(tmp_path)
    assert compile_cuda(REVERSE, "sm_90a").image == here


def test_ptx_is_text_for_the_same_architecture() -> None:
    ptx = compile_ptx(SCALE, "sm_90a")
    assert ".target sm_90a" in ptx
    assert ".visible .entry scale(" in ptx
    assert "\0" not in ptx


def test_options_reach_the_compiler() -> None:
    text = 'extern "C" __global__ void k(float* x) { x[0] = VALUE; }'
    assert compile_cuda(broken(text), "sm_80", options=("-DVALUE=3",)).resources.registers > 0


def refusal_of(text: str, arch: str = "sm_90a") -> str:
    with pytest.raises(CompileError) as refusal:
        compile_cuda(broken(text), arch)
    return str(refusal.value).replace(compiler_version(), "NVRTC")


def test_a_refusal_shows_the_first_error_and_its_line() -> None:
    text = 'extern "C" __global__ void k(float* x) {\n  y[0] = 1;\n  z = 2;\n}\n'
    assert refusal_of(text) == (
        "NVRTC refused kernel 'k' for sm_90a: identifier \"y\" is undefined\n"
        "  line 2: y[0] = 1;\n"
        "  Note: 1 more error after this one."
    )


def test_a_refusal_of_inline_ptx_shows_both_lines() -> None:
    text = 'extern "C" __global__ void k(float* x) {\n  asm volatile("bogus.f32 %0, 1;" : "=f"(x[0]));\n}\n'
    message = refusal_of(text)
    assert message.startswith(
        "NVRTC refused kernel 'k' for sm_90a: Not a name of any known instruction: 'bogus'\n  line 2: asm volatile("
    )
    assert "PTX line" in message and "bogus.f32 %f1, 1;" in message


def test_a_header_that_is_not_there_is_named() -> None:
    assert "line 1: #include <mma.h>" in refusal_of("#include <mma.h>\n")


def test_an_option_that_is_not_known_is_named() -> None:
    with pytest.raises(CompileError, match="--frobnicate"):
        compile_cuda(SCALE, "sm_90a", options=("--frobnicate",))


@pytest.mark.parametrize(("asked", "nearest"), [("sm90", "sm_90"), ("sm_90A", "sm_90"), ("sm_91", "sm_90")])
def test_an_unknown_architecture_suggests_the_nearest(asked: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=f"There is no architecture '{asked}'") as refusal:
        compile_cuda(SCALE, asked)
    assert f"did you mean '{nearest}" in str(refusal.value)
    assert "Known: sm_75, sm_80" in str(refusal.value)
    with pytest.raises(UnknownName):
        compile_ptx(SCALE, asked)


def test_without_nvrtc_the_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["cuda.bindings"] = None
from tilewright.errors import CompileError
from tilewright.runtime.nvrtc import compiler_version
try:
    compiler_version()
except CompileError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.startswith("The CUDA compiler NVRTC cannot be loaded, so no kernel can be compiled.\n")
    assert "Hint: python -m pip install 'tilewright[cuda]'" in told


def test_importing_the_runtime_loads_nothing_of_cuda() -> None:
    modules = [f"tilewright.runtime.{path.stem}" for path in Path(nvrtc.__file__).parent.glob("*.py")]
    program = f"import sys, {', '.join(modules)}\nprint([m for m in sys.modules if m.split('.')[0] == 'cuda'])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


# Many at a time


def numbered(index: int) -> CudaSource:
    return broken(f'extern "C" __global__ void k(float* x) {{ x[0] = {index}; }}')


def test_threads_give_the_same_code_as_one_at_a_time_and_share_the_cache(tmp_path: Path) -> None:
    cache, jobs = CubinCache(tmp_path), [(numbered(index), arch) for index in range(3) for arch in ("sm_80", "sm_90a")]
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda job: compile_cuda(*job, cache=cache), jobs))
    for job, one in zip(jobs, built, strict=True):
        again = compile_cuda(*job, cache=cache)
        assert again.from_cache and not one.from_cache
        assert again.image == one.image == compile_cuda(*job).image
    assert len(cache.entries()) == len(jobs)


def test_code_that_must_fit_and_spills_is_refused() -> None:
    assert compile_cuda(SPILLING, "sm_90a").resources.spill_store_bytes > 0
    with pytest.raises(CompileError) as refused:
        compile_cuda(replace(SPILLING, must_fit=True), "sm_90a")
    text = str(refused.value)
    assert text.startswith(f"Kernel '{SPILLING.entry}' does not fit into the registers of sm_90a.")
    assert "bytes a thread are spilled" in text


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
         "non wgmma instructions defining accumulator registers of a wgmma between start and end of the pipeline "
         "stage in the function 'k' in line 9", "wgmma.mma_async instructions are serialized due to non wgmma"),
        ("ptxas info    : (C7508) setmaxnreg ignored to maintain minimum register requirement.", "setmaxnreg ignored"),
    ],
)  # fmt: skip
def test_what_the_compiler_says_of_a_slow_pipeline_is_a_refusal(line: str, note: str) -> None:
    fine = compile_cuda(SCALE, "sm_90a").resources
    nvrtc._check_fit(SCALE, "sm_90a", fine, "ptxas info    : 0 bytes gmem\n")
    with pytest.raises(CompileError, match=r"does not fit") as refused:
        nvrtc._check_fit(SCALE, "sm_90a", fine, f"ptxas info    : 0 bytes gmem\n{line}\nptxas info    : more")
    assert refused.value.note.startswith(note) and "in the function" not in refused.value.note
