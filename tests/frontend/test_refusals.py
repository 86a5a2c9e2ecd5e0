"""What `matmul` refuses, and in which words: never a traceback from inside, never a wrong result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import OnGpu, State, cpu_gpu, on_gpu

from tilewright.errors import ProblemError, TilewrightError
from tilewright.frontend import grouped_matmul, linear, matmul

Call = Callable[[], Any]


@pytest.fixture(autouse=True)
def gpu() -> Iterator[State]:
    with cpu_gpu() as state:
        yield state


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return on_gpu(np.ones(shape, dtype))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3), (4, 5)),
        ((3,), (4,)),
        ((), (3,)),
        ((3, 2), ()),
        ((2, 3, 4), (5, 4, 3)),
        ((2, 0), (3, 2)),
        ((4, 2, 3), (2,)),
    ],
    ids=str,
)
def test_shapes_are_refused_in_the_words_of_numpy(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    with pytest.raises(ValueError) as theirs:
        np.matmul(np.ones(left), np.ones(right))
    with pytest.raises(ValueError) as ours:
        matmul(ones(*left), ones(*right))
    said = str(theirs.value).partition("  and requested shape")[0]
    assert said == getattr(ours.value, "headline", "")


def test_shapes_that_do_not_multiply_are_told() -> None:
    with pytest.raises(ValueError, match=r"Hint: a has shape \(2,3\) and b \(4,5\): as many columns of a"):
        matmul(ones(2, 3), ones(4, 5))


REFUSED: dict[str, tuple[Call, str]] = {
    "formats that differ": (lambda: matmul(ones(2, 2), ones(2, 2, dtype=np.float16)), "Cannot multiply f32 by f16."),
    "a format that no kernel takes": (
        lambda: matmul(ones(2, 2, dtype=np.float64), ones(2, 2, dtype=np.float64)),
        "Cannot multiply an OnGpu of float64.",
    ),
    "a list": (lambda: matmul([[1.0]], [[1.0]]), "Cannot multiply a list."),
    "two libraries": (
        lambda: matmul(ones(2, 2), np.ones((2, 2), np.float32)),
        "b is an array of NumPy, and a is one of the CPU's GPU.",
    ),
    "an out of another library": (
        lambda: matmul(ones(2, 2), ones(2, 2), out=np.ones((2, 2), np.float32)),
        "out is an array of NumPy, and a is one of the CPU's GPU.",
    ),
    "an out of another shape": (
        lambda: matmul(ones(2, 2), ones(2, 2), out=ones(2, 3)),
        "`out` has shape (2, 3), and the result (2, 2).",
    ),
    "an out of another format": (
        lambda: matmul(ones(2, 2), ones(2, 2), out=ones(2, 2, dtype=np.float16)),
        "`out` holds f16, and the result is f32.",
    ),
    "a narrower result": (
        lambda: matmul(ones(2, 2), ones(2, 2), out_dtype="f16"),
        "Cannot multiply f32 into f16.",
    ),
    "an unknown result": (lambda: matmul(ones(2, 2), ones(2, 2), out_dtype="f64"), "Cannot multiply into f64."),
    "an unknown activation": (
        lambda: matmul(ones(2, 2), ones(2, 2), activation="rleu"),
        "There is no activation 'rleu'.",
    ),
    "an activation that is not a name": (
        lambda: matmul(ones(2, 2), ones(2, 2), activation=[1]),  # type: ignore[arg-type]
        "There is no activation '[1]'.",
    ),
    "an unknown precision": (
        lambda: matmul(ones(2, 2), ones(2, 2), precision="half"),  # type: ignore[arg-type]
        "precision='half' is not known.",
    ),
    "an unknown promise": (
        lambda: matmul(ones(2, 2), ones(2, 2), deterministic="always"),  # type: ignore[arg-type]
        "deterministic='always' is not known.",
    ),
    "a beta for nothing": (lambda: matmul(ones(2, 2), ones(2, 2), beta=0.5), "beta=0.5 has nothing to multiply."),
    "a factor that is not a number": (
        lambda: matmul(ones(2, 2), ones(2, 2), alpha="2x"),  # type: ignore[arg-type]
        "alpha='2x' is not a number.",
    ),
    "a factor that is text": (
        lambda: matmul(ones(2, 2), ones(2, 2), alpha="2"),  # type: ignore[arg-type]
        "alpha='2' is not a number.",
    ),
    "an out that no kernel writes": (
        lambda: matmul(ones(2, 2), ones(2, 2), out=ones(2, 2, dtype=np.float64)),
        "`out` holds float64, and results are f32, f16 or bf16.",
    ),
    "a weight that does not go with x": (
        lambda: linear(ones(2, 3), ones(4, 5)),
        "linear: x of shape (2, 3) does not go with a weight of shape (4, 5).",
    ),
    "a weight of another format": (
        lambda: linear(ones(2, 3), ones(4, 3, dtype=np.float16)),
        "linear: x holds float32, and weight float16.",
    ),
    "a weight of another library": (
        lambda: linear(ones(2, 3), np.ones((4, 3), np.float32)),
        "linear: weight is an array of NumPy, and x is one of the CPU's GPU.",
    ),
    "a bias that does not go with the weight": (
        lambda: linear(ones(2, 3), ones(4, 3), ones(3)),
        "linear: a bias of shape (3,) does not go with a weight of shape (4, 3).",
    ),
    "no b": (lambda: matmul(ones(2, 2), None), "b is a NoneType, and a is an array of the CPU's GPU."),
    "a factor that is too large": (
        lambda: matmul(ones(2, 2), ones(2, 2), alpha=1e60),
        "alpha=1e+60 does not fit in an f32.",
    ),
    "a bias that fits nothing": (
        lambda: matmul(ones(2, 3), ones(3, 4), bias=ones(5)),
        "A bias of shape (5,) fits neither the rows nor the columns of a result of shape (2, 4).",
    ),
    "a bias for each element": (
        lambda: matmul(ones(2, 3), ones(3, 4), bias=ones(2, 4)),
        "A bias of shape (2, 4) fits neither the rows nor the columns of a result of shape (2, 4).",
    ),
    "a bias of another library": (
        lambda: matmul(ones(2, 2), ones(2, 2), bias=np.ones(2, np.float32)),
        "bias is an array of NumPy, and a is one of the CPU's GPU.",
    ),
    "a c that does not broadcast": (
        lambda: matmul(ones(2, 3), ones(3, 4), c=ones(3, 4)),
        "c of shape (3, 4) does not broadcast to the result's shape (2, 4).",
    ),
    "a weight of three dimensions": (
        lambda: linear(ones(2, 3), ones(2, 3, 4)),
        "A weight has one or two dimensions, and this OnGpu has shape (2, 3, 4).",
    ),
    "groups of different lengths": (
        lambda: grouped_matmul([ones(2, 2)], []),
        "grouped_matmul multiplies lists in pairs: a has 1 matrix, b 0.",
    ),
    "a group of stacks": (
        lambda: grouped_matmul([ones(2, 2, 2)], [ones(2, 2)]),
        "A group is of matrices, and one array has shape (2, 2, 2).",
    ),
    "a group of two formats": (
        lambda: grouped_matmul([ones(2, 2), ones(2, 2, dtype=np.float16)], [ones(2, 2), ones(2, 2, dtype=np.float16)]),
        "Pair 1 is f16 on GPU 0, and pair 0 is f32 on GPU 0.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name: str) -> None:
    call, headline = REFUSED[name]
    with pytest.raises(TilewrightError) as told:
        call()
    assert told.value.headline == headline


def test_a_missing_option_is_named() -> None:
    with pytest.raises(TilewrightError) as told:
        grouped_matmul(ones(6, 2), ones(3, 2, 4))
    assert told.value.headline == "grouped_matmul multiplies lists in pairs: a has 6 matrices, b 3."
    assert told.value.hint == "give as many of each; groups of one matrix a are told by offsets=, where each ends."


def test_complex_numbers_have_one_format() -> None:
    with pytest.raises(TilewrightError) as told:
        matmul(ones(2, 2, dtype=np.complex128), ones(2, 2, dtype=np.complex128))
    assert told.value.hint == "use complex64, which matmul and linear multiply: convert it first."


@pytest.mark.parametrize("kind", [np.complex128, np.float64, np.int8, np.int32, np.int64, np.bool_])
def test_formats_that_no_kernel_multiplies_are_refused(kind: Any) -> None:
    for call in (
        lambda: matmul(ones(2, 2, dtype=kind), ones(2, 2, dtype=kind)),
        lambda: matmul(ones(2, 2), ones(2, 2), c=ones(2, 2, dtype=kind)),
        lambda: linear(ones(2, 2, dtype=kind), ones(2, 2, dtype=kind)),
        lambda: grouped_matmul([ones(2, 2, dtype=kind)], [ones(2, 2, dtype=kind)]),
        lambda: matmul(np.ones((2, 2), kind), np.ones((2, 2), kind)),  # on the host
    ):
        with pytest.raises(TypeError, match=f"Cannot multiply an .* of {np.dtype(kind).name}"):
            call()


@pytest.mark.parametrize(
    "name",
    ["formats that differ", "a format that no kernel takes", "an unknown result", "an out that no kernel writes"],
)
def test_wrong_formats_are_type_errors(name: str) -> None:
    with pytest.raises(TypeError):
        REFUSED[name][0]()


def test_arrays_on_different_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from cpu_gpu import CpuArrays

    class Elsewhere(OnGpu):
        """An array on GPU 1."""

    plain = CpuArrays.view
    monkeypatch.setattr(
        CpuArrays, "view", lambda self, array: replace(plain(self, array), device=int(isinstance(array, Elsewhere)))
    )
    monkeypatch.setitem(__import__("tilewright.frontend.libraries", fromlist=["_KNOWN"])._KNOWN, Elsewhere, _library())
    here, there = ones(2, 2), np.ones((2, 2), np.float32).view(Elsewhere)
    for call, said in (
        (lambda: matmul(here, there), "arrays on different devices: GPU 0 and GPU 1"),
        (lambda: matmul(here, here, out=there), "`out` lies on GPU 1, and the operands on GPU 0"),
        (lambda: matmul(here, here, c=there), "c lies on GPU 1, and the result on GPU 0"),
        (lambda: matmul(here, here, bias=there[0]), "bias lies on GPU 1, and the result on GPU 0"),
        (lambda: grouped_matmul([here], [there]), "arrays on different devices: GPU 0 and GPU 1"),
    ):
        with pytest.raises(ProblemError, match=said):
            call()


def _library() -> Any:
    from tilewright.frontend.libraries import library_of

    return library_of(ones(1))
