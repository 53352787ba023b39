// What every part of the page needs: its elements, its messages, and the look that is remembered.

export const find = (id) => document.getElementById(id);

export function make(tag, names = "", text = "") {
  const element = document.createElement(tag);
  element.className = names;
  element.textContent = text;
  return element;
}

let fading = 0;
export function say(text) {
  const status = find("status");
  status.textContent = text;
  status.classList.add("shown");
  clearTimeout(fading);
  fading = setTimeout(() => status.classList.remove("shown"), 6000);
}

// The theme is all that this page stores.
const root = document.documentElement;

export function startTheme() {
  const light = matchMedia("(prefers-color-scheme: light)").matches;
  root.dataset.theme = localStorage.getItem("theme") ?? (light ? "light" : "dark");
  find("theme").addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "light" ? "dark" : "light";
    if ((root.dataset.theme === "light") === light) localStorage.removeItem("theme");
    else localStorage.setItem("theme", root.dataset.theme);
  });
}
