"""Parts of `tensor_core_bits.py`: formats as bits, operands, kernels of one instruction."""
