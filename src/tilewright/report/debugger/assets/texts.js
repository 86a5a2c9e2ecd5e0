// The three texts: lines that belong together light up together, and lead to their next execution.

class Texts {
  constructor(recording, chosen) {
    this.recording = recording;
    this.chosen = chosen;
    this.panels = Object.fromEntries(["schedule", "kernel", "cuda"].map((name) => [name, document.getElementById(name)]));
    const { steps_of, cuda_of } = recording.texts;
    this.kernelOf = { schedule: new Map(), cuda: new Map() };
    const enter = (map, from, to) => { if (!map.has(from)) map.set(from, []); map.get(from).push(to); };
    steps_of.forEach((steps, line) => steps.forEach((step) => enter(this.kernelOf.schedule, step, line)));
    cuda_of.forEach((rows, line) => rows.forEach((row) => enter(this.kernelOf.cuda, row, line)));
    recording.faults.filter((fault) => fault.is_error).forEach((fault) => [fault.line, fault.earlier_line].filter(Boolean).forEach((line) => this.mark([line - 1], "broken")));
    for (const [name, panel] of Object.entries(this.panels)) this.listen(name, panel);
  }

  listen(name, panel) {
    const row = (event) => event.target.closest("[data-at]");
    panel.addEventListener("pointerover", (event) => { const at = row(event); if (at) this.link(name, +at.dataset.at); });
    panel.addEventListener("pointerleave", () => this.unlink());
    panel.addEventListener("click", (event) => { const at = row(event); if (at) { this.select(name, +at.dataset.at); this.follow(name, +at.dataset.at); } });
    panel.addEventListener("blur", () => this.unlink());
    panel.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const now = +(panel.dataset.selected || this.firstNow(panel));
      if (step) this.select(name, Math.max(0, Math.min(panel.children.length - 1, now + step)));
      else if (event.key === "Enter") this.follow(name, now);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  firstNow(panel) {
    const now = panel.querySelector(".now");
    return now ? +now.dataset.at : 0;
  }

  /** The lines of the kernel that belong to a line of one of the texts. */
  kernelLines(name, at) { return name === "kernel" ? [at] : this.kernelOf[name].get(at) || []; }

  select(name, at) {
    const panel = this.panels[name], old = panel.querySelector("[aria-selected=true]"), made = panel.children[at];
    if (old) old.setAttribute("aria-selected", "false");
    made.setAttribute("aria-selected", "true");
    panel.setAttribute("aria-activedescendant", made.id);
    panel.dataset.selected = at;
    reveal(panel, made);
    this.link(name, at);
  }

  unlink() { document.querySelectorAll(".text .linked").forEach((one) => one.classList.remove("linked")); }

  link(name, at) {
    this.unlink();
    this.panels[name].children[at].classList.add("linked");
    this.mark(this.kernelLines(name, at), "linked", name);
  }

  /** A class for lines of the kernel and all that belongs to them. but: the text that is pointed at. */
  mark(lines, kind, but = "") {
    const { steps_of, cuda_of } = this.recording.texts;
    for (const line of lines) {
      if (but !== "kernel") this.panels.kernel.children[line].classList.add(kind);
      if (but !== "schedule") steps_of[line].forEach((step) => this.panels.schedule.children[step].classList.add(kind));
      if (but !== "cuda") cuda_of[line].forEach((row) => this.panels.cuda.children[row].classList.add(kind));
    }
  }

  /** On to the next execution of a line, from the beginning again after the last. */
  follow(name, at) {
    const lines = new Set(this.kernelLines(name, at).map((line) => line + 1));
    const { moments } = this.recording;
    for (let step = 1; step <= moments.length; step += 1) {
      const next = (this.chosen.now + step) % moments.length;
      if (lines.has(moments[next].line)) return this.chosen.go(next);
    }
    return null;
  }

  draw() {
    const moment = this.recording.moments[this.chosen.now];
    document.querySelectorAll(".text .now").forEach((one) => one.classList.remove("now"));
    if (!moment.line) return;
    this.mark([moment.line - 1], "now");
    for (const panel of Object.values(this.panels)) { const now = panel.querySelector(".now"); if (now) reveal(panel, now); }
  }
}

/** Scroll a panel, and not the page, to one of its lines. */
function reveal(panel, line) {
  const top = line.offsetTop, room = panel.clientHeight;
  if (top < panel.scrollTop + 20 || top + line.offsetHeight > panel.scrollTop + room - 20) panel.scrollTop = top - room / 2;
}
