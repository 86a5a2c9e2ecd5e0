// Shared memory and registers as they are at a moment.

/** The colour of a value between -most and most: blue, pale, orange. */
function heat(value, most, look) {
  if (Number.isNaN(value)) return null;
  const part = most ? Math.min(1, Math.abs(value) / most) : 0;
  return { fill: value < 0 ? look.blue : look.orange, alpha: value === 0 ? 0 : 0.12 + 0.88 * part };
}

function valueText(value) {
  if (Number.isNaN(value)) return "nothing was written";
  return Number.isInteger(value) ? `${value}` : `${+value.toPrecision(6)}`;
}

/** A grid of values. cells: rows * columns; marks: [class, set of cells]; tip: what to say of a cell. */
function grid(label, rows, columns, cells, options) {
  const { cellW, cellH, changed, touched, mine, flying, broken, tip } = options;
  const look = Object.fromEntries(["blue", "orange", "fg", "card", "muted", "line", "pink", "green", "soft", "red"].map((name) => [name, colour(name)]));
  let most = 0;
  for (const value of cells) if (!Number.isNaN(value) && Math.abs(value) > most) most = Math.abs(value);
  const made = canvas(columns * cellW + 1, rows * cellH + 1, label, (pen) => {
    pen.fillStyle = look.soft;
    pen.fillRect(0, 0, columns * cellW, rows * cellH);
    // Outlines of small cells are hard to see: there the cells that are not touched fade.
    const fades = cellW < 7 && touched && touched.includes(1), shade = (at) => (!fades || touched[at] ? 1 : 0.3);
    const gap = Math.min(cellW, cellH) > 4 ? 1 : 0, fits = cellW >= 12.5 && cellH >= 10;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.font = `${Math.min(10, cellH - 2, cellW * 0.7)}px system-ui, sans-serif`;
    for (let at = 0; at < rows * columns; at += 1) {
      const x = (at % columns) * cellW, y = Math.floor(at / columns) * cellH, shown = heat(cells[at], most, look);
      if (!shown) {
        if (cellW > 3) { pen.fillStyle = look.muted; pen.globalAlpha = 0.5; pen.fillRect(x + cellW / 2 - 0.7, y + cellH / 2 - 0.7, 1.4, 1.4); pen.globalAlpha = 1; }
      } else {
        pen.fillStyle = look.card; pen.fillRect(x, y, cellW - gap, cellH - gap);
        pen.globalAlpha = shown.alpha * shade(at); pen.fillStyle = shown.fill; pen.fillRect(x, y, cellW - gap, cellH - gap); pen.globalAlpha = 1;
        if (fits) { pen.fillStyle = look.fg; pen.fillText(Math.abs(cells[at]) < 1000 ? `${+cells[at].toPrecision(3)}` : "…", x + cellW / 2, y + cellH / 2, cellW - 1); }
      }
      if (flying && flying[at]) { pen.fillStyle = look.pink; pen.globalAlpha = 0.55; pen.fillRect(x, y + cellH - Math.max(cellH / 3, 1.2), cellW - gap, Math.max(cellH / 3, 1.2)); pen.globalAlpha = 1; }
    }
    outline(pen, touched, columns, cellW, cellH, look.green, 1.4);
    outline(pen, changed, columns, cellW, cellH, look.orange, 1.4);
    outline(pen, mine, columns, cellW, cellH, look.fg, 1.8);
    outline(pen, broken, columns, cellW, cellH, look.red, 3);
  });
  made.addEventListener("pointermove", (event) => {
    const box = made.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns), row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    if (row >= 0 && row < rows && column >= 0 && column < columns) showTip(tip(row * columns + column), event);
  });
  made.addEventListener("pointerleave", hideTip);
  return made;
}

/** Lines around the marked cells, where a marked one has a neighbour that is not. */
function outline(pen, marked, columns, cellW, cellH, stroke, width) {
  if (!marked) return;
  pen.strokeStyle = stroke;
  pen.lineWidth = width;
  pen.beginPath();
  for (let at = 0; at < marked.length; at += 1) {
    if (!marked[at]) continue;
    const column = at % columns, x = column * cellW, y = Math.floor(at / columns) * cellH;
    if (!column || !marked[at - 1]) { pen.moveTo(x, y); pen.lineTo(x, y + cellH); }
    if (column === columns - 1 || !marked[at + 1]) { pen.moveTo(x + cellW, y); pen.lineTo(x + cellW, y + cellH); }
    if (!marked[at - columns]) { pen.moveTo(x, y); pen.lineTo(x + cellW, y); }
    if (!marked[at + columns]) { pen.moveTo(x, y + cellH); pen.lineTo(x + cellW, y + cellH); }
  }
  pen.stroke();
}

class Memory {
  constructor(recording, chosen) {
    this.recording = recording;
    this.chosen = chosen;
    this.host = document.getElementById("shared");
    this.registers = document.getElementById("registers");
    this.shared = recording.regions.filter((region) => region.space === "shared");
    this.stageOf = new Map(this.shared.map((region) => [region, -1]));
    this.seenStage = new Map();
    this.lane = 0;
    this.tiles = this.shared.map((region) => this.tile(region));
    this.host.replaceChildren(...this.tiles.map((tile) => tile.figure));
    if (!this.shared.length) nothing(this.host, "This kernel uses no shared memory.");
    this.laneBox = slider("Lane", 31, 0, (lane) => { this.lane = lane; this.drawRegisters(); }, (lane) => `${lane}`);
    this.body = element("div");
    this.registers.replaceChildren(element("div", { class: "controls" }, this.laneBox), this.body);
  }

  tile(region) {
    const stages = region.axes[0] === "stage" && region.shape.length > 1 ? region.shape[0] : 1;
    const place = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": region.name });
    const about = element("span");
    const caption = element("figcaption", {}, about);
    if (stages > 1) {
      caption.append(" ", chooser("Stage", ["the current one", ...Array.from({ length: stages }, (_, at) => `stage ${at}`)], (at) => { this.stageOf.set(region, at - 1); this.drawShared(); }));
    }
    return { region, stages, place, about, figure: element("figure", { class: "tile" }, caption, place) };
  }

  draw() {
    this.drawShared();
    this.drawRegisters();
  }

  /** The elements that this moment's accesses touch: of all warps, and of the chosen one. */
  touched(region) {
    const all = new Uint8Array(region.cells), mine = new Uint8Array(region.cells);
    for (const shown of this.recording.moments[this.chosen.now].accesses) {
      if (shown.buffer !== region.name) continue;
      const width = (shown.matrices ? 16 : shown.width_bytes) / region.itemsize;
      for (const [warp, picture, base] of shown.places) {
        this.recording.addresses[picture].forEach((at, lane) => {
          if (at < 0 || (shown.matrices && lane >= 8 * shown.matrices)) return;
          const first = (base + at - region.offset_bytes) / region.itemsize;
          for (let element = first; element < first + width; element += 1) { all[element] = 1; if (warp === this.chosen.warp) mine[element] = 1; }
        });
      }
    }
    return [all, mine];
  }

  /** The element that is raced for, at the two accesses. */
  broken(region) {
    const found = new Uint8Array(region.cells), now = this.chosen.now;
    for (const fault of this.recording.faults) {
      if (fault.buffer === region.name && fault.element !== null && [fault.earlier, fault.moment].includes(now)) found[fault.element] = 1;
    }
    return found;
  }

  flying(region) {
    const found = new Uint8Array(region.cells), now = this.chosen.now;
    for (const flight of this.recording.flights) {
      if (flight.buffer !== region.name || flight.first > now || (flight.last >= 0 && flight.last <= now)) continue;
      for (const [first, count] of flight.runs) found.fill(1, first, first + count);
    }
    return found;
  }

  drawShared() {
    const cells = this.recording.states.at(this.chosen.now);
    for (const { region, stages, place, about } of this.tiles) {
      const changed = this.recording.states.changed(this.chosen.now, region.base, region.cells);
      const [touched, mine] = this.touched(region), flying = this.flying(region), broken = this.broken(region), each = region.cells / stages;
      const stage = this.stageOf.get(region) >= 0 ? this.stageOf.get(region) : this.currentStage(region, each, [broken, mine, touched, changed, flying]);
      const part = (marks) => marks.subarray(stage * each, (stage + 1) * each);
      const columns = region.shape[region.shape.length - 1], rows = each / columns;
      const wide = Math.max(120, place.clientWidth || 300), cellW = Math.max(2, Math.min(22, (wide - 2) / columns)), cellH = Math.max(2, Math.min(14, cellW));
      const names = region.axes.slice(stages > 1 ? 1 : 0).join(", ");
      about.textContent = `${region.name}${stages > 1 ? ` stage ${stage} of ${stages}` : ""}: ${rows} × ${columns} ${region.dtype}${names ? ` (${names})` : ""} ${region.note}`;
      place.replaceChildren(grid(`${region.name}, ${rows} rows of ${columns}`, rows, columns, cells.subarray(region.base + stage * each, region.base + (stage + 1) * each), {
        cellW, cellH, changed: part(changed), touched: part(touched), mine: part(mine), flying: part(flying), broken: part(broken),
        tip: (at) => `${region.name}[${placeOf(at + stage * each, region.shape)}] = ${valueText(this.recording.states.at(this.chosen.now)[region.base + stage * each + at])}` +
          `\nbyte ${region.offset_bytes + (at + stage * each) * region.itemsize}, bank ${Math.floor((region.offset_bytes + (at + stage * each) * region.itemsize) / 4) % 32}` +
          `${part(flying)[at] ? "\na copy to it is in flight" : ""}`,
      }));
    }
  }

  /** The stage that something happens in; the one before where nothing does. */
  currentStage(region, each, marks) {
    for (const mark of marks) {
      const at = mark.indexOf(1);
      if (at >= 0) { this.seenStage.set(region, Math.floor(at / each)); break; }
    }
    return this.seenStage.get(region) || 0;
  }

  drawRegisters() {
    document.getElementById("of-warp").textContent = this.chosen.warp;
    const cells = this.recording.states.at(this.chosen.now), { warps } = this.recording, made = [];
    for (const region of this.recording.regions) {
      if (region.space !== "register") continue;
      const each = region.cells / warps, base = region.base + this.chosen.warp * each, values = cells.subarray(base, base + each);
      if (values.every(Number.isNaN)) continue;
      const changed = this.recording.states.changed(this.chosen.now, base, each);
      made.push(this.buffer(region, values, changed, each / 32));
    }
    this.body.replaceChildren(...made);
    if (!made.length) nothing(this.body, "This warp has written no register yet.");
  }

  buffer(region, values, changed, elements) {
    const wide = Math.max(200, this.registers.clientWidth || 300), cellW = Math.min(22, (wide - 2) / 32);
    const cellH = elements > 64 ? 4 : elements > 24 ? 6 : Math.min(13, Math.max(9, cellW));
    const mine = new Uint8Array(values.length);
    for (let at = 0; at < elements; at += 1) mine[at * 32 + this.lane] = elements <= 24 ? 1 : 0;
    const drawn = grid(`${region.name} of warp ${this.chosen.warp}: ${elements} registers of 32 lanes`, elements, 32, values, {
      cellW, cellH, changed, mine,
      tip: (at) => `${region.name}[${placeOf(Math.floor(at / 32), region.shape)}], lane ${at % 32}: ${valueText(values[at])}`,
    });
    drawn.addEventListener("click", (event) => {
      const box = drawn.getBoundingClientRect();
      this.laneBox.set(Math.max(0, Math.min(31, Math.floor(((event.clientX - box.left) / box.width) * 32))));
    });
    const line = element("p", { class: "lane", tabindex: elements > 40 ? 0 : null, "aria-label": `${region.name} of lane ${this.lane}` }, `lane ${this.lane}: `);
    for (let at = 0; at < elements; at += 1) {
      const text = Number.isNaN(values[at * 32 + this.lane]) ? "·" : valueText(values[at * 32 + this.lane]);
      line.append(changed[at * 32 + this.lane] ? element("b", {}, text) : text, " ");
    }
    const names = region.axes.length ? ` (${region.axes.join(", ")})` : "";
    return element("figure", { class: "tile" }, element("figcaption", {}, `${region.name}: ${region.shape.join(" × ")} ${region.dtype}${names}; rows are registers, columns lanes`),
      element("div", { class: "scroll", tabindex: elements > 60 ? 0 : null, role: elements > 60 ? "region" : null, "aria-label": elements > 60 ? region.name : null }, drawn), line);
  }
}

/** The index of a flat element in a shape: "3, 17". */
function placeOf(flat, shape) {
  const index = [];
  for (let at = shape.length - 1; at >= 0; at -= 1) { index.unshift(flat % shape[at]); flat = Math.floor(flat / shape[at]); }
  return index.join(", ");
}
