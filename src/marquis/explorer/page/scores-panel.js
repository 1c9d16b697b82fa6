// The panel "Scores": a histogram linked to the map, a threshold with the flagged rows, and a second data set.

import { extent, quantile, short } from "./arrays.js";
import { byId, el, options, say, sayProblem, sharp, swatch, themed } from "./dom.js";
import { classColour } from "./palette.js";
import { rowButton } from "./point-panel.js";
import { SCORES, nameOfScore } from "./quantities.js";
import { rocPicture } from "./roc-curve.js";
import { change, onChange, state } from "./state.js";

const BINS = 48, HEIGHT = 116, AXIS = 16, FLAGGED = 16, STEPS = 1000;

export function scoresPanel(app) {
  const { about } = app, model = () => about.models[state.scoreModel], scores = () => model().scores[state.score];
  const secondScores = () => app.second?.models[state.scoreModel]?.scores[state.score];
  const nothing = { brush: null, threshold: null };
  const choose = el("select", { id: "score", onchange: () => change({ score: choose.value, ...nothing }) });
  const which = el("select", { id: "score-model", onchange: () => change({ scoreModel: Number(which.value), ...nothing }) });
  const meaning = el("p", { className: "hint" }), key = el("p", { className: "legend" });
  const histogram = el("canvas", { className: "histogram", role: "img" });
  const brushEnd = (k) => el("input", { type: "number", step: "any", "aria-label": `Brush ${k ? "to" : "from"}`, onchange: () => change({ brush: typed() }) });
  const ends = [brushEnd(0), brushEnd(1)];
  const slider = el("input", { type: "range", min: 0, max: STEPS, id: "threshold", oninput: () => change({ threshold: valueOf(slider.value) }) });
  const limit = el("output", { htmlFor: "threshold" });
  const count = el("p", { id: "flagged-count" }), flagged = el("div", { className: "row", id: "flagged" });
  const clear = el("button", { type: "button", onclick: () => change(nothing) }, "clear");
  const list = el("button", { type: "button", onclick: () => change({ tab: "selection" }) }, "list these rows");
  const file = el("input", { type: "file", id: "second-file", accept: about.uploads.join(","), onchange: () => file.files[0] && upload(file.files[0]) });
  const drop = el("label", { className: "drop", htmlFor: "second-file" }, `Drop a file here or choose one (${about.uploads.join(", ")}): its rows appear on the map, with the ROC curve of every score.`, file);
  const second = el("div", { id: "roc" });
  byId("scores").append(el("h2", {}, "Outlier scores"),
    el("div", { className: "row" }, el("label", {}, "Score ", choose), ...(about.models.length > 1 ? [el("label", {}, "of ", which)] : [])), meaning,
    histogram, key, el("label", { className: "wide" }, "Brush ", ends[0], " to ", ends[1]),
    el("label", { className: "wide" }, "Threshold ", slider, limit), count, el("div", { className: "row" }, clear, list), second, flagged,
    el("h4", {}, "Compare with a second data set"), drop);
  if (app.source.saved) drop.hidden = true;
  options(which, about.models.map(({ name }, k) => [String(k), name]), String(state.scoreModel));

  const range = () => {
    const all = [scores(), secondScores()].filter(Boolean);
    const low = Math.min(...all.map((values) => extent(values)[0]));
    return [low, Math.max(low + 1e-9, ...all.map((values) => quantile(values, 0.995)))];
  };
  const valueOf = (step) => { const [low, high] = range(); return low + (high - low) * (step / STEPS); };
  const typed = () => {
    const [low, high] = range(), [from, to] = ends.map(({ value }) => (value === "" ? null : Number(value)));
    return from === null && to === null ? null : [from ?? low, Math.max(from ?? low, to ?? Math.max(high, extent(scores())[1]))];
  };

  function draw() {
    const width = (histogram.parentElement.clientWidth || 380) - 28;
    const context = sharp(histogram, width, HEIGHT), [low, high] = range(), floor = HEIGHT - AXIS;
    const sets = [[scores(), themed("--accent")], ...(secondScores() ? [[secondScores(), themed("--second")]] : [])];
    for (const [values, colour] of sets) {
      const counts = new Array(BINS).fill(0);
      for (const value of values) counts[Math.max(0, Math.min(BINS - 1, Math.floor((BINS * (value - low)) / (high - low))))]++;
      const most = Math.max(...counts);
      context.fillStyle = colour;
      context.globalAlpha = 0.65;
      counts.forEach((number, k) => context.fillRect((k * width) / BINS, floor - (number / most) * (floor - 6), width / BINS - 1, (number / most) * (floor - 6)));
      context.globalAlpha = 1;
    }
    const x = (value) => Math.min(width, Math.max(0, ((value - low) / (high - low)) * width));
    if (state.brush) {
      context.fillStyle = `${themed("--accent")}33`;
      context.fillRect(x(state.brush[0]), 0, x(state.brush[1]) - x(state.brush[0]), floor);
    }
    if (state.threshold !== null) {
      context.fillStyle = themed("--path");
      context.fillRect(x(state.threshold) - 1, 0, 2, floor);
    }
    context.fillStyle = themed("--line");
    context.fillRect(0, floor, width, 1);
    context.fillStyle = themed("--soft");
    context.font = "11px system-ui, sans-serif";
    for (const [align, at, words] of [["left", 0, short(low)], ["center", width / 2, `${nameOfScore(state.score)} →`], ["right", width, short(high)]]) {
      context.textAlign = align;
      context.fillText(words, at, HEIGHT - 3);
    }
    histogram.setAttribute("aria-label", `Histogram of ${nameOfScore(state.score)}, from ${short(low)} to ${short(high)}. The fields below set the brush.`);
    const entry = (colour, name, rows) => el("span", {}, swatch(themed(colour)), ` ${name} (${rows})`);
    key.replaceChildren(...(app.second ? [entry("--accent", "map", about.rows), entry("--second", app.second.source, app.second.rows)] : [el("span", { className: "soft" }, "Drag over the histogram: rows outside fade on the map.")]));
  }

  let from = null;
  const at = (event) => valueOf((STEPS * (event.clientX - histogram.getBoundingClientRect().left)) / histogram.clientWidth);
  histogram.addEventListener("pointerdown", (event) => { histogram.setPointerCapture(event.pointerId); from = at(event); });
  histogram.addEventListener("pointermove", (event) => from !== null && change({ brush: [from, at(event)].sort((a, b) => a - b) }));
  histogram.addEventListener("pointerup", (event) => { if (from === at(event)) change({ brush: null }); from = null; });

  const above = (values) => [...values.keys()].filter((row) => values[row] > state.threshold);
  function listFlagged() {
    const chosen = state.threshold, some = chosen !== null || Boolean(state.brush);
    [clear.hidden, list.hidden] = [!some, !some];
    ends.forEach((input, k) => { input.value = state.brush ? Number(state.brush[k].toPrecision(4)) : ""; });
    limit.textContent = chosen === null ? "none" : short(chosen);
    if (chosen === null) { slider.value = STEPS; count.textContent = "Move the threshold to flag the rows above it."; flagged.replaceChildren(); return; }
    slider.value = Math.round((STEPS * (chosen - range()[0])) / (range()[1] - range()[0]));
    const rows = [];
    const parts = [["main", scores(), "rows"], ["second", secondScores(), `of ${app.second?.source}`]].filter(([, values]) => values).map(([data, values, name]) => {
      const over = above(values);
      rows.push(...over.map((row) => [values[row], row, data]));
      return `${over.length} of ${values.length} ${name} (${short((100 * over.length) / values.length, 2)} %)`;
    });
    count.textContent = `Flagged: ${parts.join(", ")}`;
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
    const curves = app.second.models.map((part, k) => ({ name: about.models[k].name, colour: classColour(k), ...part.roc[state.score] }));
    const share = (values) => above(values).length / values.length;
    const chosen = state.threshold === null ? null : [share(scores()), share(secondScores())];
    const head = el("tr", {}, el("th", { scope: "col" }, "AUROC"), ...curves.map(({ name, colour }) => el("th", { scope: "col" }, ...(curves.length > 1 ? [swatch(colour), ` ${name}`] : []))));
    const body = app.scoreNames().map((name) => el("tr", { className: name === state.score ? "chosen" : "" }, el("th", { scope: "row" }, nameOfScore(name)),
      ...app.second.models.map((part) => el("td", {}, part.roc[name].auroc.toFixed(3)))));
    second.append(el("h4", {}, `${app.second.source} against the map`),
      el("div", { className: "row" }, rocPicture(curves, chosen), el("table", { "aria-label": "AUROC of every score" }, el("thead", {}, head), el("tbody", {}, ...body))));
  }

  const showAll = () => {
    options(choose, app.scoreNames().map((name) => [name, nameOfScore(name)]), state.score);
    meaning.textContent = SCORES[state.score]?.[1] ?? "";
    draw();
    listFlagged();
    drawSecond();
  };
  onChange(["score", "scoreModel", "brush", "threshold", "tab", "theme"], showAll);
  new ResizeObserver(() => draw()).observe(histogram.parentElement);
  return { show: showAll };
}
