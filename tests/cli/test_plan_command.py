"""`tilewright plan`."""

from __future__ import annotations

import pytest
from command_runs import Cli

from tilewright.planning import account


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "_has_compiler", lambda: False)


def test_every_launch_is_told_in_a_line(cli: Cli) -> None:
    ran = cli("plan", "64x64x8192", "--dtype", "f16", "--best", "2", "--device", "A100")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "64 x 64 x 8192, f16, on A100 SXM 80 GB"
    assert "TFLOP/s, not measured" in lines[2] and "chosen by the estimate" in ran.out
    assert any(line.split()[:3] == ["1", "product", "partial"] for line in lines)
    assert any(line.split()[:2] == ["2", "reduction"] for line in lines)
    assert "split_k=" in ran.out and ran.out.count(" us: ") == 1 and max(map(len, lines)) <= 100


def test_parts_of_a_very_large_result_are_told_once(cli: Cli) -> None:
    ran = cli("plan", "2147483648x2x2")
    assert ran.out.startswith("4194240 x 2 x 2, 512 times, 32768 x 2 x 2, f32, on H200\n")
    assert len(ran.out.splitlines()) < 30


def test_a_size_is_one_word_or_three(cli: Cli) -> None:
    assert cli("plan", "64", "48", "8192").out == cli("plan", "64x48x8192").out
    assert cli("plan", "64").out == cli("plan", "64x64x64").out


def test_pieces_have_a_bound_and_a_condition(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = cli("plan", "4096", "--precision", "f32_emulated", "--order", "nt")
    assert ran.code == 0 and max(map(len, ran.out.splitlines())) <= 80
    assert "bound: |C - AB| <= 4096 u |A||B|" in ran.out and "if a flag is raised" in ran.out


def test_json_and_cuda(cli: Cli) -> None:
    data = cli("plan", "64", "--batch", "4", "--device", "a100", "--dtype", "tf32", "--json").json
    assert (data["device"], data["precision"], data["shape"]) == ("A100 SXM 80 GB", "tf32", [4, 64, 64])
    pieces = cli("plan", "512", "--dtype", "bf16x6", "--json").json
    assert (pieces["precision"], pieces["dtype"]) == ("bf16x6", "f32")
    assert data["products"][0]["batch"] == 4 and data["estimated_us"] > 0 and data["bound_u"] is None
    halves = cli("plan", "64x32x16", "--dtype", "complex64", "--json").json
    assert halves["shape"] == [64, 32] and [halves["products"][0][name] for name in "mnk"] == [64, 64, 32]
    assert halves["note"].startswith("complex64 as one product of f32") and halves["bound_u"] == 32
    text = cli("plan", "64", "--cuda").out
    assert text.startswith("// launch 1: product") and "__global__" in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("64x64",), 2, "'64x64' is not a size"),
        (("0",), 1, "A product of 0 x 0 results takes no time"),
        (("64", "--dtype", "fp8"), 1, "Cannot multiply operands of fp8."),
        (("64", "--order", "NX"), 1, "orders='NX' is not known."),
        (("64", "--precision", "f33"), 1, "precision='f33' is not known."),
        (("64", "--dtype", "tf32", "--precision", "bf16x6"), 2, "--dtype tf32 is --precision tf32"),
        (("64", "--device", "H201"), 1, "did you mean 'H200'?"),
        (("64", "--json", "--cuda"), 2, "exclude each other"),
        (("64", "--precision", "bf16x6", "--device", "a100"), 1, "which A100 SXM 80 GB does not have"),
    ],
)
def test_a_mistake_is_told_as_what_it_is(cli: Cli, arguments: tuple[str, ...], code: int, said: str) -> None:
    ran = cli("plan", *arguments)
    assert (ran.code, ran.out) == (code, "") and said in ran.err
