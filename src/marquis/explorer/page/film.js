// The panel "Path": the straight line and the geodesic between two points, as films, with the uncertainty on the way.

import { rowOf, short } from "./arrays.js";
import { byId, el, latest, sharp, themed } from "./dom.js";
import { captioned, lines, picture, positivePicture } from "./pictures.js";
import { change, onChange, state } from "./state.js";

const KINDS = { geodesic: "--path", straight: "--soft" };
const codesOf = (curve) => [...Array(curve.codes.shape[0]).keys()].map((k) => [...rowOf(curve.codes, k)]);

export function filmPanel(app) {
  const panel = byId("path"), { about } = app;
  const hint = el("p", { className: "hint" });
  const play = el("button", { type: "button", id: "play", onclick: () => (timer ? stop() : start()) }, "play");
  const slider = el("input", { type: "range", min: 0, max: 32, value: 0, "aria-label": "Position along the path", oninput: () => frames() });
  const clear = el("button", { type: "button", onclick: () => change({ ends: [] }) }, "clear");
  const tools = el("div", { className: "row" }, play, slider, clear);
  const panes = about.models.map((model, number) => {
    const facts = el("p", {}), film = el("div", {}), curve = el("canvas", { role: "img" });
    const ask = latest((start, end, signal) => app.source.path(number, start, end, signal));
    const heading = about.models.length > 1 ? [el("h3", {}, model.name)] : [];
    return { number, ask, facts, film, curve, answer: null, section: el("section", {}, ...heading, facts, film, curve) };
  });
  panel.append(hint, tools, ...panes.map(({ section }) => section));

  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "play"; };
  const start = () => {
    play.textContent = "stop";
    timer = setInterval(() => { slider.value = (Number(slider.value) + 1) % 33; frames(); }, 110);
  };

  function frames() {
    const at = Number(slider.value), [low, high] = about.range;
    for (const { answer, film, number, curve } of panes) {
      if (!answer) continue;
      const kinds = Object.keys(KINDS).filter((kind) => answer[kind]);
      app.maps[number].mark({ cursor: [...rowOf(answer[kinds[0]].codes, at)] });
      drawSpread(curve, answer, at);
      if (about.kind === "table") {
        film.replaceChildren(lines(about.columns, kinds.flatMap((kind) => [[kind, rowOf(answer[kind].mean, at)], ["std", rowOf(answer[kind].std, at)]]), { label: "Rows along the path", levels: about.levels }));
      } else {
        film.replaceChildren(...kinds.map((kind) => el("div", { className: "row" },
          captioned(picture(rowOf(answer[kind].mean, at), about.shape, { low, high, edge: 110, label: `${kind}: mean` }), kind),
          captioned(positivePicture(rowOf(answer[kind].std, at), about.shape, { edge: 110, label: `${kind}: standard deviation` }), "standard deviation"))));
      }
    }
  }

  async function show() {
    const { ends } = state, ready = ends.length === 2;
    hint.textContent = ready ? "" : ends.length === 1 ? "Click a second point." : "Choose the mode “path” and click two points of a map.";
    tools.hidden = !ready;
    app.maps.forEach((map, number) => map.mark({ ends: ends.map((end) => end[number]).filter(Boolean), curves: [], cursor: null }));
    for (const pane of panes) pane.section.hidden = !ready;
    if (!ready) return stop();
    hint.textContent = "searching the geodesic …";
    await Promise.all(panes.map(async (pane) => {
      const answer = await pane.ask(ends[0][pane.number], ends[1][pane.number]);
      if (!answer) return;
      pane.answer = answer;
      const lengths = Object.keys(KINDS).filter((kind) => answer[kind]).map((kind) => `${kind} ${short(answer[kind].length)}`);
      pane.facts.textContent = `Length under the expected metric: ${lengths.join(", ")}${answer.converged === false ? " (not converged)" : ""}${answer.note ? ` (${answer.note})` : ""}`;
      app.maps[pane.number].mark({ curves: Object.entries(KINDS).filter(([kind]) => answer[kind]).map(([kind, colour]) => ({ codes: codesOf(answer[kind]), colour: themed(colour), dashed: kind === "straight" })) });
    }));
    hint.textContent = "";
    frames();
  }
  onChange(["ends"], show);
  return { show };
}

/** Draw the uncertainty along both curves, and where the film is. */
function drawSpread(canvas, answer, at) {
  const width = 320, height = 90, context = sharp(canvas, width, height);
  const kinds = Object.keys(KINDS).filter((kind) => answer[kind]);
  const most = Math.max(...kinds.flatMap((kind) => [...answer[kind].spread])) || 1;
  for (const kind of kinds) {
    const { spread } = answer[kind];
    context.strokeStyle = themed(KINDS[kind]);
    context.setLineDash(kind === "straight" ? [6, 4] : []);
    context.lineWidth = 2;
    context.beginPath();
    spread.forEach((value, k) => context.lineTo((k / (spread.length - 1)) * (width - 4) + 2, height - 16 - (value / most) * (height - 24)));
    context.stroke();
  }
  context.setLineDash([]);
  context.fillStyle = themed("--ink");
  context.fillRect((at / 32) * (width - 4) + 1, 0, 1.5, height - 14);
  context.fillStyle = themed("--soft");
  context.font = "11px system-ui";
  context.fillText(`standard deviation along the way (largest ${short(most)})`, 2, height - 3);
  canvas.setAttribute("aria-label", `Standard deviation along ${kinds.join(" and ")}, at most ${short(most)}`);
}
