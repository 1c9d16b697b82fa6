// The controls above the map, the tabs of the panels, and the keys.

import { extent, rowOf } from "./arrays.js";
import { byId, el, options } from "./dom.js";
import { axisChoices, firstAxes } from "./latent-plane.js";
import { colourChoices } from "./map-colours.js";
import { BACKGROUNDS } from "./quantities.js";
import { copyLink, savePng } from "./save-view.js";
import { TABS, change, onChange, state } from "./state.js";

/** Return the axes of a model's map: the chosen ones where it has them. */
export const axesOf = (latent) => (state.axes?.every((axis) => Number(axis.slice(1)) < latent) ? state.axes : firstAxes(latent));

/** Return the name of an axis. */
export const axisName = (axis, latent) => axisChoices(latent).find(([value]) => value === axis)[1];

/** Fill the controls and tie them to the state. */
export function makeToolbar(app) {
  const { about, source } = app, latent = Math.min(...about.models.map((model) => model.latent));
  const fixed = source.saved && about.models.some((model) => model.latent > 2);
  const colours = colourChoices(app);
  if (!colours.some(([value]) => value === state.colour)) state.colour = `score:${state.score}`;
  if (!(state.background in BACKGROUNDS)) state.background = "none";
  const update = () => {
    options(byId("colour"), colours, state.colour);
    options(byId("background"), Object.entries(BACKGROUNDS).map(([value, [name]]) => [value, name]), state.background);
    byId("background").title = BACKGROUNDS[state.background][1];
    const axes = axesOf(latent);
    ["axis-x", "axis-y"].forEach((id, k) => { options(byId(id), axisChoices(latent), axes[k]); byId(id).disabled = fixed || latent < 2; });
    for (const button of document.querySelectorAll("[data-mode]")) button.setAttribute("aria-pressed", button.dataset.mode === state.mode);
    app.maps.forEach((map) => { map.mode = state.mode; map.canvas.dataset.mode = state.mode; });
    sliders(app, axes, latent, fixed);
  };
  byId("colour").onchange = ({ target }) => change({ colour: target.value, label: null });
  byId("background").onchange = ({ target }) => change({ background: target.value });
  ["axis-x", "axis-y"].forEach((id, k) => {
    byId(id).onchange = ({ target }) => {
      const axes = [...axesOf(latent)];
      axes[k] = target.value;
      const other = 1 - k, [kind, number] = [target.value[0], Number(target.value.slice(1))];
      if (axes[other][0] !== kind || axes[other] === target.value) axes[other] = `${kind}${(number + 1) % latent}`;
      change({ axes, sliders: {}, views: [null, null], lasso: null });
    };
  });
  const panels = { path: "path", lasso: "selection" };
  for (const button of document.querySelectorAll("[data-mode]"))
    button.onclick = () => change({ mode: button.dataset.mode, tab: panels[button.dataset.mode] ?? state.tab });
  byId("zoom-in").onclick = () => app.maps.forEach((map) => map.zoom(1.4));
  byId("zoom-out").onclick = () => app.maps.forEach((map) => map.zoom(1 / 1.4));
  byId("fit").onclick = () => { change({ views: [null, null] }); app.maps.forEach((map) => map.setView(null)); };
  byId("theme").onclick = () => change({ theme: isDark() ? "light" : "dark" });
  byId("link").onclick = copyLink;
  byId("png").onclick = () => savePng(app);
  byId("help-button").onclick = () => byId("help").showModal();
  document.addEventListener("keydown", (event) => {
    if (event.key === "?" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) byId("help").showModal();
  });
  makeTabs(app);
  onChange(["colour", "background", "axes", "mode", "sliders"], update);
  onChange(["theme"], setTheme);
  setTheme();
  update();
}

function makeTabs(app) {
  const show = () => {
    for (const tab of TABS) {
      const chosen = tab === state.tab;
      byId(tab).hidden = !chosen;
      byId(`tab-${tab}`).setAttribute("aria-selected", chosen);
      byId(`tab-${tab}`).tabIndex = chosen ? 0 : -1;
    }
    app.maps.forEach((map) => { map.tab = state.tab; map.draw(); });
  };
  for (const tab of TABS) byId(`tab-${tab}`).onclick = () => change({ tab });
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = TABS[(TABS.indexOf(state.tab) + step + TABS.length) % TABS.length];
    change({ tab: next });
    byId(`tab-${next}`).focus();
  });
  onChange(["tab"], show);
  show();
}

/** Show a slider for every axis that is not on the map. */
function sliders(app, axes, latent, fixed) {
  const shown = axes.map((axis) => Number(axis.slice(1))), model = app.about.models[0], box = byId("sliders");
  const others = [...Array(latent).keys()].filter((k) => !shown.includes(k));
  byId("slider-box").hidden = !others.length || fixed;
  const key = `${axes}`;
  if (box.dataset.axes === key) return;
  box.dataset.axes = key;
  box.replaceChildren(...others.map((k) => {
    const principal = axes[0][0] === "p", direction = principal ? [...model.directions.subarray(k * latent, (k + 1) * latent)] : null;
    const along = Float32Array.from({ length: app.about.rows }, (_, i) => {
      const code = rowOf(model.codes, i);
      return principal ? direction.reduce((sum, part, j) => sum + part * (code[j] - model.center[j]), 0) : code[k];
    });
    const [low, high] = extent(along), name = axisName(`${axes[0][0]}${k}`, latent);
    const input = el("input", { type: "range", min: low, max: high, step: "any", value: state.sliders[k] ?? (principal ? 0 : model.center[k]), "aria-label": name,
      oninput: () => change({ sliders: { ...state.sliders, [k]: Number(Number(input.value).toPrecision(5)) } }) });
    return el("label", {}, `${name} `, input);
  }));
}

const isDark = () => (state.theme === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : state.theme === "dark");
const setTheme = () => { document.documentElement.dataset.theme = isDark() ? "dark" : "light"; };
