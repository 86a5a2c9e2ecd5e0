"""The functions and operations that an epilogue may be made of, in float64."""

from __future__ import annotations

import math

import numpy as np

from tilewright.dtypes import Array
from tilewright.enums import Spelled

STEEPEST = 1.13
"""No activation here is steeper: GELU reaches a slope of 1.129 at sqrt(2)."""


class Activation(Spelled):
    """A function of one number, by the name that the emitted text gives it."""

    RELU = "relu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SILU = "silu"

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


class Elementary(Spelled):
    """A function of one number that activations and epilogues are made of."""

    NEGATIVE = "negative"
    ABSOLUTE = "absolute"
    EXP = "exponential"
    LOG = "logarithm"
    SQRT = "square_root"
    TANH = "tangens_hyperbolicus"
    ERF = "error_function"
    SIGMOID = "sigmoid"

    def of(self, x: Array) -> Array:
        """The function in float64; NaN stays NaN.

        >>> Elementary.SIGMOID.of(np.array([0.0])).tolist()
        [0.5]
        """
        x = np.asarray(x, np.float64)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            match self:
                case Elementary.NEGATIVE:
                    result: Array = -x
                case Elementary.ABSOLUTE:
                    result = np.abs(x)
                case Elementary.EXP:
                    result = np.exp(x)
                case Elementary.LOG:
                    result = np.log(x)
                case Elementary.SQRT:
                    result = np.sqrt(x)
                case Elementary.TANH:
                    result = np.tanh(x)
                case Elementary.ERF:
                    result = _erf(x)
                case Elementary.SIGMOID:
                    result = 1 / (1 + np.exp(-x))
            return result


Function = Activation | Elementary


class Operation(Spelled):
    """A function of two values, by its text. Comparisons give truths, of which `both` and `either` make others."""

    PLUS = "+"
    MINUS = "-"
    TIMES = "*"
    OVER = "/"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    LESS = "<"
    AT_MOST = "<="
    EQUAL = "=="
    UNEQUAL = "!="
    BOTH = "&&"
    EITHER = "||"

    def of(self, a: Array, b: Array) -> Array:
        """The operation in float64. The minimum and the maximum of NaN and a number are NaN.

        >>> Operation.MAXIMUM.of(np.array([1.0, np.nan]), np.array([2.0, 2.0])).tolist()
        [2.0, nan]
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            result: Array = _OF[self](a, b)
            return result

    @property
    def is_truth(self) -> bool:
        """Whether the result is a truth, and not a number."""
        return self in _TRUTHS


_TRUTHS = frozenset(
    {Operation.LESS, Operation.AT_MOST, Operation.EQUAL, Operation.UNEQUAL, Operation.BOTH, Operation.EITHER}
)

_OF = {
    Operation.PLUS: np.add,
    Operation.MINUS: np.subtract,
    Operation.TIMES: np.multiply,
    Operation.OVER: np.divide,
    Operation.MINIMUM: np.minimum,
    Operation.MAXIMUM: np.maximum,
    Operation.LESS: np.less,
    Operation.AT_MOST: np.less_equal,
    Operation.EQUAL: np.equal,
    Operation.UNEQUAL: np.not_equal,
    Operation.BOTH: np.logical_and,
    Operation.EITHER: np.logical_or,
}
