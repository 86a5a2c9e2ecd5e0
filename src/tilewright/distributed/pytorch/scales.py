"""The scales of FP8 operands in products over ranks, and what multiplies with and without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import extras
from tilewright.errors import ProblemError, TilewrightError
from tilewright.frontend.options import Options
from tilewright.frontend.pytorch.plain import compute_plain, seen
from tilewright.frontend.pytorch.scaled import compute_scaled_plain
from tilewright.frontend.scaled import ScaledOptions, ScaledViews, checked_scaled

torch: Any = extras.require("torch", "Multiplying on several GPUs")

Asked = Options | ScaledOptions
"""What a call asks beside its tensors; the latter where it gives scales."""


@dataclass(frozen=True, slots=True, eq=False)
class Scales:
    """Of operands of FP8, f32. a: one element, or (m, 1); b: for each b one element, or (1, n)."""

    a: Any
    b: tuple[Any, ...]

    @property
    def tensors(self) -> tuple[Any, ...]:
        return (self.a, *self.b)

    def of(self, which: slice) -> Scales:
        """Those of some b."""
        return Scales(self.a, self.b[which])


def scales_asked(b: Sequence[Any], scale_a: Any, scale_b: Any) -> Scales | None:
    """The scales of a call, as matrices; None where none are given. scale_b: one, or as many as there are b. Raises
    ProblemError for what no scales are."""
    if scale_a is None and scale_b is None:
        return None
    of_b = tuple(scale_b) if isinstance(scale_b, (list, tuple)) else (scale_b,)
    if not all(isinstance(one, torch.Tensor) for one in (scale_a, *of_b)) or len(of_b) != len(b):
        raise ProblemError(
            f"Products of FP8 over ranks take one scale_a and {len(b)} scale_b, all of them tensors.",
            hint="give both: f32, one element each, or one for each row of a and each column of b.",
        )
    if torch.is_grad_enabled() and any(one.requires_grad for one in (scale_a, *of_b)):
        raise ProblemError("Products of FP8 over ranks have no gradients.", hint="pass detached scales.")
    as_rows = tuple(one if one.dim() == 2 else one.reshape(1, -1) for one in of_b)
    return Scales((scale_a if scale_a.dim() == 2 else scale_a.reshape(-1, 1)).contiguous(), as_rows)


def problem_of(a: Any, b: Sequence[Any], scales: Scales, options: ScaledOptions) -> str:
    """What is wrong with operands of FP8 and their scales; empty for nothing."""
    try:
        for x, scale in zip(b, scales.b, strict=True):
            if checked_scaled(ScaledViews(seen(a), seen(x), seen(scales.a), seen(scale)), options).blocks is not None:
                return "scales are of blocks, and products over ranks take those of whole operands, or of rows"
    except TilewrightError as error:
        return error.headline.removesuffix(".")
    return ""


def multiplied(a: Any, b: tuple[Any, ...], options: Asked, scales: Scales | None) -> list[Any]:
    """The products with all b, by this rank alone."""
    if isinstance(options, Options):
        return [compute_plain(a, x, None, None, None, options) for x in b]
    assert scales is not None
    pairs = zip(b, scales.b, strict=True)
    return [compute_scaled_plain((a, x, scales.a, scale, None, None), options) for x, scale in pairs]
