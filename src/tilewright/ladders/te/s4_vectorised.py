"""Step 4: 4-wide global loads, and 2 x 2 virtual threads so that register loads are 4-wide too."""

from tilewright.ir.buffer import Space
from tilewright.ladders.claims import NO_LOAD_CONFLICTS, TWO_BARRIERS
from tilewright.ladders.rung import Claim, Rung
from tilewright.ladders.te import s3v_virtual_threads
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import Distribute, Schedule, Split, Vectorize


def schedule(gemm: Gemm) -> Schedule:
    return (
        s3v_virtual_threads.schedule(gemm)
        .replace(Split("m_in", 16, into=("m_virtual", "m_threads")), Split("m_in", 64, into=("m_virtual", "m_threads")))
        .replace(Split("n_in", 16, into=("n_virtual", "n_threads")), Split("n_in", 64, into=("n_virtual", "n_threads")))
        .replace(Split("m_threads", 1, into=("m_thread", "m_reg")), Split("m_threads", 4, into=("m_thread", "m_reg")))
        .replace(Split("n_threads", 1, into=("n_thread", "n_reg")), Split("n_threads", 4, into=("n_thread", "n_reg")))
        .replace(Distribute("A_tile"), Distribute("A_tile", vector=4))
        .replace(Distribute("B_tile"), Distribute("B_tile", vector=4))
        .insert(Vectorize("A_frag", 4), Vectorize("B_frag", 4), Vectorize("C", 4), after=Distribute("B_tile", vector=4))
    )


S4 = Rung(
    ladder="te",
    number=6,
    label="4",
    slug="vectorised",
    idea="16-byte loads from global and shared memory; 2 x 2 virtual threads",
    schedule=schedule,
    claims=(
        NO_LOAD_CONFLICTS,
        Claim("each result takes K/16 loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == g.k / 16),
        TWO_BARRIERS,
    ),
    builds_on="3v",
    problem={"a": Order.COL, "b": Order.ROW},
)
