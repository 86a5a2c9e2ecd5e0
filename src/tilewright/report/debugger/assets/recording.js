// The recording, unpacked: moments as objects, and the state of every cell at any moment.

/** The bytes of a blob of the page: gzip, as base64. */
async function unpacked(name) {
  const packed = Uint8Array.from(atob(document.getElementById(`blob-${name}`).textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Lists of values as objects with the names of their fields. */
function named(rows, fields) {
  return rows.map((row) => Object.fromEntries(fields.map((name, at) => [name, row[at]])));
}

async function openRecording() {
  const [data, first, start, length, planes] = await Promise.all(["data", "runs_first", "runs_start", "runs_length", "values"].map(unpacked));
  const { recording, fields, texts, pictures } = JSON.parse(new TextDecoder().decode(data));
  for (const name of ["regions", "moments", "stalls", "flights", "barrier_states", "faults"]) recording[name] = named(recording[name], fields[name]);
  for (const moment of recording.moments) moment.accesses = named(moment.accesses, fields.shown);
  const runs = { first: new Int32Array(first.buffer), start: new Int32Array(start.buffer), length: new Int32Array(length.buffer) };
  for (let run = 1; run < runs.start.length; run += 1) runs.start[run] += runs.start[run - 1];
  const addresses = recording.pictures.map(([at]) => at);
  return { ...recording, texts, pictures, addresses, states: new States(recording.regions, runs, joined(planes)) };
}

/** Numbers whose bytes lie in four planes, the lowest byte first. */
function joined(planes) {
  const count = planes.length / 4, bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < 4; plane += 1) for (let at = 0; at < count; at += 1) bytes[4 * at + plane] = planes[plane * count + at];
  return new Float32Array(bytes.buffer);
}

/** The state of all cells, moved from moment to moment; copies on the way make going back cheap. */
class States {
  constructor(regions, runs, values) {
    this.runs = runs;
    this.values = values;
    this.count = runs.first.length - 1;
    this.cells = new Float32Array(regions.reduce((sum, region) => sum + region.cells, 0)).fill(NaN);
    this.now = -1;
    this.begins = new Float64Array(runs.length.length + 1);
    for (let run = 0; run < runs.length.length; run += 1) this.begins[run + 1] = this.begins[run] + runs.length[run];
    this.every = Math.max(32, Math.ceil((this.count * this.cells.length * 4) / 8e7)); // at most 80 MB of copies
    this.copies = new Map([[-1, this.cells.slice()]]);
  }

  /** The cells after a moment. */
  at(moment) {
    if (moment < this.now) {
      let from = moment;
      while (!this.copies.has(from)) from -= 1;
      this.cells.set(this.copies.get(from));
      this.now = from;
    }
    while (this.now < moment) {
      this.now += 1;
      for (let run = this.runs.first[this.now]; run < this.runs.first[this.now + 1]; run += 1)
        this.cells.set(this.values.subarray(this.begins[run], this.begins[run + 1]), this.runs.start[run]);
      if (this.now % this.every === 0 && !this.copies.has(this.now)) this.copies.set(this.now, this.cells.slice());
    }
    return this.cells;
  }

  /** Which of `count` cells from `base` on a moment has changed. */
  changed(moment, base, count) {
    const found = new Uint8Array(count);
    for (let run = this.runs.first[moment]; run < this.runs.first[moment + 1]; run += 1) {
      const start = Math.max(this.runs.start[run] - base, 0), end = Math.min(this.runs.start[run] + this.runs.length[run] - base, count);
      if (start < end) found.fill(1, start, end);
    }
    return found;
  }
}

/** What a moment is, for its colour, its letter and the legend. */
const SORTS = {
  global: { letter: "G", colour: "sky", name: "global memory" },
  shared: { letter: "S", colour: "blue", name: "shared memory" },
  math: { letter: "·", colour: "orange", name: "arithmetic" },
  tensor: { letter: "M", colour: "orange", name: "tensor cores" },
  copy: { letter: "T", colour: "pink", name: "TMA, cp.async" },
  barrier: { letter: "B", colour: "green", name: "barriers" },
  wait: { letter: "", colour: "muted", name: "waits" },
  fault: { letter: "✗", colour: "red", name: "fault" },
  other: { letter: "", colour: "line", name: "other" },
};

function sortOf(moment, lines) {
  if (moment.kind === "fault") return "fault";
  if (moment.kind === "landing") return "copy";
  if (moment.kind === "skipped") return "other";
  const text = lines[moment.line - 1].trim();
  if (/# (wgmma|mma|wmma)/.test(text)) return "tensor";
  if (text.includes("<~") || /copies|bulk stores/.test(text)) return "copy";
  if (/^(barrier|arrive|wait|fence|the new|commit products|signal)/.test(text) || text.includes("a barrier of")) return "barrier";
  if (moment.accesses.length) return moment.accesses.some((one) => one.space === "shared") ? "shared" : "global";
  return "math";
}
