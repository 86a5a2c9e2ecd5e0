"""Tensor cores as the simulator computes them, against bits that an H200 computed.

`bits_of_h200.npz` holds random and adversarial operands and results; `benchmarks/probes/tensor_core_bits.py` made it,
and compared all 1.5 million results.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright import dtypes
from tilewright.dtypes import TF32, Array, DType
from tilewright.isa.catalog import INSTRUCTIONS, instruction

BITS = np.load(Path(__file__).parent / "bits_of_h200.npz")
NAMES = sorted({name.rpartition("/")[0] for name in BITS.files})
FORMATS = {str(one): one for one in dtypes.ALL}
KNOWN = {(known.family, str(known.product), str(known.accumulate)) for known in INSTRUCTIONS if known.product_b is None}


def decoded(bits: Array, dtype: DType) -> Array:
    """In float32; of operands in tf32 the tensor cores drop what the format has not."""
    values = (bits & 0xFFFFE000).view(np.float32) if dtype is TF32 else dtype.decode(bits.view(dtype.storage))
    return np.asarray(values, np.float32)


@pytest.mark.parametrize("name", [name for name in NAMES if tuple(name.split("/")) in KNOWN])
def test_an_h200_computes_the_same_bits(name: str) -> None:
    family, product, accumulate = name.split("/")
    a, b, c, d = (BITS[f"{name}/{array}"] for array in "abcd")
    known = instruction(family, FORMATS[product], FORMATS[accumulate])
    left, right = decoded(a, known.product)[:, None, :], decoded(b, known.product)[:, :, None]
    found = known.meaning(left, right, decoded(c, known.accumulate)[:, None, None])[:, 0, 0]
    wanted = decoded(d, known.accumulate)
    same = (found.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(found) & np.isnan(wanted))
    assert same.all(), np.flatnonzero(~same)


def test_all_formats_are_compared() -> None:
    compared = {tuple(name.split("/")[1:]) for name in NAMES if tuple(name.split("/")) in KNOWN}
    assert compared == {(str(known.product), str(known.accumulate)) for known in INSTRUCTIONS}
