"""Expressions as C++: the same value, the fewest brackets, and no arithmetic on storage formats."""

from __future__ import annotations

import random
from pathlib import Path

import cuda_on_cpu
import handmade_kernels as handmade
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.codegen.conversions import vector
from tilewright.codegen.expr import CudaExpr
from tilewright.codegen.names import Names
from tilewright.codegen.prelude import copy_async
from tilewright.dtypes import BF16, BOOL, F16, F32, F64, I64, DType
from tilewright.errors import LoweringError
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import TRUE, Binary, Cast, Const, Expr, Fma, Load, Op, Select, Var, binary, both, real

M, N, BLOCK, ALPHA = Var("M"), Var("N"), Var("blockIdx.x"), Var("alpha", F32)
LDA = Var("lda", I64)


def register(dtype: DType) -> Load:
    return Load(Buffer("x", Space.REGISTER, dtype, ()), ())


def text(expr: Expr, *, integer: bool = False) -> str:
    names = Names(handmade.naive())
    names.bind_buffer(Buffer("x", Space.REGISTER, F32, ()))
    printer = CudaExpr(names)
    return printer.integer(expr) if integer else printer(expr)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (M * 2 + N, "M * 2 + N"),
        ((M + N) * 2, "(M + N) * 2"),
        (M - (N - 1), "M - (N - 1)"),
        (M + N * -1, "M - N"),
        (N * -4 + M, "M - N * 4"),
        ((N + M) * -1 + 3, "3 - (N + M)"),
        (M + (N + M) * -1 + 3, "M - (N + M) + 3"),
        ((M ^ N) & 7, "(M ^ N) & 7"),
        (Cast(I64, M) * LDA, "(long long)M * lda"),
        (Cast(I64, M + N) * LDA, "(long long)(M + N) * lda"),
        (Cast(F32, M), "(float)M"),
        (Cast(F32, Cast(F32, M)), "(float)M"),
        (Binary(Op.MUL, M, Const(5, I64)), "M * 5LL"),
        (Const(2**31), "2147483648LL"),
        (TRUE, "true"),
        (Const(0, BOOL), "false"),
        (both(Binary(Op.LT, M, N), Binary(Op.LT, N, Const(3))), "M < N && N < 3"),
        (Select(both(Binary(Op.LT, M, N), Binary(Op.LT, N, Const(3))), M, N), "(M < N && N < 3) ? M : N"),
        (Select(Binary(Op.LT, M, N), M, N) + 1, "(M < N ? M : N) + 1"),
        (Binary(Op.MIN, M, N), "min(M, N)"),
        (Binary(Op.MAX, LDA, N), "max(lda, (long long)N)"),
        (Fma(ALPHA, ALPHA, real(1)), "fmaf(alpha, alpha, 1.0f)"),
        (Fma(Cast(F64, ALPHA), Cast(F64, ALPHA), real(1, F64)), "fma((double)alpha, (double)alpha, 1.0)"),
        (Cast(F32, register(F16)), "float_from_half(x)"),
        (Cast(F64, register(BF16)), "(double)float_from_bf16(x)"),
        (Cast(BF16, register(F16)), "bf16_from_float(float_from_half(x))"),
        (Cast(F16, Cast(F32, M)), "half_from_float((float)M)"),
        (real(0, F16), "0"),
        (real(1, F16), "half_bits(0x3c00)"),
        (real(-2, BF16), "bf16_bits(0xc000)"),
    ],
    ids=str,
)
def test_text(expr: Expr, expected: str) -> None:
    assert text(expr) == expected


def test_unsigned_coordinates_become_int_where_the_sign_matters() -> None:
    """blockIdx.x is unsigned: `blockIdx.x - 5 < M` would never see a negative number."""
    assert text(BLOCK * 32 + 1, integer=True) == "blockIdx.x * 32 + 1"
    assert text(BLOCK * 32 + 1) == "int(blockIdx.x) * 32 + 1"
    assert text(Binary(Op.LT, BLOCK - 5, M), integer=True) == "int(blockIdx.x) - 5 < M"
    assert text(LDA * BLOCK, integer=True) == "lda * int(blockIdx.x)"
    assert text(Binary(Op.MIN, BLOCK, M), integer=True) == "min(int(blockIdx.x), M)"


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_reads_back_as_itself(value: float) -> None:
    printed = text(real(value))
    assert printed.endswith("f")
    assert "." in printed or "e" in printed
    assert np.float32(printed[:-1]) == np.float32(value)


def test_floats_that_have_no_digits() -> None:
    assert text(real(float("inf"))) == "__int_as_float(0x7f800000)"
    assert text(real(float("-inf"))) == "-__int_as_float(0x7f800000)"
    assert text(real(float("nan"))) == "__int_as_float(0x7fc00000)"


def random_integer(random: random.Random, depth: int) -> Expr:
    """An expression of x, y >= 0 whose divisions and shifts are of values >= 0."""
    if depth == 0:
        return random.choice([Var("M"), Var("N"), Const(random.randint(0, 9))])
    a, b = random_integer(random, depth - 1), random_integer(random, random.randrange(depth))
    op = random.choice([Op.ADD, Op.MUL, Op.DIV, Op.MOD, Op.SHL, Op.SHR, Op.AND, Op.XOR, Op.MIN, Op.MAX, Op.LT, Op.EQ])
    if op in (Op.DIV, Op.MOD):
        return Binary(op, a, Const(random.randint(1, 9)))
    if op in (Op.SHL, Op.SHR):
        return Binary(op, a, Const(random.randint(1, 3)))
    if op is Op.MUL:
        return Binary(op, a, Binary(random.choice([Op.AND, Op.MOD]), b, Const(7)))
    if op in (Op.LT, Op.EQ):
        return Select(Binary(op, a, b), b, a)
    return Binary(op, a, b)


def value(expr: Expr, sizes: dict[str, int]) -> int:
    """What the IR says the expression is."""
    match expr:
        case Select():
            return value(expr.a if value(expr.condition, sizes) else expr.b, sizes)
        case Binary():
            folded = binary(expr.op, Const(value(expr.a, sizes)), Const(value(expr.b, sizes)))
            assert isinstance(folded, Const)
            return int(folded.value)
        case Const():
            return int(expr.value)
        case Var():
            return sizes[expr.name]
    raise AssertionError(expr)


@pytest.mark.skipif(cuda_on_cpu.GXX is None, reason="needs g++")
def test_brackets_are_never_missing(tmp_path: Path) -> None:
    """300 random expressions have in C++ the value that the IR gives them."""
    source = random.Random(7)
    parts = [random_integer(source, 4) for _ in range(300)]
    exprs = [Binary(Op.SUB, a, Binary(Op.SUB, b, a)) for a, b in zip(parts, reversed(parts), strict=True)]
    prints = "".join(f'printf("%lld\\n", (long long)({text(expr)}));\n' for expr in exprs)
    output = cuda_on_cpu.run_text(f"int main() {{ int M = 11, N = 6;\n{prints}}}", b"", tmp_path)
    assert [int(line) for line in output.split()] == [value(expr, {"M": 11, "N": 6}) for expr in exprs]


def test_storage_formats_do_not_compute() -> None:
    with pytest.raises(LoweringError) as caught:
        text(Binary(Op.MUL, register(F16), ALPHA))
    assert str(caught.value) == (
        "Cannot compute in f16: registers of that type hold bits.\n"
        "  Note: f16 and bf16 are storage formats; a cast to f32 makes a number of them."
    )
    with pytest.raises(LoweringError, match="Cannot compute in bf16"):
        text(Fma(register(BF16), ALPHA, ALPHA))


def test_accesses_that_no_instruction_makes() -> None:
    with pytest.raises(LoweringError) as caught:
        vector(F32, 3)
    assert str(caught.value) == (
        "There is no 3 x f32 memory access.\n"
        "  Hint: accesses are 2 x f32, 4 x f32, 2 x f16, 4 x f16, 8 x f16, 2 x bf16, 4 x bf16, 8 x bf16, 2 x e4m3, "
        "4 x e4m3, 8 x e4m3, 16 x e4m3, 2 x e5m2, 4 x e5m2, 8 x e5m2, 16 x e5m2, 4 x i32."
    )
    with pytest.raises(LoweringError) as caught:
        copy_async(2)
    assert str(caught.value) == ("There is no asynchronous copy of 2 bytes.\n  Hint: copies are 4, 8, 16 bytes.")
