"""Ladder `hierarchy`: eight versions that follow the memory hierarchy; any shape, padded leading dimensions."""

from tilewright.ladders.hierarchy.v00_rows import V00
from tilewright.ladders.hierarchy.v01_columns import V01
from tilewright.ladders.hierarchy.v02_shared import V02
from tilewright.ladders.hierarchy.v02_shared_vectorised import V02_VECTORISED
from tilewright.ladders.hierarchy.v03_thread_tile_1d import V03
from tilewright.ladders.hierarchy.v03_thread_tile_1d_vectorised import V03_VECTORISED
from tilewright.ladders.hierarchy.v04_thread_tile_2d import V04
from tilewright.ladders.hierarchy.v04_thread_tile_2d_vectorised import V04_VECTORISED
from tilewright.ladders.hierarchy.v05_vectorised import V05
from tilewright.ladders.hierarchy.v06_double_buffered import V06_DOUBLE_BUFFERED
from tilewright.ladders.hierarchy.v06_warp_tiles import V06
from tilewright.ladders.hierarchy.v06_warp_tiles_vectorised import V06_VECTORISED
from tilewright.ladders.hierarchy.v07_double_buffered import V07_DOUBLE_BUFFERED
from tilewright.ladders.hierarchy.v07_wmma import V07
from tilewright.ladders.hierarchy.v07_wmma_vectorised import V07_VECTORISED
from tilewright.ladders.rung import Rung

HIERARCHY: tuple[Rung, ...] = (
    V00,
    V01,
    V02,
    V02_VECTORISED,
    V03,
    V03_VECTORISED,
    V04,
    V04_VECTORISED,
    V05,
    V06,
    V06_VECTORISED,
    V06_DOUBLE_BUFFERED,
    V07,
    V07_VECTORISED,
    V07_DOUBLE_BUFFERED,
)
