"""What the templates of an exported project say: every name, type and condition in it, read from the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.artifacts import Cubin, Parameter, TensorBox
from tilewright.bench.records import commit
from tilewright.codegen import operand_line
from tilewright.dtypes import F32, DType
from tilewright.export.bundle import Bundle, Exported
from tilewright.ir.text import ExprText
from tilewright.problem.gemm import Gemm, Operand
from tilewright.runtime.tensor_map import L2_PROMOTION
from tilewright.toolchain import MAX_SIZE
from tilewright.units import format_bytes
from tilewright.version import __version__

VARIABLES = {"A": "a", "B": "b", "C": "c", "bias": "bias_line", "residual": "residual_matrix"}
"""How the launcher calls what it knows of each operand; its address keeps the operand's name."""

EXAMPLE = (256, 384, 256)
"""The K of the example is a number in every format."""


def project_context(bundle: Bundle, cubins: Mapping[tuple[str, str], Cubin]) -> dict[str, Any]:
    """For the launcher, its header, the CMake file and the README."""
    gemm = bundle.gemm
    operands = [*gemm.operands, *gemm.added]
    kernels = [_kernel(exported, bundle, cubins) for exported in bundle.kernels]
    leading = [operand.leading for operand in operands if operand.name != "bias"]
    start = _start(bundle.general)
    changed = commit()
    return {
        "name": bundle.name,
        "prefix": bundle.prefix,
        "origin": bundle.origin,
        "version": __version__,
        "commit": f" ({changed})" if changed else "",
        "formula": gemm.formula(),
        "accumulate": gemm.accumulate.name,
        "formats": _formats(gemm),
        "operand_lines": [operand_line(operand, gemm) for operand in operands],
        "schedule_lines": _schedule_lines(bundle),
        "archs": [arch.name for arch in bundle.archs],
        "cmake_archs": [f"{arch.name.removeprefix('sm_')}-real" for arch in bundle.archs],
        "gencode": " ".join(
            f"-gencode arch=compute_{arch.name.removeprefix('sm_')},code={arch.name}" for arch in bundle.archs
        ),
        "device_text": bundle.cuda,
        "most": MAX_SIZE,
        "operands": [_operand(operand, gemm) for operand in operands],
        "pointer_declarations": [_declaration(operand) for operand in operands],
        "leading_declarations": [f"int64_t {name}" for name in leading],
        "call_pointers": [operand.name for operand in operands],
        "call_leading": leading,
        "room": _room(operands),
        "missing": _missing(operands),
        "kernels": kernels,
        "start": start,
        "grid_sizes": [size for size in "MNK" if any(size in extent for extent in start["grid"])],
        "maps": start["maps"],
        "uses_dynamic": any(kernel["dynamic_shared_bytes"] for kernel in kernels),
        "l2_promotion": L2_PROMOTION,
        "resident": any(kernel["resident"] for kernel in kernels),
        "uses_near": any(exported.needs.near for exported in bundle.kernels),
        "aligned": bool(bundle.general.needs.aligned),
        "misaligned": _misaligned(bundle.general),
    }


def _schedule_lines(bundle: Bundle) -> list[str]:
    """The schedule of all kernels, and that of the general one where it is another."""
    lines, general = bundle.schedule.text.splitlines(), bundle.general
    if general.build.schedule == bundle.schedule:
        return lines
    return [*lines, "", f"{general.entry}:", "", *general.build.schedule.text.splitlines()]


def _formats(gemm: Gemm) -> str:
    product = f", multiplied in {gemm.multiplied}" if gemm.multiplied is not gemm.dtype else ""
    return f"A and B {gemm.dtype}{product}, sums in {gemm.accumulate}, C {gemm.out}"


def _misaligned(general: Exported) -> str:
    needed = general.needs.aligned
    if not needed:
        return "an address is not a multiple of the bytes of an element"
    *some, last = needed
    names = f"{', '.join(some)} and {last}" if some else last
    sizes = "".join(f", and {dim.upper()} of {size}" for dim, size in general.needs.multiples.items())
    return f"addresses and rows of {names} are to be multiples of {max(needed.values())} bytes{sizes}"


def _operand(operand: Operand, gemm: Gemm) -> dict[str, Any]:
    length, lines = operand.contiguous.upper(), operand.strided.upper()
    leading = operand.leading
    if operand.name == "bias":
        lines, leading = "1", "0"
    if operand.name == "residual":
        leading = f"beta != 0 ? {leading} : 0"
    one, zero = _bits(operand.dtype, 1.0), _bits(operand.dtype, 0.0)
    is_factor = operand.name in ("A", "B")
    return {
        "name": operand.name,
        "variable": VARIABLES[operand.name],
        "words": operand_line(operand, gemm).removeprefix(operand.name).strip(),
        "fields": [operand.name, length, lines, leading, str(operand.dtype.bytes)],
        "host": operand.dtype.host,
        "elements": length if operand.name == "bias" else f"{lines} * {length}",
        "start": one if is_factor else zero,
        "start_words": f"{1 if is_factor else 0} in {operand.dtype}",
    }


def _bits(dtype: DType, value: float) -> str:
    """A number as the host writes it: itself, or the bits of a format that C++ lacks.

    >>> from tilewright.dtypes import BF16
    >>> _bits(F32, 1.0), _bits(BF16, 256.0)
    ('1.0f', '0x4380')
    """
    if dtype is F32:
        return f"{value:.1f}f"
    bits = int.from_bytes(dtype.encode(np.array([value], np.float32)).tobytes(), "little")
    return f"0x{bits:0{2 * dtype.bytes}x}"


def _declaration(operand: Operand) -> str:
    element = "float" if operand.dtype is F32 else "void"
    return f"{'' if operand.name == 'C' else 'const '}{element}* {operand.name}"


def _room(operands: list[Operand]) -> list[str]:
    """When a leading dimension is too short; that of a residual counts only where it is read."""
    plain = [f"!has_room({VARIABLES[o.name]})" for o in operands if o.name not in ("bias", "residual")]
    residual = [f"(beta != 0 && !has_room({VARIABLES[o.name]}))" for o in operands if o.name == "residual"]
    return plain + residual


def _missing(operands: list[Operand]) -> list[str]:
    plain = [f"{o.name} == nullptr" for o in operands if o.name != "residual"]
    residual = ["(beta != 0 && residual == nullptr)" for o in operands if o.name == "residual"]
    return plain + residual


def _kernel(exported: Exported, bundle: Bundle, cubins: Mapping[tuple[str, str], Cubin]) -> dict[str, Any]:
    kernel, tile = exported.kernel, exported.kernel.tile
    registers = [cubins[exported.entry, arch.name].resources.registers for arch in bundle.archs]
    return {
        "label": exported.label,
        "entry": exported.entry,
        "needs": exported.needs.words,
        "conditions": conditions(exported),
        "threads": kernel.threads_per_block,
        "tile": f"{tile['m']} x {tile['n']} x {tile['k']}",
        "shared": format_bytes(kernel.shared_bytes),
        "dynamic_shared_bytes": exported.build.source.dynamic_shared_bytes,
        "resident": kernel.resident,
        "registers": registers,
    }


def _start(exported: Exported) -> dict[str, Any]:
    """What the kernels of a bundle have in common when they are started."""
    kernel = exported.kernel
    return {
        "grid": [ExprText()(extent) for extent in kernel.grid],
        "block": list(kernel.block),
        "cluster": kernel.cluster,
        "overlapped": kernel.overlapped,
        "maps": [_map(p.name, p.tensor_map) for p in kernel.parameters if p.tensor_map is not None],
        "arguments": _argument_rows(kernel.parameters),
    }


def conditions(exported: Exported) -> list[str]:
    """When the launcher may choose a kernel, as C++: rows of terms that must all hold."""
    needs, kernel = exported.needs, exported.kernel
    sizes = [f"{dim.upper()} % {tile} == 0" for dim, tile in needs.multiples.items()]
    aligned = [f"is_aligned({VARIABLES[name]}, {size})" for name, size in needs.alignment_bytes.items()]
    tile, operands = kernel.cluster_tile, (*kernel.gemm.operands, *kernel.gemm.added)
    near = [f"is_near({VARIABLES[o.name]}, {tile[o.contiguous]}, {tile[o.strided]})" for o in operands]
    terms = (sizes, aligned, near if needs.near else [])
    return [" && ".join(row) for some in terms for row in batched(some, _TERMS_IN_A_ROW)]


_TERMS_IN_A_ROW = 3


def batched(terms: Sequence[str], count: int) -> list[Sequence[str]]:
    """
    >>> batched("abcde", 3)
    ['abc', 'de']
    """
    return [terms[first : first + count] for first in range(0, len(terms), count)]


def _map(name: str, box: TensorBox) -> dict[str, Any]:
    return {
        "name": name,
        "operand": VARIABLES[box.pointer],
        "data_type": box.dtype.tensor_map,
        "box": list(box.box),
        "swizzle": box.swizzle,
    }


def _argument_rows(parameters: tuple[Parameter, ...]) -> list[list[str]]:
    """What a kernel is given, in rows that belong together. Sizes are known to fit the types that it declares."""
    pointers = [[_pointer(p)] for p in parameters if p.is_pointer]
    maps = [p.name for p in parameters if p.tensor_map is not None]
    plain = [p for p in parameters if not p.is_pointer and p.tensor_map is None]
    sizes = [f"call.{p.name}" for p in plain if p.name in ("M", "N", "K")]
    leading = [f"call.{_VARIABLE_OF_LEADING[p.name]}.leading" for p in plain if p.name in _VARIABLE_OF_LEADING]
    factors = [f"call.{p.name}" for p in plain if p.name in ("alpha", "beta")]
    assert len(sizes) + len(leading) + len(factors) == len(plain)
    after = [name for name in leading if "residual" in name]  # its place is behind alpha and beta
    before = [name for name in leading if name not in after]
    return [row for row in (*pointers, [*sizes, *before], [*factors, *after], maps) if row]


_VARIABLE_OF_LEADING = {"lda": "a", "ldb": "b", "ldc": "c", "ld_residual": VARIABLES["residual"]}


def _pointer(parameter: Parameter) -> str:
    data = f"call.{VARIABLES[parameter.name]}.data"
    if parameter.name == "C":
        return f"static_cast<{parameter.dtype.cuda}*>(const_cast<void*>({data}))"
    return f"static_cast<const {parameter.dtype.cuda}*>({data})"


def example_context(bundle: Bundle) -> dict[str, Any]:
    """For the example: matrices of ones, tight, whose product is K everywhere."""
    gemm = bundle.gemm
    operands = [*gemm.operands, *gemm.added]
    return {
        "example": EXAMPLE,
        "c_host": gemm.out.host,
        "expected": _bits(gemm.out, float(EXAMPLE[2])),
        "expected_comment": "" if gemm.out is F32 else f"  // {EXAMPLE[2]} in {gemm.out}",
        "example_leading": [operand.contiguous.upper() for operand in operands if operand.name != "bias"],
    }


def element_types(gemm: Gemm) -> dict[str, str]:
    """The types of elements in CUDA's own headers, for the check."""
    return {"in_type": gemm.dtype.header, "out_type": gemm.out.header}
