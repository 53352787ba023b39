// Which findings the image shows: bars, what they mean, where, and in whose words they were asked.

import { find, make } from "./page.js";
import { ask, guarded } from "./service.js";
import { paintHeat } from "./heat.js";
import { draw, view } from "./stage.js";

let prompts = {}; // finding -> {positive, negative}: the sentences that ask for it
let refused = new Set(); // findings whose answer should not be read
let hint = ""; // stands where no finding is looked at
let isBeyond = false; // the image is out of range

export function setCard(card, unread) {
  const lines = (side) => [side].flat().join("\n");
  prompts = Object.fromEntries((card.prompts ?? []).map(
    ({ name, positive, negative }) => [name, { positive: lines(positive), negative: lines(negative) }]));
  refused = new Set((unread ?? []).map((entry) => entry.name));
  markRefused();
}

export async function classify(file, isCurrent) {
  const answer = await ask("classify", { image: file, explain: "true" });
  if (!isCurrent()) return;
  const flags = answer.image.flags.filter((flag) => flag !== "out_of_range"); // a banner says so, not a chip
  isBeyond = flags.length < answer.image.flags.length;
  find("beyond").hidden = !isBeyond;
  find("findings").classList.toggle("beyond", isBeyond);
  find("flags").replaceChildren(...flags.map((flag) => make("span", "", flag.replaceAll("_", " "))));
  find("findings").replaceChildren(...[...answer.findings, ...answer.heads].map((finding) => item(finding, file)));
  markRefused();
}

function item(finding, file) {
  const row = make("li"), button = make("button");
  const isHead = "kind" in finding; // fitted to labels: no prompts, and no map
  if (!isHead) row.dataset.name = finding.name;
  button.type = "button";
  button.setAttribute("aria-pressed", "false");
  button.setAttribute("aria-describedby", "meaning");
  const bar = make("span", finding.decision ? "bar present" : "bar"), fill = make("i");
  bar.style.setProperty("--threshold", `${(100 * finding.threshold).toFixed(1)}%`);
  fill.style.width = `${(100 * finding.score).toFixed(1)}%`;
  bar.append(fill);
  const number = finding.probability === null ? finding.score.toFixed(2) : percent(finding.probability);
  button.append(make("span", "", isHead ? `${finding.name} (head)` : finding.name), bar, make("span", "number", number));
  for (const kind of ["pointerenter", "focus"]) button.addEventListener(kind, () => explain(finding));
  for (const kind of ["pointerleave", "blur"]) button.addEventListener(kind, () => explain(null));
  if (!isHead) button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-pressed") === "true";
    clearChoice();
    if (!isShown) choose(row, finding, file);
  });
  row.append(button);
  return row;
}

function choose(row, finding, file) {
  row.firstChild.setAttribute("aria-pressed", "true");
  if (prompts[finding.name]) row.append(wording(row, finding, file));
  const isFound = finding.decision && !isBeyond && !refused.has(finding.name);
  const where = isFound ? "found. The map shows where" : "not found. The map shows where it would fit best";
  showHeat({
    grid: finding.heatmap, box: finding.where?.box, isFound,
    words: `${finding.name}: ${where}. ${standing(finding.percentile)}`,
  });
}

const percent = (share) => (share < 0.005 ? "< 1 %" : share > 0.995 ? "> 99 %" : `${Math.round(100 * share)} %`);

// Against the bank of images that the model was published with.
export function standing(percentile) {
  if (percentile === null || percentile === undefined) return "";
  const [word, share] = percentile < 50 ? ["Weaker", 100 - percentile] : ["Stronger", percentile];
  return `${word} than in ${share > 99.5 ? "all" : `${Math.round(share)} % of`} other images.`;
}

// Findings whose two prompts do not decide are grey and say so; the reason is beneath the bars.
function markRefused() {
  for (const row of find("findings").children) {
    if (!refused.has(row.dataset.name) || row.className) continue;
    row.className = "refused";
    row.firstChild.firstChild.append(make("small", "", "do not rely on it"));
  }
}

// What a bar means, beneath the bars.
function explain(finding) {
  hint ||= find("meaning").textContent;
  if (!finding) {
    find("meaning").textContent = hint;
    return;
  }
  const asked = prompts[finding.name];
  const first = (side) => `“${side.split("\n")[0]}”`;
  const against = asked?.negative ? first(asked.negative) : "what it scores on other images";
  const fits = "kind" in finding ? `a ${finding.kind} head, fitted to labels`
    : asked ? `${first(asked.positive)} against ${against}` : "the finding against its absence";
  const [yes, no] = "kind" in finding ? ["present", "absent"] : ["the first fits better", "the second fits better"];
  const verdict = finding.decision === null ? "not decided" : finding.decision ? yes : no;
  const chance = finding.probability === null
    ? `No probability: ${finding.probability_note}.`
    : `Calibrated probability ${percent(finding.probability)}.`;
  find("meaning").replaceChildren(
    make("b", "", `${finding.name} ${finding.score.toFixed(2)}`),
    `: ${fits}; ${verdict} (threshold ${finding.threshold.toFixed(2)}). ${chance} ${standing(finding.percentile)}`);
}

// The two sentences of a finding, to be changed and asked again; nothing of it is kept.
function wording(row, finding, file) {
  const form = make("form", "wording"), send = make("button", "", "Ask in these words");
  const fields = ["positive", "negative"].map((side) => {
    const label = make("label", "", side === "positive" ? "Present, one sentence a line" : "Absent");
    const field = make("textarea");
    field.rows = Math.min(4, prompts[finding.name][side].split("\n").length);
    field.maxLength = 1000;
    field.value = finding[side] ?? prompts[finding.name][side];
    label.append(field);
    form.append(label);
    return field;
  });
  form.append(send);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    guarded(row, async () => {
      const [positive, negative] = fields.map((field) => field.value.split("\n").map((line) => line.trim()).filter(Boolean));
      const findings = JSON.stringify([{ name: finding.name, positive, negative }]);
      const { findings: [answer] } = await ask("classify", { image: file, explain: "true", findings });
      if (!row.isConnected) return;
      [answer.positive, answer.negative] = [positive.join("\n"), negative.join("\n")];
      const changed = item(answer, file);
      changed.firstChild.firstChild.append(make("small", "", "your words"));
      row.replaceWith(changed);
      choose(changed, answer, file);
      changed.firstChild.focus();
    });
  });
  return form;
}

export function clearChoice() {
  for (const button of find("findings").querySelectorAll("[aria-pressed]")) button.setAttribute("aria-pressed", "false");
  find("findings").querySelector(".wording")?.remove();
  showHeat(null);
}

// --- where is it? --------------------------------------------------------------------

export async function ground(file, phrase, isCurrent) {
  const { phrases: [found] } = await ask("ground", { image: file, phrase });
  if (!isCurrent()) return;
  clearChoice();
  const { x, y, score } = found.peak;
  const isFound = !isBeyond && (found.percentile ?? 50) >= 50;
  showHeat({
    ...found, isFound,
    words: `Best score ${score.toFixed(3)} at x ${Math.round(x)}, y ${Math.round(y)} px. ${standing(found.percentile)}${isFound ? "" : " No box is drawn."}`,
  });
}

export function showHeat(found) {
  view.heat = found && { ...paintHeat(found.grid, view.image), box: found.box, isFound: found.isFound, words: found.words.trim() };
  view.showHeat = true;
  find("peak").textContent = view.heat?.words ?? "";
  if (found && matchMedia("(max-width: 900px)").matches) find("sight").scrollIntoView({ block: "start" });
  draw();
}
