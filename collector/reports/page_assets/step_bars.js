"use strict";
(() => {
  const NS_PER_MS = 1e6;
  const WIDTH = 1000;

  const chosen = document.getElementById("bars-step");
  if (chosen === null) return;
  const bars = Array.from(document.querySelectorAll("#bars .bar"), (row) => {
    const drawing = row.querySelector("svg");
    return { row, drawing, views: JSON.parse(drawing.dataset.parts), name: row.firstElementChild.textContent };
  });
  const names = Array.from(bars[0].drawing.querySelectorAll("title"), (title) => title.textContent.replace(/ [^ ]+ ms$/, ""));
  const ms = (ns, decimals = 3) => {
    const format = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
    return `${(ns / NS_PER_MS).toLocaleString("en", format)} ms`;
  };
  const sumOf = (parts) => parts.reduce((a, b) => a + b, 0);

  const drawBar = ({ drawing, row, name }, parts, longestNs) => {
    let at = 0;
    parts.forEach((ns, part) => {
      const rect = drawing.children[part];
      const width = (ns * WIDTH) / longestNs;
      rect.setAttribute("x", at.toFixed(2));
      rect.setAttribute("width", width.toFixed(2));
      rect.firstElementChild.textContent = `${names[part]} ${ms(ns)}`;
      at += width;
    });
    drawing.setAttribute("aria-label", `${name}: ${parts.map((ns, part) => `${names[part]} ${ms(ns)}`).join(", ")}`);
    row.lastElementChild.textContent = ms(sumOf(parts), 1);
  };

  // Ranks that do not have the chosen step are hidden; the longest bar is as wide as the page.
  chosen.addEventListener("change", () => {
    const view = Number(chosen.value);
    const shown = bars.filter((bar) => bar.views[view] !== null);
    const longestNs = Math.max(1, ...shown.map((bar) => sumOf(bar.views[view])));
    for (const bar of bars) bar.row.hidden = bar.views[view] === null;
    for (const bar of shown) drawBar(bar, bar.views[view], longestNs);
  });
})();
