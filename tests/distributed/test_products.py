"""Products over the ranks of a group, on two processes of the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from on_ranks import cases_of, outcomes  # noqa: E402

from tilewright.distributed import all_gather_matmul  # noqa: E402
from tilewright.errors import ProblemError  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="ranks of the CPU speak by gloo")


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    return outcomes("products_cases")


@pytest.mark.parametrize("case", cases_of("products_cases"))
def test_on_two_ranks(found: dict[str, list[str]], case: str) -> None:
    assert not found[case], "\n".join(found[case])


@pytest.fixture(scope="module")
def overlapped() -> dict[str, list[str]]:
    return outcomes("overlapped_cases")


@pytest.mark.parametrize("case", cases_of("overlapped_cases"))
def test_overlapped_on_two_ranks(overlapped: dict[str, list[str]], case: str) -> None:
    assert not overlapped[case], "\n".join(overlapped[case])


def test_a_product_needs_a_group() -> None:
    with pytest.raises(ProblemError, match="init_process_group"):
        all_gather_matmul(torch.ones(2, 2), torch.ones(2, 2))
