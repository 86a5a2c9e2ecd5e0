"""A `Kernel` as CUDA C++ text, for NVRTC and for people.

The printer takes no decision: each node of the IR is a case here, and a case is a line of text.
"""

from tilewright.codegen.cuda import cuda_paths, operand_line, print_cuda, print_together

__all__ = ["cuda_paths", "operand_line", "print_cuda", "print_together"]
