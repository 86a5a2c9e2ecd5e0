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
    entry: str, comment: str, before: str, parameters: Sequence[Parameter], body: str, threads: int, stored: str
) -> CudaSource:
    """One kernel: `before` are definitions, `stored` the name of the pointer that is written."""

    def declared(parameter: Parameter) -> str:
        if not parameter.is_pointer:
            return f"{parameter.dtype.cuda} {parameter.name}"
        const = "" if parameter.name == stored else "const "
        return f"{const}{parameter.dtype.cuda}* __restrict__ {parameter.name}"

    signature = ", ".join(declared(parameter) for parameter in parameters)
    heading = "".join(f"// {line}\n" for line in comment.splitlines())
    text = (
        f"{heading}\n{before}"
        f'extern "C" __global__ void __launch_bounds__({threads})\n{entry}({signature})\n{{\n{body}}}\n'
    )
    return CudaSource(text, entry, tuple(parameters), threads)
