// The panel "Path": the straight line and the geodesic between two points, as films, with the uncertainty on the way.

import { rowOf, short } from "./arrays.js";
import { columnTable, rangeLine, withStd } from "./column-table.js";
import { byId, el, latest, modelHeading, sharp, themed } from "./dom.js";
import { imageFigure, picture, positiveFigure } from "./pictures.js";
import { change, onChange, state } from "./state.js";

const COLOURS = { geodesic: "--path", straight: "--soft" }, NAMES = { geodesic: "geodesic", straight: "straight" };
const STEPS = 32, STRIP = 9;
const codesOf = (curve) => [...Array(curve.codes.shape[0]).keys()].map((k) => [...rowOf(curve.codes, k)]);
const kindsOf = (answer) => Object.keys(COLOURS).filter((kind) => answer[kind]);

export function pathPanel(app) {
  const panel = byId("path"), { about } = app;
  const hint = el("p", { className: "hint" });
  const play = el("button", { type: "button", id: "play", onclick: () => (timer ? stop() : start()) }, "▶ play");
  const slider = el("input", { type: "range", min: 0, max: STEPS, value: 0, "aria-label": "Position along the path", oninput: () => frames() });
  const clear = el("button", { type: "button", onclick: () => change({ ends: [] }) }, "clear");
  const tools = el("div", { className: "player" }, play, slider, clear);
  const panes = about.models.map((model, number) => {
    const film = el("div", { className: about.kind === "image" ? "pair" : "" }), chart = el("canvas", { role: "img", className: "chart" });
    const ask = latest((start, end, signal) => app.source.path(number, start, end, signal));
    return { number, model, ask, film, chart, answer: null, section: el("section", {}, ...modelHeading(about, model), chart, film) };
  });
  panel.append(el("h2", {}, "Path between two points"), hint, tools, ...panes.map(({ section }) => section));

  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "▶ play"; };
  const start = () => {
    play.textContent = "■ stop";
    timer = setInterval(() => { slider.value = (Number(slider.value) + 1) % (STEPS + 1); frames(); }, 110);
  };

  function frames() {
    const at = Number(slider.value);
    for (const pane of panes) {
      if (!pane.answer) continue;
      app.maps[pane.number].mark({ cursor: [...rowOf(pane.answer[kindsOf(pane.answer)[0]].codes, at)] });
      pane.chart.hidden = pane.model.networks === 1; // nothing to draw
      drawSpread(pane.chart, pane.answer, at);
      pane.film.replaceChildren(...(about.kind === "table" ? tableFrame(about, pane.answer, at) : kindsOf(pane.answer).map((kind) => imageFrame(about, pane, kind, at))));
    }
  }

  async function show() {
    const { ends } = state, ready = ends.length === 2;
    const waiting = (words) => { hint.textContent = words; };
    waiting(ends.length === 1 ? "Click a second point." : "Choose “path” above the map and click two points.");
    tools.hidden = !ready;
    app.maps.forEach((map, number) => map.mark({ ends: ends.map((end) => end[number]).filter(Boolean), curves: [], cursor: null }));
    for (const pane of panes) [pane.section.hidden, pane.answer] = [!ready, null];
    if (!ready) return stop();
    waiting("searching for the geodesic …");
    await Promise.all(panes.map(async (pane) => {
      const answer = await pane.ask(ends[0][pane.number], ends[1][pane.number]);
      if (!answer) return;
      pane.answer = answer;
      app.maps[pane.number].mark({ curves: kindsOf(answer).map((kind) => ({ codes: codesOf(answer[kind]), colour: themed(COLOURS[kind]), dashed: kind === "straight" })) });
    }));
    const notes = new Set(panes.flatMap(({ answer }) => [answer?.converged === false ? "The search for the geodesic did not converge." : "", answer?.note ?? ""]).filter(Boolean));
    const avoids = about.models.some(({ networks }) => networks > 1) ? "; it avoids regions where the sampled decoders disagree" : "";
    waiting([`The geodesic is the shortest path for the decoded output${avoids}.`, ...notes].join(" "));
    frames();
  }
  onChange(["ends"], show);
  onChange(["tab"], () => state.tab !== "path" && stop());
  return { show };
}

/** Return a heading of a curve: a sample of its line, its name and its length. */
function nameOf(kind, answer) {
  return el("h4", { className: "curve-name" }, el("span", { className: `line ${kind}` }), NAMES[kind], el("span", { className: "soft" }, `length ${short(answer[kind].length)}`));
}

function imageFrame(about, { answer, model }, kind, at) {
  const { shape, range } = about, { mean, std } = answer[kind];
  const strip = Array.from({ length: STRIP }, (_, k) => Math.round((k * STEPS) / (STRIP - 1))).map((step) => {
    const small = picture(rowOf(mean, step), shape, { low: range[0], high: range[1], edge: 36, label: `${NAMES[kind]}, step ${step} of ${STEPS}` });
    small.classList.toggle("current", Math.abs(step - at) <= STEPS / (STRIP - 1) / 2);
    return small;
  });
  const most = model.networks === 1 ? null : model.std_scale;
  return el("div", {}, nameOf(kind, answer), el("div", { className: "row" }, imageFigure(rowOf(mean, at), shape, range, "mean", 92),
    positiveFigure(rowOf(std, at), shape, "std", { most, edge: 92 })), el("div", { className: "strip" }, ...strip));
}

function tableFrame(about, answer, at) {
  const kinds = kindsOf(answer), rows = kinds.map((kind) => [rowOf(answer[kind].mean, at), rowOf(answer[kind].std, at)]);
  const cells = (k) => [...rows.map(([mean, std]) => withStd(mean[k], std[k], about.levels[k])), rangeLine(about, k, { mean: rows[0][0][k], value: rows[1]?.[0][k] }, 60)];
  return [...kinds.map((kind) => nameOf(kind, answer)), columnTable(about.columns, [...kinds.map((kind) => NAMES[kind]), "data range"], cells, { label: "Rows along the path" }),
    el("p", { className: "hint" }, "Filled dot: geodesic. Hollow dot: straight.")];
}

/** Draw the uncertainty along both curves, and where the film is. */
function drawSpread(canvas, answer, at) {
  const width = 380, height = 104, left = 44, bottom = 18, context = sharp(canvas, width, height), kinds = kindsOf(answer);
  const most = Math.max(...kinds.flatMap((kind) => [...answer[kind].spread])) || 1;
  const x = (share) => left + share * (width - left - 6), y = (value) => height - bottom - (value / most) * (height - bottom - 8);
  context.strokeStyle = themed("--line");
  context.strokeRect(x(0), y(most), x(1) - x(0), y(0) - y(most));
  for (const kind of kinds) {
    const { spread } = answer[kind];
    context.strokeStyle = themed(COLOURS[kind]);
    context.setLineDash(kind === "straight" ? [6, 4] : []);
    context.lineWidth = 2;
    context.beginPath();
    spread.forEach((value, k) => context.lineTo(x(k / (spread.length - 1)), y(value)));
    context.stroke();
  }
  context.setLineDash([]);
  context.fillStyle = themed("--ink");
  context.fillRect(x(at / STEPS) - 0.75, y(most), 1.5, y(0) - y(most));
  context.fillStyle = themed("--soft");
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  context.fillText(short(most, 2), left - 5, y(most) + 8);
  context.fillText("0", left - 5, y(0));
  context.textAlign = "left";
  context.fillText("start", x(0), height - 4);
  context.textAlign = "center";
  context.fillText("standard deviation of the decoded output", x(0.5), height - 4);
  context.textAlign = "right";
  context.fillText("end", x(1), height - 4);
  canvas.setAttribute("aria-label", `Standard deviation along the ${kinds.map((kind) => NAMES[kind]).join(" and the ")} path, at most ${short(most)}`);
}
