// The page: one chosen step and one chosen warp; controls change them, parts draw them.

const at = (id) => document.getElementById(id);

class Chosen {
  constructor(recording) {
    this.recording = recording;
    this.now = 0;
    this.warp = 0;
    this.only = false;
    this.parts = [];
    this.waiting = false;
  }

  go(moment) {
    this.now = Math.max(0, Math.min(this.recording.moments.length - 1, moment));
    if (!this.waiting) { this.waiting = true; requestAnimationFrame(() => { this.waiting = false; this.draw(); }); }
  }

  draw() {
    at("scrub").value = this.now;
    at("where").textContent = `${(this.now + 1).toLocaleString("en")} of ${this.recording.moments.length.toLocaleString("en")}`;
    at("scrub").setAttribute("aria-valuetext", `step ${this.now + 1}`);
    at("say").replaceChildren(...sentence(this.recording, this.now, this.warp));
    this.parts.forEach((part) => part.draw());
  }

  /** The next step in a direction, of the chosen warp where only its steps are asked for. */
  step(by) {
    const { moments } = this.recording, way = Math.sign(by);
    let left = Math.abs(by), next = this.now;
    while (left > 0 && moments[next + way]) {
      next += way;
      if (!this.only || moments[next].warps.includes(this.warp) || moments[next].kind === "fault") left -= 1;
    }
    this.go(next);
  }

  pick(warp, moment = this.now) {
    this.warp = (warp + this.recording.warps) % this.recording.warps;
    at("warp").selectedIndex = this.warp;
    this.go(moment);
  }

  /** The execution of the current line before or after. */
  again(way) {
    const { moments } = this.recording, { line } = moments[this.now];
    for (let next = this.now + way; moments[next]; next += way) if (moments[next].line === line) return this.go(next);
    return null;
  }
}

function sentence(recording, now, warp) {
  const moment = recording.moments[now], parts = [element("b", {}, `Step ${(now + 1).toLocaleString("en")}. `)];
  const loops = moment.loops.map(([name, value]) => `${name} = ${value}`).join(", ");
  const who = `${warpsText(moment.warps).replace("w", "W")} `;
  const code = moment.line ? element("code", {}, recording.lines[moment.line - 1].trim()) : "";
  const some = moment.lanes.length ? moment.warps.indexOf(warp) : -1;
  const lanes = some >= 0 ? [...Array(32).keys()].filter((lane) => (moment.lanes[some] >>> lane) & 1) : [];
  if (moment.kind === "skipped") parts.push(moment.note, ".");
  else if (moment.kind === "landing") parts.push(`All warps wait, so TMA completes ${moment.note}. Started at line ${moment.line}: `, code);
  else if (moment.kind === "fault") parts.push(element("b", { class: "red" }, moment.note), " ", code);
  else {
    parts.push(who, moment.kind === "stall" ? "begin to wait " : moment.warps.length > 1 ? "execute " : "executes ", `line ${moment.line}`, loops ? ` with ${loops}` : "", ": ", code);
    if (moment.note) parts.push(moment.kind === "stall" ? ` – for ${moment.note}` : ` – ${moment.note}`);
    if (lanes.length) parts.push(`; of warp ${warp} ${lanes.length > 1 ? "lanes" : "lane"} ${spans(lanes)}`);
    parts.push(".");
  }
  const stall = recording.stalls.find((one) => one.warp === warp && one.first <= now && (one.last < 0 || one.last > now));
  const ended = recording.ends[warp] >= 0 && recording.ends[warp] <= now;
  if (stall && stall.first < now) parts.push(` Warp ${warp} waits for ${stall.barrier} since step ${stall.first + 1}${stall.last < 0 ? ", for ever" : ` until step ${stall.last + 1}`}.`);
  else if (ended) parts.push(` Warp ${warp} has ended.`);
  return parts;
}

function bindControls(chosen, recording) {
  const last = recording.moments.length - 1;
  let playing = 0;
  const play = (on) => {
    clearInterval(playing);
    playing = on ? setInterval(() => { if (chosen.now >= last) play(false); else chosen.step(1); }, 250) : 0;
    at("play").setAttribute("aria-pressed", Boolean(playing));
    at("play").textContent = playing ? "Pause" : "Play";
  };
  const places = [...document.querySelectorAll("[data-moment]")];
  let place = -1;
  const jump = (button) => chosen.pick(Math.max(0, +button.dataset.warp), +button.dataset.moment);
  at("first").onclick = () => chosen.go(0);
  at("last").onclick = () => chosen.go(last);
  at("back").onclick = () => chosen.step(-1);
  at("forward").onclick = () => chosen.step(1);
  at("play").onclick = () => play(!playing);
  at("scrub").oninput = () => chosen.go(+at("scrub").value);
  at("warp").onchange = () => chosen.pick(at("warp").selectedIndex);
  at("own").onchange = () => { chosen.only = at("own").checked; };
  places.forEach((button) => { button.onclick = () => jump(button); });
  const keys = {
    Home: () => chosen.go(0), End: () => chosen.go(last), "[": () => chosen.pick(chosen.warp - 1), "]": () => chosen.pick(chosen.warp + 1),
    n: () => chosen.again(1), p: () => chosen.again(-1), w: () => { at("own").checked = chosen.only = !chosen.only; }, " ": () => play(!playing),
    f: () => { if (places.length) { place = (place + 1) % places.length; jump(places[place]); } },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest("select, input[type=range]:not(#scrub)"), pressing = event.target.closest("button, summary, input[type=checkbox]");
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (typing || (pressing && event.key === " ")) return;
    if (way) chosen.step(way * (event.shiftKey ? 10 : 1));
    else if (keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
  });
  return jump;
}

async function main() {
  const recording = await openRecording();
  const chosen = new Chosen(recording);
  chosen.parts = [new Timeline(recording, chosen), new Texts(recording, chosen), new Memory(recording, chosen), new Accesses(recording, chosen), new Units(recording, chosen)];
  bindControls(chosen, recording);
  const fault = recording.faults.find((one) => one.is_error);
  const asked = /^#(\d+)(?:\.(\d+))?$/.exec(location.hash);
  chosen.now = fault ? fault.moment : Math.max(0, recording.moments.findIndex((moment) => ["global", "shared", "copy"].includes(sortOf(moment, recording.lines))));
  chosen.warp = fault ? Math.max(0, fault.warp) : recording.moments[chosen.now].warps[0] || 0;
  if (asked) { chosen.now = Math.min(recording.moments.length, Math.max(1, +asked[1])) - 1; chosen.warp = Math.min(recording.warps - 1, +(asked[2] || chosen.warp)); }
  chosen.pick(chosen.warp);
  chosen.draw();
  addEventListener("resize", () => chosen.go(chosen.now));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chosen.go(chosen.now));
  window.chosen = chosen;
  document.documentElement.dataset.ready = "";
}

main();
