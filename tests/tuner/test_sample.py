"""Which rows of a result a candidate's are compared with."""

from __future__ import annotations

import numpy as np

from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import make_operands
from tilewright.tuner.measure import sample_of


def test_a_small_result_is_compared_whole() -> None:
    sample = sample_of(make_operands(Gemm(300, 200, 16)))
    np.testing.assert_array_equal(sample.rows, np.arange(300))


def test_of_a_large_one_few_rows_are_compared_and_each_tile_is_met() -> None:
    sample = sample_of(make_operands(Gemm(8192, 4096, 4)))
    assert sample.expected.shape == sample.bound.shape == (488, 4096)
    assert (sample.rows[0], sample.rows[-1]) == (0, 8191)
    assert set(sample.rows // 64) == set(range(128))
