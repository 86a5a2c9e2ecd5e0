"""The kernels as CUDA text, compiled, and their machine code held against what was meant."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

from shared_memory.accesses import ARCH, POOL_BYTES, REPEAT, Access, accesses, registers

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
            CHASE_SHARED.format(kind=kind, ptx=ptx, outputs=registers(ptx, count), count=count, bindings=bindings)
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

    program = ok(nvrtc.nvrtcCreateProgram(text.encode(), b"probe.cu", 0, [], []))
    options = [f"--gpu-architecture={ARCH}".encode(), b"--std=c++17"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status):
        log = b" " * ok(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(log.decode(errors="replace"))
    image: bytes = b" " * ok(nvrtc.nvrtcGetCUBINSize(program))
    ok(nvrtc.nvrtcGetCUBIN(program, image))
    return image


def ok(answer: Sequence[Any]) -> Any:
    """What a binding returned, without its status. A status other than success ends the program."""
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
