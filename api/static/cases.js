// Images and sentences of the index that are like the image or a box of it.

import { find, make } from "./page.js";
import { ask, call } from "./service.js";
import { develop, draw, view } from "./stage.js";

const HITS = 8;
const SAME = 0.99999; // an image that is as similar is the one that was asked with
const TABS = [["tab-images", "image"], ["tab-texts", "text"]];
let hits = { image: [], text: [] };
let tab = "image";
let pictures = []; // object URLs of thumbnails on screen

export async function retrieve(file, isCurrent) {
  const fields = { image: file, k: HITS };
  if (view.region) fields.box = JSON.stringify(view.region);
  const [images, sentences] = await Promise.all(["image", "text"].map((target) => ask("retrieve", { ...fields, target })));
  if (!isCurrent()) return;
  hits = { image: images.hits, text: sentences.hits };
  find("cases-title").textContent = view.region ? "What the box shows" : "Similar cases";
  showHits();
  if (view.region) find("cases-title").scrollIntoView({ block: "start" });
}

export function showTab(target) {
  tab = target;
  showHits();
}

function showHits() {
  for (const [id, target] of TABS) {
    find(id).setAttribute("aria-selected", String(tab === target));
    find(id).tabIndex = tab === target ? 0 : -1;
    if (tab === target) find("panel").setAttribute("aria-labelledby", id);
  }
  pictures.forEach((url) => URL.revokeObjectURL(url));
  pictures = [];
  const found = hits[tab];
  const nothing = make("li", "quiet", view.image ? "Nothing found." : "Open an image to find similar ones.");
  find("cases").replaceChildren(...(found.length ? found.map(tab === "image" ? imageItem : textItem) : [nothing]));
}

function imageItem(hit, at) {
  const row = make("li", "image"), button = make("button"), picture = make("img");
  button.type = "button";
  button.title = `Show next to the image: ${hit.id}`;
  button.setAttribute("aria-pressed", "false");
  picture.alt = "";
  const name = nameOf(hit, at), line = head(name, hit.score);
  if (hit.score > SAME && !view.region) line.firstChild.append(make("small", "", "the image itself"));
  button.append(picture, line, make("div", "words", hit.texts.slice(0, 4).join(" ")));
  button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-pressed") === "true";
    if (isShown || !picture.naturalWidth) return setBeside(null);
    setBeside({ ...greysOf(picture), name, facts: `score ${hit.score.toFixed(3)}`, words: hit.texts.join(" ") });
    button.setAttribute("aria-pressed", "true");
  });
  row.append(button);
  if (hit.thumbnail) thumbnail(hit.thumbnail).then((blob) => {
    picture.src = URL.createObjectURL(blob);
    pictures.push(picture.src);
  }).catch(() => picture.remove());
  else picture.remove();
  return row;
}

const thumbnail = async (path) => (await call(path)).blob();
const nameOf = (hit, at) => [`Case ${at + 1}`, hit.view, hit.split].filter(Boolean).join(" · ");

function textItem(hit) {
  const row = make("li");
  row.append(make("div", "words", hit.texts[0]), head(hit.studies === 1 ? "1 study" : `${hit.studies} studies`, hit.score));
  return row;
}

function head(name, score) {
  const line = make("div", "head");
  line.append(make("b", "", name), make("span", "", score.toFixed(3)));
  return line;
}

// A thumbnail as 16-bit greys, so that window and level work on it.
function greysOf(picture) {
  const canvas = document.createElement("canvas");
  const [width, height] = [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  return { width, height, pixels: Uint16Array.from({ length: width * height }, (_, at) => 257 * data[4 * at]) };
}

// An image next to the one on screen: a similar one with its texts, or one that was pinned.
export function setBeside(image) {
  for (const button of find("cases").querySelectorAll("button")) button.setAttribute("aria-pressed", "false");
  view.beside = image;
  find("beside").hidden = !image;
  find("sight").classList.toggle("two", Boolean(image));
  find("pin").setAttribute("aria-pressed", String(Boolean(image?.isPinned)));
  if (!image) return draw();
  find("beside-name").textContent = image.name;
  find("beside-facts").textContent = image.facts;
  find("beside-words").textContent = image.words;
  develop();
}

export function startTabs() {
  for (const [id, target] of TABS) {
    find(id).addEventListener("click", () => showTab(target));
    find(id).addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      const [[next, wanted]] = TABS.filter(([other]) => other !== id);
      showTab(wanted);
      find(next).focus();
    });
  }
}

// --- samples ---------------------------------------------------------------------------

// Three pictures of the index from the closest to a sentence to the farthest, to try; by number alone.
export async function offerSamples(sentence, open) {
  const { hits: found } = await ask("retrieve", { target: "image", text: sentence, k: 16 });
  const shown = found.filter((hit) => hit.thumbnail);
  const chosen = [...new Set([shown[0], shown[shown.length >> 1], shown.at(-1)])].filter(Boolean);
  const buttons = await Promise.all(chosen.map(async (hit, at) => {
    const button = make("button"), picture = make("img"), blob = await thumbnail(hit.thumbnail);
    button.type = "button";
    picture.src = URL.createObjectURL(blob);
    picture.alt = "";
    button.append(picture, `Sample ${at + 1}`);
    button.addEventListener("click", () => open([new File([blob], `Sample ${at + 1}`)]));
    return button;
  }));
  find("samples").replaceChildren(...buttons);
  find("samples-line").hidden = !buttons.length;
}
