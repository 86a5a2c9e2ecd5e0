"""`matmul`, `linear` and `grouped_matmul` for the arrays people have: `planning` finds the kernels.

calls      what a user calls; options checks what is asked beside the product
libraries  the arrays of PyTorch, CuPy, JAX, NumPy: where they lie, how to make one, on which stream
shapes     NumPy's rules for shapes; layouts: how a batch becomes launches; added: bias and residual
on_gpu     one call, from arrays to launches; on_host: NumPy's arrays; grouped: a list of products
recipes    all of a call but its addresses; remembered: calls that were made before
pytorch    the call as an operator of PyTorch; torch_calls: which calls it must see
"""

from tilewright.frontend.calls import linear, matmul
from tilewright.frontend.grouped import grouped_matmul

__all__ = ["grouped_matmul", "linear", "matmul"]
