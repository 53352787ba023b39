// Names and keyboard focus that the theme's own parts lack, once it has made them.
addEventListener("load", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const [id, name] of [["__search", "Search"], ["__drawer", "Menu"]]) {
    document.getElementById(id)?.setAttribute("aria-label", name);
  }
  const scrolling = ".md-sidebar__scrollwrap, .md-typeset__scrollwrap";
  for (const part of document.querySelectorAll(scrolling)) part.tabIndex = 0;
});
