// The page: what is chosen (a rung, a size), and drawing again when that changes, or the colours do.

const data = JSON.parse(document.getElementById("data").textContent);
const byName = new Map(data.rungs.map((rung) => [rung.name, rung]));
const shownFirst = data.rungs[data.rungs.length - 1].name;
const chosen = { rung: fromAddress() || shownFirst, size: String(data.size) };
const sizeBox = document.getElementById("size"), rungBox = document.getElementById("rung");
const rungList = document.getElementById("rungs"), logBox = document.getElementById("log");

function fromAddress() {
  const wanted = decodeURIComponent(location.hash.slice(1));
  return byName.has(wanted) ? wanted : null;
}

data.sizes.forEach((size) => sizeBox.append(element("option", { value: size }, `${size}³`)));
data.rungs.forEach((rung) => {
  rungBox.append(element("option", { value: rung.name }, rung.label === rung.slug ? rung.slug : `${rung.label} ${rung.slug}`));
  rungList.append(element("button", { type: "button", "data-rung": rung.name, onclick: () => pickRung(rung.name), title: rung.idea }, rung.label));
});

function drawSpeeds() {
  drawLadder(data, chosen.size, chosen.rung, logBox.checked, pickRung);
  drawTable(data, chosen.size, chosen.rung, pickRung);
  drawRoof(data, chosen.size, chosen.rung, pickRung);
  drawTerms(data, chosen.size, chosen.rung);
  const rung = byName.get(chosen.rung), known = rung.speeds[chosen.size];
  drawOrder(document.getElementById("order"), known.order);
  const article = document.querySelector(`article[data-rung="${CSS.escape(rung.name)}"]`);
  const share = known.recorded && known.recorded.share_of_cublas;
  article.querySelector('[data-fill="recorded"]').textContent = known.recorded
    ? `recorded ${count(known.recorded.tflops)} TFLOP/s${share ? `, ${(100 * share).toFixed(1)} % of cuBLAS` : ""}` : "";
  article.querySelector('[data-fill="predicted"]').textContent = known.predicted
    ? `predicted ${count(known.predicted.tflops)} TFLOP/s (${count(known.predicted.low)} to ${count(known.predicted.high)})` : "";
}

function drawPictures() {
  const { tiles, loads, banks, timeline } = byName.get(chosen.rung).pictures;
  if (!tiles) {
    ["tiles", "loads", "banks", "timeline"].forEach((name) => nothing(document.getElementById(name), "There is nothing to draw: the kernel did not run, as is said of the rung above, or the problem is empty."));
    return;
  }
  drawTiles(document.getElementById("tiles"), tiles);
  drawLoads(document.getElementById("loads"), loads);
  drawBanks(document.getElementById("banks"), banks);
  drawTimeline(document.getElementById("timeline"), timeline);
  elsewhere("loads-elsewhere", "throws most away on this ladder", wasteOf);
  elsewhere("banks-elsewhere", "has the most conflicts on this ladder", lossOf);
}

/** Share of the sectors of a rung that better placement would save; null where it has no picture. */
function wasteOf({ loads }) {
  const moved = sum(loads.filter((one) => one.requests.length), (one) => one.sectors), fewest = sum(loads, (one) => one.fewest);
  return moved ? [(moved - fewest) / moved, "of its sectors"] : null;
}

/** Share of the wavefronts of a rung that conflicts cost. */
function lossOf({ banks }) {
  const waves = sum(banks, (one) => one.waves);
  return waves ? [sum(banks, (one) => one.excess) / waves, "of its wavefronts"] : null;
}

function sum(list, value) {
  return list.reduce((total, one) => total + value(one), 0);
}

/** Where on the ladder a picture shows the most: a button that goes there, unless it is shown already. */
function elsewhere(id, words, shareOf) {
  const told = data.rungs.filter((rung) => rung.pictures.tiles).map((rung) => [rung, shareOf(rung.pictures)]).filter(([, share]) => share && share[0] > 0);
  const [rung, share] = told.sort((a, b) => b[1][0] - a[1][0])[0] || [];
  const place = document.getElementById(id);
  place.replaceChildren();
  if (!rung || rung.name === chosen.rung) return;
  place.append(element("button", { type: "button", onclick: () => pickRung(rung.name) }, `Rung ${rung.label}`), ` ${words}: ${Math.round(100 * share[0])} % ${share[1]}.`);
}

function showRung() {
  rungBox.value = chosen.rung;
  document.querySelectorAll("article.rung").forEach((article) => { article.hidden = article.dataset.rung !== chosen.rung; });
  rungList.querySelectorAll("button").forEach((button) => button.setAttribute("aria-pressed", button.dataset.rung === chosen.rung));
  const rung = byName.get(chosen.rung);
  document.querySelectorAll(".which").forEach((place) => { place.textContent = rung.label === rung.slug ? rung.slug : `rung ${rung.label}`; });
}

function drawAll() {
  showRung();
  drawPictures();
  drawSpeeds();
}

function pickRung(name) {
  if (name !== chosen.rung) history.pushState(null, "", `#${encodeURIComponent(name)}`); // Back leads to the rung before
  chosen.rung = name;
  drawAll();
}

function move(by) {
  const at = data.rungs.findIndex((rung) => rung.name === chosen.rung) + by;
  if (at >= 0 && at < data.rungs.length) pickRung(data.rungs[at].name);
}

// Peaks of several formats in one chart lie far apart.
logBox.checked = Math.max(...data.rungs.map((rung) => rung.ceiling.tflops)) > 5 * Math.min(...data.rungs.map((rung) => rung.ceiling.tflops || Infinity));
sizeBox.value = chosen.size;
sizeBox.addEventListener("change", () => { chosen.size = sizeBox.value; drawSpeeds(); });
rungBox.addEventListener("change", () => pickRung(rungBox.value));
logBox.addEventListener("change", drawSpeeds);
document.getElementById("previous").addEventListener("click", () => move(-1));
document.getElementById("next").addEventListener("click", () => move(1));
addEventListener("hashchange", () => { chosen.rung = fromAddress() || shownFirst; drawAll(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawPrimer(document.getElementById("primer")); drawAll(); });
let wide = innerWidth;
addEventListener("resize", () => { if (Math.abs(innerWidth - wide) > 40) { wide = innerWidth; drawPrimer(document.getElementById("primer")); drawPictures(); } });
drawPrimer(document.getElementById("primer"));
drawAll();
document.documentElement.dataset.ready = "yes";
