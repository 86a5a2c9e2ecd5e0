"""Many problems of one shape in one launch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stack:
    """Problems of one launch: how many, and elements from one to the next, of A, B, C and the residual."""

    count: int
    a: int
    b: int
    c: int
    residual: int = 0
