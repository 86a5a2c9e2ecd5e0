"""`matmul`, `linear`, `grouped_matmul` and `scaled_matmul` for the arrays people have: `planning` finds the kernels.

A call goes through these, each of which imports only those below it:

calls      what a user calls; grouped: a list of products; gated: two of one a, joined; fp8_calls: FP8 with its
           scales, also of groups, and what makes both; rows: rows that indices name
complex_numbers  products of complex64 as one of f32
asking     what a call would run; call_plan: that as a value
pytorch    entry: which calls PyTorch must see as an operator; plain: tensors that are memory and no more; functions:
           gradients of functions of the epilogue
on_host    NumPy's arrays
prepared   a constant operand whose pieces are kept; weights: one in codes of 4 or 8 bits
remembered calls that were made before
compute    one call: looked up by its key, else views -> requests -> plans; then its launches; likewise scaled,
           scaled_groups, ragged (groups), combining (rows), quantizing
guard_flags by which the device chooses between plans of a call
autotuning which plan is the fastest, measured at the first call
requests   from views to requests, which are values; shapes: NumPy's rules; layouts: how a batch becomes launches
operands   of a function of the epilogue: which element of each belongs to an element of the result
options    what is asked beside the product
tracing    a function of the epilogue as an expression; ops: what it may call
libraries  one adapter a library: where an array lies, how to make one, on which stream
"""

from tilewright.frontend import ops
from tilewright.frontend.asking import plan
from tilewright.frontend.autotuning import autotune
from tilewright.frontend.calls import linear, matmul
from tilewright.frontend.fp8_calls import quantize, scaled_grouped_matmul, scaled_matmul
from tilewright.frontend.gated import linear_gated
from tilewright.frontend.grouped import grouped_matmul
from tilewright.frontend.prepared import prepare
from tilewright.frontend.rows import combine_rows
from tilewright.frontend.weights import quantize_weight

__all__ = [
    "autotune",
    "combine_rows",
    "grouped_matmul",
    "linear",
    "linear_gated",
    "matmul",
    "ops",
    "plan",
    "prepare",
    "quantize",
    "quantize_weight",
    "scaled_grouped_matmul",
    "scaled_matmul",
]
