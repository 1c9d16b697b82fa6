// ROC curves of a second data set against the points of the map.

import { el, sharp, themed } from "./dom.js";

const SIZE = 132, PAD = 26;

/** Return a picture of ROC curves: [{name, fpr, tpr, auroc, colour}]; `chosen` is where the threshold lies on it, or null. */
export function rocPicture(curves, chosen) {
  const label = curves.map(({ name, auroc }) => `${name}: AUROC ${auroc.toFixed(3)}`).join("; ");
  const canvas = el("canvas", { role: "img", "aria-label": `ROC curves. ${label}` });
  const context = sharp(canvas, SIZE + PAD + 8, SIZE + PAD + 6);
  const x = (value) => PAD + value * SIZE, y = (value) => 4 + (1 - value) * SIZE;
  context.strokeStyle = themed("--line");
  context.strokeRect(x(0), y(1), SIZE, SIZE);
  context.setLineDash([4, 4]);
  context.beginPath();
  context.moveTo(x(0), y(0));
  context.lineTo(x(1), y(1));
  context.stroke();
  context.setLineDash([]);
  context.fillStyle = themed("--soft");
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  context.fillText("false positive rate", x(0.5), y(0) + 15);
  context.save();
  context.translate(14, y(0.5));
  context.rotate(-Math.PI / 2);
  context.fillText("true positive rate", 0, 0);
  context.restore();
  for (const { fpr, tpr, colour } of curves) {
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.beginPath();
    for (let i = 0; i < fpr.length; i++) context.lineTo(x(fpr[i]), y(tpr[i]));
    context.stroke();
  }
  if (chosen) {
    context.fillStyle = themed("--path");
    context.beginPath();
    context.arc(x(chosen[0]), y(chosen[1]), 4.5, 0, 7);
    context.fill();
  }
  return canvas;
}
