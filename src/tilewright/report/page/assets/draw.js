// Small tools that all pictures share: elements, colours of the style sheet, sliders, the tip under the pointer.

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** The eight colours that tell warps or roles apart. */
function hue(number) {
  return colour(["blue", "orange", "green", "pink", "sky", "red", "yellow", "muted"][number % 8]);
}

/** 1234567 as "1,234,567", 1.2345 as "1.23". */
function count(value) {
  return Number.isInteger(value) ? value.toLocaleString("en") : Number(value.toPrecision(3)).toLocaleString("en");
}

function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

function bytes(value) {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  let at = 0;
  while (value >= 1024 && at < 3) { value /= 1024; at += 1; }
  return `${count(value)} ${units[at]}`;
}

/** A labelled slider that says its value; `changed` is told each new one. */
function slider(label, most, value, changed, say = (at) => `${at + 1} of ${most + 1}`) {
  const shown = element("output", {}, say(value));
  const input = element("input", { type: "range", min: 0, max: most, value, "aria-label": label });
  const set = (at) => {
    input.value = at;
    shown.textContent = say(+input.value);
    input.setAttribute("aria-valuetext", shown.textContent);
    changed(+input.value);
  };
  input.addEventListener("input", () => set(+input.value));
  const made = element("label", {}, label, input, shown);
  made.set = set;
  made.at = () => +input.value;
  return made;
}

/** A labelled list of choices; `changed` is told the number of the chosen one. */
function chooser(label, names, changed, value = 0) {
  const select = element("select", { "aria-label": label, onchange: () => changed(select.selectedIndex) });
  names.forEach((name, at) => select.append(element("option", { value: at }, name)));
  select.selectedIndex = value;
  return element("label", {}, label, select);
}

const tip = document.getElementById("tip");

function showTip(text, event) {
  tip.textContent = text;
  tip.hidden = !text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
}

function hideTip() { tip.hidden = true; }

/** Numbers at the pointer: `text` says them for an element of a picture. */
function tipped(made, text) {
  made.addEventListener("pointermove", (event) => showTip(text, event));
  made.addEventListener("pointerleave", hideTip);
  return made;
}

/** A canvas that is sharp on any screen; `draw` gets its context in CSS pixels. */
function canvas(width, height, label, draw) {
  const made = element("canvas", { role: "img", "aria-label": label });
  const sharp = window.devicePixelRatio || 1;
  made.width = Math.round(width * sharp);
  made.height = Math.round(height * sharp);
  made.style.width = `${width}px`;
  made.style.height = `${height}px`;
  const context = made.getContext("2d");
  context.scale(sharp, sharp);
  draw(context);
  return made;
}

function room(host) {
  return Math.max(260, Math.min(host.clientWidth || 900, 1040));
}

function nothing(host, text) {
  host.replaceChildren(element("p", { class: "note" }, text));
}
