"""Production kernels by family: frozen configurations, each of which says what is legal, what it moves, and makes its
kernel.

auxiliary   copies before a product (padded, transposed, converted), and the sum of partial sums after it
gemv        skinny products, whose time is that of reading one matrix
"""
