// The access of the current step: banks of shared memory, sectors of global memory, of the chosen warp.

class Accesses {
  constructor(recording, chosen) {
    this.recording = recording;
    this.chosen = chosen;
    this.host = document.getElementById("access");
  }

  keyOf(shown, picture, source) {
    return `${shown.space[0]}${picture}.${shown.width_bytes}${shown.store ? "s" : "l"}${shown.matrices}.${source}`;
  }

  draw() {
    const moment = this.recording.moments[this.chosen.now], made = [];
    for (const shown of moment.accesses) {
      const place = shown.places.find(([warp]) => warp === this.chosen.warp) || shown.places[0];
      const [warp, picture, base, source] = place, request = this.recording.pictures[this.keyOf(shown, picture, source)];
      made.push(shown.space === "shared" ? this.banks(shown, request, base, warp) : this.sectors(shown, request, base, warp));
    }
    if (!made.length) return nothing(this.host, "This step touches neither shared nor global memory by addresses of lanes.");
    this.host.replaceChildren(...made);
  }

  heading(shown, warp) {
    const others = shown.places.length > 1 ? ` (${plural(shown.places.length, "warp")} do the same in this step)` : "";
    const what = shown.matrices ? `${plural(shown.matrices, "matrix").replace("matrixs", "matrices")} of 8 rows` : `${plural(shown.width_bytes, "byte")} a lane`;
    return element("p", {}, element("b", {}, `Warp ${warp} ${shown.store ? "writes" : "reads"} ${shown.buffer}`), ` in ${shown.space} memory, ${what}${others}.`);
  }

  banks(shown, request, base, warp) {
    const map = { matrices: shown.matrices, width: shown.width_bytes };
    const moved = { ...request, at: request.at.map((at) => (at < 0 ? -1 : at + base)) };
    const lost = request.waves - request.ideal;
    const say = element("p", {}, element("b", { class: lost ? "red" : "" }, plural(request.waves, "wavefront")),
      lost ? `, where ${request.ideal} would do: ${plural(lost, "bank conflict")}${request.why ? ` (${request.why})` : ""}.` : ": no bank conflict.");
    return element("div", {}, this.heading(shown, warp), say, element("div", { class: "scroll" }, bankFigure(map, moved, -1, null, this.host)));
  }

  sectors(shown, request, base, warp) {
    const wanted = new Map(), each = shown.itemsize, perSector = 32 / each;
    request.at.forEach((at, lane) => {
      if (at < 0) return;
      for (let part = 0; part < shown.width_bytes / each; part += 1) {
        const key = (base + at) / each + part;
        if (!wanted.has(key)) wanted.set(key, []);
        wanted.get(key).push(lane);
      }
    });
    const share = request.used / (32 * request.sectors), extra = request.sectors - request.fewest;
    const say = element("p", {}, element("b", { class: extra > 0 ? "red" : "" }, plural(request.sectors, "sector")),
      ` of 32 bytes: ${bytes(request.used)} used of ${bytes(32 * request.sectors)} moved (${Math.round(100 * share)} %)` +
      `${extra > 0 ? `; ${request.fewest} would do${request.why ? `: ${request.why}` : ""}` : "; no fewer could hold them"}.`);
    const used = element("div", { class: "used", role: "img", "aria-label": `${Math.round(100 * share)} % of the bytes moved are used` }, element("i", { style: `width:${100 * share}%` }));
    return element("div", {}, this.heading(shown, warp), say, used, sectorStrip(wanted, (row, column) => row * 100000 + column, perSector));
  }
}
