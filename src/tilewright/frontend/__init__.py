"""`matmul`, `linear` and `grouped_matmul` for the arrays people have: which kernel runs is found here, once for each
kind of call.

calls      what a user calls; options checks what is asked beside the product
libraries  the arrays of PyTorch, CuPy, JAX, NumPy: where they lie, how to make one, on which stream
shapes     NumPy's rules for shapes; layouts: how a batch becomes launches; added: bias and residual
on_gpu     one call, from arrays to launches; on_host: NumPy's arrays; grouped: a list of products
recipes    all of a call but its addresses; remembered: calls that were made before
dispatch   the choice of kernels: candidates are tiles, works what their blocks do, choices the estimated times
skinny     when few rows have a kernel of their own; passes: that one, pads and sums
kernels    kernels by class of problem; assembly: from a choice to a plan of launches; plans; on_paper: with no GPU
"""

from tilewright.frontend.calls import linear, matmul
from tilewright.frontend.grouped import grouped_matmul

__all__ = ["grouped_matmul", "linear", "matmul"]
