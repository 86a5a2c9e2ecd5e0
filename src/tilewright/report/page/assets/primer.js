// A first look at bank conflicts, before those of a rung: 32 lanes read words that are equally far apart.

const STRIDES = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 31, 32, 33];

function drawPrimer(host) {
  const picture = element("div", { class: "scroll" });
  const say = element("div", { class: "say", "aria-live": "polite" });
  const pick = slider("Lane i wants word i ×", STRIDES.length - 1, STRIDES.indexOf(2), (at) => show(STRIDES[at]), (at) => `${STRIDES[at]}`);
  const jumps = [1, 2, 32, 33].map((stride) => element("button", { type: "button", onclick: () => pick.set(STRIDES.indexOf(stride)) }, `× ${stride}`));
  host.replaceChildren(element("div", { class: "controls" }, pick, ...jumps), picture, say);

  function show(stride) {
    const request = strided(stride);
    picture.replaceChildren(bankFigure({ width: 4, matrices: 0 }, request, -1, null));
    say.innerHTML = wordsOfStride(stride, request.waves);
  }
  show(STRIDES[pick.at()]);
}

/** The request in which lane i wants word i * stride: the words of one bank are served one after another. */
function strided(stride) {
  const words = [...Array(32).keys()].map((lane) => lane * stride);
  const wave = words.map((word) => new Set(words.filter((other) => other % 32 === word % 32 && other < word)).size);
  return { at: words.map((word) => word * 4), wave, waves: Math.max(...wave) + 1, first: [0] };
}

function wordsOfStride(stride, waves) {
  const many = `<b class="red">${plural(waves, "wavefront")}</b>`;
  if (stride === 0) return "All lanes want <b>the same word</b>. It is read once and given to all: <b>1 wavefront</b>, no conflict.";
  if (stride === 32) return `Down a column of a tile whose rows are 32 words long: word 0, 32, 64 … All of them lie in <b class="red">bank 0</b>, which gives one word at a time: ${many}, 32 times as long. This is the worst case.`;
  if (stride === 33) return "The same column, but every row got <b>one word of padding</b>, so the next row begins one bank further on. All 32 lanes find a bank of their own: <b>1 wavefront</b>. Nothing else changed; this is what <code>Relayout(…, pad=1)</code> does.";
  if (waves === 1) return `${stride === 1 ? "Neighbouring lanes want neighbouring words" : `${stride} is odd, so the lanes go around the banks and no two meet`}: each lane has a bank of its own, <b>1 wavefront</b>, no conflict.`;
  return `Lanes ${32 / waves} apart meet in the same bank, since ${32 / waves} × ${stride} is a multiple of 32. The bank serves them one after the other: ${many} instead of 1, and ${plural(32 - 32 / waves, "bank")} of 32 stay${waves === 32 ? "s" : ""} idle meanwhile.`;
}
