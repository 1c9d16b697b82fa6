// Elements of the page. Text only ever becomes text: a column whose name is a tag is shown as such.

/** Return a new element; children are elements or text. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list" && name !== "role") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

/** Return a new SVG element with attributes. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Put a message into the line that screen readers announce; `wrong` marks a failure. */
export function say(message, wrong = false) {
  const line = byId("status");
  line.textContent = message;
  line.classList.toggle("wrong", wrong);
}

/** Show why something failed and leave the page as it is; a question that was withdrawn is no failure. */
export function sayProblem(problem) {
  if (problem?.name !== "AbortError") say(problem?.message ?? String(problem), true);
}

/** Fill a select with [value, text] pairs and choose one. */
export function options(select, pairs, chosen) {
  select.replaceChildren(...pairs.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
}

/** Put other children into an element; if one of its controls had the focus, the new one in its place gets it. */
export function replaceKeepingFocus(element, ...children) {
  const controls = () => [...element.querySelectorAll("button, input")], focused = controls().indexOf(document.activeElement);
  element.replaceChildren(...children);
  if (focused >= 0) controls()[focused]?.focus();
}

/** Let the user save a blob under a name. */
export function download(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Return a heading with the name of a model, where there are two. */
export const modelHeading = (about, model) => (about.models.length > 1 ? [el("h3", {}, model.name)] : []);

/** Return a small square in a colour, for legends. */
export function swatch(colour, shape = "") {
  const square = el("span", { className: `swatch ${shape}` });
  square.style.setProperty("--of", colour);
  return square;
}

/** Return a function that asks one question at a time: a new one withdraws the one before. */
export function latest(ask) {
  let controller = null;
  return async (...question) => {
    controller?.abort();
    const mine = (controller = new AbortController());
    try {
      const answer = await ask(...question, mine.signal);
      return mine.signal.aborted ? null : answer;
    } catch (problem) {
      if (!mine.signal.aborted) sayProblem(problem);
      return null;
    }
  };
}

/** Return the 2d context of a canvas whose pixels are those of the screen. */
export function sharp(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** Return a colour of the style sheet. */
export const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
