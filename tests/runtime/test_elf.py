"""Resources read from a cubin: they agree with the log of ptxas, in both ABIs, and damage is told as such."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from runtime_kernels import BARRIERS, REVERSE, SCALE, SPILLING, rotate

from tilewright.artifacts import CudaSource, Resources
from tilewright.errors import CompileError
from tilewright.runtime.elf import resources_of
from tilewright.runtime.nvrtc import compile_cuda

DATA = Path(__file__).parent / "data"
NO_SPILLS = "ptxas . 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"


def in_log(pattern: str, log: str) -> int:
    found = re.search(rf"(\d+) {pattern}", log)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120"])
@pytest.mark.parametrize("source", [SCALE, REVERSE, SPILLING, BARRIERS, rotate(0)], ids=lambda s: s.entry)
def test_the_sections_say_what_ptxas_says(source: CudaSource, arch: str) -> None:
    cubin = compile_cuda(source, arch)
    used, log = cubin.resources, cubin.log
    assert used.registers == in_log("registers", log)
    assert used.barriers == in_log("barriers", log)
    assert used.shared_bytes == in_log("bytes smem", log)
    assert used.stack_bytes == in_log("bytes stack frame", log)
    assert used.spill_store_bytes == in_log("bytes spill stores", log)
    assert used.spill_load_bytes == in_log("bytes spill loads", log)
    if arch in ("sm_75", "sm_80"):  # from sm_90 on the log leaves the parameter bank out
        assert used.constant_bytes == sum(map(int, re.findall(r"(\d+) bytes cmem", log)))
    assert used.code_bytes > 0 and used.code_bytes % 128 == 0


def test_the_kernel_made_to_spill_does_spill() -> None:
    used = compile_cuda(SPILLING, "sm_90a").resources
    assert used.registers <= 32
    assert min(used.spill_store_bytes, used.spill_load_bytes, used.stack_bytes) > 0


@pytest.mark.parametrize(("arch", "constant_bytes", "code_bytes"), [("sm_75", 364, 256), ("sm_90a", 540, 512)])
def test_a_cubin_of_cuda_12_is_read_too(arch: str, constant_bytes: int, code_bytes: int) -> None:
    """The file is REVERSE compiled by NVRTC 12.8; the figures are those of its log and of `cuobjdump`."""
    image = (DATA / f"reverse_abi7.{arch}.cubin").read_bytes()
    assert image[8] == 7
    assert resources_of(image, "reverse", NO_SPILLS) == Resources(
        registers=10,
        spill_store_bytes=0,
        spill_load_bytes=0,
        stack_bytes=0,
        shared_bytes=1200,
        constant_bytes=constant_bytes,
        barriers=1,
        code_bytes=code_bytes,
    )


def test_spills_of_functions_that_were_not_inlined_count() -> None:
    log = f"{NO_SPILLS}\nptxas . 296 bytes stack frame, 156 bytes spill stores, 160 bytes spill loads\n"
    used = resources_of((DATA / "reverse_abi7.sm_75.cubin").read_bytes(), "reverse", log)
    assert (used.spill_store_bytes, used.spill_load_bytes) == (156, 160)


@pytest.mark.parametrize("image", [b"", b"\x7fELF", b".version 9.0\n.target sm_90", bytes(200)])
def test_what_is_no_cubin_is_refused(image: bytes) -> None:
    with pytest.raises(CompileError, match=r"are (not a|a damaged) cubin"):
        resources_of(image, "reverse", NO_SPILLS)


def test_a_host_library_is_no_cubin() -> None:
    elf_of_x86 = b"\x7fELF\x02\x01\x01" + bytes(11) + (62).to_bytes(2, "little") + bytes(100)
    with pytest.raises(CompileError, match="not a cubin"):
        resources_of(elf_of_x86, "reverse", NO_SPILLS)


def test_a_cubin_cut_anywhere_is_refused_in_words() -> None:
    image = (DATA / "reverse_abi7.sm_90a.cubin").read_bytes()
    for kept in range(0, len(image) - 1, 97):
        with pytest.raises(CompileError):
            resources_of(image[:kept], "reverse", NO_SPILLS)


def test_a_kernel_that_is_not_there_is_named() -> None:
    with pytest.raises(CompileError) as refusal:
        resources_of((DATA / "reverse_abi7.sm_75.cubin").read_bytes(), "forward", NO_SPILLS)
    assert str(refusal.value) == (
        "The cubin has no kernel 'forward'; it has 'reverse'.\n"
        '  Hint: declare it extern "C", so that its name is kept as written.'
    )


def test_a_log_without_spills_is_refused_and_not_read_as_none() -> None:
    with pytest.raises(CompileError, match="no spill figures"):
        resources_of((DATA / "reverse_abi7.sm_75.cubin").read_bytes(), "reverse", "")
