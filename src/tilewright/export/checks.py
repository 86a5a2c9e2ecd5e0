"""What the check of an exported project computes and expects: its cases, its bound, what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.dtypes import F32
from tilewright.export.bundle import Bundle
from tilewright.export.context import element_types
from tilewright.problem.functions import STEEPEST, Activation
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.tolerance import FUNCTION_ULPS
from tilewright.units import round_up

_ACTIVATIONS = {
    Activation.RELU: "x < 0 ? 0 : x",
    Activation.GELU: "0.5 * x * (1 + erf(x / sqrt(2.0)))",
    Activation.GELU_TANH: "0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979) * (x + 0.044715 * x * x * x)))",
    Activation.SILU: "x / (1 + exp(-x))",
}


def check_context(bundle: Bundle) -> dict[str, Any]:
    """For the check."""
    gemm = bundle.gemm
    activation = gemm.epilogue.activation
    added = [operand.name for operand in gemm.added]
    pointers = ["A.data", "B.data", "C.data"]
    pointers += [{"bias": "bias.data", "residual": "R.data"}[name] for name in added]
    leading = ["A.leading", "B.leading", "C.leading", *(["R.leading"] if gemm.epilogue.residual else [])]
    return {
        **element_types(gemm),
        "type_names": {gemm.dtype.name, gemm.out.name},
        "a_row_major": _flag(gemm.a),
        "b_row_major": _flag(gemm.b),
        "c_row_major": _flag(gemm.c),
        "bias": gemm.epilogue.bias,
        "residual": gemm.epilogue.residual,
        "activation": _ACTIVATIONS[activation] if activation else "",
        "check_pointers": pointers,
        "check_leading": leading,
        **_bound(gemm),
        "cases": [list(case) for case in _cases(bundle)],
        "refusals": list(_refusals(bundle)),
    }


def _flag(order: Order) -> str:
    return "true" if order is Order.ROW else "false"


def _bound(gemm: Gemm) -> dict[str, Any]:
    """The bound of `problem.tolerance`, as C++. There the factors are rounded first; here that is part of the bound."""
    summation = gemm.multiplied.sum_in(gemm.accumulate)
    function = FUNCTION_ULPS * F32.unit_roundoff if gemm.epilogue.activation else 0.0
    # What is dropped from both factors, and the product of both.
    factors = 2.01 * gemm.multiplied.unit_roundoff if gemm.multiplied is not gemm.dtype else 0.0
    return {
        "terms": "c.K + 2 * ((c.K + 3) / 4) + 2" if summation.in_blocks else "c.K + 2",
        "unit": f"{summation.unit_roundoff!r}",
        "beside": f"{function + factors!r}",
        "out_unit": f"{gemm.out.unit_roundoff!r}",
        "steepness": STEEPEST if gemm.epilogue.activation else 1,
        "smallest": f"{gemm.out.tiny!r}",
    }


def _cases(bundle: Bundle) -> Iterator[tuple[str, ...]]:
    """M, N, K, gap between rows beyond whole 16 elements, elements before the matrix, alpha, beta."""
    tile = bundle.general.kernel.tile
    m, n, k = tile["m"], tile["n"], tile["k"]
    whole = bundle.general.needs.multiples.get("n", 1)
    cases: list[tuple[float, ...]] = [
        (m, n, 2 * k, 0, 0, 1, 0),
        (2 * m, 3 * n, 5 * k, 16, 0, 0.5, 2),
        (m + 3, n + 5, k + 7, 0, 0, 1, 0),
        (2 * m - 1, n + 1, 3 * k + 1, 32, 0, -1.5, 0.5),
        (1, 1, 1, 0, 0, 1, 0),
        (1, 2 * n + 9, 4 * k, 0, 0, 1, 1),
        (2 * m + 9, 1, k - 1, 0, 0, 2, 0),
        (5, 7, 0, 0, 0, 1, 0.5),
    ]
    if bundle.general.needs.anything:
        cases += [(m, n, 2 * k, 1, 0, 1, 0), (m + 3, n + 5, k + 7, 0, 1, 1, 1), (m - 1, n - 1, 2 * k + 3, 3, 3, 0.5, 0)]
    for rows, columns, *sizes, alpha, beta in cases:
        columns = round_up(int(columns), whole)
        yield (*(str(int(size)) for size in (rows, columns, *sizes)), f"{float(alpha)}f", f"{float(beta)}f")


def _refusals(bundle: Bundle) -> Iterator[dict[str, Any]]:
    """Calls with 64 x 64 matrices, one thing wrong in each."""
    gemm = bundle.gemm
    added = ["C.data"] * len(gemm.added)

    def call(what: str, answer: str, **changed: str) -> dict[str, Any]:
        given = {"A": "A.data", "B": "B.data", "C": "C.data", "M": "64", "N": "64", "K": "64", "lda": "64"} | changed
        pointers = [given["A"], given["B"], given["C"], *added]
        leading = [given["lda"], "64", "64", *(["64"] if gemm.epilogue.residual else [])]
        return {"what": what, "answer": answer, "arguments": [*pointers, given["M"], given["N"], given["K"], *leading]}

    yield call("a right call", "OK")
    yield call("an empty result", "OK", M="0", A="nullptr")
    yield call("a negative size", "BAD_SIZE", N="-1")
    yield call("too large a size", "BAD_SIZE", K="int64_t(1) << 40")
    yield call("a short leading dimension", "BAD_LEADING_DIMENSION", lda="63")
    yield call("no address", "NULL_POINTER", A="nullptr")
    if "A" in bundle.general.needs.aligned:
        yield call("an unaligned address", "MISALIGNED", A="A.data + 1")
    if "n" in bundle.general.needs.multiples:
        yield call("rows of C that end inside a piece", "MISALIGNED", N="63")
