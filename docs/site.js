// Names and keyboard focus that the theme's own parts lack.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
for (const [id, name] of [["__search", "Search"], ["__drawer", "Menu"]]) {
  document.getElementById(id)?.setAttribute("aria-label", name);
}
for (const part of document.querySelectorAll(".md-sidebar__scrollwrap")) part.tabIndex = 0;
