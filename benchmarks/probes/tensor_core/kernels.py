"""CUDA kernels that run one matrix instruction: block by block D = A B + C, bit patterns in and out.

A is (m, k) and B (n, k), both with k contiguous, 32 bytes a row; C and D are (m, n).
"""

from __future__ import annotations

from dataclasses import dataclass

from tensor_core.formats import BF16, E4M3, E5M2, F16, F32, TF32, Format
from tilewright import dtypes
from tilewright.artifacts import CudaSource, Parameter

ROW_WORDS = 8
"""Words of a row of A or B: each of these instructions takes 32 bytes of k."""


@dataclass(frozen=True)
class Instruction:
    """kind: mma (mma.sync), wmma or wgmma."""

    kind: str
    product: Format
    sum: Format

    @property
    def k(self) -> int:
        return 4 * ROW_WORDS // self.product.bytes

    @property
    def m(self) -> int:
        return 64 if self.kind == "wgmma" else 16

    @property
    def n(self) -> int:
        return 16 if self.kind == "wmma" else 8

    @property
    def threads(self) -> int:
        return 128 if self.kind == "wgmma" else 32

    @property
    def family(self) -> str:
        return f"{self.kind}.m{self.m}n{self.n}k{self.k}"

    @property
    def name(self) -> str:
        return f"{self.family}.{self.sum.name}.{self.product.name}"


INSTRUCTIONS = (
    *(Instruction("mma", product, F32) for product in (F16, BF16, TF32, E4M3, E5M2)),
    Instruction("mma", F16, F16),
    *(Instruction("wmma", product, F32) for product in (F16, BF16, TF32)),
    Instruction("wmma", F16, F16),
    *(Instruction("wgmma", product, F32) for product in (F16, BF16, TF32, E4M3, E5M2)),
    Instruction("wgmma", F16, F16),
    Instruction("wgmma", E4M3, F16),
)


def source(of: Instruction) -> CudaSource:
    """The kernel of an instruction: pointers to A, B, C and D; a block a tile."""
    total = "unsigned short" if of.sum is F16 else "unsigned"
    body = (
        _wmma(of) if of.kind == "wmma" else _loaded(of) + (_mma(of) if of.kind == "mma" else _wgmma(of)) + _stored(of)
    )
    text = f"""
extern "C" __global__ void __launch_bounds__({of.threads})
one_instruction(const unsigned* __restrict__ all_a, const unsigned* __restrict__ all_b,
                const {total}* __restrict__ all_c, {total}* __restrict__ all_d)
{{
    const unsigned* a = all_a + blockIdx.x * {of.m * ROW_WORDS};
    const unsigned* b = all_b + blockIdx.x * {of.n * ROW_WORDS};
    const {total}* c = all_c + blockIdx.x * {of.m * of.n};
    {total}* d = all_d + blockIdx.x * {of.m * of.n};
    const int warp = threadIdx.x / 32, row = warp * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
{body}}}
"""
    parameters = tuple(Parameter(name, dtypes.F32, is_pointer=True) for name in ("all_a", "all_b", "all_c", "all_d"))
    return CudaSource(text, "one_instruction", parameters, of.threads, 0)


def _slots(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + register}" for register in range(count)) + "}"


def _of(array: str, count: int, constraint: str) -> str:
    return ", ".join(f'"{constraint}"({array}[{register}])' for register in range(count))


def _loaded(of: Instruction) -> str:
    if of.sum is F16:
        return """    unsigned s[2];
    for (int r = 0; r < 2; ++r) {
        const int at = (row + 8 * r) * 8 + 2 * pair;
        s[r] = c[at] | (unsigned)c[at + 1] << 16;
    }
"""
    return """    unsigned s[4];
    for (int r = 0; r < 4; ++r) s[r] = c[(row + 8 * (r / 2)) * 8 + 2 * pair + r % 2];
"""


def _stored(of: Instruction) -> str:
    if of.sum is F16:
        return """    for (int r = 0; r < 2; ++r) {
        const int at = (row + 8 * r) * 8 + 2 * pair;
        d[at] = s[r] & 0xffff;
        d[at + 1] = s[r] >> 16;
    }
"""
    return """    for (int r = 0; r < 4; ++r) d[(row + 8 * (r / 2)) * 8 + 2 * pair + r % 2] = s[r];
"""


def _mma(of: Instruction) -> str:
    count, product, total = 2 if of.sum is F16 else 4, of.product.name, of.sum.name
    name = f"mma.sync.aligned.m16n8k{of.k}.row.col.{total}.{product}.{product}.{total}"
    sums = _slots(0, count)
    return f"""    unsigned x[4], y[2];
    for (int r = 0; r < 4; ++r) x[r] = a[(row + 8 * (r % 2)) * 8 + pair + 4 * (r / 2)];
    for (int r = 0; r < 2; ++r) y[r] = b[row * 8 + pair + 4 * r];
    asm volatile("{name} {sums}, {_slots(count, 4)}, {_slots(count + 4, 2)}, {sums};"
        : {_of("s", count, "+r")} : {_of("x", 4, "r")}, {_of("y", 2, "r")});
"""


def _wgmma(of: Instruction) -> str:
    count, product = 2 if of.sum is F16 else 4, of.product.name
    orders = ", 0, 0" if of.product.bytes == 2 else ""
    name = f"wgmma.mma_async.sync.aligned.m64n8k{of.k}.{of.sum.name}.{product}.{product}"
    return f"""    // Core matrices of 8 rows of 16 bytes; those of the same rows follow each other.
    __shared__ __align__(1024) unsigned left[64 * 8], right[8 * 8];
    for (int i = threadIdx.x; i < 64 * 8; i += 128) left[i / 64 * 64 + i % 8 / 4 * 32 + i / 8 % 8 * 4 + i % 4] = a[i];
    for (int i = threadIdx.x; i < 8 * 8; i += 128) right[i % 8 / 4 * 32 + i / 8 * 4 + i % 4] = b[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const unsigned long long steps = 8ull << 16 | 16ull << 32;
    const unsigned long long of_a = steps | ((unsigned long long)__cvta_generic_to_shared(left) & 0x3ffff) >> 4;
    const unsigned long long of_b = steps | ((unsigned long long)__cvta_generic_to_shared(right) & 0x3ffff) >> 4;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{{.reg .pred adds; setp.ne.b32 adds, %{count + 2}, 0;"
        " {name} {_slots(0, count)}, %{count}, %{count + 1}, adds, 1, 1{orders};}}"
        : {_of("s", count, "+r")} : "l"(of_a), "l"(of_b), "r"(1));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
"""


def _wmma(of: Instruction) -> str:
    each, count = 8 if of.product is F16 else 4, 4 if of.sum is F16 else 8
    shape, total, kind = f"m16n16k{of.k}", of.sum.name, "unsigned" if of.sum is F16 else "float"
    letter = "r" if of.sum is F16 else "f"
    formats = f"{total}.{total}" if of.product is F16 else f"f32.{of.product.name}.{of.product.name}.f32"
    sums = _slots(0, count)
    return f"""    unsigned x[{each}], y[{each}];
    {kind} s[{count}];
    asm volatile("wmma.load.a.sync.aligned.row.{shape}.{of.product.name} {_slots(0, each)}, [%{each}], {of.k};"
        : {_of("x", each, "=r")} : "l"(a));
    asm volatile("wmma.load.b.sync.aligned.col.{shape}.{of.product.name} {_slots(0, each)}, [%{each}], {of.k};"
        : {_of("y", each, "=r")} : "l"(b));
    asm volatile("wmma.load.c.sync.aligned.row.{shape}.{total} {sums}, [%{count}], 16;"
        : {_of("s", count, f"={letter}")} : "l"(c));
    asm volatile("wmma.mma.sync.aligned.row.col.{shape}.{formats} {sums}, {_slots(count, each)},"
        " {_slots(count + each, each)}, {sums};"
        : {_of("s", count, f"+{letter}")} : {_of("x", each, "r")}, {_of("y", each, "r")});
    asm volatile("wmma.store.d.sync.aligned.row.{shape}.{total} [%0], {_slots(1, count)}, 16;"
        :: "l"(d), {_of("s", count, letter)} : "memory");
"""
