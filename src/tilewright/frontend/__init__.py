"""`matmul` and `linear` for the arrays people have: which kernel runs is found here, once for each kind of problem."""

from tilewright.frontend.calls import linear, matmul

__all__ = ["linear", "matmul"]
