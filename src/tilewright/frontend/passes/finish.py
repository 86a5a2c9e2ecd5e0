"""Partial sums added up in a fixed order, and what a call asks of them: out = alpha * sum + beta * out.

The order of the parts is the order of k, whatever ran first, so the same call gives the same bits.
"""

from __future__ import annotations

from tilewright.artifacts import CudaSource, Parameter
from tilewright.dtypes import F32, I32, I64, DType
from tilewright.frontend.passes.texts import from_float, prelude, source, to_float
from tilewright.units import ceil_div

THREADS = 256


def finish_grid(m: int, n: int, width: int) -> tuple[int, int, int]:
    """Blocks for a result."""
    return ceil_div(ceil_div(n, width), THREADS), min(m, 65535), 1


def finish_source(out: DType, *, width: int) -> CudaSource:
    """The kernel for a format of the result, `width` (4 or 1) neighbours of a row at a time.

    Arguments: parts, out, M, N, ldc, count, alpha, beta. parts: count matrices of M x N in f32, tight, one below the
    other. With width 4, N is a multiple of 4 and rows of out begin at whole vectors.
    """
    parameters = [
        Parameter("parts", F32, is_pointer=True),
        Parameter("out", out, is_pointer=True),
        Parameter("M", I32),
        Parameter("N", I32),
        Parameter("ldc", I64),
        Parameter("count", I32),
        Parameter("alpha", F32),
        Parameter("beta", F32),
    ]
    load = "*(const float4*)&parts[at]" if width == 4 else "parts[at]"
    vector = "float4" if width == 4 else "float"
    names = ["sum.x", "sum.y", "sum.z", "sum.w"][:width] if width == 4 else ["sum"]
    add = "\n".join(
        f"            {name} += next{name[3:]};" for name in names
    )
    scaled = "\n".join(
        f"        {{\n            float value = alpha * {name};\n"
        f"            if (beta != 0.0f) {{\n"
        f"                value = fmaf(beta, {to_float(out, f'place[{i}]')}, value);\n            }}\n"
        f"            result[{i}] = {from_float(out, 'value')};\n        }}"
        for i, name in enumerate(names)
    )
    wide = {4: {4: "float4", 2: "ushort4"}[out.bytes], 1: ""}[width]
    write = f"*({wide}*)place = *({wide}*)result;" if width == 4 else "place[0] = result[0];"
    align = f"__align__({4 * out.bytes}) " if width == 4 else ""
    body = f"""\
    const int n = (int(blockIdx.x) * {THREADS} + int(threadIdx.x)) * {width};
    if (n >= N) {{
        return;
    }}
    const long long part = (long long)M * N;
    for (int m = int(blockIdx.y); m < M; m += int(gridDim.y)) {{
        long long at = (long long)m * N + n;
        {vector} sum = {load};
        #pragma unroll 4
        for (int i = 1; i < count; ++i) {{
            at += part;
            const {vector} next = {load};
{add}
        }}
        {out.cuda}* place = out + m * ldc + n;
        {align}{out.cuda} result[{width}];
{scaled}
        {write}
    }}
"""
    return source(
        f"finish_{out.name}_{width}",
        "Partial sums, added in the order of k, and scaled: out = alpha * sum + beta * out.",
        prelude(out),
        parameters,
        body,
        THREADS,
        "out",
    )
