"""`tilewright run`: a user's own matrices, and everything that can be wrong with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_runs import Cli, Ran

RNG = np.random.default_rng(0)
A = RNG.standard_normal((37, 29), dtype=np.float32)
B = RNG.standard_normal((29, 41), dtype=np.float32)

Multiply = Callable[..., Ran]


@pytest.fixture
def multiply(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Multiply:
    """`multiply(a, b, "--beta", 1, rung=...)`: the matrices as files, multiplied into C.npy of the working folder."""
    monkeypatch.chdir(tmp_path)

    def run(a: Any, b: Any, *options: object, rung: str = "worklog/6") -> Ran:
        for name, matrix in (("A.npy", a), ("B.npy", b)):
            np.save(name, matrix)
        return cli("run", rung, "A.npy", "B.npy", "-o", "C.npy", "--on", "simulator", *options)

    return run


def close(a: Any, b: Any) -> bool:
    return bool(np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True))


@pytest.mark.parametrize("rung", ["worklog/1", "worklog/3", "worklog/6", "te/1"])
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_rows_or_columns(multiply: Multiply, rung: str, orders: str) -> None:
    a, b = np.asarray(A, order=orders[0]), np.asarray(B, order=orders[1])
    ran = multiply(a, b, "--check", rung=rung)
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"C.npy: 37 x 41 float32, by {rung} on the simulator in ")
    assert "\nChecked against float64, 1,517 elements: relative error " in ran.out
    result = np.load("C.npy")
    assert result.dtype == np.float32 and close(result, A @ B)


def test_alpha_beta_and_c(multiply: Multiply) -> None:
    c = RNG.standard_normal((37, 41), dtype=np.float32)
    np.save("C0.npy", c)
    assert multiply(A, B, "--alpha", 2, "--beta", -1, "--c", "C0.npy").code == 0
    assert close(np.load("C.npy"), 2 * A @ B - c)


def test_half_precision_and_the_other_byte_order(multiply: Multiply) -> None:
    assert multiply(A.astype(np.float16), B.astype(np.float16)).code == 0
    assert np.load("C.npy").dtype == np.float16
    assert multiply(A.astype(">f4"), B).code == 0
    assert close(np.load("C.npy"), A @ B)


def test_nan_and_infinity_pass_through(multiply: Multiply) -> None:
    a = A.copy()
    a[0, 0], a[1, 1] = np.nan, np.inf
    assert multiply(a, B, "--check").code == 0
    with np.errstate(invalid="ignore"):
        assert close(np.load("C.npy"), a @ B)


def test_nan_in_c_is_not_read_when_beta_is_0(multiply: Multiply) -> None:
    np.save("C0.npy", np.full((37, 41), np.nan, np.float32))
    assert multiply(A, B, "--c", "C0.npy").code == 0
    assert close(np.load("C.npy"), A @ B)


@pytest.mark.parametrize("shape", [(0, 29, 41), (37, 29, 0), (3, 0, 5), (0, 0, 0)])
def test_empty_matrices_give_what_numpy_gives(multiply: Multiply, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)
    assert multiply(a, b).code == 0
    result = np.load("C.npy")
    assert result.shape == (m, n) and close(result, a @ b)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (A, A, "Cannot multiply 37 x 29 by 37 x 29: A has 29 columns and B has 37 rows.\n"),
        (A.astype(np.float64), B, "A is float64, which no kernel here multiplies.\n  Hint: use float32"),
        (A.astype(np.int32), B, "A is int32, which no kernel here multiplies.\n"),
        (A, B.astype(np.float16), "A is float32 and B is float16.\n  Hint: convert one to the other's dtype.\n"),
        (A[0], B, "A has 1 dimension, and a matrix has 2: shape (29,).\n"),
        (
            np.array([[1, "a"]], dtype=object),
            B,
            "A in 'A.npy' holds Python objects, not numbers.\n  Note: reading them",
        ),
    ],
)
def test_matrices_that_cannot_be_multiplied(multiply: Multiply, a: Any, b: Any, message: str) -> None:
    ran = multiply(a, b)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(message)
    assert not Path("C.npy").exists()


def _cut(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, "'A.npy' is cut short: 37 x 29 float32 take 4292 bytes, and "),
        (lambda whole: whole[:20], "'A.npy' is not a .npy file: EOF: reading array header"),
        (lambda whole: b"", "'A.npy' is not a .npy file: EOF: reading magic string"),
        (lambda whole: b"hello, world", "'A.npy' is not a .npy file: the magic string is not correct;"),
        # A header that asks for more than any memory takes none.
        (lambda whole: whole.replace(b"(37, 29)", b"(9999999, 9999999)"), "'A.npy' is cut short: 9999999 x 9999999 "),
    ],
)
def test_a_damaged_file_is_refused(
    cli: Cli, multiply: Multiply, damage: Callable[[bytes], bytes], message: str
) -> None:
    assert multiply(A, B).code == 0
    before = Path("C.npy").read_bytes()
    Path("A.npy").write_bytes(damage(Path("A.npy").read_bytes()))
    ran = cli("run", "worklog/6", "A.npy", "B.npy", "-o", "C.npy", "--on", "simulator")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(message)
    assert Path("C.npy").read_bytes() == before
    assert sorted(path.name for path in Path().iterdir()) == ["A.npy", "B.npy", "C.npy"]


@pytest.mark.timeout(60)
def test_a_pipe_is_refused_at_once(cli: Cli, multiply: Multiply) -> None:
    assert multiply(A, B).code == 0
    os.mkfifo("pipe.npy")
    ran = cli("run", "worklog/6", "A.npy", "pipe.npy", "-o", "C.npy", "--on", "simulator")
    assert (ran.code, ran.out, ran.err) == (1, "", "'pipe.npy' is not an ordinary file.\n")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--beta", "1"), "beta is 1, and there is no C for it to multiply.\n  Hint: give one: --c C0.npy.\n"),
        (("--beta", "1", "--c", "none.npy"), "There is no file 'none.npy' to read C from.\n"),
        (("--on", "gpu"), "No NVIDIA driver is installed here.\n"),
        (("-o", "nowhere/C.npy"), "Cannot write 'nowhere/C.npy': there is no folder 'nowhere'.\n"),
        (("-o", "."), "Cannot write '.': it is a folder.\n"),
        (("-o", "/dev/null"), "Cannot write '/dev/null': it is not a plain file.\n"),
    ],
)
def test_options_that_cannot_be(multiply: Multiply, options: tuple[str, ...], message: str) -> None:
    ran = multiply(A, B, *options)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(message)


@pytest.mark.parametrize(("out", "name"), [("./A.npy", "A"), ("B.npy", "B"), ("C0.npy", "C")])
def test_an_input_is_not_overwritten(multiply: Multiply, out: str, name: str) -> None:
    np.save("C0.npy", np.zeros((37, 41), np.float32))
    ran = multiply(A, B, "--beta", 1, "--c", "C0.npy", "-o", out)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"{str(Path(out))!r} holds {name}, and the result would take its place.\n")
    assert np.array_equal(np.load("A.npy"), A)


def test_a_c_that_does_not_fit(multiply: Multiply) -> None:
    np.save("C0.npy", np.zeros((3, 3), np.float32))
    ran = multiply(A, B, "--beta", 1, "--c", "C0.npy")
    assert (ran.code, ran.err) == (1, "C is float32 (3, 3), not float32 (37, 41).\n")


def test_a_write_that_fails_leaves_the_old_result(
    cli: Cli, multiply: Multiply, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert multiply(A, B).code == 0
    before = Path("C.npy").read_bytes()

    def full(file: Any, *_: object, **__: object) -> None:
        file.write(b"the first half of a matrix")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tilewright.cli.run.npy.write_array", full)
    ran = cli("run", "worklog/6", "A.npy", "B.npy", "-o", "C.npy", "--on", "simulator")
    said = "Cannot write 'C.npy': No space left on device.\n  Hint: name a file elsewhere.\n"
    assert (ran.code, ran.err) == (1, said)
    assert Path("C.npy").read_bytes() == before
    assert sorted(path.name for path in Path().iterdir()) == ["A.npy", "B.npy", "C.npy"]


def test_a_wrong_result_is_not_written(multiply: Multiply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.run.run_on_simulator", lambda *_, **__: (np.zeros((37, 41), np.float32), None))
    ran = multiply(A, B, "--check")
    assert ran.code == 1
    assert ran.err.startswith("The result is wrong, and was not written: 1517 of 1517 elements are wrong;")
    assert not Path("C.npy").exists()


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("orders", ["CC", "FF"])
def test_a_real_gpu_gives_what_numpy_gives(cli: Cli, tmp_path: Path, orders: str) -> None:
    np.save(tmp_path / "A.npy", np.asarray(A, order=orders[0]))
    np.save(tmp_path / "B.npy", np.asarray(B, order=orders[1]))
    out = tmp_path / "C.npy"
    ran = cli("run", "worklog/6", tmp_path / "A.npy", tmp_path / "B.npy", "-o", out, "--on", "gpu", "--check")
    assert ran.code == 0, ran.err
    assert close(np.load(out), A @ B)
