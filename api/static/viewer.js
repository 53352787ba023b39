// The viewer: one image, its findings, where a phrase is seen, and cases like it.
// It talks to the service that served it, keeps everything in memory, and stores nothing.

const find = (id) => document.getElementById(id);
const stage = document.querySelector(".stage");
const canvas = find("image");
const GREYS = 65536;
const HEAT_PX = 320;
const EVEN = 1e-3; // scores this close to the mean are shown as weak as they are

const view = {
  image: null, // {pixels, width, height, spacing_mm, window, source, inverted}
  picture: null, // image after window and level, on a canvas of the image's size
  centre: GREYS / 2, width: GREYS, invert: false,
  zoom: 1, x: 0, y: 0, // of the image on the stage, device pixels
  heat: null, // {canvas, box, peak}
  showHeat: true, region: null,
  tool: "window", // what dragging does: window, pan or region
};
let file = null; // the image on screen
let waiting = null; // one that was chosen and is not shown yet
let asked = 0; // counts images, so that late answers to an earlier one are dropped
let hits = { image: [], text: [] };
const TABS = [["tab-images", "image"], ["tab-texts", "text"]];
let tab = "image";
let pictures = []; // object URLs of thumbnails on screen
let prompts = {}; // finding -> the sentences that ask for it
let refused = new Set(); // findings whose answer should not be read
let explained = ""; // the hint that stands where no finding is looked at

// --- the service ---------------------------------------------------------------------

class Failure extends Error {}

async function call(route, fields, accept) {
  const headers = {};
  if (find("key").value) headers["X-API-Key"] = find("key").value;
  if (accept) headers.Accept = accept;
  const options = { headers, cache: "no-store" };
  if (fields) {
    options.method = "POST";
    options.body = new FormData();
    for (const [name, value] of Object.entries(fields)) options.body.append(name, value);
  }
  let response;
  try {
    response = await fetch(route, options);
  } catch {
    throw new Failure("The service cannot be reached.");
  }
  if (response.ok) return response;
  if (response.status === 401) {
    find("key-label").classList.add("wanted");
    find("key").focus();
    throw new Failure("Enter the API key and press Enter.");
  }
  const body = await response.json().catch(() => ({}));
  throw new Failure(`${body.message ?? "The service failed"} (${body.code ?? response.status}, ${body.request_id ?? "no id"})`);
}

let fading = 0;
function say(text) {
  const status = find("status");
  status.textContent = text;
  status.classList.add("shown");
  clearTimeout(fading);
  fading = setTimeout(() => status.classList.remove("shown"), 6000);
}

async function guarded(element, work) {
  element.classList.add("busy");
  try {
    await work();
    return true;
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    say(error.message);
    return false;
  } finally {
    element.classList.remove("busy");
  }
}

// --- a new image ----------------------------------------------------------------------

async function open(chosen) {
  const turn = ++asked;
  waiting = chosen;
  const isShown = await guarded(stage, async () => {
    const response = await call("/pixels", { image: chosen });
    const image = JSON.parse(response.headers.get("X-Image"));
    const bytes = await response.arrayBuffer();
    if (turn !== asked) return;
    file = chosen;
    waiting = null;
    image.pixels = new Uint16Array(bytes); // little-endian, as every browser's machine is
    view.image = image;
    view.heat = view.region = null;
    find("key-label").classList.remove("wanted");
    find("empty").hidden = true;
    find("peak").textContent = "";
    find("beyond").hidden = true;
    setBeside(null);
    setTool("window");
    reset();
  });
  if (!isShown || turn !== asked) return;
  await Promise.all([
    guarded(find("findings"), () => classify(turn).then(readCard)),
    guarded(find("cases"), () => retrieve(turn)),
  ]);
}

async function classify(turn) {
  const answer = await (await call("/classify", { image: file, explain: "true" })).json();
  if (turn !== asked) return;
  const beyond = answer.image.flags.includes("out_of_range"); // a banner says so, not a chip
  find("beyond").hidden = !beyond;
  find("findings").classList.toggle("beyond", beyond);
  const flags = answer.image.flags.filter((flag) => flag !== "out_of_range");
  find("flags").replaceChildren(...flags.map((flag) => make("span", "", flag.replaceAll("_", " "))));
  find("findings").replaceChildren(...[...answer.findings, ...answer.heads].map((finding) => {
    const button = make("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    const bar = make("span", finding.decision ? "bar present" : "bar");
    const fill = make("i");
    bar.style.setProperty("--threshold", `${(100 * finding.threshold).toFixed(1)}%`);
    fill.style.width = `${(100 * finding.score).toFixed(1)}%`;
    bar.append(fill);
    button.append(make("span", "", finding.kind ? `${finding.name} (head)` : finding.name), bar, make("span", "number", finding.score.toFixed(2)));
    button.setAttribute("aria-describedby", "meaning");
    for (const kind of ["pointerenter", "focus"]) button.addEventListener(kind, () => explain(finding));
    for (const kind of ["pointerleave", "blur"]) button.addEventListener(kind, () => explain(null));
    if (!finding.kind) button.addEventListener("click", () => {
      const isShown = button.getAttribute("aria-pressed") === "true";
      clearChoice();
      button.setAttribute("aria-pressed", String(!isShown));
      showHeat(isShown ? null : { grid: finding.heatmap });
      find("peak").textContent = isShown ? "" : `Where the image answers the prompt for ${finding.name}.`;
    });
    const item = make("li");
    if (!finding.kind) item.dataset.name = finding.name;
    item.append(button);
    return item;
  }));
  markRefused();
}

// Findings whose two prompts do not decide are grey and say so; the reason is beneath the bars.
function markRefused() {
  for (const item of find("findings").children) {
    if (!refused.has(item.dataset.name) || item.className) continue;
    item.className = "refused";
    item.firstChild.firstChild.append(make("small", "", "do not rely on it"));
  }
}

// What a bar means, beneath the bars.
function explain(finding) {
  explained ||= find("meaning").textContent;
  if (!finding) {
    find("meaning").textContent = explained;
    return;
  }
  const asked = prompts[finding.name];
  const fits = asked ? `“${asked.positive[0]}” against “${asked.negative[0]}”` : "the finding against its absence";
  if (finding.kind) { // a head, which has labels in place of prompts
    const said = finding.decision === null ? "not decided" : finding.decision ? "present" : "absent";
    find("meaning").replaceChildren(
      make("b", "", `${finding.name} ${finding.score.toFixed(2)}`),
      `: a ${finding.kind} head, fitted to labels; ${said} (the line is ${finding.threshold.toFixed(2)}). ${chanceOf(finding)}`);
    return;
  }
  const verdict = finding.decision === null ? "it decides nothing"
    : finding.decision ? "the first fits better" : "the second fits better";
  find("meaning").replaceChildren(
    make("b", "", `${finding.name} ${finding.score.toFixed(2)}`),
    `: ${fits}; ${verdict} (the line is ${finding.threshold.toFixed(2)}, margin ${finding.margin.toFixed(3)}). ${chanceOf(finding)}`);
}

function chanceOf(finding) {
  return finding.probability === null
    ? `No probability: ${finding.probability_note}.`
    : `Calibrated probability ${finding.probability.toFixed(2)}.`;
}

async function readCard() {
  if (find("about-model").textContent) return;
  const { card, index, digest, refused: unread } = await (await call("/model")).json();
  refused = new Set((unread ?? []).map((entry) => entry.name));
  markRefused();
  prompts = Object.fromEntries((card.prompts ?? []).map((entry) => [entry.name, entry]));
  find("about-use").textContent = card.intended_use ?? find("about-use").textContent;
  find("about-limits").replaceChildren(...(card.limits ?? []).map((line) => make("li", "", line)));
  const stock = index ? `, ${index.images} images and ${index.texts} sentences to compare with` : "";
  find("about-model").textContent = `Model ${digest.slice(0, 12)}${stock}.`;
}

function clearChoice() {
  for (const button of find("findings").querySelectorAll("button")) button.setAttribute("aria-pressed", "false");
}

// --- where is it? --------------------------------------------------------------------

async function ground(phrase) {
  const turn = asked;
  const answer = await (await call("/ground", { image: file, phrase })).json();
  if (turn !== asked) return;
  clearChoice();
  const [found] = answer.phrases;
  showHeat(found);
  find("peak").textContent = `Best score ${found.peak.score.toFixed(3)} at x ${Math.round(found.peak.x)}, y ${Math.round(found.peak.y)} px.`;
}

function showHeat(found) {
  view.heat = found && { canvas: paintHeat(found.grid), box: found.box ?? null, peak: found.peak ?? null };
  view.showHeat = true;
  draw();
}

const STOPS = [[0, 0, 0], [68, 1, 84], [187, 55, 84], [249, 142, 9], [252, 255, 164]];

function paintHeat(grid) {
  const { width, height } = view.image;
  const scale = HEAT_PX / Math.max(width, height);
  const picture = document.createElement("canvas");
  picture.width = Math.max(1, Math.round(width * scale));
  picture.height = Math.max(1, Math.round(height * scale));
  const scores = new Float32Array(picture.width * picture.height);
  let sum = 0;
  for (let y = 0, at = 0; y < picture.height; y++) {
    for (let x = 0; x < picture.width; x++, at++) {
      scores[at] = bilinear(grid, (y + 0.5) / picture.height, (x + 0.5) / picture.width);
      sum += scores[at];
    }
  }
  const mean = sum / scores.length;
  const top = scores.reduce((best, score) => Math.max(best, score - mean), EVEN);
  const image = new ImageData(picture.width, picture.height);
  for (let at = 0; at < scores.length; at++) {
    const share = Math.max(0, scores[at] - mean) / top;
    const [red, green, blue] = colour(share);
    image.data.set([red, green, blue, 255 * share], 4 * at);
  }
  picture.getContext("2d").putImageData(image, 0, 0);
  return picture;
}

function bilinear(grid, down, right) {
  const rows = grid.length, columns = grid[0].length;
  const y = Math.min(Math.max(down * rows - 0.5, 0), rows - 1);
  const x = Math.min(Math.max(right * columns - 0.5, 0), columns - 1);
  const top = Math.floor(y), left = Math.floor(x);
  const below = Math.min(top + 1, rows - 1), beside = Math.min(left + 1, columns - 1);
  const across = (row) => row[left] * (1 - x + left) + row[beside] * (x - left);
  return across(grid[top]) * (1 - y + top) + across(grid[below]) * (y - top);
}

function colour(share) {
  const place = share * (STOPS.length - 1);
  const low = Math.min(Math.floor(place), STOPS.length - 2);
  return STOPS[low].map((value, channel) => value + (STOPS[low + 1][channel] - value) * (place - low));
}

// --- similar cases -------------------------------------------------------------------

async function retrieve(turn) {
  const fields = { image: file, k: "8" };
  if (view.region) fields.box = JSON.stringify(view.region);
  const [images, sentences] = await Promise.all(["image", "text"].map(
    async (target) => (await call("/retrieve", { ...fields, target })).json()));
  if (turn !== asked) return;
  hits = { image: images.hits, text: sentences.hits };
  find("cases-title").textContent = view.region ? "What the box shows" : "Similar cases";
  showHits();
  if (view.region) find("cases-title").scrollIntoView({ block: "start" });
}

function showHits() {
  for (const [id, target] of TABS) {
    find(id).setAttribute("aria-selected", String(tab === target));
    find(id).tabIndex = tab === target ? 0 : -1;
    if (tab === target) find("cases").setAttribute("aria-labelledby", id);
  }
  pictures.forEach((url) => URL.revokeObjectURL(url));
  pictures = [];
  const found = hits[tab];
  find("cases").replaceChildren(...(found.length ? found.map(tab === "image" ? imageItem : textItem) : [make("li", "quiet", "Nothing found.")]));
}

function imageItem(hit) {
  const item = make("li", "image"), button = make("button"), picture = make("img");
  button.type = "button";
  button.title = "Show next to the image";
  button.setAttribute("aria-pressed", "false");
  picture.alt = "";
  const words = make("div", "words", hit.texts.slice(0, 4).join(" "));
  button.append(picture, head(nameOf(hit), hit.score), words);
  button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-pressed") === "true";
    setBeside(isShown ? null : hit, picture.src);
    if (!isShown) button.setAttribute("aria-pressed", "true");
  });
  item.append(button);
  if (hit.thumbnail) {
    call(hit.thumbnail).then((response) => response.blob()).then((blob) => {
      const url = URL.createObjectURL(blob);
      pictures.push(url);
      picture.src = url;
    }).catch(() => picture.remove());
  } else picture.remove();
  return item;
}

const nameOf = (hit) => [hit.id.length > 12 ? `${hit.id.slice(0, 8)}…` : hit.id, hit.view, hit.split].filter(Boolean).join(" · ");

// A similar image next to the one on screen, with its texts.
function setBeside(hit, picture) {
  for (const other of find("cases").querySelectorAll("button")) other.setAttribute("aria-pressed", "false");
  find("beside").hidden = !hit;
  find("sight").classList.toggle("two", Boolean(hit));
  if (!hit) return;
  find("beside-picture").src = picture || "data:,";
  find("beside-picture").alt = `Image ${hit.id}`;
  find("beside-name").textContent = nameOf(hit);
  find("beside-facts").textContent = `score ${hit.score.toFixed(3)}`;
  find("beside-words").textContent = hit.texts.join(" ");
}

function textItem(hit) {
  const item = make("li");
  item.append(make("div", "words", hit.texts[0]), head(hit.studies === 1 ? "1 study" : `${hit.studies} studies`, hit.score));
  return item;
}

function head(name, score) {
  const line = make("div", "head");
  line.append(make("b", "", name), make("span", "", score.toFixed(3)));
  return line;
}

function make(tag, names = "", text = "") {
  const element = document.createElement(tag);
  element.className = names;
  element.textContent = text;
  return element;
}

// --- drawing -------------------------------------------------------------------------

function reset() {
  if (!view.image) return;
  [view.centre, view.width] = view.image.window ?? [GREYS / 2, GREYS];
  view.invert = false;
  view.region = null;
  fit();
  develop();
}

function fit() {
  const { width, height } = view.image;
  view.zoom = 0.97 * Math.min(canvas.width / width, canvas.height / height);
  view.x = (canvas.width - width * view.zoom) / 2;
  view.y = (canvas.height - height * view.zoom) / 2;
}

// Window and level: 16-bit greys to the screen's 8, through one table.
function develop() {
  const { pixels, width, height } = view.image;
  const table = new Uint32Array(GREYS);
  const low = view.centre - view.width / 2;
  for (let grey = 0; grey < GREYS; grey++) {
    let value = Math.min(Math.max((255 * (grey - low)) / view.width, 0), 255);
    if (view.invert) value = 255 - value;
    table[grey] = 0xff000000 | (value << 16) | (value << 8) | value;
  }
  if (!view.picture || view.picture.width !== width || view.picture.height !== height) {
    view.picture = document.createElement("canvas");
    view.picture.width = width;
    view.picture.height = height;
  }
  const image = new ImageData(width, height);
  const screen = new Uint32Array(image.data.buffer);
  for (let at = 0; at < pixels.length; at++) screen[at] = table[pixels[at]];
  view.picture.getContext("2d").putImageData(image, 0, 0);
  find("invert").setAttribute("aria-pressed", String(view.invert));
  draw();
}

function draw() {
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  const image = view.image;
  if (!image) return;
  context.setTransform(view.zoom, 0, 0, view.zoom, view.x, view.y);
  context.imageSmoothingQuality = "high";
  context.imageSmoothingEnabled = view.zoom < 3;
  context.drawImage(view.picture, 0, 0);
  const line = Math.max(2, 1.5 * devicePixelRatio) / view.zoom;
  if (view.heat && view.showHeat) {
    const opacity = find("opacity").value / 100;
    context.globalAlpha = opacity;
    context.imageSmoothingEnabled = true;
    context.drawImage(view.heat.canvas, 0, 0, image.width, image.height);
    context.globalAlpha = opacity > 0 ? 1 : 0;
    if (view.heat.box) outline(context, view.heat.box, "#f0a04b", line);
    context.globalAlpha = 1;
  }
  if (view.region) {
    const [x, y, width, height] = view.region;
    outline(context, { x, y, width, height }, "#4cc2b1", line);
  }
  const spacing = image.spacing_mm ? ` · ${image.spacing_mm[1].toFixed(3)} mm` : "";
  find("facts").textContent =
    `${image.width} × ${image.height}${spacing} · C ${Math.round(view.centre)} W ${Math.round(view.width)} · ${Math.round(100 * view.zoom)} %`;
}

function outline(context, box, shade, line) {
  context.lineWidth = line;
  context.strokeStyle = shade;
  context.strokeRect(box.x, box.y, box.width, box.height);
}

let planned = 0;
function soon(work) {
  cancelAnimationFrame(planned);
  planned = requestAnimationFrame(work);
}

function measure() {
  const wide = Math.round(canvas.clientWidth * devicePixelRatio);
  const high = Math.round(canvas.clientHeight * devicePixelRatio);
  if (wide === canvas.width && high === canvas.height) return;
  canvas.width = wide;
  canvas.height = high;
  if (view.image) fit();
  draw();
}

// --- hands ---------------------------------------------------------------------------

const pointers = new Map();
const place = (event) => {
  const frame = canvas.getBoundingClientRect();
  return { x: (event.clientX - frame.left) * devicePixelRatio, y: (event.clientY - frame.top) * devicePixelRatio };
};
const onImage = (point) => ({ x: (point.x - view.x) / view.zoom, y: (point.y - view.y) / view.zoom });

function zoomAt(point, factor) {
  const zoom = Math.min(Math.max(view.zoom * factor, 0.02), 40);
  view.x = point.x - ((point.x - view.x) * zoom) / view.zoom;
  view.y = point.y - ((point.y - view.y) * zoom) / view.zoom;
  view.zoom = zoom;
  soon(draw);
}

function shiftWindow(wider, brighter) {
  view.width = Math.min(Math.max(view.width + wider, 64), 2 * GREYS);
  view.centre = Math.min(Math.max(view.centre - brighter, 0), GREYS);
  soon(develop);
}

canvas.addEventListener("pointerdown", (event) => {
  if (!view.image) return;
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, place(event));
  if (view.tool === "region" && pointers.size === 1) view.start = onImage(place(event));
  else view.start = null;
});

canvas.addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  if (!before || !view.image) return;
  const now = place(event);
  pointers.set(event.pointerId, now);
  if (pointers.size === 2) {
    const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
    view.region = view.start ? null : view.region;
    view.start = null;
    view.x += (now.x - before.x) / 2; // two fingers move and stretch the image at once
    view.y += (now.y - before.y) / 2;
    const gap = (point) => Math.max(8, Math.hypot(point.x - other.x, point.y - other.y));
    zoomAt({ x: (now.x + other.x) / 2, y: (now.y + other.y) / 2 }, gap(now) / gap(before));
  } else if (view.start) {
    view.region = regionBetween(view.start, onImage(now));
    soon(draw);
  } else if (view.tool === "region") {
    return;
  } else if (view.tool === "pan" || event.shiftKey || event.buttons & 6) {
    view.x += now.x - before.x;
    view.y += now.y - before.y;
    soon(draw);
  } else {
    const step = GREYS / 600 / devicePixelRatio;
    shiftWindow((now.x - before.x) * step, (before.y - now.y) * step);
  }
});

function letGo(event) {
  pointers.delete(event.pointerId);
  if (!view.start) return;
  view.start = null;
  setTool("window");
  if (view.region && Math.min(view.region[2], view.region[3]) >= 4) {
    tab = "text"; // what it shows is said in sentences
    clearChoice();
    showHeat(null);
    find("peak").textContent = "";
    guarded(find("cases"), () => retrieve(asked));
  } else view.region = null;
  draw();
}
canvas.addEventListener("pointerup", letGo);
canvas.addEventListener("pointercancel", letGo);
canvas.addEventListener("contextmenu", (event) => event.preventDefault());
canvas.addEventListener("dblclick", () => reset());
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  if (view.image) zoomAt(place(event), Math.exp(-event.deltaY / 500));
}, { passive: false });

function regionBetween(first, second) {
  const clamp = (value, most) => Math.min(Math.max(value, 0), most);
  const { width, height } = view.image;
  const left = clamp(Math.min(first.x, second.x), width), right = clamp(Math.max(first.x, second.x), width);
  const top = clamp(Math.min(first.y, second.y), height), bottom = clamp(Math.max(first.y, second.y), height);
  return [left, top, right - left, bottom - top].map(Math.floor);
}

const TOOLS = ["window", "pan", "region"];
function setTool(tool) {
  view.tool = view.image ? tool : "window";
  for (const name of TOOLS) find(`tool-${name}`).setAttribute("aria-pressed", String(name === view.tool));
  canvas.classList.toggle("panning", view.tool === "pan");
}

const invert = () => { if (view.image) { view.invert = !view.invert; develop(); } };
const toggleHeat = () => { view.showHeat = !view.showHeat; draw(); };
const middle = () => ({ x: canvas.width / 2, y: canvas.height / 2 });

const KEYS = {
  i: invert, r: reset, h: toggleHeat,
  w: () => setTool("window"), p: () => setTool("pan"),
  b: () => setTool(view.tool === "region" ? "window" : "region"),
  o: () => find("file").click(),
  "/": () => find("phrase").focus(),
  "+": () => zoomAt(middle(), 1.25), "=": () => zoomAt(middle(), 1.25), "-": () => zoomAt(middle(), 0.8),
  ArrowRight: () => shiftWindow(1024, 0), ArrowLeft: () => shiftWindow(-1024, 0),
  ArrowUp: () => shiftWindow(0, 1024), ArrowDown: () => shiftWindow(0, -1024),
  Escape: () => {
    setTool("window");
    setBeside(null);
    if (!view.region) return;
    view.region = null;
    draw();
    guarded(find("cases"), () => retrieve(asked));
  },
};

addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=range])") || find("about").open;
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const isArrow = event.key.startsWith("Arrow");
  const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action || (isArrow && (event.target !== canvas || !view.image))) return;
  event.preventDefault();
  action();
});

find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (waiting ?? file) open(waiting ?? file);
});
find("open").addEventListener("click", () => find("file").click());
find("file").addEventListener("change", () => {
  if (find("file").files.length) open(find("file").files[0]);
  find("file").value = "";
});
find("invert").addEventListener("click", invert);
find("reset").addEventListener("click", reset);
for (const name of TOOLS) find(`tool-${name}`).addEventListener("click", () => setTool(name));
find("beside-close").addEventListener("click", () => setBeside(null));
find("about-open").addEventListener("click", () => {
  find("about").showModal();
  if (view.image) guarded(find("about"), readCard);
});
find("opacity").addEventListener("input", draw);
find("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const phrase = find("phrase").value.trim();
  if (!view.image) say("Open an image first.");
  else if (phrase) guarded(find("peak"), () => ground(phrase));
});
for (const [id, target] of TABS) {
  find(id).addEventListener("click", () => { tab = target; showHits(); });
  find(id).addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    const [next] = TABS.filter(([other]) => other !== id);
    [, tab] = next;
    showHits();
    find(next[0]).focus();
  });
}
for (const kind of ["dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    stage.classList.toggle("dropping", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) open(event.dataTransfer.files[0]);
  });
}

const root = document.documentElement;
root.dataset.theme = matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
find("theme").addEventListener("click", () => { root.dataset.theme = root.dataset.theme === "light" ? "dark" : "light"; });
new ResizeObserver(measure).observe(canvas);
measure();
