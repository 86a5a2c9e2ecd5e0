"""The time model on whole calls: launches around a product are terms, and recorded figures lie in the interval."""

from __future__ import annotations

import json

import pytest

from tilewright.bench.records import recorded_folder
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend.predicting import predict_precision
from tilewright.planning.plan import Role
from tilewright.prediction import predict
from tilewright.runtime.cubin_cache import CubinCache


def test_all_launches_add_up() -> None:
    found, plan = predict_precision("bf16x6", 512, 640, 768, "H200", cache=CubinCache())
    exposed = [term for term in found.terms if term.kind == "exposed"]
    most = max(term.seconds for term in found.bounds)
    assert most + sum(term.seconds for term in exposed) == pytest.approx(found.seconds)
    assert found.low_s < found.seconds < found.high_s and found.seconds <= found.sustained_s
    assert found.tflops == pytest.approx(2 * 512 * 640 * 768 / found.seconds / 1e12)
    splits = [term for term in exposed if term.name.startswith("split")]
    assert len(splits) == sum(step.role is Role.SPLIT for step in plan.steps) == 2


def test_what_does_not_run_takes_little() -> None:
    """f32_emulated has launches of the other pieces behind f16x3, which end at once."""
    scaled, emulated = (predict_precision(name, *(2048,) * 3, "H200")[0] for name in ("f16x3", "f32_emulated"))
    ended = [term for term in emulated.terms if "ends at once" in term.what]
    assert len(ended) == 3 and scaled.seconds < emulated.seconds < 1.2 * scaled.seconds


def test_splitting_a_large_weight_for_few_rows_is_what_takes_most() -> None:
    found, _ = predict_precision("bf16x6", 16, 4096, 4096, "H200")
    assert found.binding.name.startswith("split B") and "tilewright.prepare" in found.relief


@pytest.mark.cross_section("precision", every=2)
@pytest.mark.parametrize("precision", ["bf16x9", "bf16x6", "bf16x3", "tf32x3", "f16x3", "f32_emulated"])
def test_recorded_times_lie_in_the_interval(precision: str) -> None:
    rows = [json.loads(line) for line in (recorded_folder() / "emulation_h200.jsonl").read_text().splitlines()]
    asked = {"problem": "8192x8192x8192", "orders": "NN", "precision": precision}
    (row,) = (row for row in rows if asked.items() <= row.items())
    found, _ = predict_precision(precision, 8192, 8192, 8192, "H200")  # type: ignore[arg-type]
    assert found.low_s < row["us"] * 1e-6 < found.high_s
    assert found.sustained_s < 1.15 * row["sustained"]["us"] * 1e-6 if "sustained" in row else True


def test_parts_of_split_k_are_blocks_of_their_own() -> None:
    found, plan = predict_precision("bf16x6", 128, 128, 16384, "H200")
    assert "split_k" in plan.words
    (product,) = (step.multiplied for step in plan.steps if step.multiplied is not None)
    whole = predict((product.gemm, product.config.with_split_k(1).kernel.schedule(product.gemm)), "H200")
    assert found.seconds < whole.seconds


def test_what_is_not_predicted() -> None:
    with pytest.raises(LaunchError, match="wgmma"):
        predict_precision("bf16x6", 512, 512, 512, "A100")
    with pytest.raises(ProblemError, match="takes no time"):
        predict_precision("bf16x6", 0, 512, 512, "H200")
    assert predict_precision("f32_emulated", 512, 512, 512, "A100")[0].seconds > 0


@pytest.mark.parametrize(("rows", "k", "n", "us"), [(1, 4096, 14336, 55.1), (1, 4096, 4096, 18.8)])
def test_gemv_is_predicted_from_its_bytes(rows: int, k: int, n: int, us: float) -> None:
    """us: recorded on an H200 (benchmarks/results/emulation_h200.jsonl)."""
    found, plan = predict_precision("f32_emulated", rows, n, k, "H200")
    assert "gemv" in plan.words and found.binding.name == "DRAM"
    assert found.low_s < us * 1e-6 < found.high_s
    assert found.seconds == pytest.approx(sum(term.seconds for term in found.stacked))
    halved, _ = predict_precision("f32_emulated", rows, n, k, "H200", clock_mhz=500)
    assert halved.seconds > found.seconds
