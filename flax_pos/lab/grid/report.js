// A click on a heading sorts by that column, numbers before words, and again the other way.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows].at(-1).cells;
  const value = (row, column) => {
    const text = (row.cells[column].querySelector("b") ?? row.cells[column]).firstChild?.textContent ?? "";
    const number = parseFloat(text.replace(/[≥,]/g, ""));
    return Number.isNaN(number) ? row.cells[column].textContent.trim() : number;
  };
  const compare = (a, b) =>
    typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
  [...heads].forEach((head, column) => {
    if (!head.classList.contains("sort")) return;
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => (up ? 1 : -1) * compare(value(a, column), value(b, column)));
      table.tBodies[0].append(...rows);
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
}
