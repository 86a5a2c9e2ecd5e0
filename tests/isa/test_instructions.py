"""What a matrix instruction means: the product, within the error of its formats."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dtypes import BF16, F16, F32, TF32
from tilewright.errors import ScheduleError, UnknownName
from tilewright.isa.catalog import INSTRUCTIONS, instruction
from tilewright.isa.instruction import MatrixInstruction

MEANT = [known for known in INSTRUCTIONS if known.n <= 16 or known.n == 256]


@pytest.mark.parametrize("known", MEANT, ids=lambda i: i.name)
def test_the_meaning_is_the_product(known: MatrixInstruction) -> None:
    rng = np.random.default_rng(3)

    def exact(*shape: int) -> np.ndarray:
        drawn = rng.standard_normal(shape, dtype=np.float32)
        return known.product.decode(known.product.encode(drawn)).astype(np.float32)

    a, b = exact(5, known.m, known.k), exact(5, known.k, known.n)
    c = known.accumulate.decode(known.accumulate.encode(exact(5, known.m, known.n))).astype(np.float32)
    d = known.meaning(a, b, c)
    wide = a.astype(np.float64) @ b.astype(np.float64) + c
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64) + np.abs(c)
    bits = known.product.sum_in(known.accumulate).fraction_bits
    bound = (known.k + 1) * 2.0 ** (1 - bits) * magnitude + (
        F16.unit_roundoff * np.abs(wide) if known.accumulate is F16 else 0
    )
    assert d.dtype == np.float32 and (np.abs(d - wide) <= bound).all()
    if known.accumulate is F16:
        assert (d == d.astype(np.float16)).all()


def test_shapes_agree() -> None:
    for known in INSTRUCTIONS:
        if known.a is not None and known.b is not None:
            assert (known.a.rows, known.a.columns) == (known.m, known.k)
            assert (known.b.rows, known.b.columns) == (known.k, known.n)
        assert known.multiply_adds == known.m * known.n * known.k


def test_it_is_found_by_family_and_formats() -> None:
    assert instruction("mma.m16n8k16", BF16, F32).name == "mma.m16n8k16.f32.bf16"
    with pytest.raises(ScheduleError, match="does not multiply tf32"):
        instruction("mma.m16n8k16", TF32, F32)
    with pytest.raises(ScheduleError, match="does not multiply f16"):
        instruction("mma.m16n8k32", F16, F32)
    with pytest.raises(UnknownName):
        instruction("mma.m16n8k64", F16, F32)
