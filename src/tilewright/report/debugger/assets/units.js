// Copies and products in flight, mbarriers, and who waits for what.

class Units {
  constructor(recording, chosen) {
    this.recording = recording;
    this.chosen = chosen;
    this.flights = document.getElementById("flights");
    this.barriers = document.getElementById("barriers");
  }

  draw() {
    this.drawFlights();
    this.drawBarriers();
  }

  table(head, rows) {
    return element("table", { class: "units" }, element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, ...rows));
  }

  row(cells, changed) {
    return element("tr", { class: changed ? "changed" : null }, ...cells.map((text) => element("td", {}, text)));
  }

  drawFlights() {
    const now = this.chosen.now, flying = this.recording.flights.filter((one) => one.first <= now && (one.last < 0 || one.last > now));
    if (!this.recording.flights.length) return nothing(this.flights, "This kernel starts no asynchronous copies or products.");
    if (!flying.length) return nothing(this.flights, "Nothing is in flight.");
    const groups = new Map();
    for (const one of flying) {
      const key = [one.kind, one.buffer, one.note, one.barrier, one.committed >= 0 && one.committed <= now].join("|");
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(one);
    }
    const rows = [...groups.values()].map((all) => {
      const one = all[0], size = all.reduce((sum, flight) => sum + flight.size_bytes, 0);
      const lands = Math.max(...all.map((flight) => (flight.last < 0 ? Infinity : flight.last)));
      const committed = one.committed >= 0 && one.committed <= now;
      const state = one.kind === "TMA load" ? `tells ${one.barrier}` : committed ? "group committed" : "group open";
      return this.row([one.kind, [one.buffer, one.note].filter(Boolean).join(", "), size ? bytes(size) : "",
        `${one.kind === "wgmma" ? "" : `${warpsText(all.map((flight) => flight.warp))}; `}${state}`,
        lands === Infinity ? "never" : `step ${lands + 1}`], all.some((flight) => flight.first === now || flight.committed === now));
    });
    return this.flights.replaceChildren(element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "In flight" }, this.table(["what", "where", "size", "who", "lands at"], rows)));
  }

  drawBarriers() {
    const now = this.chosen.now, { recording } = this;
    const waiting = recording.stalls.filter((one) => one.first <= now && (one.last < 0 || one.last > now));
    const states = recording.barriers.map((_, barrier) => recording.barrier_states.filter((one) => one.barrier === barrier && one.moment <= now).pop());
    const who = (name) => {
      const stalls = waiting.filter((one) => one.barrier === name);
      return stalls.length ? `${warpsText(stalls.map((one) => one.warp))}${stalls.some((one) => one.last < 0) ? ", for ever" : ""}` : "";
    };
    const rows = recording.barriers.map((name, barrier) => {
      const state = states[barrier];
      if (!state) return null;
      return this.row([name, state.phase, state.phase % 2, `${state.pending} of ${state.count}`, state.bytes ? bytes(state.bytes) : "–", who(name) || "–"], state.moment === now);
    }).filter(Boolean);
    const made = rows.length ? [element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "mbarriers" }, this.table(["mbarrier", "phase", "parity", "arrivals missing", "bytes to come", "who waits"], rows))] : [];
    const others = [...new Set(waiting.map((one) => one.barrier))].filter((name) => !recording.barriers.includes(name));
    others.forEach((name) => made.push(element("p", {}, `${who(name)}: ${name}`)));
    if (!made.length) return nothing(this.barriers, recording.barriers.length ? "No mbarrier is made yet." : "No warp waits.");
    return this.barriers.replaceChildren(...made);
  }
}

/** "warp 3", "warps 0–2, 5". */
function warpsText(warps) {
  const numbers = [...new Set(warps)].sort((a, b) => a - b);
  return `${numbers.length > 1 ? "warps" : "warp"} ${spans(numbers)}`;
}
