// Charts by Plotly: the ladder, the roofline, the predicted terms. They read the same data and the same colours.

const QUIET = { displayModeBar: false, responsive: true };

function layout(extra) {
  const axis = { gridcolor: colour("grid"), zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true };
  const made = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("fg"), size: 13, family: "system-ui, sans-serif" },
    margin: { l: 56, r: 16, t: 16, b: 56 }, hoverlabel: { align: "left" }, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, ...extra,
  };
  made.xaxis = { ...axis, ...extra.xaxis };
  made.yaxis = { ...axis, ...extra.yaxis };
  return made;
}

/** The figure that counts for a rung at a size: recorded, else predicted; null if there is none. */
function figureOf(rung, size) {
  const known = rung.speeds[size];
  if (known.recorded) return { tflops: known.recorded.tflops, kind: "recorded" };
  return known.predicted ? { tflops: known.predicted.tflops, kind: "predicted" } : null;
}

function drawLadder(data, size, chosen, logarithmic, pick) {
  const host = document.getElementById("ladder-chart");
  const names = data.rungs.map((rung) => rung.label);
  const recorded = data.rungs.map((rung) => rung.speeds[size].recorded);
  const predicted = data.rungs.map((rung) => rung.speeds[size].predicted);
  const peers = recorded.filter((one) => one && one.cublas).map((one) => one.cublas);
  const traces = [
    {
      type: "bar", name: "recorded", x: names, y: recorded.map((one) => (one ? one.tflops : null)),
      marker: { color: data.rungs.map((rung) => (rung.name === chosen ? colour("blue") : colour("sky"))), line: { color: colour("fg"), width: data.rungs.map((rung) => (rung.name === chosen ? 2 : 0)) } },
      customdata: data.rungs.map((rung) => rung.title),
      text: recorded.map((one) => (one ? `${count(one.tflops)} TFLOP/s${one.share_of_cublas ? `, ${(100 * one.share_of_cublas).toFixed(1)} % of cuBLAS` : ""}<br>${one.device}, ${one.date.slice(0, 10)}` : "")),
      textposition: "none", hovertemplate: "<b>%{customdata}</b><br>recorded: %{text}<extra></extra>",
    },
    {
      type: "bar", name: "predicted only", x: names, y: predicted.map((one, at) => (one && !recorded[at] ? one.tflops : null)),
      visible: recorded.every(Boolean) ? false : true, hoverinfo: "skip",
      marker: {
        color: "rgba(0,0,0,0)", pattern: { shape: "/", fgcolor: colour("red"), fgopacity: 0.6, size: 7 },
        line: { color: colour("red"), width: data.rungs.map((rung) => (rung.name === chosen ? 2.5 : 1)) },
      },
    },
    {
      type: "scatter", mode: "markers", name: "predicted", x: names, y: predicted.map((one) => (one ? one.tflops : null)),
      marker: { symbol: "diamond-open", size: 9, color: colour("red"), line: { width: 2 } },
      error_y: { type: "data", symmetric: false, thickness: 1.2, width: 4, color: colour("red"), array: predicted.map((one) => (one ? one.high - one.tflops : 0)), arrayminus: predicted.map((one) => (one ? one.tflops - one.low : 0)) },
      text: predicted.map((one) => (one ? `${count(one.tflops)} TFLOP/s (${count(one.low)} to ${count(one.high)})<br>at ${one.clock_mhz} MHz; binding: ${one.binding}` : "")),
      customdata: data.rungs.map((rung) => rung.title), hovertemplate: "<b>%{customdata}</b><br>predicted: %{text}<extra></extra>",
    },
    {
      type: "scatter", mode: "markers", name: "peak of its arithmetic units", x: names, y: data.rungs.map((rung) => rung.ceiling.tflops || null),
      marker: { symbol: "line-ew-open", size: 22, color: colour("fg"), line: { width: 2 } },
      text: data.rungs.map((rung) => rung.ceiling.name), hovertemplate: "%{text}: %{y:.1f} TFLOP/s<extra></extra>",
    },
  ];
  const shapes = [], annotations = [];
  peers.sort((a, b) => a - b);
  if (peers.length && peers[peers.length - 1] > 1.1 * peers[0]) { // rungs of several formats: each has a peer of its own
    traces.push({
      type: "scatter", mode: "markers", name: "cuBLAS in the same format, recorded", x: names, y: recorded.map((one) => (one ? one.cublas : null)),
      marker: { symbol: "line-ew-open", size: 22, color: colour("green"), line: { width: 2.5 } }, hovertemplate: "cuBLAS: %{y:.1f} TFLOP/s<extra></extra>",
    });
  } else if (peers.length) {
    const middle = peers[Math.floor(peers.length / 2)];
    const y = logarithmic ? Math.log10(middle) : middle;
    shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: middle, y1: middle, line: { dash: "dash", width: 1.5, color: colour("green") } });
    annotations.push({ xref: "paper", x: 0.01, y, text: `cuBLAS, recorded: ${count(middle)}`, showarrow: false, yshift: 9, xanchor: "left", font: { color: colour("green") } });
  }
  Plotly.react(host, traces, layout({ shapes, annotations, xaxis: { type: "category" }, barmode: "overlay", yaxis: { title: { text: "TFLOP/s" }, type: logarithmic ? "log" : "linear", rangemode: "tozero" } }), QUIET);
  host.removeAllListeners && host.removeAllListeners("plotly_click");
  host.on("plotly_click", (event) => pick(data.rungs[event.points[0].pointIndex].name));
  const missing = recorded.every((one) => !one);
  document.getElementById("ladder-note").textContent = missing
    ? `Nothing is recorded for ${data.device} at ${size} × ${size} × ${size}: everything here is predicted, not measured.` : "";
}

const LEVELS = { shared: "blue", l2: "orange", dram: "green" };
const MARKS = { shared: "circle", l2: "square", dram: "triangle-up" };

function drawRoof(data, size, chosen, pick) {
  const host = document.getElementById("roof-chart");
  const traces = [], xs = [], labelled = roofLabels(data, size, chosen);
  const peak = Math.max(...data.rungs.map((rung) => rung.ceiling.tflops || 0));
  data.roofs.forEach(({ level, name, gb_per_s: rate }) => {
    const points = data.rungs.map((rung) => {
      const known = rung.speeds[size], figure = figureOf(rung, size);
      return figure && known.bytes && known.bytes[level] > 0 ? { rung, figure, x: known.flops / known.bytes[level], y: figure.tflops } : null;
    }).filter(Boolean);
    points.forEach((point) => xs.push(point.x));
    traces.push({
      type: "scatter", mode: "markers+text", name: `${name}, ${count(rate / 1e3)} TB/s`, legendgroup: level, x: points.map((p) => p.x), y: points.map((p) => p.y),
      text: points.map((p) => (labelled.has(`${level} ${p.rung.name}`) ? p.rung.label : "")), textposition: "bottom right", textfont: { size: 11, color: colour("muted") },
      marker: { symbol: MARKS[level], color: colour(LEVELS[level]), size: points.map((p) => (p.rung.name === chosen ? 15 : 8)), opacity: points.map((p) => (p.rung.name === chosen ? 1 : 0.6)), line: { width: points.map((p) => (p.rung.name === chosen ? 2 : 0)), color: colour("fg") } },
      customdata: points.map((p) => [p.rung.name, p.rung.title, p.figure.kind, p.x * rate / 1e3]),
      hovertemplate: `<b>%{customdata[1]}</b><br>%{x:.2f} FLOP for each byte of ${name}<br>%{y:.1f} TFLOP/s, %{customdata[2]}<br>at most %{customdata[3]:.1f} by ${name}<extra></extra>`,
    });
  });
  const mine = data.roofs.map(({ level }) => level).map((level) => {
    const rung = data.rungs.find((one) => one.name === chosen), known = rung.speeds[size];
    return known.bytes && known.bytes[level] > 0 ? known.flops / known.bytes[level] : null;
  }).filter(Boolean);
  const own = figureOf(data.rungs.find((one) => one.name === chosen), size);
  if (own) traces.unshift({ type: "scatter", mode: "lines", showlegend: false, hoverinfo: "skip", x: mine, y: mine.map(() => own.tflops), line: { color: colour("muted"), width: 1, dash: "dot" } });
  const low = Math.min(...xs, 100) / 3, high = Math.max(...xs, 10) * 3;
  data.roofs.forEach(({ level, name, gb_per_s: rate }) => {
    const turn = (peak * 1e3) / rate;
    const line = [low, Math.min(turn, high)];
    traces.push({ type: "scatter", mode: "lines", showlegend: false, legendgroup: level, x: line, y: line.map((x) => (x * rate) / 1e3), line: { color: colour(LEVELS[level]), width: 1.5 }, hovertemplate: `${name}: ${count(rate)} GB/s<extra></extra>` });
  });
  [...new Map(data.rungs.map((rung) => [rung.ceiling.name, rung.ceiling])).values()].filter((one) => one.tflops).forEach((one) =>
    traces.push({ type: "scatter", mode: "lines", name: one.name, x: [low, high], y: [one.tflops, one.tflops], line: { color: colour("fg"), width: 1.5, dash: "dot" }, hovertemplate: `${one.name}: ${count(one.tflops)} TFLOP/s<extra></extra>` }));
  const top = Math.log10(peak * 1.6), speeds = data.rungs.map((rung) => figureOf(rung, size)).filter(Boolean).map((one) => one.tflops);
  Plotly.react(host, traces, layout({
    margin: { l: 60, r: 16, t: 36, b: 56 },
    xaxis: { type: "log", title: { text: "FLOP for each byte that is moved" }, range: [Math.log10(low), Math.log10(high)], dtick: 1 },
    yaxis: { type: "log", title: { text: "TFLOP/s" }, range: [Math.log10(Math.min(...speeds, peak) / 2), top], tickmode: "array", tickvals: [-2, -1, 0, 1, 2, 3].flatMap((power) => [1, 2, 5].map((first) => first * 10 ** power)) },
  }), QUIET);
  host.removeAllListeners && host.removeAllListeners("plotly_click");
  host.on("plotly_click", (event) => { const to = event.points[0].customdata; if (to) pick(to[0]); });
}

/** Which marks get a name: of each rung the one closest to its line, and of these as many as do not overlap. */
function roofLabels(data, size, chosen) {
  const taken = [], kept = new Set();
  const rungs = [...data.rungs].sort((a, b) => (b.name === chosen) - (a.name === chosen));
  rungs.forEach((rung) => {
    const known = rung.speeds[size], figure = figureOf(rung, size);
    if (!figure || !known.bytes) return;
    const closest = data.roofs.filter(({ level }) => known.bytes[level] > 0).sort((a, b) => known.bytes[b.level] / b.gb_per_s - known.bytes[a.level] / a.gb_per_s)[0];
    if (!closest) return;
    const x = Math.log10(known.flops / known.bytes[closest.level]), y = Math.log10(figure.tflops);
    if (taken.some((other) => Math.abs(other.x - x) < 0.11 && Math.abs(other.y - y) < 0.09)) return;
    taken.push({ x, y });
    kept.add(`${closest.level} ${rung.name}`);
  });
  return kept;
}

function drawTerms(data, size, chosen) {
  const host = document.getElementById("terms-chart"), relief = document.getElementById("relief");
  const known = data.rungs.find((rung) => rung.name === chosen).speeds[size];
  if (!known.predicted) {
    Plotly.purge(host);
    host.replaceChildren(element("p", { class: "problem" }, known.problem));
    relief.textContent = "";
    return;
  }
  if (!host.classList.contains("js-plotly-plot")) host.replaceChildren();
  const told = known.predicted, units = [...told.bounds].sort((a, b) => a.ms - b.ms);
  const total = "predicted time";
  const stack = told.stacked.filter((term) => term.ms > 0);
  const wrap = (text) => text.replace(/(.{40,60}?)[ ]/g, "$1<br>");
  const traces = stack.map((term, at) => ({
    type: "bar", orientation: "h", name: term.name, y: [total], x: [term.ms], width: 0.7,
    marker: { color: hue([0, 1, 3, 4, 5][at % 5]) }, text: [term.name], textposition: "inside", insidetextanchor: "middle", constraintext: "both",
    hovertemplate: `<b>${term.name}</b>: %{x:.3g} ms<br>${wrap(term.what)}<extra></extra>`,
  }));
  traces.push({
    type: "bar", orientation: "h", showlegend: false, y: units.map((term) => term.name), x: units.map((term) => term.ms), width: 0.45,
    marker: { color: units.map((term) => (term.name === told.binding ? colour("red") : colour("sky"))) },
    customdata: units.map((term) => wrap(term.what)), hovertemplate: "<b>%{y}</b> alone: %{x:.3g} ms<br>%{customdata}<extra></extra>",
  });
  Plotly.react(host, traces, layout({
    barmode: "stack", legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" }, margin: { l: 8, r: 16, t: 6, b: 48 },
    xaxis: { title: { text: "predicted milliseconds" } },
    yaxis: { categoryorder: "array", categoryarray: [...units.map((term) => term.name), total] },
  }), QUIET);
  const recorded = known.recorded ? ` Recorded: ${count(known.recorded.tflops)} TFLOP/s.` : "";
  relief.textContent = `Predicted at ${size} × ${size} × ${size} and ${told.clock_mhz} MHz: ${count(told.ms)} ms, ${count(told.tflops)} TFLOP/s (${count(told.low)} to ${count(told.high)}).${recorded} ` +
    `What binds: ${told.binding}. ${told.relief ? told.relief[0].toUpperCase() + told.relief.slice(1) : ""}`;
}
