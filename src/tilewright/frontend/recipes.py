"""A recipe: everything about a call but its addresses. What is settled once for all calls that look the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.errors import LaunchError
from tilewright.frontend.added import Added
from tilewright.frontend.layouts import Layout, layouts_of
from tilewright.frontend.libraries import View
from tilewright.frontend.options import Options
from tilewright.frontend.shapes import Product
from tilewright.planning.assembly import Request
from tilewright.planning.copies import Alignment
from tilewright.planning.dispatch import Dispatcher
from tilewright.planning.plan import Place, Plan
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.gemm import Gemm

Addresses = tuple[int, int, int, int, int]
"""Of A, B, the result, the bias and the residual; 0 for what is not there."""


@dataclass(frozen=True, slots=True)
class Part:
    """Launches of one plan. starts: where the arrays of each begin, in bytes; A and B as the kernel has them, which is
    the other way round where `swapped`."""

    plan: Plan
    starts: tuple[Addresses, ...]
    swapped: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """The launches of a call, in order; they share a workspace."""

    parts: tuple[Part, ...]

    @property
    def scratch_bytes(self) -> int:
        return max(part.plan.scratch_bytes for part in self.parts)

    @property
    def words(self) -> str:
        """What runs, for people."""
        return "; ".join(dict.fromkeys(part.plan.words for part in self.parts))

    @property
    def single(self) -> tuple[Callable[..., None], tuple[int, ...]] | None:
        """The one launch, and which of a call's addresses it is given behind the stream; None where there are more."""
        if len(self.parts) != 1 or self.parts[0].starts != ((0,) * 5,) or len(self.parts[0].plan.steps) != 1:
            return None
        (step,) = self.parts[0].plan.steps
        turned = {Place.A: Place.B, Place.B: Place.A} if self.parts[0].swapped else {}
        return step.launch.launch, tuple(int(turned.get(place, place)) for place, _ in step.pointers)

    @property
    def direct(self) -> Callable[..., None] | None:
        """The launch of a plain product, called with a stream and the addresses of A, B and the result; None where more
        is needed."""
        launch, places = self.single or (None, ())
        return launch if places == (Place.A, Place.B, Place.OUT) else None

    def run(self, stream: int, addresses: Addresses, scratch: int) -> None:
        """Start everything on a stream. scratch: the address of the workspace."""
        a, b, out, bias, residual = addresses
        for part in self.parts:
            first, second = (b, a) if part.swapped else (a, b)
            run = part.plan.run
            for x, y, z, at_bias, at_residual in part.starts:
                run(stream, (first + x, second + y, out + z, bias + at_bias, residual + at_residual, scratch))


def start(library: Any, recipe: Recipe, addresses: Addresses, device: int, like: Any) -> None:
    """Start a call on the library's stream. Raises WorkspaceError where there is no room for the workspace."""
    scratch, kept = library.scratch(recipe.scratch_bytes, like) if recipe.scratch_bytes else (0, None)
    recipe.run(library.stream(device), addresses, scratch)
    del kept  # only now: the library may give the memory to whatever its stream does next


def recipe_of(
    planner: Dispatcher,
    capturing: Callable[[], bool],
    product: Product,
    a: View,
    b: View,
    out: View,
    added: Added,
    options: Options,
    *,
    without_workspace: bool = False,
) -> Recipe:
    """The launches of a product whose result has at least one element.

    Raises CannotWrite and ResidualNeedsCopy for results and residuals that lie in no order, and LaunchError where a
    kernel would have to be compiled while the stream is recording a graph.
    """
    pieces = layouts_of(product, out, added.residual, bias_along=added.bias_along)
    parts = []
    for layout in pieces:
        gemm = gemm_of(layout, a, out, added, options)
        alignment = alignment_of(layout, a, b, out, added)
        request = Request(gemm, alignment, layout.stack, options.fixed_order, without_workspace)
        plan = planner.known(request)
        if plan is None:
            if capturing():
                raise LaunchError(
                    f"The stream is recording a CUDA graph, and no kernel for {request.gemm} is loaded yet.",
                    note="compiling and loading cannot be recorded.",
                    hint="make the same call once before the capture.",
                )
            plan = planner.plan(request)
        step, out_step = a.dtype.bytes, out.dtype.bytes
        starts = tuple(
            (x * step, y * step, z * out_step, bias * out_step, r * out_step if added.residual is not None else 0)
            for x, y, z, bias, r in layout.starts
        )
        parts.append(Part(plan, starts, layout.swapped))
    return Recipe(tuple(parts))


def gemm_of(layout: Layout, a: View, out: View, added: Added, options: Options) -> Gemm:
    """The problem that each launch of a layout computes."""
    along = added.bias_along
    if along is not None and layout.swapped:
        along = "m" if along == "n" else "n"
    return Gemm(
        layout.m,
        layout.n,
        layout.k,
        a.dtype,
        out=out.dtype,
        a=layout.a.order,
        b=layout.b.order,
        alpha=options.alpha,
        beta=options.beta,
        lda=layout.a.leading,
        ldb=layout.b.leading,
        ldc=layout.leading,
        product=options.product_of(a.dtype),
        epilogue=Epilogue(along, added.residual is not None, options.activation),
        ld_residual=layout.residual_leading,
    )


def alignment_of(layout: Layout, a: View, b: View, out: View, added: Added) -> Alignment:
    """What addresses, rows and steps between matrices are multiples of, in bytes."""
    step, out_step = a.dtype.bytes, out.dtype.bytes
    first, second = (b, a) if layout.swapped else (a, b)
    bits_a, bits_b = layout.a.leading * step, layout.b.leading * step
    bits_c, bits_residual = layout.leading * out_step, layout.residual_leading * out_step
    if layout.stack is not None:
        bits_a, bits_b = bits_a | layout.stack.a * step, bits_b | layout.stack.b * step
        bits_c, bits_residual = bits_c | layout.stack.c * out_step, bits_residual | layout.stack.residual * out_step
    for x, y, z, _, r in layout.starts:
        bits_a, bits_b = bits_a | first.pointer + x * step, bits_b | second.pointer + y * step
        bits_c |= out.pointer + z * out_step
        if added.residual is not None:
            bits_residual |= added.residual.pointer + r * out_step
    if added.residual is not None:
        bits_c |= bits_residual
    return Alignment(_power_of_two(bits_a), _power_of_two(bits_b), _power_of_two(bits_c | added.bias))


def _power_of_two(value: int) -> int:
    """The largest power of two that divides an address, at most 16."""
    return min(value & -value, 16) if value else 16
