// Who loads what: one request of a warp on the tile of an operand, and the sectors of memory that it moves.

function drawLoads(host, operands) {
  let operand = 0;
  const body = element("div");
  const choose = chooser("Operand", operands.map((one) => one.operand), (at) => { operand = at; show(); });
  host.replaceChildren(element("div", { class: "controls" }, choose), body);
  function show() {
    const data = operands[operand];
    if (data.requests.length) drawRequests(body, data);
    else if (data.boxes.length) drawBoxes(body, data);
    else nothing(body, "No load of this operand was seen in the first step over k.");
  }
  show();
}

function drawRequests(host, data) {
  const say = element("div", { class: "say", "aria-live": "polite" });
  const picture = element("div", { class: "panels" });
  const step = slider("Request", data.requests.length - 1, 0, show);
  host.replaceChildren(element("div", { class: "controls" }, step), picture);

  const perSector = 32 / data.elementBytes;
  const along = data.rowsContiguous ? data.columns : data.rows;
  const full = {
    rows: data.rowsContiguous ? data.rows : Math.max(data.rows, perSector),
    columns: data.rowsContiguous ? Math.max(data.columns, perSector) : data.columns,
  };
  const wide = Math.min(room(host) - 30, 620);

  const elementOf = (row, column) => {
    const [line, place] = data.rowsContiguous ? [data.row + row, data.column + column] : [data.column + column, data.row + row];
    return line * data.leading + place;
  };
  const sectorOf = (row, column) => Math.floor(elementOf(row, column) / perSector);

  function show(number) {
    const request = data.requests[number];
    const wanted = new Map();
    request.at.forEach((at, lane) => {
      if (at < 0) return;
      for (let part = 0; part < request.width; part += 1) {
        const row = Math.floor(at / data.columns) + (data.rowsContiguous ? 0 : part);
        const column = (at % data.columns) + (data.rowsContiguous ? part : 0);
        const key = row * 100000 + column;
        if (!wanted.has(key)) wanted.set(key, []);
        wanted.get(key).push(lane);
      }
    });
    const view = windowOf([...wanted.keys()], full);
    const cellW = Math.max(1.5, Math.min(24, wide / view.columns)), cellH = Math.max(1.5, Math.min(22, 460 / view.rows));
    const moved = new Set([...wanted.keys()].map((key) => sectorOf(Math.floor(key / 100000), key % 100000)));
    const drawn = canvas(view.columns * cellW + 1, view.rows * cellH + 1, `Request ${number + 1} on the tile of ${data.operand}`, (pen) => {
      pen.translate(-view.column * cellW, -view.row * cellH);
      for (let row = view.row; row < view.row + view.rows; row += 1) {
        for (let column = view.column; column < view.column + view.columns; column += 1) {
          const lanes = wanted.get(row * 100000 + column);
          const fetched = moved.has(sectorOf(row, column));
          const inTile = row < data.rows && column < data.columns;
          pen.fillStyle = lanes ? laneColour(lanes[0]) : fetched ? colour("orange") : colour("grid");
          pen.globalAlpha = lanes ? 1 : fetched ? 0.55 : inTile ? 1 : 0.35;
          const gap = Math.min(cellW, cellH) > 4 ? 0.8 : 0.2;
          pen.fillRect(column * cellW, row * cellH, cellW - gap, cellH - gap);
          if (lanes && cellW >= 13 && cellH >= 9) {
            pen.globalAlpha = 1;
            pen.fillStyle = lanes[0] > 12 ? "#111" : "#fff";
            pen.font = `${Math.min(10, cellH - 1)}px system-ui, sans-serif`;
            pen.textAlign = "center";
            pen.fillText(lanes.length > 1 ? `×${lanes.length}` : `${lanes[0]}`, (column + 0.47) * cellW, (row + 0.5) * cellH + Math.min(3.5, cellH / 3));
          }
        }
      }
    });
    drawn.addEventListener("pointermove", (event) => {
      const box = drawn.getBoundingClientRect();
      const row = view.row + Math.floor((event.clientY - box.top) / cellH), column = view.column + Math.floor((event.clientX - box.left) / cellW);
      const lanes = wanted.get(row * 100000 + column);
      const state = lanes ? `wanted by lane ${spans(lanes)}` : moved.has(sectorOf(row, column)) ? "moved, and not wanted" : "not touched";
      showTip(`${data.operand}[${data.row + row}, ${data.column + column}]: ${state}`, event);
    });
    drawn.addEventListener("pointerleave", hideTip);
    picture.replaceChildren(
      element("figure", {}, element("div", { class: "scroll" }, drawn), element("figcaption", {},
        `${view.rows < full.rows || view.columns < full.columns ? `Rows ${view.row} to ${view.row + view.rows - 1} of the` : "The"} tile of ${data.operand} that a block needs in one step over k, ${data.rows} × ${data.columns}; ${data.rowsContiguous ? "rows" : "columns"} are contiguous in memory${along < perSector ? ", and the pale part lies beyond the tile" : ""}.`)),
      element("figure", {}, sectorStrip(wanted, elementOf, perSector), element("figcaption", {},
        "The sectors that are moved, in the order of their addresses: wanted numbers by lane, orange was moved for nothing.")),
      say,
    );
    const asked = wanted.size * data.elementBytes;
    say.innerHTML = `Warp ${request.warp} wants <b>${bytes(asked)}</b>; they lie in <b class="${request.sectors > request.fewest ? "red" : ""}">${plural(request.sectors, "sector")}</b>, ` +
      `so ${bytes(request.sectors * 32)} are moved${request.sectors > request.fewest ? `, where ${plural(request.fewest, "sector")} could hold them` : ": as few as can hold them"}. ` +
      `In this step the block makes ${plural(data.count, "request")} for ${data.operand} and moves ${plural(data.sectors, "sector")}` +
      `${data.sectors > data.fewest ? ` where ${count(data.fewest)} would do` : ""}.`;
  }
  show(0);
}

/** The part of a tile that is drawn: tall tiles are cut to the rows around what is wanted. */
function windowOf(keys, full) {
  const rows = keys.map((key) => Math.floor(key / 100000));
  const low = Math.min(...rows), high = Math.max(...rows), most = 40;
  if (full.rows <= most || high - low + 1 > most) return { row: 0, column: 0, ...full };
  const shown = Math.max(high - low + 9, 20);
  const row = Math.max(0, Math.min(low - 4, full.rows - shown));
  return { row, column: 0, rows: Math.min(shown, full.rows - row), columns: full.columns };
}

/** Lanes from dark to light: neighbours look alike, so a jump in the order shows. */
function laneColour(lane) {
  return `hsl(${205 - lane * 1.1} 70% ${28 + lane * 1.5}%)`;
}

function spans(lanes) {
  const parts = [];
  lanes.forEach((lane) => {
    const last = parts[parts.length - 1];
    if (last && lane === last[1] + 1) last[1] = lane; else parts.push([lane, lane]);
  });
  return parts.map(([first, end]) => (first === end ? `${first}` : `${first}–${end}`)).join(", ");
}

function sectorStrip(wanted, elementOf, perSector) {
  const elements = [...wanted].map(([key, lanes]) => [elementOf(Math.floor(key / 100000), key % 100000), lanes]).sort((a, b) => a[0] - b[0]);
  const bySector = new Map();
  elements.forEach(([number, lanes]) => {
    const sector = Math.floor(number / perSector);
    if (!bySector.has(sector)) bySector.set(sector, []);
    bySector.get(sector).push([number % perSector, lanes]);
  });
  const across = 4, size = 52, tall = 15, gap = 6;
  const rows = Math.ceil(bySector.size / across);
  const made = svg("svg", { width: across * (size + gap), height: rows * (tall + gap) + 2, role: "img", "aria-label": `${bySector.size} sectors` });
  [...bySector.entries()].forEach(([sector, wantedHere], at) => {
    const x = (at % across) * (size + gap), y = Math.floor(at / across) * (tall + gap);
    const group = svg("g");
    const wasted = wantedHere.length < perSector;
    group.append(svg("rect", { x, y, width: size, height: tall, fill: colour(wasted ? "orange" : "bg"), "fill-opacity": wasted ? 0.55 : 1 }));
    wantedHere.forEach(([place, lanes]) => group.append(svg("rect", { x: x + (place * size) / perSector, y, width: size / perSector - 0.5, height: tall, fill: laneColour(lanes[0]) })));
    group.append(svg("rect", { x, y, width: size, height: tall, fill: "none", stroke: colour("fg"), "stroke-width": 0.8 }));
    tipped(group, `sector at byte ${sector * 32}: ${wantedHere.length} of ${perSector} numbers wanted, by lane ${spans([...new Set(wantedHere.flatMap(([, lanes]) => lanes))].sort((a, b) => a - b))}`);
    made.append(group);
  });
  return element("div", { class: "scroll" }, made);
}

/** Boxes of TMA: no lane has an address. */
function drawBoxes(host, data) {
  const scaleX = Math.min(6, (room(host) - 30) / data.columns), scaleY = Math.min(6, 320 / data.rows);
  const made = svg("svg", { width: data.columns * scaleX + 2, height: data.rows * scaleY + 2, role: "img", "aria-label": `Boxes of ${data.operand}` });
  made.append(svg("rect", { x: 1, y: 1, width: data.columns * scaleX, height: data.rows * scaleY, fill: colour("soft") }));
  data.boxes.forEach((box, at) => {
    const group = svg("g", {},
      svg("rect", { x: box.column * scaleX + 2, y: box.row * scaleY + 2, width: box.columns * scaleX - 2, height: box.rows * scaleY - 2, fill: hue(at), "fill-opacity": 0.4, stroke: hue(at) }),
      svg("text", { x: (box.column + box.columns / 2) * scaleX, y: (box.row + box.rows / 2) * scaleY + 5, "text-anchor": "middle", "font-size": 14 }, `box ${at + 1}: ${box.rows} × ${box.columns}`));
    made.append(tipped(group, `${box.rows} × ${box.columns} elements, ${box.sectors} sectors, started by warp ${box.warp} of ${box.own ? "this block" : "another block of the cluster"}`));
  });
  const say = element("div", { class: "say" });
  say.innerHTML = `<b>TMA does it.</b> One thread starts ${data.boxes.length === 1 ? "one box" : `${data.boxes.length} boxes`}; no lane holds an address, so nothing can be uncoalesced, and no register is used on the way.` +
    (data.boxes.some((box) => !box.own) ? " Some boxes are started by another block of the cluster and land in both." : "");
  host.replaceChildren(element("div", { class: "scroll" }, made), say);
}
