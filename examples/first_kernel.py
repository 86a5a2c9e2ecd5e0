"""The first kernel: one thread for each element of C. Needs no GPU."""

import tilewright as tw

gemm = tw.Gemm(64, 64, 32)
schedule = tw.Schedule(
    tw.Split("m", 32, into=("m_block", "m_thread")),
    tw.Split("n", 32, into=("n_block", "n_thread")),
    tw.Reorder("m_block", "n_block", "m_thread", "n_thread"),
    tw.Bind("m_block", tw.Level.GRID_Y),
    tw.Bind("n_block", tw.Level.GRID_X),
    tw.Bind("m_thread", tw.Level.BLOCK_Y),
    tw.Bind("n_thread", tw.Level.BLOCK_X),
    tw.Accumulate(over="k"),
    tw.Epilogue(),
)
built = tw.build(gemm, schedule)
print(built.text)  # the program
print(built.cuda)  # the CUDA C++ it becomes

operands = tw.make_operands(gemm)
run = built.simulate(operands)
print(tw.check(operands, run.c.reshape(64, 64)).message)
print(f"{run.counters.global_loads.sectors_per_request:.1f} sectors a request")
