"""How wide global memory may be accessed: what addresses and rows allow, and that copies stay asynchronous."""

from __future__ import annotations

from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.dtypes import BF16, F16, F32, DType
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import Variant
from tilewright.ir.stmt import Move
from tilewright.ir.visit import walk
from tilewright.ladders import find_rung
from tilewright.lowering.expand import expand
from tilewright.lowering.narrow_accesses import narrow_accesses
from tilewright.lowering.variants import widest
from tilewright.problem import Gemm
from tilewright.toolchain import build


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=6), st.sampled_from([F32, F16, BF16]), st.integers(0, 5))
def test_the_widest_access_divides_every_address_and_row(places: list[int], dtype: DType, shift: int) -> None:
    """By their greatest common divisor: the largest power of two in it, 16 bytes at most, if that is more than an
    element; a copy has at least 4 bytes."""
    places = [place << shift for place in places]
    common = gcd(16, *places)
    expected = common if common >= 4 and common > dtype.bytes else 1
    assert widest(Gemm(8, 8, 8, dtype, out=dtype), places) == expected


@pytest.mark.parametrize("alignment", [16, 8, 4, 2, 1])
@pytest.mark.parametrize("name", ["worklog/12", "ampere/1", "ampere/4", "ampere/6"])
def test_copies_are_as_wide_as_rows_allow_and_asynchronous_from_4_bytes_on(name: str, alignment: int) -> None:
    rung = find_rung(name)
    gemm = rung.gemm(256, 256, 64)
    program = build(gemm, rung).program
    body = expand(program, frozenset())
    were = {move.width for move in global_loads(body)}
    moves = global_loads(narrow_accesses(body, program, Variant(alignment_bytes=alignment)))
    each = gemm.dtype.bytes
    for move in moves:
        assert move.width * each <= max(alignment, each)
    assert {move.width for move in moves} == {min(width, max(alignment // each, 1)) for width in were}
    if any(move.asynchronous for move in global_loads(body)):
        assert {move.asynchronous for move in moves} == {max(alignment, each) >= 4}


def global_loads(body: tuple) -> list[Move]:  # type: ignore[type-arg]
    """Of tiles of A and B, into whatever space."""
    moves = [stmt for _, stmt in walk(body) if isinstance(stmt, Move)]
    return [one for one in moves if one.src.buffer.space is Space.GLOBAL and one.src.buffer.name in ("A", "B")]
