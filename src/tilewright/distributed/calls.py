"""What a user calls: products whose rows are gathered before, or whose sums are scattered behind, and meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import ProblemError
from tilewright.frontend.options import Options, Precision, options_asked
from tilewright.frontend.scaled import ScaledOptions, scaled_options


def all_gather_matmul(
    a_shard: Any,
    b: Any,
    group: Any = None,
    *,
    rows: Sequence[int] | None = None,
    out_dtype: Any = None,
    precision: Precision = "default",
    scale_a: Any = None,
    scale_b: Any = None,
    fast_accumulation: bool = False,
) -> Any:
    """The rows of all ranks times `b`: `torch.cat(all_gather(a_shard)) @ b`, multiplied while rows still arrive.

    a_shard: (m of this rank, k). b: (k, n), its own on each rank, or a sequence of such: then the result is a list.
    group: of torch.distributed, the default one where it is None. rows: the m of each rank. Where it is not given,
    ranks ask each other when they meet operands of new shapes, and remember it: give it where only some ranks change
    their m. out_dtype and precision: as in `matmul`. All ranks make the same calls in the same order.

    On the GPUs of one host, copy engines or threads store rows into symmetric memory of the peers, and a product starts
    when its rows are there; the bits are those of `matmul` of each rank's rows, or of all rows. Elsewhere a collective
    comes first, and a warning says so once. It can be captured in a CUDA graph after one call of the same kind.
    Gradients are products of the same kinds.

    scale_a, scale_b: of operands of FP8, as in `scaled_matmul`: one element, or one for each row of a_shard and each
    column of b; a sequence of scale_b for one of b. Each rank has its own, and those of rows travel with them. The
    result is bf16 if out_dtype is not given; there are no gradients. fast_accumulation: as there.

    Raises ProblemError, the same on every rank, where shapes, formats or options do not go together.
    """
    asked = options_of_call(out_dtype, precision, scale_a is not None or scale_b is not None, fast_accumulation)
    from tilewright.distributed.pytorch.entry import called

    return called("all_gather_matmul", a_shard, b, group, asked, rows, scale_a, scale_b)


def matmul_reduce_scatter(
    a: Any,
    b_shard: Any,
    group: Any = None,
    *,
    rows: Sequence[int] | None = None,
    out_dtype: Any = None,
    precision: Precision = "default",
    scale_a: Any = None,
    scale_b: Any = None,
    fast_accumulation: bool = False,
) -> Any:
    """This rank's rows of the sum over ranks of `a @ b_shard`: `reduce_scatter(a @ b_shard)`, sent while the product is
    computed.

    a: (m, k of this rank). b_shard: (k of this rank, n), or a sequence of such: then the result is a list. rows: how
    many each rank keeps; where it is not given, ceil(m / ranks), the last ranks fewer. out_dtype: also of what ranks
    send each other. All else as in `all_gather_matmul`.

    Each rank rounds what it sends to the format of the result. The sum is in f32, in a fixed order, and rounded once
    more; in symmetric memory own rows are not rounded before, unless operands are of FP8, which each rank scales.

    Raises ProblemError, the same on every rank, where shapes, formats or options do not go together.
    """
    asked = options_of_call(out_dtype, precision, scale_a is not None or scale_b is not None, fast_accumulation)
    from tilewright.distributed.pytorch.entry import called

    return called("matmul_reduce_scatter", a, b_shard, group, asked, rows, scale_a, scale_b)


def options_of_call(out_dtype: Any, precision: Precision, scaled: bool, fast: bool) -> Options | ScaledOptions:
    """What a call asks beside its tensors, checked. scaled: it has scales."""
    options = options_asked(1.0, None, out_dtype, precision, None, False, None, False)
    if scaled:
        return scaled_options(out_dtype, fast)
    if fast:
        raise ProblemError(
            "fast_accumulation is for operands of FP8, which come with scales.", hint="pass scale_a and scale_b."
        )
    return options
