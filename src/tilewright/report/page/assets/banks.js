// Bank conflicts: which bank serves which lane in which wavefront, access by access.

function drawBanks(host, maps) {
  if (!maps.length) {
    nothing(host, "No lane of this kernel reads or writes shared memory by itself, so there are no bank conflicts to show: " +
      "either it uses none, or TMA and the tensor cores move whole tiles.");
    return;
  }
  const names = maps.map((one) => `${one.kind}s of ${one.buffer}, ${one.matrices ? `${one.matrices} matrices` : `${one.width} bytes a lane`}` +
    `${one.excess ? ` – ${count(one.waves / one.ideal)}× the fewest` : " – no conflicts"}`);
  const body = element("div");
  const choose = chooser("Access", names, (at) => drawMap(body, maps[at]));
  host.replaceChildren(element("div", { class: "controls" }, choose), body);
  drawMap(body, maps[0]);
}

function drawMap(host, map) {
  const say = element("div", { class: "say", "aria-live": "polite" });
  const picture = element("div", { class: "scroll" });
  const line = element("p", { class: "note mono" }, map.line);
  let number = 0, wave = -1;
  const access = slider("Request", map.requests.length - 1, 0, (at) => { number = at; wave = -1; show(); });
  const back = element("button", { type: "button", onclick: () => step(-1) }, "◀ Wavefront");
  const forth = element("button", { type: "button", onclick: () => step(1) }, "Wavefront ▶");
  const all = element("button", { type: "button", onclick: () => { wave = -1; show(); } }, "All");
  host.replaceChildren(element("div", { class: "controls" }, access, back, forth, all), picture, say, line);

  function step(by) {
    const most = map.requests[number].waves;
    wave = (wave + by + most + 1 + 1) % (most + 1) - 1;
    show();
  }

  function show() {
    const request = map.requests[number];
    all.setAttribute("aria-pressed", wave < 0);
    picture.replaceChildren(bankFigure(map, request, wave, (at) => { wave = wave === at ? -1 : at; show(); }));
    const lost = request.waves - request.ideal;
    const served = wave < 0 ? [] : request.wave.map((at, lane) => (at === wave ? lane : -1)).filter((lane) => lane >= 0);
    say.innerHTML = (wave < 0
      ? `This request takes <b class="${lost ? "red" : ""}">${plural(request.waves, "wavefront")}</b>${lost
        ? `, where ${count(request.ideal)} would do: <b class="red">${count(lost)}</b> ${lost === 1 ? "is a bank conflict" : "are bank conflicts"}${request.why ? ` (${request.why})` : ""}`
        : ": no conflict"}.`
      : `<b>Wavefront ${wave + 1} of ${request.waves}</b> serves ${served.length === 1 ? "lane" : "lanes"} ${spans(served)} from ${plural(banksOf(map, request, wave), "bank")} of 32.`) +
      `${map.matrices ? " Each lane names a row of 16 bytes." : ""} Warp ${request.warp}; all ${count(map.count)} such requests that were watched take ${count(map.waves)} wavefronts, ${map.excess ? `${count(map.excess)} of them (${Math.round((100 * map.excess) / map.waves)} %) lost to conflicts` : "none lost"}.`;
  }
  show();
}

/** Rows are wavefronts, columns are banks. A wavefront beyond the first of its group of lanes is a conflict.
 * `choose` is told which row was picked; null where there is nothing to pick. host: whose width there is. */
function bankFigure(map, request, chosen, choose, host = document.querySelector("main section")) {
  const wordBytes = 4, width = map.matrices ? 16 : map.width;
  const span = Math.max(1, width / wordBytes);
  const wide = room(host), narrow = wide < 600, left = narrow ? 30 : 84;
  const cell = Math.min(30, (wide - left - 2) / 32), every = narrow ? 4 : 1; // a phone has room for every fourth number
  const tall = request.waves > 8 ? 15 : 22, top = 84, middle = tall / 2 + 4, gap = narrow ? 0.5 : 1;
  const cells = new Map();
  request.at.forEach((address, lane) => {
    if (address < 0) return;
    const bank = Math.floor(address / wordBytes) % 32, key = `${request.wave[lane]}:${Math.floor(address / Math.max(width, wordBytes))}`;
    if (!cells.has(key)) cells.set(key, { wave: request.wave[lane], bank, word: Math.floor(address / wordBytes), lanes: [] });
    cells.get(key).lanes.push(lane);
  });
  const excess = excessWaves(request);
  const busy = new Set();
  cells.forEach((one) => { if (excess.has(one.wave)) for (let part = 0; part < span; part += 1) busy.add(one.bank + part); });
  const made = svg("svg", { width: left + 32 * cell + 8, height: top + request.waves * tall + 12, role: choose ? "group" : "img", "aria-label": `${request.waves} wavefronts over 32 banks`, "font-size": narrow ? 8 : cell < 22 ? 9.5 : 11 });

  const laneY = 14, bankY = top - 12;
  made.append(svg("text", { x: 0, y: laneY + 4, class: "dim" }, "lane"), svg("text", { x: 0, y: bankY, class: "dim" }, "bank"));
  for (let at = 0; at < 32; at += 1) {
    const x = left + at * cell + cell / 2;
    const served = request.at[at] >= 0 && (chosen < 0 || request.wave[at] === chosen);
    const mark = excess.has(request.wave[at]) ? colour("red") : colour("blue");
    if (request.at[at] >= 0 && served) {
      const bank = (Math.floor(request.at[at] / wordBytes) % 32) + span / 2;
      made.append(svg("path", { d: `M${x},${laneY + 8} C${x},${laneY + 34} ${left + bank * cell},${bankY - 44} ${left + bank * cell},${bankY - 12}`, fill: "none", stroke: mark, "stroke-opacity": chosen < 0 ? 0.35 : 0.9, "stroke-width": chosen < 0 ? 1 : 1.6 }));
    }
    made.append(
      svg("circle", { cx: x, cy: laneY, r: cell * (narrow ? 0.42 : 0.36), fill: served ? mark : colour("soft") }),
      svg("text", { x, y: narrow ? laneY - 6 : laneY + 4, "text-anchor": "middle", style: `fill:${served && !narrow ? colour("on") : colour("muted")}` }, at % every ? "" : `${at}`),
      svg("text", { x, y: bankY, "text-anchor": "middle", style: busy.has(at) ? `fill:${colour("red")};font-weight:700` : `fill:${colour("muted")}` }, at % every ? "" : `${at}`));
  }
  for (let wave = 0; wave < request.waves; wave += 1) {
    const y = top + wave * tall, on = chosen < 0 || chosen === wave;
    const label = `Wavefront ${wave + 1}${excess.has(wave) ? ", a bank conflict" : ""}`;
    const row = svg("g", { opacity: on ? 1 : 0.3, ...(choose ? { style: "cursor:pointer" } : { role: "img", "aria-label": label }) });
    if (choose) { // behind what is drawn: it has the focus and the name, and no text of its own
      const button = svg("rect", { x: 0, y, width: left + 32 * cell, height: tall, fill: "transparent", tabindex: 0, role: "button", "aria-pressed": chosen === wave, "aria-label": label });
      button.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(wave); } });
      row.append(button);
      row.addEventListener("click", () => choose(wave));
    }
    const drawn = svg("g", { "aria-hidden": "true" });
    row.append(drawn);
    drawn.append(svg("text", { x: 0, y: y + middle, style: excess.has(wave) ? `fill:${colour("red")};font-weight:600` : "" }, `${wave + 1}${excess.has(wave) ? (narrow ? " ✗" : "  conflict") : ""}`));
    for (let bank = 0; bank < 32; bank += 1) drawn.append(svg("rect", { x: left + bank * cell + gap, y: y + gap, width: cell - 2 * gap, height: tall - 2 * gap, rx: 2, fill: colour("soft") }));
    cells.forEach((one) => {
      if (one.wave !== wave) return;
      const x = left + one.bank * cell;
      const group = svg("g", {},
        svg("rect", { x: x + gap, y: y + gap, width: span * cell - 2 * gap, height: tall - 2 * gap, rx: 2, fill: excess.has(wave) ? colour("red") : colour("blue") }),
        svg("text", { x: x + (span * cell) / 2, y: y + middle, "text-anchor": "middle", "font-size": one.lanes.length > 1 && !narrow ? 9.5 : null, style: `fill:${colour("on")}` }, laneText(one.lanes, span * cell, narrow)));
      const banks = span > 1 ? `banks ${one.bank} to ${one.bank + span - 1}` : `bank ${one.bank}`;
      drawn.append(tipped(group, `wavefront ${wave + 1}, ${banks}: bytes ${one.word * 4} to ${one.word * 4 + Math.max(width, 4) - 1}\nfor ${one.lanes.length > 1 ? "lanes" : "lane"} ${spans(one.lanes)}`));
    });
    made.append(row);
  }
  return made;
}

/** How many banks give something in a wavefront. */
function banksOf(map, request, wave) {
  const width = map.matrices ? 16 : map.width, busy = new Set();
  request.at.forEach((address, lane) => {
    if (request.wave[lane] !== wave) return;
    for (let byte = 0; byte < width; byte += 4) busy.add(Math.floor((address + byte) / 4) % 32);
  });
  return busy.size;
}

function laneText(lanes, pixels, narrow) {
  const text = lanes.length === 2 && lanes[1] > lanes[0] + 1 ? lanes.join(" ") : spans(lanes);
  if (lanes.length === 1) return text;
  return text.length * (narrow ? 4.6 : lanes.length > 1 ? 5.4 : 6) < pixels - 1 ? text : `×${lanes.length}`;
}

/** Wavefronts that a group of lanes needs only because an earlier one gave a bank's word to another lane. */
function excessWaves(request) {
  const first = new Set(request.first);
  return new Set([...Array(request.waves).keys()].filter((wave) => !first.has(wave)));
}
