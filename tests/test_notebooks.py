"""What a notebook shows of each value: HTML that is well formed, short, and says what matters."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

import tilewright as tw
from tilewright.device.catalog import H200
from tilewright.model.occupancy import occupancy
from tilewright.model.prediction import Prediction, Term
from tilewright.toolchain import build

GEMM = tw.Gemm(128, 128, 16, a=tw.Order.COL, beta=0.5)
BUILT = build(GEMM, tw.find_rung("worklog/6"))
BOUND = Term("FP32 pipe", 2e-6, "FFMA & more")
PREDICTED = Prediction(
    *(2.5e-6, 2e-6, 3e-6, 1.25, 1.98e9, (BOUND, Term("launch", 5e-7, "<1 us", "exposed")), BOUND, "Wait.", "H200", 2),
    power_w=820.0,
    limit_w=700.0,
    sustained_hz=1.65e9,
    sustained_s=3e-6,
)


class Texts(HTMLParser):
    """The texts of a page in order; every element that begins must end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(value: object) -> list[str]:
    parser = Texts()
    parser.feed(value._repr_html_())  # type: ignore[attr-defined]
    parser.close()
    assert parser.open == []
    return parser.texts


def test_a_problem_shows_its_matrices() -> None:
    texts = shown(GEMM)
    assert texts[0] == "1 * A @ B + 0.5 * C"
    at = texts.index("A")
    assert texts[at : at + 5] == ["A", "128 x 16", "f32", "column-major", "128"]
    assert texts[texts.index("B") + 1] == "16 x 128"


def test_a_schedule_and_a_program_show_their_text() -> None:
    assert shown(BUILT.schedule) == [f"Schedule, {len(BUILT.schedule)} steps", BUILT.schedule.text]
    assert shown(BUILT.program) == ["Program", BUILT.text]


def test_a_build_shows_program_schedule_and_cuda() -> None:
    title, program, *rest = shown(BUILT)
    assert title == "worklog_vectorised: 128x128x16 f32 TN"
    assert program == BUILT.text
    assert rest == ["Schedule", BUILT.schedule.text, "CUDA", BUILT.cuda]


def test_counters_show_each_memory() -> None:
    counters = BUILT.simulate(tw.make_operands(GEMM)).counters
    texts = shown(counters)
    at = texts.index("shared loads")
    loads = counters.shared_loads
    assert texts[at + 1 : at + 5] == [
        f"{loads.requests:,}",
        f"{loads.wavefronts:,} wavefronts",
        f"{loads.ideal_wavefronts:,}",
        f"{loads.excess_wavefronts:,}",
    ]
    at = texts.index("global stores")
    assert texts[at + 1 : at + 5] == ["128", "4,096 sectors", "2,048", "50%"]
    assert texts[-1] == f"{counters.fmas:,} multiply-adds; 2 __syncthreads for each k iteration."
    assert len(counters._repr_html_()) < 2_000 < len(repr(counters))


def test_tma_is_shown_where_there_is_some() -> None:
    gemm = tw.Gemm(128, 128, 64, tw.BF16, out=tw.BF16)
    counters = build(gemm, tw.find_rung("hopper/3")).simulate(tw.make_operands(gemm)).counters
    assert "TMA loads" in shown(counters) and "TMA stores" not in shown(counters)


def test_occupancy_shows_each_limit_and_which_binds() -> None:
    found = occupancy(H200, threads_per_block=256, registers_per_thread=128, static_shared_bytes=8192)
    texts = shown(found)
    assert texts[0] == "H200: 2 blocks per SM, 16 of 64 warps (25%)"
    assert texts[texts.index("registers") + 1 :][:2] == ["2", "limits"]


def test_a_prediction_shows_its_terms() -> None:
    texts = shown(PREDICTED)
    assert texts[0] == "H200: 2.50 us (2.00 us to 3.00 us), 1.25 TFLOP/s, predicted for 1980 MHz"
    at = texts.index("FP32 pipe")
    assert texts[at : at + 4] == ["FP32 pipe", "2.00 us", "80%", "FFMA & more"]
    assert "<1 us" in texts
    sustained = "Sustained: 3.00 us, 1.04 TFLOP/s, at the 1650 MHz that 700 W allow."
    assert texts[-1] == f"{sustained} Bound by FP32 pipe. Wait."


@pytest.mark.parametrize("value", [GEMM, BUILT.schedule, PREDICTED])
def test_what_is_shown_brings_no_style_and_no_script(value: object) -> None:
    html = value._repr_html_()  # type: ignore[attr-defined]
    assert "style" not in html and "script" not in html and "http" not in html
