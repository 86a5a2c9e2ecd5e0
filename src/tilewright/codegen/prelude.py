"""What emitted text may call besides itself: storage types, conversions, vector accesses.

A kernel includes no header, so what CUDA's headers would offer stands here, one named snippet each, and is printed
only where it is used. Inline PTX lives nowhere else: a kernel body calls a function whose name says what it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilewright.codegen.async_prelude import async_prelude, wgmma_text
from tilewright.codegen.conversions import format_prelude
from tilewright.codegen.matrix_prelude import matrix_prelude
from tilewright.codegen.unpack_prelude import unpack_prelude
from tilewright.errors import LoweringError
from tilewright.ir.expr import Op
from tilewright.ir.kernel import PASSED_WORDS
from tilewright.problem.philox import KEY_STEPS, MULTIPLIERS, ROUNDS

COPIES = {4: "cp_async_4", 8: "cp_async_8", 16: "cp_async_16"}
"""The function that starts an asynchronous copy to shared memory, by its bytes. Source: PTX ISA, cp.async."""


def copy_async(size_bytes: int) -> str:
    """The function that starts an asynchronous copy of `size_bytes`."""
    if size_bytes not in COPIES:
        known = ", ".join(str(size) for size in COPIES)
        raise LoweringError(f"There is no asynchronous copy of {size_bytes} bytes.", hint=f"copies are {known} bytes.")
    return COPIES[size_bytes]


_APART = """\
// One shared load that the compiler does not merge with its neighbours, so that counters see it alone.
__device__ __forceinline__ float apart(const float& element) {
    return *reinterpret_cast<const volatile float*>(&element);
}"""

STREAMED: dict[str, tuple[str, str, str]] = {
    "uint4": ("v4.u32", "r", "xyzw"),
    "float4": ("v4.f32", "f", "xyzw"),
    "uint2": ("v2.u32", "r", "xy"),
    "float2": ("v2.f32", "f", "xy"),
    "unsigned": ("u32", "r", ""),
    "float": ("f32", "f", ""),
    "unsigned short": ("u16", "h", ""),
}
"""For each type of a streaming load: its PTX type, the register class of a word, the words."""


def load_streaming(view: str) -> str:
    """The function that loads a value of a type past the first-level cache. Raises LoweringError."""
    if view not in STREAMED:
        raise LoweringError(f"There is no streaming load of {view}.", hint=f"types are {', '.join(STREAMED)}.")
    return f"load_streaming_{STREAMED[view][0].replace('.', '_')}"


def _load_streaming(view: str) -> str:
    ptx, register, words = STREAMED[view]
    places = [f"value.{word}" for word in words] or ["value"]
    outputs = ", ".join(f'"+{register}"({place})' for place in places)
    numbers = ", ".join(f"%{number}" for number in range(len(places)))
    listed, count = f"{{{numbers}}}" if words else numbers, len(places)
    return (
        "// A load of data that is read once: no L1 line is allocated. Zero where `there` is false.\n"
        f"__device__ __forceinline__ {view} {load_streaming(view)}(const {view}* from, bool there) {{\n"
        f"    {view} value{{}};\n"
        "    asm volatile(  // volatile: loads start in the order of the text\n"
        f'        "{{ .reg .pred there; setp.ne.s32 there, %{count + 1}, 0;"\n'
        f'        " @there ld.global.L1::no_allocate.{ptx} {listed}, [%{count}]; }}"\n'
        f'        : {outputs} : "l"(from), "r"((int)there));\n'
        "    return value;\n"
        "}"
    )


_COMMIT_COPIES = """\
// The cp.async copies that this thread has started become a group.
__device__ __forceinline__ void cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}"""

_WAIT_COPIES = """\
// Waits until at most `pending` of this thread's latest groups of copies are in flight.
template <int pending>
__device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}"""


def _copy_async(size_bytes: int) -> str:
    head = f"__device__ __forceinline__ void {COPIES[size_bytes]}(void* to_shared, const void* from_global"
    to = "unsigned to = (unsigned)__cvta_generic_to_shared(to_shared);"
    cache = "cg" if size_bytes == 16 else "ca"  # past the first-level cache where the instruction can
    instruction = f"cp.async.{cache}.shared.global [%0], [%1], {size_bytes}"
    return (
        f"// Starts a copy of {size_bytes} bytes to shared memory: all of them, or `read` bytes and then zeros.\n"
        f"{head}) {{\n"
        f"    const {to}\n"
        f'    asm volatile("{instruction};" ::"r"(to), "l"(from_global) : "memory");\n'
        "}\n"
        f"{head}, int read) {{\n"
        f"    const {to}\n"
        f'    asm volatile("{instruction}, %2;" ::"r"(to), "l"(from_global), "r"(read) : "memory");\n'
        "}"
    )


COMBINES_UP = {Op.ADD: "scan_add_step", Op.MAX: "scan_max_step"}
"""The function of one step of an inclusive scan over a warp."""


def _from_below(op: Op, ptx: str, does: str) -> str:
    return (
        f"// A step of an inclusive scan over the warp: {does} that of the lane `delta` below, where there is one.\n"
        f"__device__ __forceinline__ void {COMBINES_UP[op]}(int& place, int delta) {{\n"
        '    asm volatile("{ .reg .pred there; .reg .s32 below; "\n'
        '                 "shfl.sync.up.b32 below|there, %0, %1, 0, 0xffffffff; @there '
        f'{ptx} %0, %0, below; }}"\n'
        '                 : "+r"(place) : "r"(delta));\n'
        "}"
    )


SHARES = {Op.ADD: "reduce_scatter_add", Op.MAX: "reduce_scatter_max"}
"""The function by which two lanes of a warp take care of one of two registers each."""


def _shared_out(op: Op, combined: str) -> str:
    return (
        "// A step of a reduce-scatter with lane ^ mask: of `place`, or of `other` in the lane with that bit.\n"
        f"__device__ __forceinline__ void {SHARES[op]}(float& place, float other, int mask) {{\n"
        "    const bool upper = threadIdx.x & mask;\n"
        "    const float own = upper ? other : place;\n"
        "    const float its = __shfl_xor_sync(0xffffffffu, upper ? place : other, mask);\n"
        f"    place = {combined};\n"
        "}"
    )


_UNIFORM = f"""\
// The number in [0, 1) of an element in column first + element, by Philox4x32-10; neighbours share its four words.
__device__ __forceinline__ float uniform(float seed, float offset, int row, int first, int element) {{
    unsigned x = (unsigned)((first >> 2) + (element >> 2)), y = (unsigned)row, z = 0, w = 0;
    unsigned key = (unsigned)seed, other = (unsigned)offset;
    #pragma unroll
    for (int round = 0; round < {ROUNDS}; ++round) {{
        const unsigned long long a = (unsigned long long)x * {MULTIPLIERS[0]:#x}u;
        const unsigned long long b = (unsigned long long)z * {MULTIPLIERS[1]:#x}u;
        x = (unsigned)(b >> 32) ^ y ^ key;
        z = (unsigned)(a >> 32) ^ w ^ other;
        y = (unsigned)b;
        w = (unsigned)a;
        key += {KEY_STEPS[0]:#x}u;
        other += {KEY_STEPS[1]:#x}u;
    }}
    const int word = (first & 3) + (element & 3);
    return (float)((word == 0 ? x : word == 1 ? y : word == 2 ? z : w) >> 8) * 0x1p-24f;
}}"""

# __fdividef: a quotient with up to 2 ulp instead of 0.5, without a branch for what is large or small at each element.
# Source: CUDA C++ Programming Guide, accuracy of intrinsic functions.
_FUNCTIONS = {
    "relu": ("max(value, 0), and NaN where it is NaN.", "value < 0.0f ? 0.0f : value"),
    "gelu": ("The Gaussian error linear unit.", "0.5f * value * (1.0f + erff(value * 0.70710678f))"),
    "gelu_tanh": (
        "The same, approximated by tanh.",
        "0.5f * value * (1.0f + tanhf(0.79788456f * (value + 0.044715f * value * value * value)))",
    ),
    "silu": ("value times its sigmoid.", "__fdividef(value, 1.0f + expf(-value))"),
    "negative": ("-value.", "-value"),
    "absolute": ("|value|.", "fabsf(value)"),
    "exponential": ("e to the power of value.", "expf(value)"),
    "logarithm": ("The natural logarithm.", "logf(value)"),
    "square_root": ("The square root.", "sqrtf(value)"),
    "tangens_hyperbolicus": ("The hyperbolic tangent.", "tanhf(value)"),
    "error_function": ("The error function.", "erff(value)"),
    "sigmoid": ("1 / (1 + e to the power of -value).", "__fdividef(1.0f, 1.0f + expf(-value))"),
}


STORE_WHERE = "store_where"

_STORE_WHERE = f"""
// A store by a predicate, not behind a branch: what it stores is computed either way, before.
__device__ __forceinline__ void {STORE_WHERE}(float* to, float value, bool there) {{
    asm volatile("{{ .reg .pred there; setp.ne.s32 there, %2, 0; @there st.global.f32 [%0], %1; }}"
        :: "l"(to), "f"(value), "r"((int)there));
}}""".strip()


def _function(name: str, comment: str, text: str) -> str:
    return f"// {comment}\n__device__ __forceinline__ float {name}(float value) {{\n    return {text};\n}}"


PASSED_TABLE = "PassedTable"

_DEFINED = re.compile(r"__forceinline__ [^(]*?(\w+)\(|typedef [^;]* (\w+);|struct (?:__align__\(\d+\) )?(\w+) {")


def defined(snippet: str) -> str:
    """The name of the first function or type of a snippet."""
    found = _DEFINED.search(snippet)
    assert found is not None, f"a snippet defines a function or a type: {snippet}"
    return str(found[found.lastindex or 0])


_SNIPPETS = (
    _APART,
    _UNIFORM,
    _from_below(Op.ADD, "add.s32", "adds to the value"),
    _from_below(Op.MAX, "max.s32", "the larger of the value and"),
    _shared_out(Op.ADD, "own + its"),
    _shared_out(Op.MAX, "fmaxf(own, its)"),
    f"struct {PASSED_TABLE} {{ long long words[{PASSED_WORDS}]; }};  // filled by the host",
    *(_function(name, *parts) for name, parts in _FUNCTIONS.items()),
    *format_prelude(),
    *map(_copy_async, COPIES),
    *map(_load_streaming, STREAMED),
    _STORE_WHERE,
    _COMMIT_COPIES,
    _WAIT_COPIES,
    *matrix_prelude(),
    *unpack_prelude(),
    *async_prelude(),
)
PRELUDE: dict[str, str] = {defined(snippet): snippet for snippet in _SNIPPETS}
"""Every snippet by the name it defines, in the order of printing: what needs another one stands below it."""


def prelude_text(used: Iterable[str]) -> str:
    """The snippets that define the names in `used`, other names ignored; empty when there is nothing to define."""
    names = set(used)
    snippets = [text for name, text in PRELUDE.items() if name in names]
    snippets += [text for text in map(wgmma_text, sorted(names)) if text is not None]
    return "".join(f"{text}\n\n" for text in snippets)
