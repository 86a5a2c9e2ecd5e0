"""Instructions, scoreboards and loops read from machine code: written by hand, and beside what nvdisasm prints."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.artifacts import Cubin
from tilewright.errors import CompileError
from tilewright.ladders import find_rung
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.machine_code import ARITHMETIC, Instruction, Kind, MachineCode
from tilewright.toolchain import build

LOAD, MULTIPLY, BARRIER, OTHER, BRANCH = (
    Instruction(kind, None, 0) for kind in (Kind.LOAD, Kind.MULTIPLY_ADD, Kind.BARRIER, Kind.OTHER, Kind.BRANCH)
)
_FFMA = re.compile(r"FFMA\S*\s+R\w+, (.*?) ;")
_REGISTER = re.compile(r"[-|]*R(\d+)")
_TEXT = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(\S+?)[.\s;].*?/\* 0x([0-9a-f]{16}) \*/")
_UPPER = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/")
_LABEL = re.compile(r"\.(L_\w+):")
_TARGET = re.compile(r"BRA\S*\s.*`\(\.?(L_\w+)\)")


def compiled(rung: str, arch: str) -> Cubin:
    found = find_rung(rung)
    return build(found.gemm(256, 256, 256), found).compile(arch, cache=CubinCache())


def text_of(cubin: Cubin) -> str:
    """By nvdisasm."""
    from cuda import pathfinder

    tool: Any = pathfinder.find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        pytest.skip("nvdisasm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin.image)
        return subprocess.run([tool, "-c", "-hex", str(file)], capture_output=True, text=True, check=True).stdout


def disassembled(cubin: Cubin) -> tuple[list[tuple[str, int]], set[tuple[int, int]]]:
    """By nvdisasm: the name and the upper half of each instruction, and the loops."""
    text = text_of(cubin)
    code: list[tuple[str, int]] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(code)
        elif told := _TEXT.match(line):
            if target := _TARGET.search(line):
                branches.append((len(code), target[1]))
            code.append((told[2], 0))
        elif code and (upper := _UPPER.match(line)):
            code[-1] = code[-1][0], int(upper[1], 16)
    return code, {(labels[name], at) for at, name in branches if labels[name] < at}


@pytest.mark.parametrize("rung", ["hierarchy/v07", "worklog/6", "te/2", "hopper/2"])
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"])
def test_instructions_and_loops_are_those_of_nvdisasm(rung: str, arch: str) -> None:
    if rung.startswith("hopper") and arch != "sm_90a":
        pytest.skip("wgmma is of sm_90a")
    cubin = compiled(rung, arch)
    code, loops = disassembled(cubin)
    found = MachineCode.of(cubin)
    known = {kind.value for kind in Kind} - {""}
    assert [one.kind.value for one in found.instructions] == [name if name in known else "" for name, _ in code]
    for one, (_, upper) in zip(found.instructions, code, strict=True):
        scoreboard = upper >> 110 - 64 & 7
        assert one.sets == (None if scoreboard == 7 else scoreboard)
        assert one.awaits == upper >> 116 - 64 & 63
        assert one.clocks == max(1, upper >> 105 - 64 & 15)
    assert set(found.loops) == loops


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_120"])
def test_registers_and_the_reuse_cache_are_those_of_nvdisasm(arch: str) -> None:
    cubin = compiled("worklog/6", arch)
    texts = _FFMA.findall(text_of(cubin))
    found = [one for one in MachineCode.of(cubin).instructions if one.kind is Kind.MULTIPLY_ADD]
    assert len(found) == len(texts) > 512
    for one, operands in zip(found, (text.split(", ") for text in texts), strict=True):
        registers = [int(number[1]) if (number := _REGISTER.match(operand)) else None for operand in operands]
        assert [one.reads[slot] for slot, number in enumerate(registers) if number is not None] == [
            number for number in registers if number is not None
        ]
        kept = [slot for slot, operand in enumerate(operands) if operand.endswith(".reuse")]
        assert kept == [slot for slot in range(3) if one.kept >> slot & 1]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_main_loop_of_a_rung_has_its_loads_its_barriers_and_all_of_its_arithmetic(arch: str) -> None:
    code = MachineCode.of(compiled("worklog/6", arch))
    loop = code.main_loop
    assert loop is not None
    assert code.count(loop, ARITHMETIC) == 512  # 64 results of a thread, 8 of k
    assert code.count(loop, frozenset({Kind.LOAD})) == code.count(loop, frozenset({Kind.BARRIER})) == 2
    assert not list(code.innermost(loop, ARITHMETIC))


def test_a_loop_that_loads_is_preferred_and_then_the_smallest_with_most_arithmetic() -> None:
    code = MachineCode(
        (OTHER, LOAD, MULTIPLY, BRANCH, MULTIPLY, MULTIPLY, BRANCH, OTHER, LOAD, MULTIPLY, BRANCH, BRANCH),
        ((1, 3), (4, 6), (8, 10), (7, 11)),
    )
    assert code.main_loop == (8, 10)
    assert MachineCode(code.instructions, ((4, 6),)).main_loop == (4, 6)
    assert MachineCode((OTHER, LOAD, BRANCH), ((0, 2),)).main_loop is None
    assert MachineCode((LOAD,), ()).main_loop is None


def test_the_innermost_loops_that_have_something() -> None:
    code = MachineCode((LOAD, OTHER, LOAD, BRANCH, BRANCH, LOAD, BRANCH, BRANCH), ((2, 3), (1, 4), (5, 6), (0, 7)))
    loads = frozenset({Kind.LOAD})
    assert sorted(code.innermost((0, 7), loads)) == [(2, 3), (5, 6)]
    assert list(code.innermost((2, 3), loads)) == []
    assert list(code.innermost((0, 7), frozenset({Kind.BARRIER}))) == []


def test_a_cubin_without_the_kernel_is_refused() -> None:
    cubin = compiled("worklog/6", "sm_80")
    with pytest.raises(CompileError, match="The cubin has no kernel 'another'"):
        MachineCode.of(replace(cubin, entry="another"))


@pytest.mark.parametrize("rung", ["hopper/3", "hopper/best"])
def test_a_rare_branch_is_no_select_of_each_register(rung: str) -> None:
    """Sums that are set to zero only where there is no k."""
    names = [name for name, _ in disassembled(compiled(rung, "sm_90a"))[0]]
    assert names.count("FSEL") == 0 < names.count("HGMMA")
