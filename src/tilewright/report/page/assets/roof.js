// The roofline: every rung at every memory level, under the lines that the device draws.

const LEVELS = { shared: "blue", l2: "orange", dram: "green" };
const MARKS = { shared: "circle", l2: "square", dram: "triangle-up" };

function drawRoof(data, size, chosen, pick) {
  const host = document.getElementById("roof-chart");
  const points = roofPoints(data, size);
  const peak = Math.max(...data.rungs.map((rung) => rung.ceiling.tflops || 0));
  const low = Math.min(...points.map((point) => point.x), 100) / 3, high = Math.max(...points.map((point) => point.x), 10) * 3;
  const ranges = { x: [Math.log10(low), Math.log10(high)], y: [Math.log10(Math.min(...points.map((point) => point.y), peak) / 2), Math.log10(peak * 1.6)] };
  const labelled = roofLabels(points, chosen, ranges, host);
  const mine = points.filter((point) => point.rung.name === chosen);
  const traces = [{ type: "scatter", mode: "lines", showlegend: false, hoverinfo: "skip", x: mine.map((point) => point.x), y: mine.map((point) => point.y), line: { color: colour("muted"), width: 1, dash: "dot" } }];
  data.roofs.forEach((roof) => traces.push(marksOf(roof, points.filter((point) => point.roof === roof), chosen, labelled)));
  data.roofs.forEach(({ level, name, gb_per_s: rate }) => {
    const line = [low, Math.min((peak * 1e3) / rate, high)];
    traces.push({ type: "scatter", mode: "lines", showlegend: false, legendgroup: level, x: line, y: line.map((x) => (x * rate) / 1e3), line: { color: colour(LEVELS[level]), width: 1.5 }, hovertemplate: `${name}: ${count(rate)} GB/s<extra></extra>` });
  });
  [...new Map(data.rungs.map((rung) => [rung.ceiling.name, rung.ceiling])).values()].filter((one) => one.tflops).forEach((one, at) =>
    traces.push({ type: "scatter", mode: "lines", name: one.name, x: [low, high], y: [one.tflops, one.tflops], line: { color: colour("fg"), width: 1.5, dash: ["dot", "dash", "dashdot"][at % 3] }, hovertemplate: `${one.name}: ${count(one.tflops)} TFLOP/s<extra></extra>` }));
  Plotly.react(host, traces, layout({
    margin: { l: 60, r: 16, t: 36, b: 56 },
    xaxis: { type: "log", title: { text: "FLOP for each byte that is moved" }, range: ranges.x, dtick: 1 },
    yaxis: { ...LOGARITHMIC, title: { text: "TFLOP/s" }, range: ranges.y },
  }), QUIET);
  host.removeAllListeners && host.removeAllListeners("plotly_click");
  host.on("plotly_click", (event) => { const to = event.points[0].customdata; if (to) pick(to[0]); });
}

/** A point for each rung and level that it moves bytes of. */
function roofPoints(data, size) {
  return data.rungs.flatMap((rung) => {
    const known = rung.speeds[size], figure = figureOf(rung, size);
    if (!figure || !known.bytes) return [];
    return data.roofs.filter(({ level }) => known.bytes[level] > 0).map((roof) => ({ rung, roof, figure, x: known.flops / known.bytes[roof.level], y: figure.tflops }));
  });
}

/** The marks of one memory level. */
function marksOf({ level, name, gb_per_s: rate }, points, chosen, labelled) {
  const isMine = (point) => point.rung.name === chosen;
  return {
    type: "scatter", mode: "markers+text", name: `${name}, ${count(rate / 1e3)} TB/s`, legendgroup: level, x: points.map((point) => point.x), y: points.map((point) => point.y),
    text: points.map((point) => (labelled.has(point) ? point.rung.label : "")), textposition: "bottom right", textfont: { size: 11, color: colour("muted") },
    marker: { symbol: MARKS[level], color: colour(LEVELS[level]), size: points.map((point) => (isMine(point) ? 15 : 8)), opacity: points.map((point) => (isMine(point) ? 1 : 0.6)), line: { width: points.map((point) => (isMine(point) ? 2 : 0)), color: colour("fg") } },
    customdata: points.map((point) => [point.rung.name, point.rung.title, point.figure.kind, (point.x * rate) / 1e3]),
    hovertemplate: `<b>%{customdata[1]}</b><br>%{x:.2f} FLOP for each byte of ${name}<br>%{y:.1f} TFLOP/s, %{customdata[2]}<br>at most %{customdata[3]:.1f} by ${name}<extra></extra>`,
  };
}

/** The marks that get a name: of each rung the one closest to its line, the chosen rung first, where there is room. */
function roofLabels(points, chosen, ranges, host) {
  const taken = [], kept = new Set();
  const closeness = (point) => point.y / (point.x * point.roof.gb_per_s);
  const closest = new Map();
  [...points].sort((a, b) => closeness(a) - closeness(b)).forEach((point) => closest.set(point.rung.name, point));
  [...closest.values()].sort((a, b) => (b.rung.name === chosen) - (a.rung.name === chosen)).forEach((point) => {
    const place = (value, [from, to], pixels) => ((Math.log10(value) - from) / (to - from)) * pixels;
    const left = place(point.x, ranges.x, host.clientWidth - 80), top = place(point.y, ranges.y, host.clientHeight - 110), wide = 7 * point.rung.label.length + 8;
    if (taken.some((other) => left < other.left + other.wide && other.left < left + wide && Math.abs(other.top - top) < 15)) return;
    taken.push({ left, top, wide });
    kept.add(point);
  });
  return kept;
}
