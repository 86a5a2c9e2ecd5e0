"""Small kernels that stand before or after a multiplication, as CUDA text of their own.

They are no loop nests over m, n and k, which is all that the language of schedules says, so they are written out.
"""
