"""What a cubin's user must know, as plain data for a JSON file: parameters, grid, shared memory, what is assumed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tilewright.artifacts import Cubin, Parameter
from tilewright.export.bundle import Bundle, Exported
from tilewright.ir.text import ExprText
from tilewright.problem.gemm import Operand, Order
from tilewright.runtime.tensor_map import L2_PROMOTION, MAP_BYTES
from tilewright.schedule.codec import to_data
from tilewright.version import __version__

FORMAT = 1

ELEMENT_STRIDES, INTERLEAVE, OUT_OF_BOUNDS = [1, 1], "NONE", "NONE"
"""The rest of what cuTensorMapEncodeTiled is told, as `runtime.tensor_map` tells it."""


def description(bundle: Bundle, cubins: Mapping[tuple[str, str], tuple[str, Cubin]]) -> dict[str, Any]:
    """cubins: by entry and architecture, the file (relative to the folder) and what is in it."""
    gemm = bundle.gemm
    return {
        "format": FORMAT,
        "written_by": f"tilewright {__version__}",
        "name": bundle.name,
        "origin": bundle.origin,
        "computes": gemm.formula(),
        "operands": [_operand(operand) for operand in (*gemm.operands, *gemm.added)],
        "multiplied_in": gemm.multiplied.name,
        "accumulated_in": gemm.accumulate.name,
        "schedule": to_data(bundle.schedule),
        "choose": "the first kernel whose needs are met",
        "kernels": [_kernel(exported, cubins) for exported in bundle.kernels],
    }


def _operand(operand: Operand) -> dict[str, Any]:
    rows, columns = (dim.upper() for dim in operand.dims)
    shape = [rows, columns]
    if operand.name == "bias":
        return {"name": "bias", "type": operand.dtype.name, "elements": operand.contiguous.upper()}
    lines = "rows" if operand.order is Order.ROW else "columns"
    return {
        "name": operand.name,
        "type": operand.dtype.name,
        "shape": shape,
        "contiguous": lines,
        "leading_dimension": operand.leading,
    }


def _kernel(exported: Exported, cubins: Mapping[tuple[str, str], tuple[str, Cubin]]) -> dict[str, Any]:
    kernel, source = exported.kernel, exported.build.source
    needs = exported.needs
    return {
        "entry": exported.entry,
        "needs": {
            "multiples": {dim.upper(): tile for dim, tile in needs.multiples.items()},
            "alignment_bytes": dict(needs.alignment_bytes),
            "offsets_below_2_31": needs.near,
        },
        "tile": {dim.upper(): extent for dim, extent in kernel.tile.items()},
        "parameters": parameters(source.parameters),
        "block": list(kernel.block),
        "grid": [ExprText()(extent) for extent in kernel.grid],
        "most_blocks": f"multiprocessors / {kernel.cluster} * {kernel.cluster}" if kernel.resident else None,
        "equal_rounds": kernel.equal_items,
        "cluster": [kernel.cluster, 1, 1],
        "dynamic_shared_bytes": source.dynamic_shared_bytes,
        "programmatic_stream_serialization": kernel.overlapped,
        "source_sha256": exported.source_digest,
        "cubins": [_cubin(file, cubin) for (entry, _), (file, cubin) in cubins.items() if entry == exported.entry],
    }


def _cubin(file: str, cubin: Cubin) -> dict[str, Any]:
    return {
        "file": file,
        "arch": cubin.arch,
        "sha256": hashlib.sha256(cubin.image).hexdigest(),
        "compiler": cubin.compiler,
        "resources": asdict(cubin.resources),
    }


def parameters(given: Sequence[Parameter]) -> list[dict[str, Any]]:
    """Kernel parameters in order, as cuLaunchKernelEx takes their addresses.

    Their offsets are the driver's to know: they depend on where an architecture's parameters begin.
    """
    return [{"name": parameter.name, **_kind(parameter), "bytes": _size_bytes(parameter)} for parameter in given]


def _size_bytes(parameter: Parameter) -> int:
    if parameter.tensor_map is not None:
        return MAP_BYTES
    return 8 if parameter.is_pointer else parameter.dtype.bytes


def _kind(parameter: Parameter) -> dict[str, Any]:
    box = parameter.tensor_map
    if box is None:
        return {"kind": "pointer" if parameter.is_pointer else "value", "type": parameter.dtype.name}
    inner, outer = box.extents
    return {
        "kind": "tensor_map",
        "type": "CUtensorMap",
        "tensor_map": {
            "data_type": box.dtype.tensor_map,
            "address": box.pointer,
            "sizes": [str(inner), str(outer)],
            "strides_bytes": [f"{box.leading} * {box.dtype.bytes}"],
            "box": list(box.box),
            "element_strides": ELEMENT_STRIDES,
            "interleave": INTERLEAVE,
            "swizzle": box.swizzle.removeprefix("CU_TENSOR_MAP_SWIZZLE_"),
            "l2_promotion": L2_PROMOTION,
            "out_of_bounds": OUT_OF_BOUNDS,
        },
    }
