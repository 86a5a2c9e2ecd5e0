"""Partial sums added up in a fixed order, and what a call asks of them: out = f(alpha * sum + beta * R + bias).

The order of the parts is the order of k, whatever ran first, so the same call gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.artifacts import CudaSource, Parameter
from tilewright.codegen.prelude import prelude_text
from tilewright.dtypes import F32, I32, I64, DType
from tilewright.planning.passes.texts import from_float, prelude, source, to_float
from tilewright.problem.epilogue import Epilogue
from tilewright.units import ceil_div

THREADS = 128

AT_ONCE = 8
"""Parts of an element that are loaded before the first is added: as many loads are under way."""


def finish_grid(m: int, n: int, width: int, lines: int = 1) -> tuple[int, int, int]:
    """Blocks for a result."""
    return ceil_div(ceil_div(n, width), THREADS), min(ceil_div(m, lines), 65535), 1


def finish_source(out: DType, epilogue: Epilogue, *, width: int, lines: int = 1) -> CudaSource:
    """The kernel for a format of the result, `width` (4 or 1) neighbours of so many rows at a time.

    Arguments: parts, out, what the epilogue adds (bias, residual), M, N, ldc, ld_residual, row, part, count, alpha,
    beta. parts: count matrices in f32, `part` elements apart, whose rows are `row` elements apart. With width 4, N is a
    multiple of 4 and all rows begin at whole vectors.
    """
    added = [name for name, there in (("bias", epilogue.bias), ("residual", epilogue.residual)) if there]
    wide = width == 4
    vector = "float4" if wide else "float"
    load = "*(const float4*)&parts[at]" if wide else "parts[at]"
    fields = [f".{axis}" for axis in "xyzw"] if wide else [""]
    add = " ".join(f"sum{field} += next[i]{field};" for field in fields)
    elements = [_element(out, epilogue, i, field) for i, field in enumerate(fields)]
    store = {4: "float4", 2: "ushort4"}[out.bytes]
    write = f"*({store}*)place = *({store}*)result;" if wide else "place[0] = result[0];"
    align = f"__align__({4 * out.bytes}) " if wide else ""
    body = f"""\
    const int n = (int(blockIdx.x) * {THREADS} + int(threadIdx.x)) * {width};
    if (n >= N) {{
        return;
    }}
    for (int top = int(blockIdx.y) * {lines}; top < M; top += int(gridDim.y) * {lines}) {{
        {vector} sums[{lines}];
        #pragma unroll
        for (int line = 0; line < {lines}; ++line) {{
            if (top + line < M) {{
                const long long at = (top + line) * row + n;
                sums[line] = {load};
            }}
        }}
        #pragma unroll
        for (int line = 0; line < {lines}; ++line) {{
            const int m = top + line;
            if (m >= M) {{
                break;
            }}
            {vector} sum = sums[line];
            long long at = m * row + n;
            for (int first = 1; first < count; first += {AT_ONCE}) {{
                {vector} next[{AT_ONCE}];
                #pragma unroll
                for (int i = 0; i < {AT_ONCE}; ++i) {{
                    if (first + i < count) {{
                        at += part;
                        next[i] = {load};
                    }}
                }}
                #pragma unroll
                for (int i = 0; i < {AT_ONCE}; ++i) {{
                    if (first + i < count) {{
                        {add}
                    }}
                }}
            }}
            {out.cuda}* place = out + m * ldc + n;
            {align}{out.cuda} result[{width}];
{chr(10).join(elements)}
            {write}
        }}
    }}
"""
    words = [*added, *([epilogue.activation.value] if epilogue.activation else [])]
    kind = "_".join([f"{w}_{epilogue.bias}" if w == "bias" else w for w in words])
    functions = prelude_text({epilogue.activation.value}) if epilogue.activation else ""
    return source(
        f"finish_{out.name}_{width}{'x' + str(lines) if lines > 1 else ''}{'_' + kind if kind else ''}",
        "Partial sums, added in the order of k, scaled, and what the epilogue makes of them.",
        prelude(out) + functions,
        _parameters(out, added),
        body,
        THREADS,
        "out",
    )


def _parameters(out: DType, added: Sequence[str]) -> list[Parameter]:
    return [
        Parameter("parts", F32, is_pointer=True),
        Parameter("out", out, is_pointer=True),
        *(Parameter(name, out, is_pointer=True) for name in added),
        *(Parameter(name, I32) for name in ("M", "N")),
        *(Parameter(name, I64) for name in ("ldc", "ld_residual", "row", "part")),
        Parameter("count", I32),
        Parameter("alpha", F32),
        Parameter("beta", F32),
    ]


def _element(out: DType, epilogue: Epilogue, number: int, field: str) -> str:
    """What becomes of one sum of a vector: scaled, with what the epilogue adds, through its function, rounded."""
    old = f"residual[m * ld_residual + n + {number}]" if epilogue.residual else f"place[{number}]"
    bias = {"n": f"bias[n + {number}]", "m": "bias[m]", None: ""}[epilogue.bias]
    lines = [f"float value = alpha * sum{field};", "if (beta != 0.0f) {"]
    lines += [f"    value = fmaf(beta, {to_float(out, old)}, value);", "}"]
    if bias:
        lines.append(f"value += {to_float(out, bias)};")
    if epilogue.activation is not None:
        lines.append(f"value = {epilogue.activation.value}(value);")
    lines.append(f"result[{number}] = {from_float(out, 'value')};")
    inner = "\n".join(f"                {line}" for line in lines)
    return f"            {{\n{inner}\n            }}"
