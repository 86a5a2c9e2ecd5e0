"""Predictions over sizes as a chart in a page that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tilewright.extras import require
from tilewright.prediction import Prediction

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
</head>
<body style="font-family: system-ui, sans-serif">
<main>
<h1>{title}</h1>
{chart}
</main>
</body>
</html>
"""


def sweep_page(title: str, found: Sequence[tuple[int, Prediction]]) -> str:
    """TFLOP/s over the size, with intervals; pointing at a size tells its time and limiter. Raises MissingExtra."""
    require("plotly", "A chart of predictions")
    import plotly.graph_objects as go

    rates = [one.tflops for _, one in found]
    chart = go.Figure(
        go.Scatter(
            x=[size for size, _ in found],
            y=rates,
            mode="lines+markers",
            error_y={
                "array": [one.tflops_high - one.tflops for _, one in found],
                "arrayminus": [one.tflops - one.tflops_low for _, one in found],
                "symmetric": False,
            },
            text=[f"{one.seconds * 1e6:,.1f} us, limited by {one.binding.name}" for _, one in found],
            hovertemplate="%{x}: %{y:.3g} TFLOP/s<br>%{text}<extra></extra>",
        )
    )
    chart.update_layout(
        xaxis={"title": {"text": "M = N = K"}, "type": "log", "tickvals": [size for size, _ in found]},
        yaxis={"title": {"text": "TFLOP/s, predicted"}, "rangemode": "tozero"},
    )
    return _PAGE.format(title=escape(title), chart=chart.to_html(include_plotlyjs=True, full_html=False))
