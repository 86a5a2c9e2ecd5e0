"""Functions around the instructions of the tensor cores, as they are printed in front of a kernel that uses them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tilewright.codegen.conversions import sum_register
from tilewright.dtypes import DType
from tilewright.isa.catalog import INSTRUCTIONS
from tilewright.isa.instruction import MatrixInstruction
from tilewright.layout.fragment import Fragment
from tilewright.problem.gemm import Order

_WIDTH = 108
"""Columns of a line of operands, without what stands around them."""

_TO_SHARED = "(unsigned)__cvta_generic_to_shared"


def multiply_name(instruction: MatrixInstruction, orders: tuple[Order, Order] | None) -> str:
    """The function that runs an instruction: `mma_m16n8k16_f32_f16`."""
    laid = "" if orders is None else "_" + "_".join(order.value for order in orders)
    return instruction.name.replace(".", "_") + laid


def load_matrices_name(count: int, transposed: bool) -> str:
    return f"ldmatrix_x{count}{'_transposed' if transposed else ''}"


def load_fragment_name(instruction: MatrixInstruction, role: str, order: Order) -> str:
    family = instruction.family.replace(".", "_")
    return f"{family}_load_{role.lower()}_{instruction.product}_{order.value}"


def store_fragment_name(instruction: MatrixInstruction, order: Order) -> str:
    return f"{instruction.family.replace('.', '_')}_store_{instruction.accumulate}_{order.value}"


def _registers(fragment: Fragment | None, dtype: DType) -> int:
    """32-bit registers of a lane's fragment."""
    assert fragment is not None
    return fragment.registers * dtype.bytes // 4


def _list(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"


def _operands(parts: Sequence[str], indent: int) -> str:
    """A list of operands, broken into lines that fit."""
    lines = [""]
    for number, part in enumerate(parts):
        text = f"{part}, " if number + 1 < len(parts) else part
        if indent + len(lines[-1] + text) > _WIDTH:
            lines.append("")
        lines[-1] += text
    return ("\n" + " " * indent).join(line.rstrip() for line in lines)


def _words(count: int, name: str, pointer: str) -> str:
    """A lane's fragment as whole registers; a copy, as a pointer to another type would break C++'s rule of aliasing."""
    return f"    unsigned {name}[{count}];\n    memcpy({name}, {pointer}, {4 * count});\n"


def _filled(count: int, name: str, pointer: str) -> str:
    """Whole registers into a lane's fragment."""
    return f"    memcpy({pointer}, {name}, {4 * count});\n"


def _multiply(instruction: MatrixInstruction, orders: tuple[Order, Order] | None) -> str:
    product, total = instruction.product.cuda, instruction.accumulate.cuda
    sums = _registers(instruction.c, instruction.accumulate)
    a, b = _registers(instruction.a, instruction.product), _registers(instruction.b, instruction.product)
    taken = "void" if orders is None and instruction.product.bytes == 2 else product  # fragments may be in words
    mnemonic = instruction.mnemonic
    if orders is not None:
        mnemonic = mnemonic.format(a=orders[0].value, b=orders[1].value)
    kind, held = sum_register(instruction.accumulate)
    wide = held == 1
    d = "d" if wide else "sums"
    outputs = _operands([f'"+{kind}"({d}[{i}])' for i in range(sums)], 10)
    inputs = _operands([*(f'"r"(left[{i}])' for i in range(a)), *(f'"r"(right[{i}])' for i in range(b))], 10)
    lists = [_list(0, sums), _list(sums, a), _list(sums + a, b), _list(0, sums)]
    halves = (
        [", ".join(lists)] if sum(map(len, lists)) < _WIDTH else [", ".join(lists[:2]) + ", ", ", ".join(lists[2:])]
    )
    operands = '"\n        "'.join(halves)
    return (
        f"// d += a @ b for a tile of {instruction.m} x {instruction.n} x {instruction.k}, "
        f"by the {instruction.c.lanes} lanes of a warp.\n"
        f"__device__ __forceinline__ void {multiply_name(instruction, orders)}"
        f"({total}* d, const {taken}* a, const {taken}* b) {{\n"
        + _words(a, "left", "a")
        + _words(b, "right", "b")
        + ("" if wide else _words(sums, "sums", "d"))
        + f'    asm("{mnemonic} "\n        "{operands};"\n        : {outputs}\n        : {inputs});\n'
        + ("" if wide else _filled(sums, "sums", "d"))
        + "}"
    )


def _load_matrices(count: int, transposed: bool) -> str:
    mnemonic = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    what = f"{count} matrices" if count > 1 else "a matrix"
    outputs = ", ".join(f'"=r"(words[{i}])' for i in range(count))
    transposing = ", transposed" if transposed else ""
    return (
        f"// Loads {what} of 8 rows of 16 bytes{transposing}; each lane gives the address of one row.\n"
        f"__device__ __forceinline__ void {load_matrices_name(count, transposed)}(void* fragment, const void* row) {{\n"
        + f"    unsigned words[{count}];\n"
        + f'    asm volatile("{mnemonic} {_list(0, count)}, [%{count}];"\n'
        + f"                 : {outputs}\n"
        + f'                 : "r"({_TO_SHARED}(row))\n                 : "memory");\n'
        + _filled(count, "words", "fragment")
        + "}"
    )


def _load_fragment(instruction: MatrixInstruction, role: str, order: Order) -> str:
    fragment = instruction.a if role == "A" else instruction.b
    words, element = _registers(fragment, instruction.product), instruction.product.cuda
    shape = instruction.family.split(".")[1]
    mnemonic = f"wmma.load.{role.lower()}.sync.aligned.{order.value}.{shape}.shared.{instruction.product.ptx}"
    outputs = _operands([f'"=r"(words[{i}])' for i in range(words)], 19)
    return (
        f"// Loads a tile of {role}, {order.value}s `leading` elements apart, by the lanes of a warp.\n"
        f"__device__ __forceinline__ void {load_fragment_name(instruction, role, order)}"
        f"({element}* fragment, const {element}* tile, int leading) {{\n"
        + f"    unsigned words[{words}];\n"
        + f'    asm volatile("{mnemonic} "\n                 "{_list(0, words)}, [%{words}], %{words + 1};"\n'
        + f"                 : {outputs}\n"
        + f'                 : "r"({_TO_SHARED}(tile)), "r"(leading)\n                 : "memory");\n'
        + _filled(words, "words", "fragment")
        + "}"
    )


def _store_fragment(instruction: MatrixInstruction, order: Order) -> str:
    words, element = _registers(instruction.c, instruction.accumulate), instruction.accumulate.cuda
    kind, held = sum_register(instruction.accumulate)
    wide = held == 1
    shape = instruction.family.split(".")[1]
    mnemonic = f"wmma.store.d.sync.aligned.{order.value}.{shape}.shared.{instruction.accumulate.ptx}"
    values = _operands([f'"{kind}"({"fragment" if wide else "words"}[{i}])' for i in range(words)], 19)
    return (
        f"// Stores a tile of accumulators, {order.value}s `leading` elements apart, by the lanes of a warp.\n"
        f"__device__ __forceinline__ void {store_fragment_name(instruction, order)}"
        f"({element}* tile, const {element}* fragment, int leading) {{\n"
        + ("" if wide else _words(words, "words", "fragment"))
        + f'    asm volatile("{mnemonic} "\n                 "[%{words}], {_list(0, words)}, %{words + 1};"\n'
        + f"                 :\n                 : {values},\n"
        + f'                   "r"({_TO_SHARED}(tile)), "r"(leading)\n                 : "memory");\n}}'
    )


_TF32_FROM_FLOAT = """\
// The nearest tf32, ties away from zero, as the float whose lower 13 bits are zero.
__device__ __forceinline__ float tf32_from_float(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return __uint_as_float(bits);
}"""


_ROUND_PAIR = """\
// Two elements of one row of A, or one column of B, as tensor cores are to read them. Those drop the lower 13 bits, so
// half of the last bit that they keep is added first: to nearest, ties away from zero. A NaN must stay one; if one of
// the two is NaN, so is every result that the other has a part in, and one check serves both. (A NaN that has no other
// bits than the lower 13, which no arithmetic makes, is read as infinity; cvt.rna would keep it.)
__device__ __forceinline__ void round_pair_to_tf32(float& first, float& second) {
    asm("{\\n"
        ".reg .pred numbers;\\n"
        "setp.num.f32 numbers, %0, %1;\\n"
        "@numbers add.u32 %0, %0, 0x1000;\\n"
        "@numbers add.u32 %1, %1, 0x1000;\\n"
        "}"
        : "+r"(reinterpret_cast<unsigned&>(first)), "+r"(reinterpret_cast<unsigned&>(second)));
}"""


_TRANSPOSE_QUAD = """\
// Quad shuffle transpose: word j of lane i and word i of lane j change places, of four neighbouring lanes.
__device__ __forceinline__ void transpose_quad(void* place) {
    unsigned words[4];
    memcpy(words, place, 16);
#pragma unroll
    for (int far = 1; far < 4; far *= 2) {
        const bool above = threadIdx.x & far;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & far) continue;
            const unsigned other = __shfl_xor_sync(0xffffffffu, above ? words[i] : words[i + far], far);
            words[i] = above ? other : words[i];
            words[i + far] = above ? words[i + far] : other;
        }
    }
    memcpy(place, words, 16);
}"""


def matrix_prelude() -> tuple[str, ...]:
    """Every snippet."""
    found = [_TF32_FROM_FLOAT, _ROUND_PAIR, _TRANSPOSE_QUAD]
    found += (_load_matrices(count, transposed) for count in (1, 2, 4) for transposed in (False, True))
    for instruction in (known for known in INSTRUCTIONS if not known.reads_shared):
        orders = tuple(Order) if instruction.is_opaque else ()
        found += (_load_fragment(instruction, role, order) for order in orders for role in ("A", "B"))
        found += (_multiply(instruction, both) for both in (product(orders, orders) if orders else (None,)))
        found += (_store_fragment(instruction, order) for order in orders)
    return tuple(found)
