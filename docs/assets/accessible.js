// What the theme leaves to a keyboard and to a screen reader: names, and code that can be scrolled without a mouse.

document$.subscribe(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  requestAnimationFrame(() => document.querySelectorAll("pre > code, .output pre, .md-typeset__scrollwrap").forEach(
    (scrolled) => scrolled.setAttribute("tabindex", "0"))); // tables are wrapped by the theme in this turn
  document.querySelectorAll(".md-code__nav").forEach((nav, at) => nav.setAttribute("aria-label", `Code block ${at + 1}`));
});
