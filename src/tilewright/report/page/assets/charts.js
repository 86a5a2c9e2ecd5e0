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

/** An axis with 1, 2 and 5 of each power: the charting library's own labels overlap. */
const LOGARITHMIC = { type: "log", tickmode: "array", tickvals: [-2, -1, 0, 1, 2, 3].flatMap((power) => [1, 2, 5].map((first) => first * 10 ** power)) };

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
      type: "bar", name: "recorded", visible: recorded.some(Boolean), x: names, y: recorded.map((one) => (one ? one.tflops : null)),
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
  Plotly.react(host, traces, layout({ shapes, annotations, xaxis: { type: "category" }, barmode: "overlay", yaxis: { title: { text: "TFLOP/s" }, ...(logarithmic ? LOGARITHMIC : { rangemode: "tozero" }) } }), QUIET);
  host.removeAllListeners && host.removeAllListeners("plotly_click");
  host.on("plotly_click", (event) => pick(data.rungs[event.points[0].pointIndex].name));
  const place = `${data.device} at ${size} × ${size} × ${size}`;
  document.getElementById("ladder-note").textContent = recorded.some(Boolean) ? ""
    : predicted.some(Boolean) ? `Nothing is recorded for ${place}: everything here is predicted, not measured.`
      : `No rung of this ladder can run on ${data.device}: what is counted and drawn below comes from the simulator.`;
}

function drawTerms(data, size, chosen) {
  const host = document.getElementById("terms-chart"), narrow = host.clientWidth < 600, relief = document.getElementById("relief");
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
    marker: { color: hue([0, 1, 3, 4, 2, 6][at % 6]) }, text: [term.name], textposition: "inside", insidetextanchor: "middle", constraintext: "both",
    hovertemplate: `<b>${term.name}</b>: %{x:.3g} ms<br>${wrap(term.what)}<extra></extra>`,
  }));
  traces.push({
    type: "bar", orientation: "h", showlegend: false, y: units.map((term) => term.name), x: units.map((term) => term.ms), width: 0.45,
    marker: { color: units.map((term) => (term.name === told.binding ? colour("red") : colour("sky"))) },
    customdata: units.map((term) => wrap(term.what)), hovertemplate: "<b>%{y}</b> alone: %{x:.3g} ms<br>%{customdata}<extra></extra>",
  });
  Plotly.react(host, traces, layout({
    barmode: "stack", showlegend: !narrow, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" }, margin: { l: 8, r: 16, t: 6, b: 48 },
    xaxis: { title: { text: "predicted milliseconds" } },
    yaxis: { categoryorder: "array", categoryarray: [...units.map((term) => term.name), total] },
  }), QUIET);
  const recorded = known.recorded ? ` Recorded: ${count(known.recorded.tflops)} TFLOP/s.` : "";
  const parts = `It is made of ${stack.map((term) => `${term.name} ${count(term.ms)} ms`).join(", ")}.`;
  relief.textContent = `Predicted at ${size} × ${size} × ${size} and ${told.clock_mhz} MHz: ${count(told.ms)} ms, ${count(told.tflops)} TFLOP/s (${count(told.low)} to ${count(told.high)}).${recorded} ` +
    `Bottleneck: ${told.binding}. ${told.relief ? told.relief[0].toUpperCase() + told.relief.slice(1) : ""} ${parts}`;
}
