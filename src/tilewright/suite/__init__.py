"""`matmul` against what people call today, over a suite of shapes: checked, then timed in turn in one run.

problems    what is multiplied
peers       cuBLAS through torch, cuBLASLt with its algorithms timed (`cublaslt`), torch.compile
timing      graphs replayed in turn, round by round
gpu         a GPU that checks and times one problem
outcomes    one problem after another within a budget
running     which problems, with which peers, recorded as they are measured, going on after a stop; sweep: drawn ones
"""

from tilewright.suite.problems import FORMATS, ORDERS, SHAPES, Problem, problems
from tilewright.suite.running import Plan, run

__all__ = ["FORMATS", "ORDERS", "SHAPES", "Plan", "Problem", "problems", "run"]
