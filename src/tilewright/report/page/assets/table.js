// The ladder as a table: the same numbers as the chart, for readers who do not point, and a way to every rung.

function drawTable(data, size, chosen, pick) {
  const head = element("tr", {}, ...["Rung", "Idea", "Recorded", "of cuBLAS", "Predicted", "Bottleneck"].map((text) => element("th", { scope: "col" }, text)));
  const rows = data.rungs.map((rung) => {
    const { recorded, predicted } = rung.speeds[size];
    const share = recorded && recorded.share_of_cublas;
    const cell = (label, text, kind = "") => element("td", { class: `number ${kind}`, "data-label": label }, text);
    return element("tr", { "aria-current": rung.name === chosen ? "true" : null },
      element("th", { scope: "row" }, element("button", { type: "button", "aria-label": `Look inside rung ${rung.label}`, onclick: () => { pick(rung.name); goInside(); } }, rung.label)),
      element("td", { class: "idea-cell" }, rung.idea),
      cell("recorded", recorded ? count(recorded.tflops) : "–"),
      cell("of cuBLAS", share ? `${(100 * share).toFixed(1)} %` : "–"),
      cell("predicted", predicted ? count(predicted.tflops) : "–", "predicted"),
      element("td", { "data-label": "bound by" }, predicted ? predicted.binding : "cannot run here"));
  });
  const told = data.rungs.some((rung) => rung.speeds[size].recorded) ? "recorded on the GPU, and predicted by the model" : "predicted by the model, for nothing is recorded";
  const caption = element("caption", {}, `TFLOP/s at ${size} × ${size} × ${size} on ${data.device}: ${told}.`);
  document.getElementById("ladder-table").replaceChildren(element("table", { class: "rungs" }, caption, element("thead", {}, head), element("tbody", {}, ...rows)));
}

function goInside() {
  const inside = document.getElementById("inside");
  inside.scrollIntoView();
  inside.focus({ preventScroll: true });
}
