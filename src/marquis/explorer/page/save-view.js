// What leaves the page: its address, and a PNG of the maps with their legends.

import { byId, download, el, say } from "./dom.js";
import { writeAddress } from "./state.js";

const LINE = 26;

/** Put the address of this view on the clipboard. */
export async function copyLink() {
  writeAddress();
  try {
    await navigator.clipboard.writeText(location.href);
    say("the address of this view is on the clipboard");
  } catch {
    say("copy the address of the page: it carries this view");
  }
}

/** Save what the maps show, side by side, with titles and legends, as PNG. */
export function savePng(app) {
  const ratio = window.devicePixelRatio || 1, canvases = app.maps.map((map) => map.canvas), legend = [...byId("legend").children];
  const width = canvases.reduce((sum, each) => sum + each.width, 0), height = Math.max(...canvases.map((each) => each.height));
  const sheet = el("canvas", { width, height: height + Math.round(ratio * LINE * (2 + Math.ceil(legend.length / 12))) });
  const context = sheet.getContext("2d"), style = getComputedStyle(document.body);
  context.fillStyle = style.backgroundColor;
  context.fillRect(0, 0, sheet.width, sheet.height);
  let left = 0;
  for (const [number, canvas] of canvases.entries()) {
    context.drawImage(canvas, left, ratio * LINE);
    context.save();
    context.scale(ratio, ratio);
    context.fillStyle = style.color;
    context.font = "600 14px system-ui, sans-serif";
    context.fillText(app.about.models[number].name, left / ratio + 8, 18);
    context.font = "13px system-ui, sans-serif";
    drawLegend(context, [...app.maps[number].caption.querySelectorAll(":scope > span")], left / ratio + 8, height / ratio + LINE + 17, Infinity);
    context.restore();
    left += canvas.width;
  }
  context.scale(ratio, ratio);
  context.fillStyle = style.color;
  context.font = "13px system-ui, sans-serif";
  drawLegend(context, legend, 8, height / ratio + 2 * LINE + 17, width / ratio);
  sheet.toBlob((blob) => download(blob, "map.png"), "image/png");
}

/** Write legend entries one after another: their swatches as squares, their scales as gradients, and their text. */
function drawLegend(context, entries, left, top, width) {
  let [x, y] = [left, top];
  for (const entry of entries) {
    const swatch = entry.querySelector(".swatch"), ramp = entry.querySelector(".ramp"), text = entry.textContent.trim();
    const needed = context.measureText(text).width + 40;
    if (x + needed > width) [x, y] = [left, y + LINE];
    if (swatch) {
      const fill = context.fillStyle;
      context.fillStyle = swatch.style.getPropertyValue("--of");
      context.fillRect(x, y - 10, 11, 11);
      context.fillStyle = fill;
      x += 16;
    }
    const words = ramp ? [...entry.childNodes].flatMap((node) => (node.nodeType === Node.TEXT_NODE ? [node.textContent] : [...node.childNodes])) : [text];
    for (const part of words) {
      if (part instanceof Element && part.classList.contains("ramp")) {
        const stops = getComputedStyle(part).backgroundImage.match(/rgb\([^)]*\)/g) ?? [], fill = context.fillStyle;
        const gradient = context.createLinearGradient(x, 0, x + 90, 0);
        stops.forEach((colour, k) => gradient.addColorStop(k / (stops.length - 1), colour));
        context.fillStyle = gradient;
        context.fillRect(x, y - 10, 90, 11);
        context.fillStyle = fill;
        x += 96;
      } else {
        const shown = part.textContent ?? part;
        context.fillText(shown, x, y);
        x += context.measureText(shown).width + 6;
      }
    }
    x += 14;
  }
}
