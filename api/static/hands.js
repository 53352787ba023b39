// Mouse, fingers and keys on the image: window, zoom, boxes and the ruler.

import { find, say } from "./page.js";
import { GREYS, canvas, develop, draw, reset, rulerText, setTool, soon, view } from "./stage.js";

const LEAST_BOX_PX = 4;
const pointers = new Map();
let start = null; // of a box or ruler that is being drawn
let askBox = () => {}; // what happens with a box once it is drawn

// On the second image, the point at the same distance from the middle.
const place = (event) => {
  const frame = event.currentTarget.getBoundingClientRect();
  const off = (at, from, size) => (at - from - size / 2) * devicePixelRatio;
  return {
    x: canvas.width / 2 + off(event.clientX, frame.left, frame.width),
    y: canvas.height / 2 + off(event.clientY, frame.top, frame.height),
  };
};
const clamp = (value, most) => Math.min(Math.max(value, 0), most);
const onImage = (point) => ({
  x: clamp((point.x - view.x) / view.zoom, view.image.width),
  y: clamp((point.y - view.y) / view.zoom, view.image.height),
});
export const middle = () => ({ x: canvas.width / 2, y: canvas.height / 2 });

export function zoomAt(point, factor) {
  const zoom = Math.min(Math.max(view.zoom * factor, 0.02), 40);
  view.x = point.x - ((point.x - view.x) * zoom) / view.zoom;
  view.y = point.y - ((point.y - view.y) * zoom) / view.zoom;
  view.zoom = zoom;
  soon(draw);
}

function shiftWindow(wider, brighter) {
  view.width = Math.min(Math.max(view.width + wider, 64), 2 * GREYS);
  view.centre = clamp(view.centre - brighter, GREYS);
  soon(develop);
}

function down(event) {
  if (!view.image) return;
  event.currentTarget.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, place(event));
  const draws = ["region", "ruler"].includes(view.tool) && event.currentTarget === canvas && pointers.size === 1;
  start = draws ? onImage(place(event)) : null;
}

function move(event) {
  const before = pointers.get(event.pointerId);
  if (!before || !view.image) return;
  const now = place(event);
  pointers.set(event.pointerId, now);
  if (pointers.size === 2) {
    const [second] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
    view.region = start ? null : view.region;
    start = null;
    view.x += (now.x - before.x) / 2; // two fingers move and stretch the image at once
    view.y += (now.y - before.y) / 2;
    const gap = (point) => Math.max(8, Math.hypot(point.x - second.x, point.y - second.y));
    zoomAt({ x: (now.x + second.x) / 2, y: (now.y + second.y) / 2 }, gap(now) / gap(before));
  } else if (start) {
    if (view.tool === "ruler") view.ruler = { from: start, to: onImage(now) };
    else view.region = regionBetween(start, onImage(now));
    soon(draw);
  } else if (["region", "ruler"].includes(view.tool)) {
    return;
  } else if (view.tool === "pan" || event.shiftKey || event.buttons & 6) {
    view.x += now.x - before.x;
    view.y += now.y - before.y;
    soon(draw);
  } else {
    const step = GREYS / 600 / devicePixelRatio;
    shiftWindow((now.x - before.x) * step, (before.y - now.y) * step);
  }
}

function letGo(event) {
  pointers.delete(event.pointerId);
  if (!start) return;
  start = null;
  if (view.tool === "region") finishBox();
}

function finishBox() {
  setTool("window");
  if (view.region && Math.min(view.region[2], view.region[3]) >= LEAST_BOX_PX) askBox();
  else view.region = null;
  draw();
}

function regionBetween(first, second) {
  const left = Math.min(first.x, second.x), top = Math.min(first.y, second.y);
  return [left, top, Math.max(first.x, second.x) - left, Math.max(first.y, second.y) - top].map(Math.floor);
}

// A box or a ruler by keys: arrows move it, with shift its far end; Enter asks about the box.
function nudge(across, far, isFar) {
  const { width, height } = view.image;
  const [dx, dy] = [(across * width) / 50, (far * height) / 50];
  if (view.tool === "ruler") {
    view.ruler ??= { from: { x: width / 3, y: height / 2 }, to: { x: (2 * width) / 3, y: height / 2 } };
    for (const point of isFar ? [view.ruler.to] : [view.ruler.from, view.ruler.to]) {
      point.x = clamp(point.x + dx, width);
      point.y = clamp(point.y + dy, height);
    }
    say(rulerText(view.ruler));
  } else {
    let [x, y, wide, high] = view.region ?? [width / 3, height / 3, width / 3, height / 3];
    if (isFar) [wide, high] = [Math.max(wide + dx, LEAST_BOX_PX), Math.max(high + dy, LEAST_BOX_PX)];
    else [x, y] = [x + dx, y + dy];
    [wide, high] = [Math.min(wide, width), Math.min(high, height)];
    view.region = [clamp(x, width - wide), clamp(y, height - high), wide, high].map(Math.floor);
    const [left, top, boxWide, boxHigh] = view.region;
    say(`Box at ${left}, ${top}, ${boxWide} by ${boxHigh} pixels. Enter asks what it shows.`);
  }
  soon(draw);
}

const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Keys while the image has the focus; whether the key was one of them.
export function imageKey(event) {
  const draws = ["region", "ruler"].includes(view.tool);
  if (event.target !== canvas || !view.image) return false;
  if (event.key === "Enter" && view.tool === "region" && view.region) {
    finishBox();
    return true;
  }
  const arrow = ARROWS[event.key];
  if (!arrow) return false;
  if (draws) nudge(...arrow, event.shiftKey);
  else shiftWindow(1024 * arrow[0], -1024 * arrow[1]);
  return true;
}

// The tool whose marks keys can make needs the image's focus.
export function chooseTool(tool) {
  setTool(view.tool === tool ? "window" : tool);
  if (["region", "ruler"].includes(view.tool)) {
    canvas.focus({ focusVisible: false });
    say(view.tool === "region" ? "Draw a box, or place one with the arrow keys." : "Drag, or use the arrow keys. Lengths are those at the detector.");
  }
}

export function startHands(onBox) {
  askBox = onBox;
  for (const target of [canvas, find("beside-image")]) {
    target.addEventListener("pointerdown", down);
    target.addEventListener("pointermove", move);
    target.addEventListener("pointerup", letGo);
    target.addEventListener("pointercancel", letGo);
    target.addEventListener("contextmenu", (event) => event.preventDefault());
    target.addEventListener("dblclick", reset);
    target.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (view.image) zoomAt(place(event), Math.exp(-event.deltaY / 500));
    }, { passive: false });
  }
}
