"""The language of loop nests. The whole grammar:

    Program   gemm, loops, staged tiles, running sum, result, raster        what a schedule transforms  (program.py)
    Kernel    grid, block, shared buffers, body                             what lowering makes of it   (kernel.py)

    Body   = Stmt*
    Stmt   = Let(name, value)                   a named integer
           | For(var, extent, body, carried)    a loop; unrolled where it indexes registers; may carry counters
           | If(condition, then, otherwise)     a branch; lanes may differ
           | Alloc(buffer)                      registers come into being
           | Move(dst, src, width, guard)       one load or store instruction; zero fill where the guard is false
           | Assign(dst, value)                 arithmetic on registers
           | RoundPair(first, second, dtype)    two elements rounded for the tensor cores
           | UnpackCodes(dst, src, codes)       words of 4- or 8-bit codes as numbers
           | Barrier()                          all threads of the block meet
           | SyncWarp()                         the lanes of a warp meet; no access of memory moves across
           | CommitCopies() | WaitCopies(n)     groups of asynchronous copies
           | LoadMatrices | LoadFragment | StoreFragment | MultiplyTiles | QuadTranspose    all lanes of a warp together
           | ShuffleAdd(place, mask, other)     a register of another lane added, by all lanes of a warp; or one of two
    Expr   = Const | Var | Binary | Select | Cast | Lookup | Load | Fma | Apply     Load reads a register, never memory
           | RandomNumber(seed, offset, place)   uniform in [0, 1), the same for the same place
    Ref    = Buffer[index, ...]
    Buffer = name, space (global, shared, register), dtype, shape

A kernel is read by three independent back ends: CUDA text, the simulator, the model. None of them decides anything.
"""
