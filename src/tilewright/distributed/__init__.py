"""Products over the ranks of a process group of `torch.distributed`, overlapped with communication.

calls      what a user calls
pytorch    agreement: ranks compare what they ask; products: one call; symmetric: on the GPUs of a host; collectives:
           elsewhere
plans      in which pieces, chosen by the model of overlap
watchdog   ends a process whose peers have died
timeline   what a rank does, as steps on streams
"""

from tilewright.distributed.calls import all_gather_matmul, matmul_reduce_scatter

__all__ = ["all_gather_matmul", "matmul_reduce_scatter"]
