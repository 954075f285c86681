"use strict";
(() => {
  // A click on a head sorts by it; unknown values stay last either way --------------------------------

  const orderOf = (cell) => {
    const number = cell.getAttribute("data-sort");
    if (number !== null) return Number(number);
    return cell.textContent === "-" ? null : cell.textContent;
  };

  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === typeof b) return a < b ? -1 : Number(a > b);
    return typeof a === "number" ? -1 : 1;
  };

  const sortBy = (table, place, head) => {
    const numeric = head.classList.contains("right");
    const before = head.getAttribute("aria-sort");
    const ascending = before === null ? !numeric : before === "descending";
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => ({ row, order: orderOf(row.cells[place]) }));
    rows.sort((a, b) => {
      if (a.order === null || b.order === null) return Number(a.order === null) - Number(b.order === null);
      return ascending ? compare(a.order, b.order) : compare(b.order, a.order);
    });
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    body.append(...rows.map((one) => one.row));
  };

  for (const table of document.querySelectorAll("table")) {
    Array.from(table.tHead.rows[0].cells).forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sortBy(table, place, head));
    });
  }
})();
