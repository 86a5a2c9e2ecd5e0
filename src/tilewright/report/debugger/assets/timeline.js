// The timeline: a lane for each warp, copies in flight, mbarriers; all steps small, those around the current one large.

class Timeline {
  constructor(recording, chosen) {
    this.recording = recording;
    this.chosen = chosen;
    this.sorts = recording.moments.map((moment) => sortOf(moment, recording.lines));
    this.stalls = Array.from({ length: recording.warps }, () => []);
    recording.stalls.forEach((stall) => this.stalls[stall.warp].push(stall));
    this.overview = document.getElementById("overview");
    this.canvas = document.getElementById("timeline");
    for (const one of [this.overview, this.canvas]) {
      one.addEventListener("pointermove", (event) => this.tell(event, one));
      one.addEventListener("pointerleave", hideTip);
      one.addEventListener("click", (event) => this.choose(event, one));
    }
    this.legend();
  }

  legend() {
    const used = new Set([...this.sorts, ...(this.recording.stalls.length ? ["wait"] : [])]);
    const legend = document.getElementById("legend");
    for (const [name, sort] of Object.entries(SORTS)) {
      if (used.has(name)) legend.append(element("span", { style: `--c:var(--${sort.colour})` }, `${sort.letter ? `${sort.letter} ` : ""}${sort.name}`));
    }
  }

  get end() { return this.recording.moments.length; }

  open(canvas, height) {
    const sharp = window.devicePixelRatio || 1, width = canvas.parentElement.clientWidth;
    canvas.width = Math.round(width * sharp);
    canvas.height = Math.round(height * sharp);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.clearRect(0, 0, width, height);
    return [pen, width];
  }

  draw() {
    this.palette = Object.fromEntries(["sky", "blue", "orange", "pink", "green", "muted", "red", "line", "fg", "bg", "soft", "on", "card", "yellow"].map((name) => [name, colour(name)]));
    this.drawOverview();
    this.drawAround();
  }

  /** All steps; drawn once for each width and scheme, and kept. */
  drawOverview() {
    const tall = Math.max(2, Math.min(5, Math.floor(64 / this.recording.warps)));
    const [pen, width] = this.open(this.overview, tall * this.recording.warps + 8);
    const scale = width / this.end, look = this.palette;
    pen.fillStyle = look.soft;
    pen.fillRect(0, 0, width, tall * this.recording.warps);
    this.stalls.forEach((stalls, warp) => stalls.forEach((stall) => {
      pen.fillStyle = look.line;
      pen.fillRect(stall.first * scale, warp * tall, (this.until(stall) - stall.first) * scale, tall);
    }));
    this.recording.moments.forEach((moment, at) => {
      pen.fillStyle = look[SORTS[this.sorts[at]].colour];
      moment.warps.forEach((warp) => pen.fillRect(at * scale, warp * tall, Math.max(scale, 0.6), tall - (tall > 2 ? 0.5 : 0)));
    });
    pen.fillStyle = look.red;
    this.marks().forEach((at) => pen.fillRect(at * scale - 1, 0, 3, tall * this.recording.warps + 8));
    const { first, count } = this.window();
    pen.strokeStyle = look.fg;
    pen.lineWidth = 1;
    pen.strokeRect(first * scale + 0.5, 0.5, Math.max(count * scale - 1, 2), tall * this.recording.warps + 6);
    pen.fillStyle = look.fg;
    pen.fillRect(this.chosen.now * scale, 0, 2, tall * this.recording.warps + 8);
  }

  marks() {
    return this.recording.faults.filter((fault) => fault.is_error).flatMap((fault) => [fault.earlier, fault.moment]).filter((at) => at >= 0);
  }

  until(span) { return span.last < 0 ? this.end : span.last; }

  /** The steps that are drawn large. */
  window() {
    const width = this.canvas.parentElement.clientWidth, gutter = width < 600 ? 52 : 92, cell = width < 600 ? 9 : 11;
    const count = Math.min(this.end, Math.max(8, Math.floor((width - gutter - 4) / cell)));
    const first = Math.max(0, Math.min(this.end - count, this.chosen.now - Math.floor(count * 0.45)));
    return { first, count, gutter, cell: Math.min(26, (width - gutter - 4) / count), narrow: width < 600 };
  }

  /** The flights that are drawn, packed into rows: those of all units, and of cp.async those of the chosen warp. */
  rowsOfFlights(first, count) {
    const seen = this.recording.flights.filter((one) => one.first < first + count && this.until(one) > first && (one.kind !== "cp.async" || one.warp === this.chosen.warp));
    const rows = [];
    for (const flight of seen) {
      let row = rows.find((one) => one.kind === flight.kind && one.end <= flight.first);
      if (!row) { row = { kind: flight.kind, end: 0, flights: [] }; rows.push(row); }
      row.flights.push(flight);
      row.end = this.until(flight);
    }
    return rows.sort((a, b) => a.kind.localeCompare(b.kind)).slice(0, 14);
  }

  drawAround() {
    const { first, count, gutter, cell, narrow } = this.window(), { warps, barriers } = this.recording;
    const tall = warps > 16 ? 11 : 15, rows = this.rowsOfFlights(first, count);
    const flightTop = warps * tall + 8, barrierTop = flightTop + rows.length * 13 + (rows.length ? 8 : 0);
    const height = barrierTop + barriers.length * 13 + 16;
    const [pen, width] = this.open(this.canvas, height), look = this.palette;
    this.layout = { first, count, gutter, cell, tall, rows, flightTop, barrierTop };
    const x = (at) => gutter + (at - first) * cell;
    pen.font = `${narrow ? 9 : 11}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    pen.save();
    pen.beginPath(); pen.rect(gutter, 0, width - gutter, height); pen.clip();
    pen.fillStyle = look.soft;
    pen.fillRect(x(this.chosen.now), 0, cell, height);
    this.drawWarps(pen, x);
    this.drawFlights(pen, x);
    this.drawBarriers(pen, x);
    pen.fillStyle = look.red;
    this.marks().forEach((at) => pen.fillRect(x(at), 0, 2, warps * tall));
    pen.strokeStyle = look.fg;
    pen.lineWidth = 1.5;
    pen.strokeRect(x(this.chosen.now) + 0.75, 0.75, Math.max(cell - 1.5, 2), height - 2);
    pen.restore();
    pen.textAlign = "left";
    for (let warp = 0; warp < warps; warp += 1) {
      pen.fillStyle = warp === this.chosen.warp ? look.fg : look.muted;
      pen.font = `${warp === this.chosen.warp ? "600 " : ""}${narrow ? 9 : tall > 12 ? 11 : 9.5}px system-ui, sans-serif`;
      pen.fillText(`${warp === this.chosen.warp ? "▸" : " "}warp ${warp}`, 0, warp * tall + tall / 2);
    }
    pen.fillStyle = look.muted;
    pen.font = `${narrow ? 8.5 : 10}px system-ui, sans-serif`;
    rows.forEach((row, at) => pen.fillText(row.kind, 0, flightTop + at * 13 + 6, gutter - 4));
    barriers.forEach((name, at) => pen.fillText(name.replace(/^k_tile_/, ""), 0, barrierTop + at * 13 + 6, gutter - 4));
  }

  drawWarps(pen, x) {
    const { first, count, cell, tall } = this.layout, look = this.palette, gap = cell > 5 ? 1 : 0;
    this.stalls.forEach((stalls, warp) => stalls.forEach((stall) => {
      const end = this.until(stall);
      if (end <= first || stall.first >= first + count) return;
      pen.fillStyle = look.line;
      pen.fillRect(x(stall.first), warp * tall + tall / 2 - 2, (end - stall.first) * cell, 4);
      if ((end - stall.first) * cell > 70 && tall > 11) {
        pen.fillStyle = look.muted;
        pen.font = "9.5px system-ui, sans-serif";
        const from = Math.max(x(stall.first) + cell + 3, x(first) + 3), text = `waits: ${stall.barrier}`, wide = pen.measureText(text).width;
        if (from + wide < x(end)) { pen.clearRect(from - 2, warp * tall + 1, wide + 4, tall - 2); pen.fillText(text, from, warp * tall + tall / 2); }
      }
    }));
    this.recording.ends.forEach((end, warp) => {
      if (end >= 0 && end < first + count) { pen.fillStyle = look.bg; pen.fillRect(x(end), warp * tall + tall / 2 - 0.5, (first + count - end) * cell, 1); }
    });
    pen.textAlign = "center";
    for (let at = first; at < first + count; at += 1) {
      const moment = this.recording.moments[at], sort = SORTS[this.sorts[at]];
      pen.fillStyle = look[sort.colour];
      for (const warp of moment.warps) pen.fillRect(x(at) + gap / 2, warp * tall + 1, cell - gap, tall - 2);
      if (cell >= 9 && sort.letter) {
        pen.fillStyle = look.on;
        pen.font = "600 9px system-ui, sans-serif";
        for (const warp of moment.warps) pen.fillText(sort.letter, x(at) + cell / 2, warp * tall + tall / 2 + 0.5);
      }
    }
    pen.textAlign = "left";
  }

  drawFlights(pen, x) {
    const { rows, flightTop, cell } = this.layout, look = this.palette;
    rows.forEach((row, number) => row.flights.forEach((flight) => {
      const y = flightTop + number * 13, begin = Math.max(x(flight.first), 0), wide = x(this.until(flight)) - begin;
      pen.fillStyle = look[flight.kind === "wgmma" ? "orange" : "pink"];
      pen.globalAlpha = 0.35;
      pen.fillRect(begin, y + 1, wide, 10);
      if (flight.committed >= 0) pen.fillRect(Math.max(x(flight.committed), begin), y + 1, x(this.until(flight)) - Math.max(x(flight.committed), begin), 10);
      pen.globalAlpha = 1;
      pen.fillStyle = look.fg;
      pen.font = "9px system-ui, sans-serif";
      const text = [flight.buffer, flight.note].filter(Boolean).join(" "), from = Math.max(begin, this.layout.gutter) + 3;
      if (pen.measureText(text).width < begin + wide - from - 2 || wide > 12 * cell) pen.fillText(text, from, y + 6.5, Math.max(begin + wide - from - 2, 1));
    }));
  }

  drawBarriers(pen, x) {
    const { first, count, barrierTop, cell } = this.layout, look = this.palette;
    this.recording.barriers.forEach((_, barrier) => {
      const y = barrierTop + barrier * 13, states = this.recording.barrier_states.filter((one) => one.barrier === barrier);
      states.forEach((state, number) => {
        const end = number + 1 < states.length ? states[number + 1].moment : this.end;
        if (end <= first || state.moment >= first + count) return;
        const begin = x(state.moment), wide = (end - state.moment) * cell;
        pen.fillStyle = state.phase % 2 ? look.green : look.blue;
        pen.globalAlpha = state.bytes || state.pending < state.count ? 0.55 : 0.2;
        pen.fillRect(begin, y + 1, wide - 0.5, 10);
        pen.globalAlpha = 1;
        const text = `${state.phase}${state.bytes ? ` · ${bytes(state.bytes)}` : ""}`, from = Math.max(begin, this.layout.gutter) + 2;
        pen.fillStyle = look.fg;
        pen.font = "9px system-ui, sans-serif";
        if (pen.measureText(text).width < begin + wide - from) pen.fillText(text, from, y + 6.5);
      });
    });
  }

  /** The moment and the warp under the pointer. */
  under(event, canvas) {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    if (canvas === this.overview) return { at: Math.max(0, Math.min(this.end - 1, Math.floor((px / box.width) * this.end))), warp: -1 };
    const { first, count, gutter, cell, tall } = this.layout;
    const at = first + Math.floor((px - gutter) / cell), row = Math.floor(py / tall);
    return { at: px < gutter || at >= first + count ? -1 : at, warp: row < this.recording.warps ? row : -1, y: py };
  }

  choose(event, canvas) {
    const { at, warp } = this.under(event, canvas);
    this.chosen.pick(warp >= 0 ? warp : this.chosen.warp, at >= 0 ? at : this.chosen.now);
  }

  tell(event, canvas) {
    const { at, warp, y } = this.under(event, canvas);
    if (at < 0) return hideTip();
    const moment = this.recording.moments[at];
    if (canvas === this.canvas && warp < 0) return showTip(this.unitText(at, y), event);
    const stall = warp < 0 ? null : this.stalls[warp].find((one) => one.first <= at && at < this.until(one));
    if (stall && !moment.warps.includes(warp)) return showTip(`step ${at + 1}: warp ${warp} waits since step ${stall.first + 1}${stall.last < 0 ? " for ever" : ` until step ${stall.last + 1}`}\n${stall.what}`, event);
    return showTip(`step ${at + 1}: ${momentText(this.recording, moment)}`, event);
  }

  unitText(at, y) {
    const { rows, flightTop, barrierTop } = this.layout;
    if (y >= barrierTop) {
      const barrier = Math.floor((y - barrierTop) / 13), state = this.recording.barrier_states.filter((one) => one.barrier === barrier && one.moment <= at).pop();
      return state ? `${this.recording.barriers[barrier]} at step ${at + 1}: ${barrierText(state)}` : "";
    }
    const row = rows[Math.floor((y - flightTop) / 13)];
    const flight = row && row.flights.find((one) => one.first <= at && at < this.until(one));
    return flight ? flightText(flight) : "";
  }
}

function flightText(flight) {
  const until = flight.last < 0 ? "to the end" : `until step ${flight.last + 1}`;
  const size = flight.size_bytes ? `, ${bytes(flight.size_bytes)}` : "";
  return `${flight.kind} ${[flight.buffer, flight.note].filter(Boolean).join(", ")}${size}${flight.kind === "wgmma" ? "" : `, by warp ${flight.warp}`}: from step ${flight.first + 1} ${until}${flight.barrier ? `, tells ${flight.barrier}` : ""}`;
}

function barrierText(state) {
  return `phase ${state.phase} (parity ${state.phase % 2}), ${state.pending} of ${plural(state.count, "arrival")} missing, ${bytes(state.bytes)} to come`;
}

function momentText(recording, moment) {
  const loops = moment.loops.map(([name, value]) => `${name} = ${value}`).join(", ");
  const who = moment.warps.length ? `${warpsText(moment.warps)}: ` : "";
  const line = moment.line ? `line ${moment.line}: ${recording.lines[moment.line - 1].trim()}` : moment.note;
  return `${who}${line}${loops ? `\nwith ${loops}` : ""}`;
}
