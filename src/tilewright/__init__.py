"""tilewright turns a matrix multiplication into a fast GPU kernel, one optimisation at a time.

    import tilewright as tw

    gemm = tw.Gemm(512, 512, 512)
    built = tw.build(gemm, tw.Schedule(tw.Split("m", 32, into=("m_block", "m_thread")), ...))
    print(built.text)        # the program
    print(built.cuda)        # the CUDA C++ it becomes

    c = tw.matmul(a, b)      # arrays of PyTorch, CuPy, JAX or NumPy: the fastest kernel that is known for them

The names below are loaded when they are first used, so that `import tilewright` costs next to nothing and touches no
GPU.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tilewright.version import __version__ as __version__

if TYPE_CHECKING:
    from tilewright import distributed as distributed
    from tilewright.dtypes import BF16, F16, F32, TF32
    from tilewright.errors import TilewrightError
    from tilewright.frontend import (
        autotune,
        combine_rows,
        grouped_matmul,
        linear,
        linear_gated,
        matmul,
        ops,
        plan,
        prepare,
        quantize,
        quantize_weight,
        scaled_grouped_matmul,
        scaled_matmul,
    )
    from tilewright.integrations.routing import route_torch
    from tilewright.ir.buffer import Space
    from tilewright.ir.kernel import Kernel, Variant
    from tilewright.ir.program import Level, Pattern, RasterOrder, Route
    from tilewright.ladders import LADDERS, find_ladder, find_rung
    from tilewright.layout.arrangement import Auto, Interleaved, Permuted, SwizzleAtoms, Xor
    from tilewright.layout_search import relayout_auto
    from tilewright.problem import Gemm, Operands, Order, check, make_operands
    from tilewright.report.debugger import watch
    from tilewright.schedule import (
        Accumulate,
        Bind,
        Cluster,
        DependentLaunch,
        Distribute,
        Epilogue,
        Fuse,
        Persist,
        Pipeline,
        Prefetch,
        Raster,
        Relayout,
        Reorder,
        Schedule,
        Snake,
        Specialize,
        Split,
        Stage,
        Tensorize,
        Transfer,
        Unroll,
        Vectorize,
    )
    from tilewright.simulator import simulate
    from tilewright.toolchain import Build, build

_HOME = {
    "tilewright.dtypes": ("BF16", "F16", "F32", "TF32"),
    "tilewright.errors": ("TilewrightError",),
    "tilewright.integrations.routing": ("route_torch",),
    "tilewright.ir.buffer": ("Space",),
    "tilewright.ir.kernel": ("Kernel", "Variant"),
    "tilewright.ir.program": ("Level", "Pattern", "RasterOrder", "Route"),
    "tilewright.ladders": ("LADDERS", "find_ladder", "find_rung"),
    "tilewright.layout.arrangement": ("Auto", "Interleaved", "Permuted", "SwizzleAtoms", "Xor"),
    "tilewright.layout_search": ("relayout_auto",),
    "tilewright.problem": ("Gemm", "Operands", "Order", "check", "make_operands"),
    "tilewright.report.debugger": ("watch",),
    "tilewright.simulator": ("simulate",),
    "tilewright.toolchain": ("Build", "build"),
}
"""Where names live; classes that stand nowhere here are steps of schedules, and functions calls of the library."""

_HOME_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Accumulate",
    "Auto",
    "BF16",
    "Bind",
    "Build",
    "Cluster",
    "Distribute",
    "Epilogue",
    "F16",
    "F32",
    "Fuse",
    "Gemm",
    "Interleaved",
    "Kernel",
    "LADDERS",
    "Level",
    "Operands",
    "Order",
    "Pattern",
    "Permuted",
    "DependentLaunch",
    "Persist",
    "Pipeline",
    "Prefetch",
    "Raster",
    "RasterOrder",
    "Relayout",
    "Reorder",
    "Route",
    "Schedule",
    "SwizzleAtoms",
    "Snake",
    "Space",
    "Specialize",
    "Split",
    "Stage",
    "TF32",
    "TilewrightError",
    "Tensorize",
    "Transfer",
    "Unroll",
    "Variant",
    "Vectorize",
    "Xor",
    "autotune",
    "build",
    "check",
    "combine_rows",
    "find_ladder",
    "find_rung",
    "grouped_matmul",
    "linear",
    "linear_gated",
    "make_operands",
    "matmul",
    "ops",
    "plan",
    "prepare",
    "quantize",
    "quantize_weight",
    "relayout_auto",
    "route_torch",
    "scaled_grouped_matmul",
    "scaled_matmul",
    "simulate",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name == "distributed":
        return importlib.import_module("tilewright.distributed")
    if name not in __all__:
        from difflib import get_close_matches  # here, so that `import tilewright` does not wait for it

        near = get_close_matches(name, __all__, n=1)
        guess = f" (did you mean {near[0]!r}?)" if near else ""
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}{guess}")
    home = _HOME_OF.get(name) or ("tilewright.schedule" if name[0].isupper() else "tilewright.frontend")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
