"""Products of DTensors, `parallelize_module` and FSDP2 on two processes of the CPU: equal to one process."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from on_ranks import cases_of, outcomes  # noqa: E402

pytestmark = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9) or not torch.distributed.is_gloo_available(),
    reason="rules of sharding are tested with PyTorch 2.9 or later, over gloo",
)


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    return outcomes("sharded_cases")


@pytest.mark.parametrize("case", cases_of("sharded_cases"))
def test_two_ranks_and_one_agree(found: dict[str, list[str]], case: str) -> None:
    assert not found[case], "\n".join(found[case])


def test_a_plain_call_imports_no_dtensor() -> None:
    program = (
        "import sys, torch, tilewright, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "tilewright.matmul(torch.ones(2, 2), torch.ones(2, 2))\n"
        "assert 'torch.distributed.tensor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
