"""What the texts share: number formats in CUDA C++, and a source from its parts."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.artifacts import CudaSource, Parameter
from tilewright.codegen.prelude import prelude_text
from tilewright.dtypes import BF16, F16, F32, DType

TO_FLOAT = {F16: "float_from_half", BF16: "float_from_bf16"}
FROM_FLOAT = {F16: "half_from_float", BF16: "bf16_from_float"}


def to_float(dtype: DType, value: str) -> str:
    """A value of `dtype` as a float."""
    return value if dtype is F32 else f"{TO_FLOAT[dtype]}({value})"


def from_float(dtype: DType, value: str) -> str:
    """A float rounded to `dtype`."""
    return value if dtype is F32 else f"{FROM_FLOAT[dtype]}({value})"


def prelude(*dtypes: DType) -> str:
    """The types and conversions of some formats."""
    names = {dtype.cuda for dtype in dtypes}
    names |= {table[dtype] for table in (TO_FLOAT, FROM_FLOAT) for dtype in dtypes if dtype in table}
    return prelude_text(names)


def source(
    entry: str,
    comment: str,
    before: str,
    parameters: Sequence[Parameter],
    body: str,
    threads: int,
    stored: str,
    *,
    blocks_per_sm: int = 0,
    early: bool = True,
) -> CudaSource:
    """One kernel: `before` are definitions, `stored` what the names of pointers begin with that are written.

    blocks_per_sm: for which the compiler saves registers; 0 for it to choose. early: it starts under the kernel before.
    That is for short kernels of few blocks: of one that fills the GPU in a single round, blocks that start while
    another still runs crowd where places are free, and some SMs are left with more than their share. Measured on the
    H200: 1 x 8192 x 8192 in f32, 8 parts, 73 us instead of 64.
    """

    def declared(parameter: Parameter) -> str:
        if not parameter.is_pointer:
            return f"{parameter.dtype.cuda} {parameter.name}"
        # Under a kernel that may still write what this one reads, nothing is __restrict__: loads must not move up.
        const = "" if parameter.name.startswith(stored) else "const "
        return f"{const}{parameter.dtype.cuda}*{'' if early else ' __restrict__'} {parameter.name}"

    signature = ", ".join(declared(parameter) for parameter in parameters)
    heading = "".join(f"// {line}\n" for line in comment.splitlines())
    bounds = f"{threads}, {blocks_per_sm}" if blocks_per_sm else str(threads)
    text = (
        f"{heading}\n{before}"
        f'extern "C" __global__ void __launch_bounds__({bounds})\n{entry}({signature})\n{{\n'
        f"{_BEGIN if early else ''}{body}}}\n"
    )
    return CudaSource(text, entry, tuple(parameters), threads, overlapped=early)


_BEGIN = """\
#if __CUDA_ARCH__ >= 900
    // The kernel behind this one may start; this one touches memory when those before it have ended.
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
"""
"""How a kernel starts under the one before (programmatic dependent launch), and why that is safe.

Launches of a chain, pad -> product -> finish -> pad of the next call, each start when every block of the one before has
begun. No thread touches global memory before its own wait, which ends when the grid before has ended and its writes are
seen. That grid had waited likewise, or was launched the plain way, so it ended after the one before it: by induction
all earlier grids have ended, though only the last one is named. So a later kernel sees whatever any earlier one wrote,
and a workspace may be used again by the next call, whose first write stands behind its wait. A grid may thus begin
while two earlier ones still run, when the middle one has begun and waits; it takes no place that a block of theirs
needs, for all of those have theirs. Every thread waits, also those that have nothing to do and return."""
