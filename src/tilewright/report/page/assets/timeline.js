// The pipeline: what each role does, stretch by stretch, and what each stage holds meanwhile.

const KINDS = {
  load: ["sky", "loads from global memory into registers"],
  copy: ["blue", "starts copies to shared memory"],
  store: ["pink", "stores registers to shared memory"],
  multiply: ["green", "multiplies (and reads what it multiplies)"],
  wait: ["muted", "waits: barrier, or copies to arrive"],
  results: ["orange", "stores results"],
};

function drawTimeline(host, data) {
  const used = new Set(data.cells.map((cell) => cell.kind));
  const legend = element("div", { class: "legend" });
  Object.entries(KINDS).filter(([kind]) => used.has(kind)).forEach(([, [name, what]]) =>
    legend.append(element("span", { style: `--c:${colour(name)}` }, what)));
  const slots = data.rows.length > 0;
  const slotLegend = element("div", { class: "legend" },
    element("span", { class: "hatched", style: `--e:${colour("blue")}` }, "stage: being filled"),
    element("span", { style: `--c:${colour("soft")};--e:${colour("muted")}` }, "there, not yet needed"),
    element("span", { style: `--c:${colour("green")}` }, "being read"));
  const zoom = slider("Zoom", 3, room(host) < 600 ? 1 : 2, show, (at) => `${["½", "¾", "1", "1½"][at]}×`);
  const picture = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Pipeline, scrolls sideways" });
  const say = element("div", { class: "say" });
  host.replaceChildren(element("div", { class: "controls" }, zoom), legend, ...(slots ? [slotLegend] : []), picture, say);
  say.innerHTML = timelineWords(data);

  function show(at) {
    picture.replaceChildren(timelineFigure(data, 22 * [0.5, 0.75, 1, 1.5][at]));
  }
  show(zoom.at());
}

function timelineFigure(data, unit) {
  const left = 118, tall = 26, gap = 5, top = 6;
  const rows = [...data.roles.map((role) => ({ role })), ...data.rows.map((slot) => ({ slot }))];
  const made = svg("svg", { width: left + data.units * unit + 10, height: top + rows.length * (tall + gap) + 14, role: "img", "aria-label": "Timeline", "font-size": 11.5 });
  const hatch = svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 6, height: 6, fill: colour("bg") }), svg("rect", { width: 2, height: 6, fill: colour("blue"), "fill-opacity": 0.55 }));
  made.append(svg("defs", {}, hatch));
  rows.forEach((row, at) => {
    const y = top + at * (tall + gap) + (row.slot ? 10 : 0);
    made.append(svg("text", { x: 0, y: y + 17, class: row.slot ? "dim" : "", "font-weight": row.slot ? 400 : 600 }, row.role ? row.role.name : row.slot));
    if (row.role) data.cells.filter((cell) => cell.role === row.role.number).forEach((cell) => made.append(stretch(cell, y)));
    else data.bars.filter((bar) => bar.row === row.slot).forEach((bar) => slotBar(bar, y).forEach((part) => made.append(part)));
  });
  return made;

  function stretch(cell, y) {
    const x = left + cell.from * unit, width = Math.max((cell.to - cell.from) * unit - 1, 2);
    const [name, what] = KINDS[cell.kind];
    const group = svg("g", {}, svg("rect", { x, y, width, height: tall, rx: 3, fill: colour(name), "fill-opacity": cell.kind === "wait" ? 0.6 : 1 }));
    if (cell.step >= 0 && width > 13) group.append(svg("text", { x: x + width / 2, y: y + 17, "text-anchor": "middle", style: `fill:${colour("on")};font-weight:600` }, `${cell.step}`));
    return tipped(group, `${what}${cell.step >= 0 ? `, step ${cell.step}` : ""}\n${cell.text}`);
  }

  function slotBar(bar, y) {
    const end = bar.read ? bar.read[1] : data.units, ready = bar.ready === null ? end : bar.ready;
    const part = (from, to, fill, stroke, what) => {
      if (to - from <= 0) return [];
      const x = left + from * unit, width = Math.max((to - from) * unit - 1, 1.5);
      const group = svg("g", {}, svg("rect", { x, y, width, height: tall, rx: 3, fill, stroke, "stroke-width": 1 }));
      if (width > 13) group.append(svg("text", { x: x + width / 2, y: y + 17, "text-anchor": "middle", style: fill === colour("green") ? `fill:${colour("on")};font-weight:600` : "" }, `${bar.step}`));
      return [tipped(group, `${bar.row}: ${what}, step ${bar.step}`)];
    };
    const readFrom = bar.read ? Math.max(bar.read[0], ready) : end;
    return [
      ...part(bar.from, Math.min(ready, end), "url(#hatch)", colour("blue"), "on its way in"),
      ...part(ready, readFrom, colour("soft"), colour("muted"), "there, not yet needed"),
      ...(bar.read ? part(readFrom, bar.read[1], colour("green"), "none", "being read") : []),
    ];
  }
}

/** What the picture shows, in words: how far loads run ahead of their use. */
function timelineWords(data) {
  const multiplied = data.cells.filter((cell) => cell.kind === "multiply");
  const fetched = data.cells.filter((cell) => cell.kind === "copy" || cell.kind === "load");
  let ahead = 0;
  multiplied.forEach((cell) => {
    const latest = Math.max(-1, ...fetched.filter((one) => one.from < cell.to).map((one) => one.step));
    ahead = Math.max(ahead, latest - cell.step);
  });
  const waits = data.cells.filter((cell) => cell.kind === "wait").length, steps = new Set(multiplied.map((cell) => cell.step)).size;
  const roles = data.roles.length > 1 ? `${data.roles.length} roles: ${data.roles.map((role) => role.name).join(", ")}. ` : "";
  return `${roles}<b>${ahead > 0 ? `Loads run up to ${plural(ahead, "step")} ahead` : "Nothing runs ahead"}</b>: ` +
    (ahead > 0 ? "while one step is multiplied, the numbers of a later one are on their way. " : "each step is loaded, then multiplied, and the arithmetic stands still meanwhile unless other blocks fill in. ") +
    `In ${plural(steps, "step")} there ${waits === 1 ? "is one wait" : `are ${waits} waits`}.`;
}
