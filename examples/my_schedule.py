"""A schedule of your own: blocks of 128 x 128, 8 x 8 results a thread, 16-byte loads. Both operands K-major.

python examples/my_schedule.py           # on the CPU; prints the program and, after step 9, program and CUDA
python examples/my_schedule.py --gpu     # on the GPU
tilewright gate examples/my_schedule.py --update    # keep its counts; without --update, fail where they got worse
"""

import sys

import tilewright as tw

gemm = tw.Gemm(256, 256, 64, a=tw.Order.COL)
STEPS = tw.Schedule(
    tw.Split("m", 128, into=("m_block", "m_in")),
    tw.Split("n", 128, into=("n_block", "n_in")),
    tw.Split("m_in", 64, into=("m_virtual", "m_threads")),
    tw.Split("n_in", 64, into=("n_virtual", "n_threads")),
    tw.Split("m_threads", 4, into=("m_thread", "m_reg")),
    tw.Split("n_threads", 4, into=("n_thread", "n_reg")),
    tw.Split("k", 16, into=("k_tile", "k_in")),
    tw.Reorder(
        *("m_block", "n_block", "m_virtual", "n_virtual", "m_thread", "n_thread", "k_tile", "k_in", "m_reg", "n_reg")
    ),
    *(tw.Bind("m_block", tw.Level.GRID_Y), tw.Bind("n_block", tw.Level.GRID_X)),
    *(tw.Bind("m_virtual", tw.Level.VTHREAD), tw.Bind("n_virtual", tw.Level.VTHREAD)),
    *(tw.Bind("m_thread", tw.Level.BLOCK_Y), tw.Bind("n_thread", tw.Level.BLOCK_X)),
    tw.Accumulate(over="k_tile"),
    *(tw.Stage("A", tw.Space.SHARED, under="k_tile"), tw.Stage("B", tw.Space.SHARED, under="k_tile")),
    *(tw.Stage("A", tw.Space.REGISTER, under="k_in"), tw.Stage("B", tw.Space.REGISTER, under="k_in")),
    *(tw.Distribute("A_tile", vector=4), tw.Distribute("B_tile", vector=4)),
    *(tw.Vectorize("A_frag", 4), tw.Vectorize("B_frag", 4), tw.Vectorize("C", 4)),
    tw.Epilogue(),
)


def main(arguments: list[str]) -> None:
    built = tw.build(gemm, STEPS)
    print(built.text)
    print("After step 15:", built.after(15).text, built.after(15).cuda, sep="\n")
    operands = tw.make_operands(gemm)
    if "--gpu" in arguments:
        from tilewright.runtime.driver import open_gpu
        from tilewright.toolchain import verify_on_gpu

        print(verify_on_gpu(built, open_gpu(), operands).message)
    else:
        c = built.simulate(operands).c.reshape(gemm.m, gemm.n)
        print(tw.check(operands, c).message)


if __name__ == "__main__":
    main(sys.argv[1:])
