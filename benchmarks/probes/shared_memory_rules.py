"""What shared memory, L1 and cp.async cost on this GPU, settled with micro-kernels.

    python benchmarks/probes/shared_memory_rules.py --check      no GPU: compile, disassemble, count instructions
    python benchmarks/probes/shared_memory_rules.py --measure    on the GPU: writes $OUT/shared_memory_rules.json

One launch is one warp, one access pattern, 16 accesses by one unrolled instruction; its counters, less those of a
launch without the accesses, give wavefronts an access. Three witnesses are laid beside each hypothesis of
`access_patterns`: hardware counters, the counts that instrumented code derives from the addresses (the Source page
of Nsight Compute), and the clock of 16 warps doing the same.

`--measure` starts this file again: with `--time` for the clocks, and under ncu with `--run`, which makes the
launches of one group in the order that `launches` documents (pattern by pattern, the baselines first) until its
deadline, and writes that order to a file. Nothing here changes the GPU's settings.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

import access_patterns as ap  # noqa: E402

from tilewright.bench import ncu  # noqa: E402
from tilewright.errors import LaunchError  # noqa: E402

ARCH = "sm_90a"
REPEAT = 16  # accesses of a launch, each 128 bytes further: the same banks, and no two alike for the compiler
POOL_BYTES = 20 * 1024
GLOBAL_BYTES = 4 << 20
WARPS = 16  # of the timed block: enough to fill the data stage
ROUNDS = 16  # of REPEAT accesses, timed

# ---------------------------------------------------------------------------------------------------- accesses


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


_LD = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
_ST = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"
_COPY = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"


def _registers(ptx: str, count: int, first: int = 0) -> str:
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
        f'asm volatile("{ptx} {_registers(ptx, count)}, [%{count}];" : {outputs} : {kind}({address}) : "memory"); '
        f"sum ^= {' ^ '.join(parts)};"
    )


def _store(ptx: str, count: int, address: str) -> str:
    kind = '"l"' if address == "global" else '"r"'
    inputs = ", ".join(['"r"(sum)'] * count)
    return f'asm volatile("{ptx} [%0], {_registers(ptx, count, 1)};" :: {kind}({address}), {inputs} : "memory");'


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
                rf"LDS{_suffix(width)}", ap.shared_patterns(width), ap.SHARED_LOAD, _LD,
            )
        )  # fmt: skip
    for width in (16, 8, 4):
        found.append(
            Access(
                f"shared_store_{8 * width}", width, _store(f"st.shared.{_vector(width)}", width // 4, "shared"),
                rf"STS{_suffix(width)}", ap.shared_patterns(width), ap.SHARED_STORE, _ST,
            )
        )  # fmt: skip
    half = ap.shared_patterns(2)
    load16 = (
        'unsigned short v0; asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v0) : "r"(shared) : "memory"); sum ^= v0;'
    )
    store16 = 'asm volatile("st.shared.u16 [%0], %1;" :: "r"(shared), "h"((unsigned short)sum) : "memory");'
    found.append(Access("shared_load_16", 2, load16, r"LDS\.U16", half, ap.SHARED_LOAD, _LD))
    found.append(Access("shared_store_16", 2, store16, r"STS\.U16", half, ap.SHARED_STORE, _ST))
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
                _COPY, is_copy=True,
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
            patterns, ap.matrix_hypotheses(matrices), _LD, masked=False,
        )  # fmt: skip
    yield Access(
        "store_matrix_x4", 16, _store("stmatrix.sync.aligned.m8n8.x4.shared.b16", 4, "shared"),
        r"STSM\.16\.M88\.4", few, ap.matrix_hypotheses(4), _ST, masked=False,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- CUDA text

# The table holds a byte offset for each lane; below 0, the lane takes no part. __ldg, so that this load is told in
# the machine code from the ones that are measured; summed, so that the baseline makes it too.
PLACES = """\
    const int lane = threadIdx.x % 32;
    const int offset = __ldg(offsets + lane);
    unsigned sum = threadIdx.x + offset;
"""

COUNTED = """\
extern "C" __global__ void {name}(const int* offsets, unsigned char* memory, unsigned* sink) {{
{places}{addresses}    {guard}{{
        #pragma unroll
        for (int r = 0; r < {repeat}; ++r) {{
            {statement}
            shared += 128; global += 128;
        }}
    }}
    {wait}
    sink[threadIdx.x] = sum;
}}
"""

TIMED = """\
extern "C" __global__ void {name}_timed(const int* offsets, unsigned char* memory, unsigned* sink,
                                        long long* clocks, int rounds, int step) {{
{places}{addresses}    long long start = 0, stop = 0;
    #pragma unroll 1
    for (int phase = 0; phase < 2; ++phase) {{            // the first one warms the caches
        __syncthreads();
        start = clock64();
        #pragma unroll 1
        for (int round = 0; round < rounds; ++round) {{
            {guard}{{
                #pragma unroll
                for (int r = 0; r < {repeat}; ++r) {{
                    {statement}
                    shared += 128; global += 128;
                }}
            }}
            {wait}
            shared += step - {repeat} * 128;              // step is 0, which the compiler cannot know
            global += step - {repeat} * 128;
        }}
        stop = clock64();
    }}
    if (lane == 0) {{ clocks[threadIdx.x / 32 * 2] = start; clocks[threadIdx.x / 32 * 2 + 1] = stop; }}
    sink[threadIdx.x] = sum;
}}
"""

# One thread follows a chain of addresses; phases: 2 to time the second round, 1 to time the first.
CHASE_GLOBAL = """\
extern "C" __global__ void chase_{kind}(unsigned long long first, int rounds, int phases, long long* clocks,
                                        unsigned long long* sink) {{
    unsigned long long at = first;
    long long start = 0, stop = 0;
    #pragma unroll 1
    for (int phase = 0; phase < phases; ++phase) {{
        start = clock64();
        #pragma unroll 1
        for (int round = 0; round < rounds; ++round) {{
            #pragma unroll
            for (int r = 0; r < 16; ++r) asm volatile("ld.global.{kind}.u64 %0, [%0];" : "+l"(at) :: "memory");
        }}
        stop = clock64();
    }}
    clocks[0] = start; clocks[1] = stop;
    sink[0] = at;
}}
"""

# One warp follows an address that points to itself: every word of the row is the row's own address.
CHASE_SHARED = """\
extern "C" __global__ void chase_{kind}(int rounds, long long* clocks, unsigned* sink) {{
    __shared__ __align__(1024) unsigned pool[64];
    unsigned at = (unsigned)__cvta_generic_to_shared(pool), v0, v1, v2, v3;
    for (int i = threadIdx.x; i < 64; i += 32) pool[i] = at;
    __syncthreads();
    v0 = at; v1 = v2 = v3 = 0;
    const long long start = clock64();
    #pragma unroll 1
    for (int round = 0; round < rounds; ++round) {{
        #pragma unroll
        for (int r = 0; r < 16; ++r) {{
            asm volatile("{ptx} {outputs}, [%{count}];" : {bindings} : "r"(v0) : "memory");
        }}
    }}
    const long long stop = clock64();
    clocks[0] = start; clocks[1] = stop;
    sink[threadIdx.x] = v0 ^ v1 ^ v2 ^ v3;
}}
"""

LINK = """\
extern "C" __global__ void link(const unsigned long long* nodes, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) *(unsigned long long*)nodes[i] = nodes[(i + 1) % count];
}
"""

SHARED_CHASES = {
    "LDS.32": ("lds_32", "ld.shared.u32", 1),
    "LDS.64": ("lds_64", "ld.shared.v2.u32", 2),
    "LDS.128": ("lds_128", "ld.shared.v4.u32", 4),
    "LDSM.x1": ("ldsm_1", "ldmatrix.sync.aligned.m8n8.x1.shared.b16", 1),
    "LDSM.x4": ("ldsm_4", "ldmatrix.sync.aligned.m8n8.x4.shared.b16", 4),
}


def cuda_text() -> str:
    """One module with every kernel: `NAME` (counted), `NAME_timed`, `baseline`, `chase_*`."""
    kernels = [LINK]
    for access in accesses():
        kernels.append(COUNTED.format(name=access.name, repeat=REPEAT, **_parts(access)))
        kernels.append(TIMED.format(name=access.name, repeat=REPEAT, **_parts(access)))
    empty = {"repeat": 0, "guard": "", "statement": "", "wait": ""}
    kernels.append(
        COUNTED.format(name="baseline", places=PLACES, addresses=_addresses(False, is_global=False), **empty)
    )
    kernels += [CHASE_GLOBAL.format(kind=kind) for kind in ("ca", "cg")]
    for kind, ptx, count in SHARED_CHASES.values():
        bindings = ", ".join(f'"=r"(v{i})' for i in range(count))
        kernels.append(
            CHASE_SHARED.format(kind=kind, ptx=ptx, outputs=_registers(ptx, count), count=count, bindings=bindings)
        )
    return "\n".join(kernels)


def _parts(access: Access) -> dict[str, str]:
    return {
        "places": PLACES,
        "addresses": _addresses(access.is_copy, access.is_global),
        "guard": "if (offset >= 0) " if access.masked else "",
        "statement": access.statement,
        "wait": 'asm volatile("cp.async.wait_all;" ::: "memory");' if access.is_copy else "",
    }


def _addresses(is_copy: bool, is_global: bool) -> str:
    """A copy reads from the offsets of a second table, 32 further."""
    if is_global:
        return "    unsigned char* global = memory + offset;\n    unsigned shared = 0;\n"
    source = "__ldg(offsets + 32 + lane)" if is_copy else "0"
    return (
        f"    __shared__ __align__(1024) unsigned char pool[{POOL_BYTES}];\n"
        "    unsigned shared = (unsigned)__cvta_generic_to_shared(pool) + offset;\n"
        f"    unsigned char* global = memory + {source};\n"
    )


def compile_cubin(text: str) -> bytes:
    """Machine code for ARCH, by NVRTC: no GPU is needed."""
    from cuda.bindings import nvrtc

    program = _ok(nvrtc.nvrtcCreateProgram(text.encode(), b"probe.cu", 0, [], []))
    options = [f"--gpu-architecture={ARCH}".encode(), b"--std=c++17"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status):
        log = b" " * _ok(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(log.decode(errors="replace"))
    image: bytes = b" " * _ok(nvrtc.nvrtcGetCUBINSize(program))
    _ok(nvrtc.nvrtcGetCUBIN(program, image))
    return image


def _ok(answer: Sequence[Any]) -> Any:
    """What a binding returned, without its status. A status that is no success ends the program."""
    status, *values = answer
    if int(status):
        raise SystemExit(f"CUDA call failed: {status!r}")
    return values[0] if len(values) == 1 else values or None


def _disassembler() -> str | None:
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        found = find_nvidia_binary_utility("nvdisasm")
    except (ImportError, AttributeError):
        found = None
    return found or shutil.which("nvdisasm") or shutil.which("/usr/local/cuda/bin/nvdisasm")


def disassemble(cubin: bytes) -> dict[str, list[str]] | None:
    """Kernel name -> its instructions, or None where nvdisasm is not installed."""
    tool = _disassembler()
    if tool is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as image:
        image.write(cubin)
        image.flush()
        text = subprocess.run([tool, "-c", image.name], capture_output=True, text=True, check=True).stdout
    kernels: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.(\w+)", line):
            current = kernels.setdefault(section[1], [])
        elif instruction := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
            current.append(instruction[1])
    return kernels


def check_sass(cubin: bytes) -> list[str]:
    """Where the machine code is not what is to be measured, in words. Empty: every count is as intended."""
    kernels = disassemble(cubin)
    if kernels is None:
        return ["nvdisasm was not found: nothing was checked"]
    wrong = []
    for access in accesses():
        for name in (access.name, f"{access.name}_timed"):
            opcode = re.compile(rf"(@!?U?P\w+ )?{access.sass}(\.LTC128B)? ")
            count = sum(bool(opcode.match(line)) for line in kernels[name])
            extra = _own_stores(access, name)
            if count != REPEAT + extra:
                wrong.append(f"{name}: {count} x {access.sass}, not {REPEAT + extra}")
    table_loads = sum("LDG" in line for line in kernels["baseline"])
    stray = [line for line in kernels["baseline"] if re.search(r"\b(LDS|STS|LDSM|STSM|LDGSTS)\b", line)]
    if table_loads != 1 or stray:
        wrong.append(f"baseline: {table_loads} loads of the table, not 1; shared accesses {stray}, not none")
    for kind, _, _ in SHARED_CHASES.values():
        count = sum("LDS" in line for line in kernels[f"chase_{kind}"])
        if count != 16:
            wrong.append(f"chase_{kind}: {count} loads, not 16")
    for kind in ("ca", "cg"):
        count = sum("LDG.E.64" in line for line in kernels[f"chase_{kind}"])
        if count != 16:
            wrong.append(f"chase_{kind}: {count} loads, not 16")
    return wrong


def _own_stores(access: Access, kernel: str) -> int:
    """How many stores like the measured one a kernel makes to report its result: sink, and the two clocks."""
    if access.name == "global_store_32":
        return 1
    return 2 if access.name == "global_store_64" and kernel.endswith("_timed") else 0


# ------------------------------------------------------------------------------------------------------ launches


@dataclass(frozen=True, slots=True)
class Launch:
    kernel: str
    access: str
    pattern: str
    offsets: ap.Pattern
    source: ap.Pattern  # of a copy: where it reads


GROUPS = ("shared", "global", "wide")
NO_LANE = "no lane"


def _contiguous(width: int) -> ap.Pattern:
    return ap.pattern(lambda t: t, width)


def _patterns(access: Access) -> Iterator[tuple[str, ap.Pattern, ap.Pattern]]:
    """Name, offsets, and offsets read: a copy has both a side that it writes, varied first, and one it reads."""
    for name, offsets in access.patterns.items():
        yield name, offsets, _contiguous(access.width)
    if access.is_copy:
        for name in ("uniform", "t/2 (64-2)", "stride 2", "stride 8", "stride 32", "shuffled 1"):
            source = ap.pattern(ap.CHUNKS[name], access.width)
            yield f"from {name}", _contiguous(access.width), source


def launches(group: str) -> list[Launch]:
    """The launches of a group, in order: the baselines, then the first pattern of each access, the second, ...

    shared: shared loads, stores and matrices. global: cp.async and global memory. wide: a few of each, for a run
    with many counters. The baselines are a kernel without accesses and, since the compiler adds idle LDS around
    cp.async, each copy with no lane taking part.
    """
    nothing, none = _contiguous(4), (None,) * ap.LANES
    chosen = [a for a in accesses() if group == "wide" or (a.is_copy or a.is_global) == (group == "global")]
    found = [Launch("baseline", "baseline", "", nothing, nothing)]
    found += [Launch(a.name, a.name, NO_LANE, none, _contiguous(a.width)) for a in chosen if a.is_copy]
    columns = [list(_patterns(access)) for access in chosen]
    if group == "wide":
        wanted = ("contiguous (64-1)", "uniform", "stride 4")
        columns = [[entry for entry in column if entry[0] in wanted] for column in columns]
    for row in range(max(map(len, columns))):
        for access, column in zip(chosen, columns, strict=True):
            if row < len(column):
                found.append(Launch(access.name, access.name, *column[row]))
    return found


def patterned(group: str) -> list[Launch]:
    """The launches of a group without the baselines."""
    return [launch for launch in launches(group) if launch.pattern not in ("", NO_LANE)]


class Gpu:
    """The primary context of device 0, the loaded module, and buffers for the launches."""

    def __init__(self, cubin: bytes) -> None:
        from cuda.bindings import driver

        self.driver = driver
        _ok(driver.cuInit(0))
        device = _ok(driver.cuDeviceGet(0))
        _ok(driver.cuCtxSetCurrent(_ok(driver.cuDevicePrimaryCtxRetain(device))))
        self.name = _ok(driver.cuDeviceGetName(64, device)).split(b"\0")[0].decode()
        self.module = _ok(driver.cuModuleLoadData(cubin))
        self.offsets = self.allocate(256)
        self.memory = self.allocate(GLOBAL_BYTES)
        self.sink = self.allocate(8192)
        self.clocks = self.allocate(1024)
        _ok(driver.cuMemsetD8(self.memory, 0, GLOBAL_BYTES))

    def allocate(self, size_bytes: int) -> int:
        return int(_ok(self.driver.cuMemAlloc(size_bytes)))

    def write(self, address: int, values: ctypes.Array[Any]) -> None:
        _ok(self.driver.cuMemcpyHtoD(address, ctypes.addressof(values), ctypes.sizeof(values)))

    def read_clocks(self, warps: int = 1) -> list[int]:
        host = (ctypes.c_longlong * (2 * warps))()
        _ok(self.driver.cuMemcpyDtoH(ctypes.addressof(host), self.clocks, ctypes.sizeof(host)))
        return list(host)

    def place(self, launch: Launch) -> None:
        both = (-1 if offset is None else offset for offset in (*launch.offsets, *launch.source))
        self.write(self.offsets, (ctypes.c_int * 64)(*both))

    def launch(self, kernel: str, arguments: Sequence[tuple[int, Any]], *, threads: int, blocks: int = 1) -> None:
        function = _ok(self.driver.cuModuleGetFunction(self.module, kernel.encode()))
        packed = (tuple(value for value, _ in arguments), tuple(kind for _, kind in arguments))
        _ok(self.driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, 0, packed, 0))
        _ok(self.driver.cuCtxSynchronize())

    def count(self, launch: Launch) -> None:
        """One launch to be seen by ncu: one warp, REPEAT accesses."""
        self.place(launch)
        places = [(self.offsets, ctypes.c_void_p), (self.memory, ctypes.c_void_p), (self.sink, ctypes.c_void_p)]
        self.launch(launch.kernel, places, threads=32)

    def cycles(self, launch: Launch, warps: int) -> float:
        """Cycles an access, `warps` warps together: from the first start to the last stop, over all accesses."""
        self.place(launch)
        arguments = [
            (self.offsets, ctypes.c_void_p), (self.memory, ctypes.c_void_p), (self.sink, ctypes.c_void_p),
            (self.clocks, ctypes.c_void_p), (ROUNDS, ctypes.c_int), (0, ctypes.c_int),
        ]  # fmt: skip
        self.launch(f"{launch.kernel}_timed", arguments, threads=32 * warps)
        clocks = self.read_clocks(warps)
        return (max(clocks[1::2]) - min(clocks[0::2])) / (warps * ROUNDS * REPEAT)


def run(cubin: Path, group: str, deadline_s: float, order: Path) -> None:
    """Under ncu: the launches of a group, until the deadline. The order file tells which were made."""
    started = time.monotonic()
    gpu = Gpu(cubin.read_bytes())
    made = []
    for launch in launches(group):
        if time.monotonic() - started > deadline_s:
            break
        gpu.count(launch)
        made.append({"kernel": launch.kernel, "access": launch.access, "pattern": launch.pattern})
    seconds = round(time.monotonic() - started, 2)
    order.write_text(json.dumps({"made": made, "planned": len(launches(group)), "seconds": seconds}))


# ------------------------------------------------------------------------------------------------------- clocks


def time_all(cubin: Path, output: Path) -> None:
    """Clocks of every pattern, issue rates by number of warps, latencies. Written after each part."""
    gpu = Gpu(cubin.read_bytes())
    result: dict[str, Any] = {"device": gpu.name}
    for title, part in (
        ("latency_cycles", latencies),
        ("rates", rates),
        ("patterns", clocks_of_patterns),
    ):
        began = time.monotonic()
        try:
            result[title] = part(gpu)
        except SystemExit as failed:
            result[title] = {}
            result.setdefault("errors", []).append(f"{title}: {failed}")
        result[f"{title}_seconds"] = round(time.monotonic() - began, 2)
        output.write_text(json.dumps(result))


def clocks_of_patterns(gpu: Gpu) -> dict[str, dict[str, dict[str, float]]]:
    """access -> pattern -> cycles an access with WARPS warps (the better of two) and with one."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for group in ("shared", "global"):
        for launch in patterned(group):
            full = min(gpu.cycles(launch, WARPS) for _ in range(2))
            alone = gpu.cycles(launch, 1)
            of_access = result.setdefault(launch.access, {})
            of_access[launch.pattern] = {"clk": round(full, 3), "clk_one_warp": round(alone, 3)}
    return result


def rates(gpu: Gpu) -> dict[str, dict[int, float]]:
    """access -> number of warps -> cycles an access on one SM, for the conflict-free pattern."""
    result: dict[str, dict[int, float]] = {}
    for group in ("shared", "global"):
        for launch in patterned(group):
            if launch.pattern.startswith("contiguous ("):
                by_warps = {w: round(min(gpu.cycles(launch, w) for _ in range(3)), 3) for w in (1, 2, 4, 8, 16, 32)}
                result[launch.access] = by_warps
    return result


def latencies(gpu: Gpu) -> dict[str, float]:
    """Cycles from a load to the next that needs its result."""
    result = {}
    for title, (kind, _, _) in SHARED_CHASES.items():
        arguments = [(16, ctypes.c_int), (gpu.clocks, ctypes.c_void_p), (gpu.sink, ctypes.c_void_p)]
        for _ in range(2):
            gpu.launch(f"chase_{kind}", arguments, threads=32)
        start, stop = gpu.read_clocks()
        result[title] = round((stop - start) / 256, 2)
    flush_bytes, arena_bytes = 256 << 20, 1 << 30
    flush, arena = gpu.allocate(flush_bytes), gpu.allocate(arena_bytes)
    _ok(gpu.driver.cuMemsetD8(arena, 0, arena_bytes))
    for kind, spread_mib in (("ca", 1 / 64), ("cg", 1), ("cg", 8), ("cg", 32)):
        cached = _chase(gpu, kind, arena, spread_mib, phases=2)
        result[f"{'L1' if kind == 'ca' else 'L2'} hit, lines within {spread_mib:g} MiB"] = cached
    for spread_mib in (8, 32, 256, 1024):
        _link(gpu, arena, spread_mib)
        _ok(gpu.driver.cuMemsetD8(flush, 1, flush_bytes))
        _ok(gpu.driver.cuCtxSynchronize())
        result[f"DRAM, lines within {spread_mib} MiB"] = _chase(gpu, "cg", arena, spread_mib, phases=1, linked=True)
    return result


def _nodes(arena: int, spread_mib: float) -> list[int]:
    """Up to 4096 distinct 128-byte lines of the arena's first part, in random order; a multiple of 16."""
    places = int(spread_mib * (1 << 20)) // ap.LINE_BYTES
    count = min(4096, places)
    return [arena + ap.LINE_BYTES * place for place in random.Random(1).sample(range(places), count)]


def _link(gpu: Gpu, arena: int, spread_mib: float) -> list[int]:
    """Make the nodes a ring in the GPU's memory."""
    nodes = _nodes(arena, spread_mib)
    table = gpu.allocate(8 * len(nodes))
    gpu.write(table, (ctypes.c_ulonglong * len(nodes))(*nodes))
    arguments = [(table, ctypes.c_void_p), (len(nodes), ctypes.c_int)]
    gpu.launch("link", arguments, threads=256, blocks=-(-len(nodes) // 256))
    return nodes


def _chase(gpu: Gpu, kind: str, arena: int, spread_mib: float, *, phases: int, linked: bool = False) -> float:
    nodes = _nodes(arena, spread_mib) if linked else _link(gpu, arena, spread_mib)
    arguments = [
        (nodes[0], ctypes.c_ulonglong), (len(nodes) // 16, ctypes.c_int), (phases, ctypes.c_int),
        (gpu.clocks, ctypes.c_void_p), (gpu.sink, ctypes.c_void_p),
    ]  # fmt: skip
    gpu.launch(f"chase_{kind}", arguments, threads=1)
    start, stop = gpu.read_clocks()
    return round((stop - start) / len(nodes), 1)


# ----------------------------------------------------------------------------------------------------- counters

_BANK = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
_TAG = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"

WELL_KNOWN = 5  # the first so many of each group are on every chip since Volta
HARDWARE: Mapping[str, Sequence[str]] = {
    "shared": (_LD, _ST, _COPY, f"{_BANK}_op_ld.sum", f"{_BANK}_op_st.sum", f"{_BANK}.sum"),
    "global": (
        _COPY,
        *(_TAG.format(what, op) for op in ("ld", "st") for what in ("requests", "sectors")),
        *(_TAG.format("output_wavefronts", op) for op in ("ld", "st")),
        "l1tex__data_pipe_lsu_wavefronts.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_lg.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_lgds.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_cmd_read.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_cmd_write.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",
        f"{_BANK}.sum",
        f"{_BANK}_op_ldgsts.sum",
    ),
}
SOURCE: Mapping[str, Sequence[str]] = {
    "shared": ("memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal"),
    "global": (
        "memory_l1_wavefronts_shared",
        "memory_l1_wavefronts_shared_ideal",
        "memory_l1_tag_requests_global",
        "memory_l2_theoretical_sectors_global",
        "memory_l2_theoretical_sectors_global_ideal",
    ),
}
PATCHED: Mapping[str, Sequence[str]] = {
    "shared": ("smsp__sass_inst_executed_op_shared_ld.sum", "smsp__sass_inst_executed_op_shared_st.sum"),
    "global": (
        "smsp__inst_executed_op_ldgsts.sum",
        "smsp__sass_inst_executed_op_ldgsts_cache_access.sum",
        "smsp__sass_inst_executed_op_ldgsts_cache_bypass.sum",
        "sm__sass_inst_executed_op_ldgsts_cache_access.sum",
        "sm__sass_inst_executed_op_ldgsts_cache_bypass.sum",
    ),
}
WIDE = (
    r"l1tex__data_(pipe_lsu_wavefronts|bank_conflicts_pipe_lsu|bank_reads|bank_writes)\w*"
    r"|\w+__(sass_)?inst_executed_op_(ldsm|stsm|ldgsts|shared)\w*"
    r"|\w+__sass_l1tex_\w*(shared|ldgsts|ldsm)\w*"
    r"|l1tex__t_\w*pipe_lsu_mem_global_op_ldgsts\w*"
)
WIDE_MOST = 80
KEEP_AT_MOST_BYTES = 15 << 20  # a file that comes back from the device may have 16 MiB

Counts = dict[tuple[str, str], dict[str, float]]  # (access, pattern) -> metric -> count of the launch


@dataclass
class Journal:
    """What went on: each query with its time, and each failure with what was said."""

    queries: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def spent_s(self) -> float:
        return time.monotonic() - self.started

    def note(self, query: str, **facts: Any) -> None:
        self.queries.append({"query": query, "at_s": round(self.spent_s(), 1), **facts})
        print(f"[{self.spent_s():5.1f} s] {query}: {json.dumps(facts)[:600]}", flush=True)


def count_group(
    cubin: Path, group: str, metrics: Sequence[str], deadline_s: float, journal: Journal, title: str, out: Path
) -> Counts:
    """One run under ncu. A failure is noted and gives no counts; a report that cannot be read is kept in `out`."""
    with tempfile.TemporaryDirectory() as folder:
        order = Path(folder) / "order.json"
        command = [sys.executable, str(Path(__file__).resolve()), "--run", "--group", group]
        command += ["--cubin", str(cubin), "--order", str(order), "--deadline-s", str(deadline_s)]
        target = Path(folder) / "report"
        report = None
        try:
            report = ncu.record(command, metrics, target, flush_caches=False, timeout_s=deadline_s + 25)
            made = json.loads(order.read_text())
            recorded_s = round(journal.spent_s(), 1)
            counts, how = _read_counts(report, made["made"], metrics)
        except (LaunchError, OSError, ValueError, KeyError) as failed:
            journal.note(title, failed=str(failed), metrics=list(metrics))
            if report is not None and report.stat().st_size < KEEP_AT_MOST_BYTES:
                shutil.copy(report, out / f"{title.replace(' ', '_')}.ncu-rep")
                shutil.copy(order, out / f"{title.replace(' ', '_')}.order.json")
            return {}
        facts = {"launches": len(made["made"]), "planned": made["planned"], "run_s": made["seconds"]}
        journal.note(title, **facts, recorded_at_s=recorded_s, read_from=how)
        return counts


def _read_counts(report: Path, made: list[dict[str, str]], metrics: Sequence[str]) -> tuple[Counts, str]:
    """The counts of each launch made, from the raw page; metrics that it lacks, from the source page."""
    found = ncu.read_counters(report)
    if [each.kernel.split("(")[0] for each in found] != [each["kernel"] for each in made]:
        raise ValueError(f"ncu saw {len(found)} launches, in another order than the {len(made)} that were made")
    rows = [{name: each.values[name] for name in metrics if name in each.values} for each in found]
    lacking = [name for name in metrics if not any(name in row for row in rows)]
    how = "raw page"
    if lacking:
        how = f"raw page without {lacking}"
        try:
            for row, source in zip(rows, ncu.read_source(report), strict=True):
                row.update({name: total for name in lacking if (total := source.total(name)) is not None})
            how = f"raw page, and source page for {lacking}"
        except (LaunchError, ValueError) as failed:
            how += f"; source page: {failed}"
    return {(each["access"], each["pattern"]): row for each, row in zip(made, rows, strict=True)}, how


def per_access(counts: Counts, access: Access, pattern: str) -> dict[str, float]:
    """Counts of one access: those of the launch, less those of its baseline, over REPEAT."""
    baseline = counts.get((access.name, NO_LANE) if access.is_copy else ("baseline", ""), {})
    of_launch = counts.get((access.name, pattern), {})
    return {name: (value - baseline.get(name, 0)) / REPEAT for name, value in of_launch.items()}


def measure(budget_s: float, out: Path) -> None:
    """Everything, within about `budget_s` seconds; what there was no time for is missing from the result."""
    journal = Journal()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "probe.cubin"
        cubin.write_bytes(compile_cubin(cuda_text()))
        journal.note("compile", cubin_bytes=cubin.stat().st_size, wrong_sass=_checked(cubin.read_bytes()))
        clocks = _time_in_child(cubin, journal)
        result = {"clocks": clocks, "records": records(clocks, {}, {}), "journal": journal.queries}
        _write(result, out)
        if not ncu.available():
            journal.note("ncu", failed="not installed")
            hardware, source = Counts(), Counts()
        else:
            hardware, source = _count_all(cubin, budget_s, journal, out)
    result = {"clocks": clocks, "records": records(clocks, hardware, source), "journal": journal.queries}
    _write(result, out)
    print(summary(result))


def _checked(cubin: bytes) -> list[str]:
    try:
        return check_sass(cubin)
    except (OSError, KeyError, RuntimeError, subprocess.SubprocessError) as failed:
        return [f"could not be checked: {failed!r}"]


def _count_all(cubin: Path, budget_s: float, journal: Journal, out: Path) -> tuple[Counts, Counts]:
    try:
        listing = ncu.metric_listing()
    except LaunchError as failed:
        journal.note("metric listing", failed=str(failed))
        listing = ""
    (out / "ncu_metrics_gh100.txt").write_text(listing)
    hardware, source = Counts(), Counts()
    for group, share in (("shared", 0.24), ("global", 0.12)):  # of the budget, for each of a group's two queries
        known = ncu.existing_metrics(HARDWARE[group], listing=listing) or HARDWARE[group]
        instrumented = [*SOURCE[group], *ncu.existing_metrics(PATCHED[group], listing=listing)]
        for title, counts, choices in (
            (f"hardware {group}", hardware, (known, HARDWARE[group][:WELL_KNOWN])),
            (f"source {group}", source, (instrumented, SOURCE[group], SOURCE[group][:1])),
        ):
            for metrics in choices:  # a longer list first: one refused name refuses them all
                left_s = budget_s - journal.spent_s()
                if left_s < 5:
                    journal.note(title, failed="no time left")
                    break
                found = count_group(cubin, group, metrics, min(share * budget_s, left_s - 4), journal, title, out)
                if found:
                    # A baseline that both groups have is the same; what only one has is kept.
                    counts |= {key: counts.get(key, {}) | row for key, row in found.items()}
                    break
    wide = ncu.matching_counters(WIDE, listing=listing)
    journal.note("counters of the wide run", found=len(wide))
    if wide and (left_s := budget_s - journal.spent_s()) > 6:
        metrics = [f"{name}.sum" for name in wide[:WIDE_MOST]]
        counts = count_group(cubin, "wide", metrics, min(10, left_s - 4), journal, "wide", out)
        readable = {" | ".join(key): {n: v for n, v in row.items() if v} for key, row in counts.items()}
        (out / "wide_counters.json").write_text(json.dumps(readable, indent=1))
    return hardware, source


def _time_in_child(cubin: Path, journal: Journal) -> dict[str, Any]:
    """The clocks, from a process of its own: a launch that fails there takes nothing else with it."""
    output = cubin.with_name("clocks.json")
    command = [sys.executable, str(Path(__file__).resolve()), "--time", "--cubin", str(cubin), "--order", str(output)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
        said = (done.stdout + done.stderr)[-1500:]
    except subprocess.TimeoutExpired:
        said = "timed out"
    clocks: dict[str, Any] = json.loads(output.read_text()) if output.is_file() else {}
    seconds = {key: value for key, value in clocks.items() if key.endswith("_seconds")}
    journal.note("clocks", device=clocks.get("device"), said=said, errors=clocks.get("errors", []), **seconds)
    return clocks


# ------------------------------------------------------------------------------------------------------ verdicts


def records(clocks: Mapping[str, Any], hardware: Counts, source: Counts) -> list[dict[str, Any]]:
    """One record for each access and pattern: what was measured, and what each hypothesis says."""
    found = []
    for access in accesses():
        of_access = clocks.get("patterns", {}).get(access.name, {})
        for name, offsets, read in _patterns(access):
            counted = per_access(hardware, access, name)
            derived = per_access(source, access, name)
            says = {title: each(offsets, access.width) for title, each in access.hypotheses.items()}
            clock_says = {title: each(offsets, access.width) for title, each in access.clock_hypotheses.items()}
            found.append(
                {
                    "access": access.name,
                    "pattern": name,
                    "offsets": offsets,
                    "source_offsets": read if access.is_copy else None,
                    "hardware": counted,
                    "wavefronts": counted.get(access.counter),
                    "source": derived,
                    "source_wavefronts": derived.get(_source_metric(access)),
                    "clk": of_access.get(name, {}).get("clk"),
                    "clk_one_warp": of_access.get(name, {}).get("clk_one_warp"),
                    "predicted": says,
                    "clk_predicted": clock_says or says,
                }
            )
    return found


def _source_metric(access: Access) -> str:
    return "memory_l2_theoretical_sectors_global" if access.is_global else "memory_l1_wavefronts_shared"


SHORT = {"wavefronts": "hardware", "source_wavefronts": "source", "clk": "clk"}
WITNESSES = (("wavefronts", "predicted"), ("source_wavefronts", "predicted"), ("clk", "clk_predicted"))


def agrees(witness: str, measured: float, predicted: float) -> bool:
    """Whether they are the same, given what each witness can tell.

    Address-derived counts are exact. Hardware may add a few stray wavefronts to a launch of REPEAT accesses. The
    clock includes the start and the end of the loop.
    """
    slack = {"source_wavefronts": 0.01, "wavefronts": 0.25, "clk": 0.12 * predicted + 0.2}[witness]
    return abs(measured - predicted) <= slack


def verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """access -> witness -> hypothesis -> how many patterns it fits, and those it does not, as 'name: got/said'."""
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if str(row["pattern"]).startswith("from "):
            continue  # these vary the side that is read: no hypothesis speaks of it
        for witness, said_by in WITNESSES:
            measured = row[witness]
            if measured is None:
                continue
            for title, predicted in row[said_by].items():
                found = (
                    result.setdefault(row["access"], {})
                    .setdefault(witness, {})
                    .setdefault(title, {"fits": 0, "misses": []})
                )
                if agrees(witness, measured, predicted):
                    found["fits"] += 1
                else:
                    found["misses"].append(f"{row['pattern']}: {measured:g}/{predicted}")
    return result


def summary(result: Mapping[str, Any]) -> str:
    """The lines to read first: rates, latencies, and for each access and witness which hypotheses survive."""
    clocks = result["clocks"]
    text = ["", "latency, clk: " + "; ".join(f"{k} {v:g}" for k, v in clocks.get("latency_cycles", {}).items())]
    text.append("clk an access on one SM by number of warps, conflict-free:")
    for access, by_warps in clocks.get("rates", {}).items():
        text.append(f"  {access:22}" + "  ".join(f"{warps}: {clk:g}" for warps, clk in by_warps.items()))
    text.append("access, witness, number of patterns: hypotheses that survive, or the best and measured/predicted:")
    for access, by_witness in verdicts(result["records"]).items():
        for witness, by_title in by_witness.items():
            text.append(_verdict_line(access, witness, by_title))
    missing = sum(row["wavefronts"] is None for row in result["records"])
    text.append(f"{len(result['records'])} patterns, {missing} of them without hardware counters")
    return "\n".join(text)


def _verdict_line(access: str, witness: str, by_title: Mapping[str, Mapping[str, Any]]) -> str:
    total = max(each["fits"] + len(each["misses"]) for each in by_title.values())
    alive = [title for title, each in by_title.items() if not each["misses"]]
    head = f"  {access:20} {SHORT[witness]:8} {total:3}: "
    if alive:
        more = f" and {len(alive) - 4} more" if len(alive) > 4 else ""
        return head + "SURVIVE " + ", ".join(alive[:4]) + more
    best, facts = max(by_title.items(), key=lambda item: item[1]["fits"])
    return head + f"none; best {best!r} fits {facts['fits']}; misses " + ", ".join(facts["misses"][:3])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every pattern: counters, clock, and what the hypotheses say."""
    text = []
    last = None
    for row in rows:
        if row["access"] != last:
            last = row["access"]
            titles = ", ".join(row["predicted"])
            text.append(f"\n{last}: wavefronts, source page, clk, clk of one warp | {titles}")
        cells = (row["wavefronts"], row["source_wavefronts"], row["clk"], row["clk_one_warp"])
        shown = "".join(f"{'-' if cell is None else format(cell, '.4g'):>8}" for cell in cells)
        said = "".join(f"{value:4}" for value in row["predicted"].values())
        extra = {name: round(value, 3) for name, value in row["hardware"].items() if value}
        short = {re.sub(r"l1tex__|_pipe_lsu|\.sum", "", name): value for name, value in extra.items()}
        text.append(f"  {row['pattern']:34}{shown} |{said} | {json.dumps(short)}")
    return "\n".join(text)


def _write(result: Mapping[str, Any], out: Path) -> None:
    full = {**result, "verdicts": verdicts(result["records"]), "repeat": REPEAT, "arch": ARCH}
    (out / "shared_memory_rules.json").write_text(json.dumps(full, indent=1))
    (out / "shared_memory_rules.txt").write_text(summary(result) + "\n" + table(result["records"]) + "\n")


# ---------------------------------------------------------------------------------------------------------- main


def check(cubin_path: Path | None = None) -> None:
    """No GPU: hypotheses against the golden vectors, offsets against the buffers, machine code as intended."""
    ap.check_golden()
    for group in GROUPS:
        for launch in launches(group):
            limit = GLOBAL_BYTES if launch.kernel.startswith("global") else POOL_BYTES
            last = max(offset or 0 for offset in launch.offsets)
            assert last + 16 + 128 * REPEAT <= limit, f"{launch.kernel}, {launch.pattern}: offset {last}"
    image = compile_cubin(cuda_text()) if cubin_path is None else cubin_path.read_bytes()
    wrong = check_sass(image)
    print(f"{len(accesses())} accesses, launches:", {group: len(launches(group)) for group in GROUPS})
    print("\n".join(wrong) or "machine code as intended")
    if wrong:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    for name in ("check", "measure", "run", "time", "print-cuda"):
        mode.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--budget-s", type=float, default=75, help="of --measure: seconds in all")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/probes")))
    parser.add_argument("--group", choices=GROUPS, default="shared", help="of --run")
    parser.add_argument("--cubin", type=Path)
    parser.add_argument("--order", type=Path, default=Path("order.json"), help="file that --run or --time writes")
    parser.add_argument("--deadline-s", type=float, default=60, help="of --run: make no launch after")
    given = parser.parse_args()
    if given.print_cuda:
        print(cuda_text())
    elif given.check:
        check(given.cubin)
    elif given.measure:
        measure(given.budget_s, given.out)
    elif given.run:
        run(given.cubin, given.group, given.deadline_s, given.order)
    else:
        time_all(given.cubin, given.order)


if __name__ == "__main__":
    main()
