"use strict";
// Rows that change: the page's URL with live=1 sends elements by id, and the rest stays untouched.
const liveUrl = document.body.dataset.live;
let source = null;

function replace(id, html) {
  const old = document.getElementById(id);
  if (!old || old.contains(document.activeElement)) return;
  const holder = document.createElement("template");
  holder.innerHTML = html;
  const fresh = holder.content.firstElementChild;
  if (!fresh) return;
  if (fresh.tagName === "TR") fresh.classList.add("changed");
  old.replaceWith(fresh);
}

function follow() {
  if (document.hidden) {
    source?.close();
    source = null;
  } else if (!source) {
    source = new EventSource(liveUrl);
    source.onmessage = (event) => {
      for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(id, html);
    };
  }
}
if (liveUrl) {
  follow();
  document.addEventListener("visibilitychange", follow);
}

// Filters apply when a choice is made; typed text with Enter.
for (const select of document.querySelectorAll(".filters select")) {
  select.addEventListener("change", () => select.form.requestSubmit());
}

// Keys: / goes to the filter, g and a letter to a section, arrows from row to row.
let last = "";
const rows = () => [...document.querySelectorAll("td:first-child a")];
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  const key = event.key, before = last;
  last = key;
  if (key === "/") {
    const field = document.querySelector("input[type=search]");
    if (!field) return;
    event.preventDefault();
    field.focus();
  } else if (before === "g") {
    const links = [...document.querySelectorAll(".side nav a")];
    links.find((link) => link.textContent.trim().toLowerCase().startsWith(key))?.click();
  } else if (key === "j" || key === "k") {
    const links = rows(), index = links.indexOf(document.activeElement);
    links[key === "j" ? index + 1 : Math.max(0, index - 1)]?.focus();
  }
});

// A search that has not ended: rows are added as they are found, until it ends or the page is left.
const results = document.querySelector("[data-search]");
if (results) {
  const events = new EventSource(results.dataset.search);
  const end = () => events.close();
  events.addEventListener("row", (event) => {
    results.querySelector("tbody").insertAdjacentHTML("beforeend", JSON.parse(event.data));
  });
  events.addEventListener("state", (event) => replace("search-state", JSON.parse(event.data)));
  events.addEventListener("end", end);
  events.onerror = end;
  addEventListener("pagehide", end);
}
for (const box of document.querySelectorAll("input[data-all]")) {
  box.addEventListener("change", () => {
    for (const other of box.form.querySelectorAll("input[type=checkbox]")) other.checked = box.checked;
  });
}
