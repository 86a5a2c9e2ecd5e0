"""Which number formats each rung is for, as tests go through them."""

from __future__ import annotations

from tilewright.ladders import Rung
from tilewright.problem.formats import FORMATS, format_name


def uses_tensor_cores(rung: Rung) -> bool:
    """Whether some step hands the inner tile to a matrix instruction."""
    return any(type(step).__name__ == "Tensorize" for step in rung.schedule(rung.gemm(128, 128, 64)))


def formats_for(rung: Rung) -> tuple[str, ...]:
    """Every format that a rung multiplies in, its own first."""
    own = format_name(rung.gemm(1, 1, 1))
    if not uses_tensor_cores(rung):
        several = ("f32", "f16", "f16_sums", "bf16")
    elif rung.ladder in ("ampere", "hopper"):
        several = tuple(name for name in FORMATS if name != "f32" and (rung.name, name) != ("hopper/1", "tf32"))
    else:
        several = ("tf32", "tf32_truncated") if own == "tf32" else ("f16_sums", "f16", "bf16")
    return (own, *(name for name in several if name != own))
