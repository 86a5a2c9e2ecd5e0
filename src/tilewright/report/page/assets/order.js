// The order of the blocks: which tiles of C run together, and how much of A and B they share.

function drawOrder(host, data) {
  if (!data) {
    nothing(host, "This kernel does not say in its grid which tile a block computes, or does not fit on this device.");
    return;
  }
  const tiles = [];
  for (let at = 0; at < data.runs.length; at += 3) {
    for (let step = 0; step < data.runs[at + 2]; step += 1) tiles.push(data.runs[at] + step * data.runs[at + 1]);
  }
  const waves = Math.ceil(data.blocks / data.wave);
  const say = element("div", { class: "say", "aria-live": "polite" });
  const picture = element("div", { class: "panels" });
  const pick = slider("Wave", waves - 1, 0, show);
  host.replaceChildren(element("div", { class: "controls" }, pick), picture);
  const margin = 26, side = Math.min(room(host) - margin - 30, 460);
  const cell = side / Math.max(data.rows, data.columns);

  function show(wave) {
    const first = wave * data.wave, here = tiles.slice(first, first + data.wave);
    const rows = new Set(here.map((tile) => Math.floor(tile / data.columns))), columns = new Set(here.map((tile) => tile % data.columns));
    const place = new Map(here.map((tile, at) => [tile, first + at]));
    const drawn = canvas(margin + data.columns * cell, margin + data.rows * cell, `Wave ${wave + 1}`, (pen) => {
      const gap = cell > 5 ? 1 : cell > 2.5 ? 0.4 : 0;
      const box = (column, row, fill, alpha) => { pen.fillStyle = fill; pen.globalAlpha = alpha; pen.fillRect(margin + column * cell, margin + row * cell, cell - gap, cell - gap); };
      for (let row = 0; row < data.rows; row += 1) for (let column = 0; column < data.columns; column += 1) box(column, row, colour("grid"), 1);
      tiles.slice(0, first).forEach((tile) => box(tile % data.columns, Math.floor(tile / data.columns), colour("muted"), 0.55));
      here.forEach((tile, at) => box(tile % data.columns, Math.floor(tile / data.columns), colour("green"), 0.45 + (0.55 * (at + 1)) / here.length));
      pen.globalAlpha = 1;
      pen.fillStyle = colour("orange");
      rows.forEach((row) => pen.fillRect(4, margin + row * cell, 16, Math.max(cell - gap, 1)));
      pen.fillStyle = colour("blue");
      columns.forEach((column) => pen.fillRect(margin + column * cell, 4, Math.max(cell - gap, 1), 16));
    });
    drawn.addEventListener("pointermove", (event) => {
      const box = drawn.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top - margin) / cell), column = Math.floor((event.clientX - box.left - margin) / cell);
      if (row < 0 || column < 0 || row >= data.rows || column >= data.columns) return hideTip();
      const number = place.get(row * data.columns + column);
      return showTip(`tile ${row}, ${column} of C${number === undefined ? "" : `: block ${number} in the order of launch`}`, event);
    });
    drawn.addEventListener("pointerleave", hideTip);
    picture.replaceChildren(element("figure", {}, element("div", { class: "scroll" }, drawn), element("figcaption", {},
      `C as ${data.rows} × ${data.columns} tiles. Green runs now (darker: started later), grey is done. Orange: the strips of A, blue: the strips of B that this wave reads.`)), say);
    const asked = here.length * (data.aBytes + data.bBytes), distinct = rows.size * data.aBytes + columns.size * data.bBytes;
    say.innerHTML = `Wave ${wave + 1} of ${waves}: <b>${plural(here.length, "block")}</b> in ${plural(rows.size, "row")} and ${plural(columns.size, "column")} of tiles. ` +
      `Together they ask for ${bytes(asked)} of A and B, of which only <b>${bytes(distinct)}</b> are different: each byte could be used <b>${count(asked / distinct)}</b> times. ` +
      `The blocks advance along k together, so the L2 cache (${bytes(data.l2Bytes)}) need only hold the part that they are at.`;
  }
  show(0);
}
