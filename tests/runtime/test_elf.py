"""Resources read from the log of ptxas: they agree with the sections of the cubin, and damage is told as such."""

from __future__ import annotations

import re

import pytest
from cubin_sections import in_sections
from runtime_kernels import BARRIERS, REVERSE, SCALE, SPILLING, rotate

from tilewright.artifacts import CudaSource
from tilewright.errors import CompileError
from tilewright.runtime.elf import resources_of
from tilewright.runtime.nvrtc import compile_cuda

LOG = """\
ptxas info    : Compiling entry function 'reverse' for 'sm_90a'
ptxas         .     16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 1200 bytes smem"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120"])
@pytest.mark.parametrize("source", [SCALE, REVERSE, SPILLING, BARRIERS, rotate(0)], ids=lambda s: s.entry)
def test_ptxas_says_what_the_sections_say(source: CudaSource, arch: str) -> None:
    cubin = compile_cuda(source, arch)
    used = cubin.resources
    for name, told in in_sections(cubin.image, source.entry).items():
        assert getattr(used, name) == told, name
    if arch in ("sm_75", "sm_80"):  # from sm_90 on the log leaves the parameter bank out
        assert used.constant_bytes == sum(map(int, re.findall(r"(\d+) bytes cmem", cubin.log)))
    assert used.code_bytes > 0 and used.code_bytes % 128 == 0


def test_the_kernel_made_to_spill_does_spill() -> None:
    used = compile_cuda(SPILLING, "sm_90a").resources
    assert used.registers <= 32
    assert min(used.spill_store_bytes, used.spill_load_bytes, used.stack_bytes) > 0


@pytest.fixture(scope="module")
def image() -> bytes:
    return compile_cuda(REVERSE, "sm_90a").image


def test_spills_of_functions_that_were_not_inlined_count(image: bytes) -> None:
    log = f"{LOG}\nptxas . 296 bytes stack frame, 156 bytes spill stores, 160 bytes spill loads\n"
    used = resources_of(image, "reverse", log)
    assert (used.spill_store_bytes, used.spill_load_bytes, used.stack_bytes) == (156, 160, 16)


def test_a_stack_with_callees_counts_whole(image: bytes) -> None:
    log = LOG.replace("used 1 barriers", "used 1 barriers, 312 bytes cumulative stack size")
    assert resources_of(image, "reverse", log).stack_bytes == 312


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b".version 9.0\n.target sm_90", bytes(200)])
def test_what_is_no_cubin_is_refused(content: bytes) -> None:
    with pytest.raises(CompileError, match=r"are (not a|a damaged) cubin"):
        resources_of(content, "reverse", LOG)


def test_a_host_library_is_no_cubin() -> None:
    elf_of_x86 = b"\x7fELF\x02\x01\x01" + bytes(11) + (62).to_bytes(2, "little") + bytes(100)
    with pytest.raises(CompileError, match="not a cubin"):
        resources_of(elf_of_x86, "reverse", LOG)


def test_a_cubin_cut_anywhere_is_refused_in_words(image: bytes) -> None:
    for kept in range(0, len(image) - 1, 97):
        with pytest.raises(CompileError):
            resources_of(image[:kept], "reverse", LOG)


def test_a_kernel_that_is_not_there_is_named(image: bytes) -> None:
    with pytest.raises(CompileError) as refusal:
        resources_of(image, "forward", LOG)
    assert str(refusal.value) == (
        "The cubin has no kernel 'forward'; it has 'reverse'.\n"
        '  Hint: declare it extern "C", so that its name is kept as written.'
    )


@pytest.mark.parametrize("log", ["", LOG.replace("Used", ""), LOG.replace("spill", ""), LOG.replace("reverse", "x")])
def test_a_log_without_figures_is_refused_and_not_read_as_none(image: bytes, log: str) -> None:
    with pytest.raises(CompileError, match="no figures of registers and spills"):
        resources_of(image, "reverse", log)
