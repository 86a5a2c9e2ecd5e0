"""Operators of PyTorch: what computes a call, what torch.compile sees of it, and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import library

from tilewright.errors import ProblemError

Function = TypeVar("Function", bound=Callable[..., Any])


def constant_in_graphs(function: Function) -> Function:
    """`torch.compiler.assume_constant_result`, without the compiler: that imports torch._dynamo, which takes a second
    of the first call, and whose modules keep the default process group alive behind `destroy_process_group`."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def registered(
    signature: str,
    computed: Callable[..., Any],
    shaped: Callable[..., Any],
    gradients: Callable[..., Any] | None = None,
    kept: Callable[..., None] | None = None,
) -> Any:
    """The operator of a signature, "name(arguments) -> results"; it lasts as long as what is returned.

    shaped: results without elements. gradients, kept: those of `torch.library.register_autograd`.
    """
    operators = library.Library("tilewright", "FRAGMENT")
    name = signature.partition("(")[0]
    operators.define(signature, tags=(torch.Tag.pt2_compliant_tag,))
    operators.impl(name, computed, "CompositeExplicitAutograd")
    library.register_fake(f"tilewright::{name}", shaped, lib=operators)
    if gradients is not None:
        library.register_autograd(f"tilewright::{name}", gradients, setup_context=kept, lib=operators)
    return operators


def without_gradients(what: str, hint: str) -> tuple[Callable[..., Any], Callable[..., None]]:
    """The gradients, and what is kept for them, of an operator that has none. what: it, and what wants them."""

    def refused(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        raise ProblemError(f"{what} wants them.", hint=hint)

    return refused, lambda ctx, inputs, output: ctx.set_materialize_grads(False)
