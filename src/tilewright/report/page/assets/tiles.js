// Who computes what: the problem cut into tiles of blocks, and one tile cut into warps and lanes.

function drawTiles(host, data) {
  const [tileM, tileN, tileK] = data.tile;
  const owner = ownersOf(data);
  const say = element("div", { class: "say", "aria-live": "polite" });
  const places = element("div", { class: "panels" });
  const warps = Math.ceil(data.threads / 32);
  const pick = slider("Thread", data.threads - 1, Math.min(37, data.threads - 1), show, (at) => `${at}`);

  const grid = problemFigure(data, room(host));
  const wide = Math.min(room(host), 560);
  const margin = 44;
  const cellW = Math.max(0.5, Math.min(14, (wide - margin) / tileN));
  const cellH = Math.max(0.5, Math.min(14, 420 / tileM), tileM < 4 ? 18 : 0);
  const block = element("figure");
  places.append(grid, block);
  host.replaceChildren(element("div", { class: "controls" }, pick), places, say);

  function show(thread) {
    const warp = Math.floor(thread / 32);
    const rows = new Set(), columns = new Set();
    let owned = 0;
    const picture = canvas(margin + tileN * cellW, margin + tileM * cellH, `The tile of a block, by thread`, (pen) => {
      for (let row = 0; row < tileM; row += 1) {
        for (let column = 0; column < tileN; column += 1) {
          const who = owner(row, column);
          const mine = who === thread;
          if (mine) { rows.add(row); columns.add(column); owned += 1; }
          pen.globalAlpha = who < 0 ? 0.05 : mine ? 1 : Math.floor(who / 32) === warp ? 0.5 + (who % 2) * 0.08 : 0.16 + (Math.floor(who / 32) % 2) * 0.05;
          pen.fillStyle = who < 0 ? colour("muted") : mine ? colour("fg") : hue(Math.floor(who / 32));
          const gap = cellW > 4 && cellH > 4 ? 0.6 : 0;
          pen.fillRect(margin + column * cellW, margin + row * cellH, cellW - gap, cellH - gap);
        }
      }
      pen.globalAlpha = 1;
      pen.fillStyle = colour("orange");
      rows.forEach((row) => pen.fillRect(20, margin + row * cellH, 18, Math.max(cellH - 0.5, 1)));
      pen.fillStyle = colour("blue");
      columns.forEach((column) => pen.fillRect(margin + column * cellW, 20, Math.max(cellW - 0.5, 1), 18));
      pen.fillStyle = colour("fg");
      pen.font = "600 14px system-ui, sans-serif";
      pen.fillText("A", 22, 16 + 18);
      pen.fillText("B", margin, 14);
    });
    const place = (event) => {
      const box = picture.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left - margin) / cellW);
      const row = Math.floor((event.clientY - box.top - margin) / cellH);
      return row >= 0 && row < tileM && column >= 0 && column < tileN ? [row, column] : null;
    };
    picture.addEventListener("click", (event) => { const at = place(event); if (at && owner(...at) >= 0) pick.set(owner(...at)); });
    picture.addEventListener("pointermove", (event) => {
      const at = place(event);
      if (!at) return hideTip();
      const who = owner(...at);
      return showTip(`C[${at[0]}, ${at[1]}] of the tile: ${who < 0 ? "no thread seen" : `thread ${who} = warp ${Math.floor(who / 32)}, lane ${who % 32}`}`, event);
    });
    picture.addEventListener("pointerleave", hideTip);
    block.replaceChildren(
      element("div", { class: "scroll" }, picture),
      element("figcaption", {}, `One block's tile of C, ${tileM} × ${tileN}. A colour is a warp; the strongest is thread ${thread}. Orange: the rows of A, blue: the columns of B that it needs. Click an element to pick its thread.${data.isOpaque ? " wmma does not say which lane holds what: this is the simulator's choice." : ""}`),
    );
    const values = rows.size + columns.size;
    say.innerHTML = owned
      ? `<b>Thread ${thread}</b> is lane ${thread % 32} of warp ${warp} and computes <b>${plural(owned, "element")}</b> of C: ` +
        `${plural(rows.size, "row")} by ${plural(columns.size, "column")}. For each k it takes ${plural(rows.size, "value")} of A and ` +
        `${plural(columns.size, "value")} of B, ${count(values)} in all, for ${plural(owned, "multiply-add")}: <b>${count(owned / values)}</b> a value.`
      : `Thread ${thread} stores no element of this tile: in this kernel other warps do the arithmetic.`;
  }
  show(pick.at());
}

function ownersOf(data) {
  const { rows, columns, all } = data.owners;
  if (rows) return (row, column) => rows[row] + columns[column];
  const raw = Uint8Array.from(atob(all), (letter) => letter.charCodeAt(0));
  const numbers = new Int16Array(raw.buffer);
  return (row, column) => numbers[row * data.tile[1] + column];
}

/** A, B and C as a whole, with the tile of one block; pointing at C moves it. */
function problemFigure(data, wide) {
  const [tileM, tileN, tileK] = data.tile;
  const scale = Math.min(170, (wide - 60) / 2) / Math.max(data.m, data.n, data.k);
  const [m, n, k] = [data.m, data.n, data.k].map((size) => Math.max(size * scale, 8));
  const gap = 16, left = 22, top = 22;
  const x = left + k + gap, y = top + k + gap;
  const picture = svg("svg", { width: x + n + 20, height: y + m + 6, role: "img", "aria-label": "The whole problem: A, B and C" });
  const box = (px, py, w, h, label) => picture.append(
    svg("rect", { x: px, y: py, width: w, height: h, fill: colour("soft"), stroke: colour("line") }), label);
  const name = (px, py, text) => svg("text", { x: px, y: py, "font-size": 14, "font-weight": 600 }, text);
  box(left, y, k, m, name(2, y + 14, "A")); box(x, top, n, k, name(x, top - 7, "B")); box(x, y, n, m, name(x + n + 6, y + 14, "C"));
  for (let row = tileM; row < data.m && data.m / tileM <= 64; row += tileM) picture.append(line(x, y + row * scale, x + n, y + row * scale));
  for (let column = tileN; column < data.n && data.n / tileN <= 64; column += tileN) picture.append(line(x + column * scale, y, x + column * scale, y + m));
  const strip = (fill, opacity) => { const made = svg("rect", { fill, "fill-opacity": opacity }); picture.append(made); return made; };
  const aStrip = strip(colour("orange"), 0.35), bStrip = strip(colour("blue"), 0.35), cTile = strip(colour("fg"), 0.85);
  const aStep = strip(colour("orange"), 1), bStep = strip(colour("blue"), 1);
  const put = (made, px, py, w, h) => Object.entries({ x: px, y: py, width: Math.max(w, 1.5), height: Math.max(h, 1.5) }).forEach(([key, value]) => made.setAttribute(key, value));
  const move = (row, column) => {
    const cy = y + row * tileM * scale, cx = x + column * tileN * scale;
    const h = Math.min(tileM, data.m) * scale, w = Math.min(tileN, data.n) * scale;
    put(aStrip, left, cy, k, h); put(bStrip, cx, top, w, k); put(cTile, cx, cy, w, h);
    put(aStep, left, cy, Math.min(tileK * scale, k), h); put(bStep, cx, top, w, Math.min(tileK * scale, k));
  };
  move(0, 0);
  picture.addEventListener("pointermove", (event) => {
    const at = picture.getBoundingClientRect();
    const row = Math.floor((event.clientY - at.top - y) / scale / tileM), column = Math.floor((event.clientX - at.left - x) / scale / tileN);
    if (row < 0 || column < 0 || row * tileM >= data.m || column * tileN >= data.n) return;
    move(row, column);
    showTip(`Tile ${row}, ${column} of C: rows ${row * tileM} to ${Math.min((row + 1) * tileM, data.m) - 1}, columns ${column * tileN} to ${Math.min((column + 1) * tileN, data.n) - 1}`, event);
  });
  picture.addEventListener("pointerleave", hideTip);
  const blocks = data.grid.reduce((product, extent) => product * extent, 1);
  return element("figure", {}, element("div", { class: "scroll" }, picture), element("figcaption", {},
    `The whole problem, ${data.m} × ${data.n} × ${data.k}: ${plural(blocks, "tile")} of C. One block goes along its strips of A and B, ${tileK} deep a step (solid)${data.instruction ? `, with ${data.instruction}` : ""}.`));
}

function line(x1, y1, x2, y2) {
  return svg("line", { x1, y1, x2, y2, stroke: colour("line") });
}
