"""Counts of the instructions that nvdisasm prints."""

from __future__ import annotations

import json
from collections import Counter

from tilewright.artifacts import Cubin
from tilewright.runtime.sass import disassemble


def instruction_mix(cubin: Cubin) -> dict[str, int]:
    """How often each instruction stands in the code ("FFMA", "LDS.128"), most frequent first.

    A count of the text, not of what runs: a loop's body counts once. The idle loop and the padding behind the
    last exit are left out.
    """
    _, functions = json.loads(disassemble(cubin, "--emit-json"))
    counts: Counter[str] = Counter()
    for function in functions:
        counts.update(_without_padding([code["opcode"] for code in function["sass-instructions"]]))
    return dict(counts.most_common())


def _without_padding(opcodes: list[str]) -> list[str]:
    """ptxas ends a function with a branch to itself and NOPs up to a multiple of 128 bytes."""
    end = len(opcodes)
    while end and opcodes[end - 1] == "NOP":
        end -= 1
    if end and opcodes[end - 1] == "BRA":
        end -= 1
    return opcodes[:end]
