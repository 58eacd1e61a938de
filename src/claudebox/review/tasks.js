"use strict";
const table = document.getElementById("all");
const rows = [...table.tBodies[0].rows];
const search = document.getElementById("search");
const told = document.getElementById("told");
const choices = [...document.querySelectorAll(".filter button")];
let outcome = "";

const filter = () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = (outcome && row.className !== outcome) || !words.every((word) => text.includes(word));
    shown += !row.hidden;
  }
  told.textContent = `${shown} of ${rows.length}`;
};
for (const button of choices) {
  button.addEventListener("click", () => {
    outcome = button.value;
    for (const other of choices) other.setAttribute("aria-pressed", String(other === button));
    filter();
  });
}
search.addEventListener("input", filter);

const value = (row, column) => {
  const cell = row.cells[column];
  const number = cell.getAttribute("data-value");
  return number === null ? cell.textContent : Number(number);
};
[...table.tHead.rows[0].cells].forEach((head, column) => {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : head.className === "n";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const ordered = rows.slice().sort((one, other) => {
      const [a, b] = [value(one, column), value(other, column)];
      const order = typeof a === "number" ? a - b : a.localeCompare(b);
      return down ? -order : order;
    });
    table.tBodies[0].append(...ordered);
  });
});
document.querySelector(".filter").hidden = false;
filter();
