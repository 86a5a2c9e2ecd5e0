"""Maps of tensors that TMA cannot take are refused before the driver sees them."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.dtypes import BF16
from tilewright.errors import LaunchError
from tilewright.ladders import find_rung
from tilewright.problem import Gemm
from tilewright.runtime.tensor_map import encode
from tilewright.toolchain import build


def box_of(operand: str) -> Any:
    source = build(Gemm(256, 256, 128, BF16, out=BF16), find_rung("hopper/6")).source
    return next(p.tensor_map for p in source.parameters if p.tensor_map and p.tensor_map.pointer == operand)


@pytest.mark.parametrize(
    ("pointer", "leading", "told"),
    [
        (1 << 20, 132, "it begins at byte 0 of 16, and its rows are 264 bytes apart"),
        (1 << 20, 129, "it begins at byte 0 of 16, and its rows are 258 bytes apart"),
        ((1 << 20) + 8, 128, "it begins at byte 8 of 16, and its rows are 256 bytes apart"),
    ],
)
def test_rows_and_addresses_are_multiples_of_16_bytes(pointer: int, leading: int, told: str) -> None:
    with pytest.raises(LaunchError, match=told):
        encode(box_of("A"), pointer, 128, 256, leading)


def test_a_row_that_is_stored_ends_at_16_bytes() -> None:
    with pytest.raises(LaunchError, match="its rows are 248 bytes long"):
        encode(box_of("C"), 1 << 20, 124, 256, 128)
