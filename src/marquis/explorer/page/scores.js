// The panel "Scores": histograms linked to the map, a threshold with the flagged rows, and a second data set.

import { extent, quantile, short } from "./arrays.js";
import { byId, el, options, say, sayProblem, sharp, themed } from "./dom.js";
import { classColour } from "./palette.js";
import { rowButton } from "./point.js";
import { rocPicture } from "./roc.js";
import { change, onChange, state } from "./state.js";

const BINS = 48, HEIGHT = 110, FLAGGED = 14, STEPS = 1000;

export function scoresPanel(app) {
  const model = () => app.about.models[0];
  const choose = el("select", { id: "score", onchange: () => change({ score: choose.value, brush: null, threshold: null }) });
  const histogram = el("canvas", { className: "histogram", tabIndex: 0, role: "img" });
  const slider = el("input", { type: "range", min: 0, max: STEPS, id: "threshold", oninput: () => change({ threshold: valueOf(slider.value) }) });
  const count = el("p", { id: "flagged-count" }), flagged = el("div", { className: "row", id: "flagged" });
  const clear = el("button", { type: "button", onclick: () => change({ brush: null, threshold: null }) }, "clear");
  const file = el("input", { type: "file", id: "second-file", accept: app.about.uploads.join(","), onchange: () => file.files[0] && upload(file.files[0]) });
  const drop = el("label", { className: "drop", htmlFor: "second-file" }, "Second data set: drop a file here or choose one ", file);
  const second = el("div", { id: "roc" });
  byId("scores").append(el("label", {}, "Score ", choose), histogram,
    el("p", { className: "hint" }, "Drag over the histogram to brush; rows outside fade on the map."),
    el("label", { className: "wide" }, "Threshold ", slider), count, clear, flagged, el("h4", {}, "Compare"), drop, second);
  if (app.source.saved) drop.hidden = true;

  const range = () => {
    const all = [model().scores[state.score], app.second?.models[0]?.scores[state.score]].filter(Boolean);
    const low = Math.min(...all.map((values) => extent(values)[0]));
    return [low, Math.max(low + 1e-9, ...all.map((values) => quantile(values, 0.995)))];
  };
  const valueOf = (step) => { const [low, high] = range(); return low + (high - low) * (step / STEPS); };

  function draw() {
    const width = histogram.parentElement.clientWidth || 340;
    const context = sharp(histogram, width, HEIGHT), [low, high] = range();
    const sets = [["main", model().scores[state.score], themed("--soft")]];
    if (app.second) sets.push(["second", app.second.models[0].scores[state.score], themed("--second")]);
    for (const [, values, colour] of sets) {
      const counts = new Array(BINS).fill(0);
      for (const value of values) counts[Math.max(0, Math.min(BINS - 1, Math.floor((BINS * (value - low)) / (high - low))))]++;
      const most = Math.max(...counts);
      context.fillStyle = colour;
      context.globalAlpha = 0.75;
      counts.forEach((number, k) => context.fillRect((k * width) / BINS, HEIGHT - 14 - (number / most) * (HEIGHT - 20), width / BINS - 1, (number / most) * (HEIGHT - 20)));
      context.globalAlpha = 1;
    }
    const x = (value) => ((value - low) / (high - low)) * width;
    if (state.brush) {
      context.fillStyle = `${themed("--accent")}33`;
      context.fillRect(x(state.brush[0]), 0, x(state.brush[1]) - x(state.brush[0]), HEIGHT - 14);
    }
    if (state.threshold !== null) {
      context.fillStyle = themed("--path");
      context.fillRect(x(state.threshold) - 1, 0, 2, HEIGHT - 14);
    }
    context.fillStyle = themed("--soft");
    context.font = "11px system-ui";
    context.fillText(short(low), 0, HEIGHT - 2);
    context.textAlign = "right";
    context.fillText(short(high), width, HEIGHT - 2);
    context.textAlign = "left";
    histogram.setAttribute("aria-label", `Histogram of ${app.scoreNames[state.score]}, from ${short(low)} to ${short(high)}`);
  }

  let from = null;
  const at = (event) => valueOf((STEPS * (event.clientX - histogram.getBoundingClientRect().left)) / histogram.clientWidth);
  histogram.addEventListener("pointerdown", (event) => { histogram.setPointerCapture(event.pointerId); from = at(event); });
  histogram.addEventListener("pointermove", (event) => from !== null && change({ brush: [from, at(event)].sort((a, b) => a - b) }));
  histogram.addEventListener("pointerup", (event) => { if (from === at(event)) change({ brush: null }); from = null; });

  function listFlagged() {
    const limit = state.threshold;
    if (limit === null) { count.textContent = ""; flagged.replaceChildren(); return; }
    slider.value = Math.round((STEPS * (limit - range()[0])) / (range()[1] - range()[0]));
    const rows = [];
    const parts = ["main", "second"].filter((data) => data === "main" || app.second).map((data) => {
      const values = data === "main" ? model().scores[state.score] : app.second.models[0].scores[state.score];
      const over = [...values.keys()].filter((row) => values[row] > limit);
      rows.push(...over.map((row) => [values[row], row, data]));
      return `${over.length} of ${values.length}${data === "second" ? " of the second data set" : ""}`;
    });
    count.textContent = `Flagged: ${parts.join(", ")} above ${short(limit)}`;
    rows.sort((a, b) => b[0] - a[0]);
    flagged.replaceChildren(...rows.slice(0, FLAGGED).map(([value, row, data]) => rowButton(app, row, data, `score ${short(value)}`)));
  }

  async function upload(chosen) {
    say(`reading ${chosen.name} …`);
    try {
      app.setSecond(await app.source.upload(chosen));
      say(`${chosen.name}: ${app.second.rows} rows`);
    } catch (problem) {
      sayProblem(problem);
    }
    file.value = "";
  }
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files[0]) upload(event.dataTransfer.files[0]);
  });

  function drawSecond() {
    second.replaceChildren();
    if (!app.second) return;
    const curves = app.second.models.map((part, k) => ({ name: app.about.models[k].name, colour: classColour(k), ...part.roc[state.score] }));
    const legend = curves.map(({ name, auroc, colour }) => {
      const swatch = el("span", { className: "swatch" });
      swatch.style.background = colour;
      return el("li", {}, swatch, ` ${name}: AUROC ${auroc.toFixed(3)}`);
    });
    second.append(el("p", {}, `${app.second.source}: ${app.second.rows} rows`), rocPicture(curves), el("ul", { className: "legend" }, ...legend));
  }

  const showAll = () => {
    options(choose, Object.keys(model().scores).map((name) => [name, app.scoreNames[name] ?? name]), state.score);
    draw();
    listFlagged();
    drawSecond();
  };
  onChange(["score", "brush", "threshold", "tab", "theme"], showAll);
  new ResizeObserver(() => draw()).observe(histogram.parentElement);
  return { show: showAll };
}
