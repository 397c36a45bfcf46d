"use strict";
const tip = document.getElementById("tip");

// Plots have tips of their own: beside them a browser would show their titles.
for (const title of document.querySelectorAll("svg > title")) title.remove();

function add(parent, tag, text, kind = "") {
  const made = Object.assign(document.createElement(tag), { textContent: text, className: kind });
  return parent.appendChild(made);
}

function show(event) {
  const at = event.target.closest("[data-tip]");
  tip.hidden = !at;
  if (!at) return;
  tip.replaceChildren();
  for (const text of at.dataset.tip.split("\n")) {
    const line = add(tip, "p", ""), [name, number, color] = text.split("\t");
    if (color) add(line, "i", "", color);
    add(line, "bdi", name);
    if (number) add(line, "b", number);
  }
  const { clientX: x, clientY: y } = event, { offsetWidth: width, offsetHeight: height } = tip;
  const left = x + width + 24 < innerWidth ? x + 16 : Math.max(8, x - width - 12);
  tip.style.left = left + "px";
  tip.style.top = Math.max(8, Math.min(y + 16, innerHeight - height - 8)) + "px";
}
for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, show);
for (const kind of ["scroll", "pointerleave"]) {
  document.addEventListener(kind, () => { tip.hidden = true; });
}

// A topic at the pointer, wherever it is named, stands out in the timeline.
document.addEventListener("pointerover", (event) => {
  const color = event.target.closest("[data-series]")?.dataset.series;
  const isDrawn = color && document.querySelector(".series." + color);
  for (const one of document.querySelectorAll(".series")) {
    one.classList.toggle("faint", Boolean(isDrawn) && !one.classList.contains(color));
  }
});

function sort(th) {
  const at = th.cellIndex, isNumber = th.classList.contains("number");
  const was = th.getAttribute("aria-sort");
  const isDown = was ? was === "ascending" : isNumber;
  for (const one of th.parentElement.cells) one.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", isDown ? "descending" : "ascending");
  const body = th.closest("table").tBodies[0];
  const keyed = [...body.rows].map((row) => {
    const text = row.cells[at].textContent;
    return [isNumber ? Number(text.replaceAll(",", "")) : text, row];
  });
  keyed.sort(([a], [b]) => (isNumber ? a - b : a.localeCompare(b)) * (isDown ? -1 : 1));
  body.append(...keyed.map(([, row]) => row));
}
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sort(button.parentElement));
}
