"""What is done with a finished sum: `C = activation(alpha * sum + beta * R + bias)`.

R is C itself, or a matrix of its own (`residual`). A bias is one number for each column (`bias="n"`, as in a linear
layer) or for each row (`bias="m"`), in the format of C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import numpy as np

from tilewright.dtypes import Array

STEEPEST = 1.13
"""No activation here is steeper: GELU reaches a slope of 1.129 at sqrt(2)."""


class Activation(Enum):
    """A function of one number, by the name that the emitted text gives it."""

    RELU = "relu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SILU = "silu"

    def __repr__(self) -> str:
        return f"Activation.{self.name}"

    def of(self, x: Array) -> Array:
        """The function in float64; NaN stays NaN.

        >>> Activation.RELU.of(np.array([-1.0, 2.0])).tolist(), round(float(Activation.SILU.of(np.array(1.0))), 6)
        ([0.0, 2.0], 0.731059)
        """
        x = np.asarray(x, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            match self:
                case Activation.RELU:
                    result: Array = np.where(x < 0, 0.0, x)
                case Activation.GELU:
                    result = 0.5 * x * (1 + _erf(x / math.sqrt(2)))
                case Activation.GELU_TANH:
                    result = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
                case Activation.SILU:
                    result = x / (1 + np.exp(-x))
            return result


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """bias: the dimension along which it runs. residual: whether R is another matrix than C."""

    bias: Literal["m", "n"] | None = None
    residual: bool = False
    activation: Activation | None = None

    def __bool__(self) -> bool:
        return self.bias is not None or self.residual or self.activation is not None

    def __str__(self) -> str:
        words = [f"bias along {self.bias}"] if self.bias else []
        words += ["residual"] if self.residual else []
        return ", ".join([*words, *([self.activation.value] if self.activation else [])])


PLAIN = Epilogue()
"""C = alpha * sum + beta * C."""
