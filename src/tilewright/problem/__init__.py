"""What is to be computed, and what counts as right."""

from tilewright.problem.epilogue import Epilogue
from tilewright.problem.functions import Activation
from tilewright.problem.gemm import Gemm, Operand, Order
from tilewright.problem.reference import Operands, make_operands, reference
from tilewright.problem.tolerance import Verdict, check

__all__ = [
    "Activation",
    "Epilogue",
    "Gemm",
    "Operand",
    "Operands",
    "Order",
    "Verdict",
    "check",
    "make_operands",
    "reference",
]
