"""Step 0: i on blockIdx.x, j on threadIdx.x; the sum is kept in C."""

from tilewright.ir.program import Level
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import Bind, Reorder, Schedule, Split


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("n", 1024, into=("n_block", "n_thread")),
        Reorder("m", "n_block", "n_thread"),
        Bind("m", Level.GRID_X),
        Bind("n_block", Level.GRID_Y),
        Bind("n_thread", Level.BLOCK_X),
    )


S0 = Rung(
    ladder="te",
    number=0,
    label="0",
    slug="naive",
    idea="rows of C on blocks, columns on threads; the accumulator is C itself",
    schedule=schedule,
    claims=(
        Claim(
            "C is loaded and stored again for each of the K multiply-adds of a result",
            lambda c, g: (
                c.of_origin("C").global_stores.requests * g.k == c.of_origin("C").global_loads.requests * (g.k + 1)
            ),
        ),
    ),
    problem={"a": Order.COL, "b": Order.ROW},
)
