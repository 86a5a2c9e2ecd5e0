"""The instructions to learn about, each with the patterns and the hypotheses that it is held against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import access_patterns as ap

ARCH = "sm_90a"
REPEAT = 16  # accesses of a launch, each 128 bytes further: the same banks, and no two alike for the compiler
POOL_BYTES = 20 * 1024
GLOBAL_BYTES = 4 << 20
WARPS = 16  # of the timed block: enough to fill the data stage
ROUNDS = 16  # of REPEAT accesses, timed


@dataclass(frozen=True, slots=True)
class Access:
    """One instruction to learn about.

    statement: CUDA text that does it once, from `shared` (a shared address) or `global` (a pointer), and adds what
    it got to `sum`. sass: the opcode it must become. counter: the hardware counter of its wavefronts.
    """

    name: str
    width: int
    statement: str
    sass: str
    patterns: Mapping[str, ap.Pattern]
    hypotheses: Mapping[str, ap.Hypothesis]
    counter: str
    is_global: bool = False
    is_copy: bool = False
    masked: bool = True
    clock_hypotheses: Mapping[str, ap.Hypothesis] = field(default_factory=dict)


LOAD_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
STORE_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"
COPY_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"


def registers(ptx: str, count: int, first: int = 0) -> str:
    """The placeholders of an operand. ldmatrix wants the brackets of a vector even around one register."""
    names = ", ".join(f"%{first + i}" for i in range(count))
    return f"{{{names}}}" if count > 1 or "matrix" in ptx else names


def _load(ptx: str, count: int, address: str) -> str:
    """An asm statement that reads `count` registers and folds them into `sum`."""
    kind = '"l"' if address == "global" else '"r"'
    parts = [f"v{i}" for i in range(count)]
    outputs = ", ".join(f'"=r"({part})' for part in parts)
    return (
        f"unsigned {', '.join(parts)}; "
        f'asm volatile("{ptx} {registers(ptx, count)}, [%{count}];" : {outputs} : {kind}({address}) : "memory"); '
        f"sum ^= {' ^ '.join(parts)};"
    )


def _store(ptx: str, count: int, address: str) -> str:
    kind = '"l"' if address == "global" else '"r"'
    inputs = ", ".join(['"r"(sum)'] * count)
    return f'asm volatile("{ptx} [%0], {registers(ptx, count, 1)};" :: {kind}({address}), {inputs} : "memory");'


def _copy(ptx: str, width: int) -> str:
    return f'asm volatile("{ptx} [%0], [%1], {width};" :: "r"(shared), "l"(global) : "memory");'


def _vector(width: int) -> str:
    return {4: "u32", 8: "v2.u32", 16: "v4.u32"}[width]


def _suffix(width: int) -> str:
    return "" if width == 4 else rf"\.{8 * width}"


def _copy_patterns(width: int) -> dict[str, ap.Pattern]:
    names = (
        "contiguous (64-1)", "uniform", "t/2 (64-2)", "t^2 equal", "t/4", "t/8", "t%8", "t/8 * 8", "even lanes",
        "lanes 0..7", "lane 5", "stride 2", "stride 3", "stride 4", "stride 8", "stride 32", "stride 33",
        "t%16 * 2 (k6 B)", "reversed", "shuffled 1", "drawn from 16",
    )  # fmt: skip
    return {name: ap.pattern(ap.CHUNKS[name], width) for name in names}


def accesses() -> list[Access]:
    """Every instruction measured, the most wanted first."""
    found = []
    for width in (16, 8, 4):
        found.append(
            Access(
                f"shared_load_{8 * width}", width, _load(f"ld.shared.{_vector(width)}", width // 4, "shared"),
                rf"LDS{_suffix(width)}", ap.shared_patterns(width), ap.SHARED_LOAD, LOAD_WAVEFRONTS,
            )
        )  # fmt: skip
    for width in (16, 8, 4):
        found.append(
            Access(
                f"shared_store_{8 * width}", width, _store(f"st.shared.{_vector(width)}", width // 4, "shared"),
                rf"STS{_suffix(width)}", ap.shared_patterns(width), ap.SHARED_STORE, STORE_WAVEFRONTS,
            )
        )  # fmt: skip
    half = ap.shared_patterns(2)
    load16 = (
        'unsigned short v0; asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v0) : "r"(shared) : "memory"); sum ^= v0;'
    )
    store16 = 'asm volatile("st.shared.u16 [%0], %1;" :: "r"(shared), "h"((unsigned short)sum) : "memory");'
    found.append(Access("shared_load_16", 2, load16, r"LDS\.U16", half, ap.SHARED_LOAD, LOAD_WAVEFRONTS))
    found.append(Access("shared_store_16", 2, store16, r"STS\.U16", half, ap.SHARED_STORE, STORE_WAVEFRONTS))
    found += _matrix_accesses()
    for width, ptx, sass in (
        (16, "cp.async.cg.shared.global", r"LDGSTS\.E\.BYPASS\.128"),
        (16, "cp.async.ca.shared.global", r"LDGSTS\.E\.128"),
        (8, "cp.async.ca.shared.global", r"LDGSTS\.E\.64"),
        (4, "cp.async.ca.shared.global", r"LDGSTS\.E"),
    ):
        found.append(
            Access(
                f"copy_{8 * width}_{ptx[9:11]}", width, _copy(ptx, width), sass, _copy_patterns(width), ap.CP_ASYNC,
                COPY_WAVEFRONTS, is_copy=True,
            )
        )  # fmt: skip
    for width in (4, 8, 16):
        patterns = ap.global_patterns(width)
        load = _load(f"ld.global.{_vector(width)}", width // 4, "global")
        store = _store(f"st.global.{_vector(width)}", width // 4, "global")
        found.append(
            Access(
                f"global_load_{8 * width}", width, load, rf"LDG\.E{_suffix(width)}", patterns,
                {"sectors": ap.sectors}, "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", is_global=True,
                clock_hypotheses=ap.GLOBAL_LOAD_CYCLES,
            )
        )  # fmt: skip
        found.append(
            Access(
                f"global_store_{8 * width}", width, store, rf"STG\.E{_suffix(width)}", patterns,
                {"sectors": ap.sectors}, "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", is_global=True,
                clock_hypotheses=ap.GLOBAL_LOAD_CYCLES,
            )
        )  # fmt: skip
    return found


def _matrix_accesses() -> Iterator[Access]:
    """ldmatrix and stmatrix: 8 rows of 16 bytes a matrix, their addresses from 8 lanes each."""
    every = ap.full_warp(ap.shared_patterns(16))
    few = {name: every[name] for name in every if name in (*ap.WORDS, "t%8", "t/4", "t^16 equal", "128-5")}
    for matrices, transposed, patterns in ((4, "", every), (2, "", few), (1, "", few), (4, ".trans", few)):
        ptx = f"ldmatrix.sync.aligned.m8n8.x{matrices}{transposed}.shared.b16"
        sass = rf"LDSM\.16\.M{'T' if transposed else ''}88" + (rf"\.{matrices}" if matrices > 1 else "")
        yield Access(
            f"load_matrix_x{matrices}{transposed.replace('.', '_')}", 16, _load(ptx, matrices, "shared"), sass,
            patterns, ap.matrix_hypotheses(matrices), LOAD_WAVEFRONTS, masked=False,
        )  # fmt: skip
    yield Access(
        "store_matrix_x4", 16, _store("stmatrix.sync.aligned.m8n8.x4.shared.b16", 4, "shared"),
        r"STSM\.16\.M88\.4", few, ap.matrix_hypotheses(4), STORE_WAVEFRONTS, masked=False,
    )  # fmt: skip


# The table holds a byte offset for each lane; below 0, the lane takes no part. __ldg, so that this load is told in
# the machine code from the ones that are measured; summed, so that the baseline makes it too.
