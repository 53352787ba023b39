// The image on screen, and one next to it that follows its window, zoom and place.

import { drawBar } from "./heat.js";
import { find } from "./page.js";

export const GREYS = 65536;
export const canvas = find("image");
const other = find("beside-image");

export const view = {
  image: null, // {pixels, width, height, spacing_mm, window, source, inverted}
  beside: null, // another, on the second canvas
  centre: GREYS / 2, width: GREYS, invert: false,
  zoom: 1, x: 0, y: 0, // of the image on the canvas, device pixels
  heat: null, // {canvas, low, high, box, isFound, words}
  showHeat: true,
  region: null, // [x, y, width, height] of the image, pixels
  ruler: null, // {from, to}, points of the image
  tool: "window", // what dragging does: window, pan, region or ruler
};

const windowOf = (image) => image.window ?? [GREYS / 2, GREYS];
const fitOf = (target, image) => 0.97 * Math.min(target.width / image.width, target.height / image.height);

export function reset() {
  if (!view.image) return;
  [view.centre, view.width] = windowOf(view.image);
  view.invert = false;
  view.region = view.ruler = null;
  fit();
  develop();
}

function fit() {
  const { width, height } = view.image;
  view.zoom = fitOf(canvas, view.image);
  view.x = (canvas.width - width * view.zoom) / 2;
  view.y = (canvas.height - height * view.zoom) / 2;
}

// Window and level of both images; the second's differ from its own as the first's do.
export function develop() {
  if (!view.image) return;
  paint(view.image, view.centre, view.width);
  if (view.beside) {
    const [centre, width] = windowOf(view.image), [ownCentre, ownWidth] = windowOf(view.beside);
    const shift = ((view.centre - centre) * ownWidth) / width;
    paint(view.beside, ownCentre + shift, (view.width * ownWidth) / width);
  }
  find("invert").setAttribute("aria-pressed", String(view.invert));
  draw();
}

// 16-bit greys to the screen's 8, through one table.
function paint(image, centre, wide) {
  const table = new Uint32Array(GREYS);
  const low = centre - wide / 2;
  for (let grey = 0; grey < GREYS; grey++) {
    let value = Math.min(Math.max((255 * (grey - low)) / wide, 0), 255);
    if (view.invert) value = 255 - value;
    table[grey] = 0xff000000 | (value << 16) | (value << 8) | value;
  }
  if (!image.picture) {
    image.picture = document.createElement("canvas");
    image.picture.width = image.width;
    image.picture.height = image.height;
  }
  const screen = new ImageData(image.width, image.height);
  const values = new Uint32Array(screen.data.buffer);
  for (let at = 0; at < values.length; at++) values[at] = table[image.pixels[at]];
  image.picture.getContext("2d").putImageData(screen, 0, 0);
}

export function draw({ withScale = false } = {}) {
  const context = canvas.getContext("2d");
  drawImage(context, view.image, view);
  if (view.beside) drawImage(other.getContext("2d"), view.beside, following());
  const image = view.image;
  if (!image) return;
  const line = Math.max(2, 1.5 * devicePixelRatio) / view.zoom;
  const opacity = view.heat && view.showHeat ? find("opacity").value / 100 : 0;
  if (opacity) {
    context.globalAlpha = view.heat.isFound ? opacity : opacity / 2;
    context.imageSmoothingEnabled = true;
    context.drawImage(view.heat.canvas, 0, 0, image.width, image.height);
    context.globalAlpha = 1;
    if (view.heat.box && view.heat.isFound) outline(context, view.heat.box, "#f0a04b", line);
  }
  if (view.region) {
    const [x, y, width, height] = view.region;
    outline(context, { x, y, width, height }, "#4cc2b1", line);
  }
  if (view.ruler) drawRuler(context, line);
  context.setTransform(1, 0, 0, 1, 0, 0);
  if (opacity) drawBar(context, view.heat, devicePixelRatio);
  if (withScale || view.tool === "ruler") drawScale(context);
  const spacing = image.spacing_mm ? ` · ${image.spacing_mm[1].toFixed(3)} mm` : "";
  find("facts").textContent =
    `${image.width} × ${image.height}${spacing} · C ${Math.round(view.centre)} W ${Math.round(view.width)} · ${Math.round(100 * view.zoom)} %`;
}

function drawImage(context, image, { zoom, x, y }) {
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, context.canvas.width, context.canvas.height);
  if (!image) return;
  context.setTransform(zoom, 0, 0, zoom, x, y);
  context.imageSmoothingQuality = "high";
  context.imageSmoothingEnabled = zoom < 3;
  context.drawImage(image.picture, 0, 0);
}

// Where the second image stands: as much larger than fitting, around the same share of it.
function following() {
  const image = view.beside;
  const zoom = (fitOf(other, image) * view.zoom) / fitOf(canvas, view.image);
  const across = (canvas.width / 2 - view.x) / (view.zoom * view.image.width);
  const down = (canvas.height / 2 - view.y) / (view.zoom * view.image.height);
  return { zoom, x: other.width / 2 - across * image.width * zoom, y: other.height / 2 - down * image.height * zoom };
}

function outline(context, box, shade, line) {
  context.lineWidth = line;
  context.strokeStyle = shade;
  context.strokeRect(box.x, box.y, box.width, box.height);
}

export function rulerText({ from, to }) {
  const [down, across] = view.image.spacing_mm ?? [1, 1];
  const length = Math.hypot((to.x - from.x) * across, (to.y - from.y) * down);
  return view.image.spacing_mm ? `${length.toFixed(1)} mm at the detector` : `${Math.round(length)} pixels`;
}

function drawRuler(context, line) {
  const { from, to } = view.ruler;
  context.lineWidth = line;
  context.strokeStyle = context.fillStyle = "#f2e35c";
  context.beginPath();
  context.moveTo(from.x, from.y);
  context.lineTo(to.x, to.y);
  context.stroke();
  context.font = `${(13 * devicePixelRatio) / view.zoom}px system-ui, sans-serif`;
  context.fillText(rulerText(view.ruler), to.x + 6 * line, to.y);
}

// A bar of a round length in the lower right corner.
function drawScale(context) {
  const [, across] = view.image.spacing_mm ?? [1, 1], unit = devicePixelRatio;
  const widest = (120 * unit * across) / view.zoom, power = 10 ** Math.floor(Math.log10(widest));
  const length = power * [5, 2, 1].find((step) => step * power <= widest);
  const wide = (length / across) * view.zoom;
  const [x, y] = [context.canvas.width - wide - 16 * unit, context.canvas.height - 16 * unit];
  context.fillStyle = "#e7ebee";
  context.fillRect(x, y, wide, 3 * unit);
  context.font = `${11.5 * unit}px system-ui, sans-serif`;
  context.fillText(`${length} ${view.image.spacing_mm ? "mm" : "pixels"}`, x, y - 6 * unit);
}

// The view with its scales and what it is not, as a PNG: no name of a file, no id.
export async function exportView(words) {
  draw({ withScale: true });
  const panes = view.beside ? [canvas, other] : [canvas], unit = devicePixelRatio;
  const picture = document.createElement("canvas");
  picture.width = panes.reduce((sum, pane) => sum + pane.width, 0);
  picture.height = canvas.height + (14 + 18 * words.length) * unit;
  const context = picture.getContext("2d");
  context.fillRect(0, 0, picture.width, picture.height);
  let x = 0;
  for (const pane of panes) {
    context.drawImage(pane, x, 0);
    x += pane.width;
  }
  context.fillStyle = "#e7ebee";
  context.font = `${13 * unit}px system-ui, sans-serif`;
  words.forEach((line, at) => context.fillText(line, 14 * unit, canvas.height + (20 + 18 * at) * unit, picture.width - 28 * unit));
  draw();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await new Promise((done) => picture.toBlob(done)));
  link.download = "medclip-view.png";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

let planned = 0;
export function soon(work) {
  cancelAnimationFrame(planned);
  planned = requestAnimationFrame(work);
}

function measure() {
  let isChanged = false;
  for (const target of [canvas, other]) {
    const wide = Math.round(target.clientWidth * devicePixelRatio);
    const high = Math.round(target.clientHeight * devicePixelRatio);
    if (wide === target.width && high === target.height) continue;
    target.width = wide;
    target.height = high;
    isChanged = true;
  }
  if (!isChanged) return;
  if (view.image) fit();
  draw();
}

export function watchSize() {
  const observer = new ResizeObserver(measure);
  observer.observe(canvas);
  observer.observe(other);
  measure();
}

export function setTool(tool) {
  view.tool = view.image ? tool : "window";
  if (view.tool !== "ruler") view.ruler = null;
  for (const button of document.querySelectorAll("[data-tool]")) {
    button.setAttribute("aria-pressed", String(button.dataset.tool === view.tool));
  }
  canvas.classList.toggle("panning", view.tool === "pan");
  draw();
}
