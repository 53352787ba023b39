// A short tour: what each part of the page is for, one at a time.

import { find } from "./page.js";

const STOPS = [
  [".stage", "Drop images here, or open several at once. Drag opens the window on all 16 bits; the wheel zooms. All keys stand at the foot of the page."],
  ["#findings-card", "Each bar compares two sentences about a finding; the thin line is the threshold. Choose a finding to see where, and to change its sentences."],
  ["#phrase-card", "Type any phrase to see where it fits. The colour bar gives the scores; the line below says how the image stands against others."],
  ["#cases-card", "Images and sentences that are alike. Choose one to see it next to yours: window, zoom and place go together."],
  [".toolbar", "Draw a box to ask what it shows, measure, pin an image to compare it with the next, or save the view as a picture."],
];
let at = 0;

function show(number) {
  document.querySelector(".pointed")?.classList.remove("pointed");
  at = number;
  if (at >= STOPS.length) return find("tour").close();
  const [selector, words] = STOPS[at];
  const target = document.querySelector(selector);
  target.classList.add("pointed");
  target.scrollIntoView({ block: "nearest" });
  find("tour-words").textContent = words;
  find("tour-step").textContent = `${at + 1} of ${STOPS.length}`;
  find("tour-next").textContent = at + 1 < STOPS.length ? "Next" : "Done";
}

export function startTour() {
  for (const id of ["tour-open", "tour-again"]) find(id).addEventListener("click", () => {
    find("about").close();
    find("tour").show();
    show(0);
    find("tour-next").focus();
  });
  find("tour-next").addEventListener("click", () => show(at + 1));
  find("tour-close").addEventListener("click", () => find("tour").close());
  find("tour").addEventListener("close", () => document.querySelector(".pointed")?.classList.remove("pointed"));
}
