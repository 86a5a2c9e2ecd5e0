"""Products over two GPUs of a host: `pytest -m gpu tests/gpu/test_ranks_on_gpu.py`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from on_ranks import cases_of, finished, outcomes  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    return outcomes("gpu_cases", gpus=True)


@pytest.mark.parametrize("case", cases_of("gpu_cases"))
def test_on_two_gpus(found: dict[str, list[str]], case: str) -> None:
    assert not found[case], "\n".join(found[case])


def test_a_rank_whose_peer_dies_ends(tmp_path: Path) -> None:
    began = time.monotonic()
    codes = finished("dying_cases", tmp_path, gpus=True, timeout_s=10)
    log = (tmp_path / "0.log").read_text()
    assert codes[0] != 0 and "a product without its rows" not in log and time.monotonic() - began < 120
    assert "waited 10 s" in log or "timeout" in log.lower()
