"""Production kernels by family: frozen configurations, each of which says what is legal, what fits, what it moves, and
makes its schedule or its kernel.

simt, mma, wgmma     GEMM by FFMA, by mma.sync, by wgmma; presets and steps, which rungs of ladders share
gemv        skinny products, whose time is that of reading one matrix
relayout, reduce     copies before a product (padded, transposed, converted), and the sum of partial sums after it
columns, law, spaces     many configurations as NumPy columns; laws stated once for one and for all of them
block_work, work     what one block does, in arithmetic
configuration        any of them as data, and back with checked values
"""
