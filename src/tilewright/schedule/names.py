"""Which names a loop or a tile may have: none that the kernel makes for itself.

Lowering names what it adds after the loop or the tile that it belongs to (`A_tile_step`, `k_tile_stage`), or by a fixed
word (`element`). A property test holds the lists below against what lowered kernels declare.
"""

from __future__ import annotations

from functools import cache
from typing import get_args

from tilewright.problem.epilogue import READY_MADE
from tilewright.problem.gemm import LEADING, OperandName

ARGUMENTS = frozenset({*get_args(OperandName), *READY_MADE, "M", "N", "K", *LEADING, "alpha", "beta", "K_part"})
"""Names of the kernel's arguments."""

_WORDS = """
    A_value B_value C_value element element_of_part thread_in_block lane_in_warp lane_in_group rank_in_cluster
    turn round warpgroup part chunk atom slot
    block_number fragment
    group panel band square first_row first_column rows_in_group rows_in_band columns_in_panel columns_in_square
    block_in_group block_in_panel block_in_band block_in_square row_in_panel
    right_0 right_1 right_2 down_0 down_1 down_2
    hilbert_x_0 hilbert_x_1 hilbert_x_2 hilbert_y_0 hilbert_y_1 hilbert_y_2
"""
"""Fixed names of what lowering adds: parts of vectors, numbers of threads and blocks, raster orders."""

RESERVED = frozenset((*ARGUMENTS, *_WORDS.split()))

_ENDINGS = (
    *(
        "s",
        "_vec",
        "_turn",
        "_stage",
        "_fill",
        "_pair",
        "_next",
        "_full",
        "_empty",
        "_number",
        "_parity",
    ),  # of a loop or one of its digits
    "_group",  # of the sum, where it is promoted
    *("_m", "_n", "_k", "_step", "_value", "_next_m", "_next_n", "_next_k", "_next_step"),  # of a tile
)


@cache
def derived(name: str) -> frozenset[str]:
    """What the kernel may call the things it adds for a loop or a tile of this name.

    >>> "k_tile_stage" in derived("k_tile"), "A_tile_step" in derived("A_tile")
    (True, True)
    """
    return frozenset(name + ending for ending in _ENDINGS)
