"""SASS through nvdisasm, which the extra `sass` installs; the tests that need it are skipped without it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from instruction_counts import instruction_mix
from runtime_kernels import REVERSE

from tilewright.errors import CompileError, MissingExtra
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.runtime.sass import disassemble


@pytest.fixture
def nvdisasm() -> None:
    from cuda import pathfinder

    if pathfinder.find_nvidia_binary_utility("nvdisasm") is None:
        pytest.skip("nvdisasm is not installed")


@pytest.mark.usefixtures("nvdisasm")
def test_a_kernel_is_shown_as_machine_code() -> None:
    text = disassemble(compile_cuda(REVERSE, "sm_90a"))
    assert ".target\tsm_90a" in text
    assert "STS" in text and "BAR.SYNC" in text and "EXIT" in text


@pytest.mark.usefixtures("nvdisasm")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "sm_120"])
def test_instructions_are_counted_without_the_padding(arch: str) -> None:
    mix = instruction_mix(compile_cuda(REVERSE, arch))
    loads = [opcode for opcode in mix if opcode.startswith("LDS")]  # LDS.U on sm_75
    assert len(loads) == mix[loads[0]] == mix["STS"] == mix["EXIT"] == 1
    assert "NOP" not in mix and "BRA" not in mix
    assert list(mix.values()) == sorted(mix.values(), reverse=True)


@pytest.mark.usefixtures("nvdisasm")
def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(CompileError, match="nvdisasm cannot read the code of kernel 'reverse' for sm_90a") as refusal:
        disassemble(replace(compile_cuda(REVERSE, "sm_90a"), image=b"no cubin"))
    assert refusal.value.place.startswith("nvdisasm fatal")
    assert " reverse.cubin " in refusal.value.place


def test_without_nvdisasm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda import pathfinder

    monkeypatch.setattr(pathfinder, "find_nvidia_binary_utility", lambda name: None)
    with pytest.raises(MissingExtra) as refusal:
        disassemble(compile_cuda(REVERSE, "sm_90a"))
    assert str(refusal.value) == (
        "Disassembling a kernel needs the package 'nvidia-cuda-nvdisasm', which is not installed.\n"
        "  Hint: python -m pip install 'tilewright[sass]'"
    )
