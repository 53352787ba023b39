// The viewer: images, their findings, where a phrase is seen, and cases like them.
// It talks to the service that served it, keeps images in memory, and stores the theme alone.

import { find, make, say, startTheme } from "./page.js";
import { ask, call, guarded } from "./service.js";
import { draw, exportView, develop, reset, setTool, view, watchSize } from "./stage.js";
import { chooseTool, imageKey, middle, startHands, zoomAt } from "./hands.js";
import { classify, clearChoice, ground, setCard } from "./findings.js";
import { offerSamples, retrieve, setBeside, showTab, startTabs } from "./cases.js";
import { startTour } from "./tour.js";

const stage = document.querySelector(".stage");
let files = []; // the worklist
let at = -1; // which of them is on screen
let waiting = null; // one that was chosen and is not shown yet
let turn = 0; // counts images, so that late answers to an earlier one are dropped
let model = ""; // digest of the one that answers

// --- images ----------------------------------------------------------------------------

function add(chosen) {
  if (!chosen.length) return;
  files.push(...chosen);
  show(files.length - chosen.length);
}

async function show(number) {
  if (!files[number]) return;
  const mine = ++turn, file = files[number], isCurrent = () => mine === turn;
  waiting = number;
  const isShown = await guarded(stage, async () => {
    const response = await call("pixels", { image: file });
    const image = JSON.parse(response.headers.get("X-Image"));
    const bytes = await response.arrayBuffer();
    if (!isCurrent()) return;
    image.pixels = new Uint16Array(bytes); // little-endian, as every browser's machine is
    [at, waiting] = [number, null];
    view.image = image;
    view.heat = null;
    reset();
    setTool("window");
    clearChoice();
    if (!view.beside?.isPinned) setBeside(null);
    find("key-label").classList.remove("wanted");
    find("empty").hidden = true;
    find("beyond").hidden = true;
  });
  if (!isCurrent()) return;
  if (!isShown && find("key-label").classList.contains("wanted")) return; // asked again with the key
  if (!isShown) files.splice(number, 1);
  listFiles();
  if (!isShown) return;
  await Promise.all([
    guarded(find("findings"), () => classify(file, isCurrent).then(readCard)),
    guarded(find("panel"), () => retrieve(file, isCurrent)),
  ]);
}

function listFiles() {
  find("worklist").hidden = files.length < 2;
  find("files").replaceChildren(...files.map((file, number) => new Option(`${number + 1} of ${files.length}: ${file.name}`, number)));
  find("files").value = at;
  find("previous").disabled = at < 1;
  find("next").disabled = at >= files.length - 1;
}

// The image on screen stays on the right while others come to the left.
function pin() {
  if (!view.image) return say("Open an image first.");
  if (view.beside?.isPinned) return setBeside(null);
  const { pixels, width, height, window } = view.image;
  setBeside({ pixels, width, height, window, isPinned: true, name: files[at].name, facts: "pinned", words: "" });
}

function save() {
  if (!view.image) return say("Open an image first.");
  const lines = ["Research use only, not a medical device."];
  if (view.heat && view.showHeat) lines.push(view.heat.words);
  if (!find("beyond").hidden) lines.push("Out of range: the image is unlike those that the model was trained on.");
  exportView([...lines, `medclip-dcl, model ${model.slice(0, 12)}. ${find("facts").textContent}`]);
}

// --- the model ---------------------------------------------------------------------------

async function readCard() {
  if (model) return;
  const { card, index, digest, refused } = await ask("model");
  model = digest;
  setCard(card, refused);
  find("key-label").classList.remove("wanted");
  find("about-use").textContent = card.intended_use ?? find("about-use").textContent;
  find("about-limits").replaceChildren(...(card.limits ?? []).map((line) => make("li", "", line)));
  const stock = index ? `, ${index.images} images and ${index.texts} sentences to compare with` : "";
  find("about-model").textContent = `Model ${digest.slice(0, 12)}${stock}.`;
  const sentence = card.prompts?.[0] && [card.prompts[0].positive].flat()[0];
  if (index && sentence && !view.image) await offerSamples(sentence, add);
}

async function start() {
  const { needs_key: needsKey } = await ask("health");
  find("key-form").hidden = !needsKey;
  if (!needsKey) await readCard();
}

// --- keys and buttons --------------------------------------------------------------------

const isCurrentTurn = () => {
  const mine = turn;
  return () => mine === turn;
};
const askCases = () => guarded(find("panel"), () => retrieve(files[at], isCurrentTurn()));
const invert = () => { if (view.image) { view.invert = !view.invert; develop(); } };

const KEYS = {
  i: invert, r: reset, c: pin, s: save,
  h: () => { view.showHeat = !view.showHeat; draw(); },
  w: () => setTool("window"), p: () => setTool("pan"), b: () => chooseTool("region"), m: () => chooseTool("ruler"),
  j: () => show(at + 1), k: () => show(at - 1),
  o: () => find("file").click(),
  "/": () => find("phrase").focus(),
  "+": () => zoomAt(middle(), 1.25), "=": () => zoomAt(middle(), 1.25), "-": () => zoomAt(middle(), 0.8),
  Escape: () => {
    setTool("window");
    setBeside(null);
    find("tour").close();
    if (!view.region) return;
    view.region = null;
    draw();
    askCases();
  },
};

addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input:not([type=range]), textarea, select") || find("about").open;
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (imageKey(event)) event.preventDefault();
  else if (action) {
    event.preventDefault();
    action();
  }
});

find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (waiting !== null) show(waiting);
  else guarded(find("key-label"), readCard);
});
find("open").addEventListener("click", () => find("file").click());
find("file").addEventListener("change", () => {
  add([...find("file").files]);
  find("file").value = "";
});
find("previous").addEventListener("click", () => show(at - 1));
find("next").addEventListener("click", () => show(at + 1));
find("files").addEventListener("change", () => show(Number(find("files").value)));
find("invert").addEventListener("click", invert);
find("reset").addEventListener("click", reset);
find("pin").addEventListener("click", pin);
find("save").addEventListener("click", save);
for (const button of document.querySelectorAll("[data-tool]")) {
  const isMark = ["region", "ruler"].includes(button.dataset.tool);
  button.addEventListener("click", () => (isMark ? chooseTool : setTool)(button.dataset.tool));
}
find("beside-close").addEventListener("click", () => setBeside(null));
find("about-open").addEventListener("click", () => {
  find("about").showModal();
  guarded(find("about"), readCard);
});
find("about-curl").textContent = `curl -F image=@image.dcm -F explain=true ${new URL("classify", document.baseURI)}`;
find("opacity").addEventListener("input", () => draw());
find("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const phrase = find("phrase").value.trim();
  if (!view.image) say("Open an image first.");
  else if (phrase) guarded(find("phrase-card"), () => ground(files[at], phrase, isCurrentTurn()));
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    stage.classList.toggle("dropping", kind === "dragover");
    if (kind === "drop") add([...event.dataTransfer.files]);
  });
}

startTheme();
startTabs();
startTour();
startHands(() => {
  showTab("text"); // what it shows is said in sentences
  clearChoice();
  askCases();
});
watchSize();
guarded(find("samples-line"), start);
