"""Values of lanes that are computed from an integer register: known as long as the register holds the same."""

from __future__ import annotations

import numpy as np
from simulated_kernels import registers

from tilewright.dtypes import I32
from tilewright.simulator.convoy import Convoy, RegisterArray
from tilewright.simulator.index import Cell, RegisterSource
from tilewright.simulator.warps import Batch, Warps


def test_a_value_is_computed_anew_where_a_register_changed_and_only_there() -> None:
    one = np.array([0])
    convoy = Convoy(Warps(Batch((32, 1, 1), (1, 1, 1), np.zeros((1, 3), np.int64)), one, one), 1, 1, 2)
    array = RegisterArray(registers("tile", 2, dtype=I32), 32, np.dtype(np.int32), 7)
    convoy.registers[0] = array
    twice = Cell(0, lambda s, held: held * 2, (RegisterSource(0, lambda s: s[0]),), is_narrow=True)
    further = Cell(1, lambda s, twice: twice + 1, (twice,), is_narrow=True)
    known = further.of(convoy)
    assert known.values.tolist() == [15] * 32 and further.of(convoy) is known

    array.data[0, 3] = 9
    changed = further.of(convoy)
    assert changed.values.tolist() == [15] * 3 + [19] + [15] * 28 and further.of(convoy) is changed

    array.data[1] = 1 << 30
    convoy.slots[0] = 1  # another element, which leaves 32 bits
    wide = further.of(convoy)
    assert wide.overflow is not None and wide.overflow.all() and wide.low == (1 << 31) + 1
