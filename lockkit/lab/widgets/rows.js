// The table of generations beside the diagram: any number of rows, of which only those in view are
// in the page. Arrow keys walk through it; Enter, or a click, chooses. Its caption folds it.

const ROW_H = 22;             // as lanes.css has it
const GENERATIONS = "Generations of the lock object";
const ROWS_AROUND = 12;       // that are drawn above and below what is in view

class Rows {
  /** `choose(row)` is called with the generation that was clicked. */
  constructor(parent, choose) {
    this.choose = choose;
    this.all = [];
    this.selected = this.active = "";
    this.shown = Infinity;
    this.caption = html("button", "lk-caption", GENERATIONS, parent);
    this.caption.type = "button";
    this.caption.addEventListener("click", () => this.open(this.box.hidden));
    this.box = html("div", "lk-rows", "", parent);
    const table = html("table", "", "", this.box);
    table.setAttribute("aria-label", GENERATIONS);
    const head = html("tr", "", "", html("thead", "", "", table));
    for (const name of ["#", "time", "version", "by", "epoch", "write", "answer"]) {
      html("th", "", name, head).setAttribute("scope", "col");
    }
    this.table = table;
    this.body = html("tbody", "", "", table);
    this.box.addEventListener("scroll", () => this.draw(false));
    // Not "click": during a live run the rows are drawn anew between the press and the release.
    this.body.addEventListener("mousedown", (event) => { if (event.button === 0) this.clicked(event); });
    this.body.addEventListener("keydown", (event) => this.key(event));
  }

  /** What its rows are: the caption, and the name of the button that folds it. */
  name(caption) {
    this.caption.textContent = caption;
    this.caption.setAttribute("aria-label", caption);
  }

  /** Unfold the table, or fold it. */
  open(on) {
    this.box.hidden = !on;
    this.caption.setAttribute("aria-expanded", String(on));
    if (on) this.draw(true);
  }

  /** The newest is at the bottom: it stays in view while the run goes on, and at its end. */
  fill(rows, follow, ended = false) {
    const below = this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - 30;
    const stamp = JSON.stringify([rows.length, rows.at(-1), rows[0]]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    this.all = rows;
    this.places = new Map(rows.map((row, place) => [row.id, place]));
    if (!this.places.has(this.active)) this.active = rows.length ? rows[0].id : "";
    this.table.setAttribute("aria-rowcount", rows.length + 1);
    this.draw(true);
    if ((below && follow) || ended) this.box.scrollTop = this.box.scrollHeight;
  }

  /** Rows in view, between two that are as high as all those above and below them. */
  draw(force) {
    const top = Math.floor(this.box.scrollTop / ROW_H);
    const bottom = Math.ceil((this.box.scrollTop + (this.box.clientHeight || 200)) / ROW_H);
    if (!force && this.from <= Math.max(0, top - 2) && this.to >= Math.min(this.all.length, bottom + 2)) return;
    this.from = Math.max(0, top - ROWS_AROUND);
    this.to = Math.min(this.all.length, bottom + ROWS_AROUND);
    const focused = this.body.contains(document.activeElement);
    const drawn = this.all.slice(this.from, this.to).map((row, n) => this.row(row, this.from + n));
    this.body.replaceChildren(blankRow(this.from), ...drawn, blankRow(this.all.length - this.to));
    if (focused) this.focus();
  }

  /** Rows that are later than this time are faded, as in the picture; the last of the others is in view. */
  until(t) {
    if (t === this.shown) return;
    this.shown = t;
    for (const node of this.body.children) node.classList.toggle("lk-later", this.all[this.places?.get(node.dataset.row)]?.t > t);
    if (t < Infinity) within(this.box, (upTo(this.all.map((row) => row.t), t) + 1) * ROW_H, ROW_H);
  }

  row(row, place) {
    const node = document.createElement("tr");
    node.classList.toggle("lk-later", row.t > this.shown);
    node.dataset.row = row.id;
    node.dataset.arrow = row.arrow;
    node.setAttribute("aria-rowindex", place + 2);
    node.setAttribute("aria-selected", String(row.id === this.selected));
    node.classList.toggle("lk-selected", row.id === this.selected);
    node.tabIndex = row.id === this.active ? 0 : -1;
    const cells = [row.n, seconds(row.t), row.version, row.who, row.epoch || "", row.op, row.answer];
    cells.forEach((cell, i) => {
      const td = html("td", i === 3 ? `lk-who lk-w${row.hue % 6}` : "", String(cell), node);
      if (i === 2 || i === 6) td.title = i === 2 ? row.full : row.answer;
    });
    return node;
  }

  /** Mark a generation ("" for none) and bring it into view. */
  select(id) {
    if (id === this.selected) return;
    this.selected = id;
    const place = id && this.places ? this.places.get(id) : undefined;
    if (place !== undefined) {
      this.active = id;
      within(this.box, (place + 1) * ROW_H, ROW_H);
    }
    this.draw(true);
  }

  clicked(event) {
    const node = event.target.closest("tr[data-row]");
    if (!node) return;
    this.active = node.dataset.row;
    this.choose(this.all[this.places.get(this.active)]);
  }

  key(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      event.stopPropagation();
      this.clicked(event);
    } else if (event.key in moves && this.all.length) {
      event.preventDefault();
      event.stopPropagation();      // the notebook would move to another cell
      const place = this.places.get(this.active) + moves[event.key];
      this.active = this.all[Math.max(0, Math.min(this.all.length - 1, place))].id;
      within(this.box, (this.places.get(this.active) + 1) * ROW_H, ROW_H);
      this.draw(true);
      this.focus();
    }
  }

  focus() {
    const node = [...this.body.children].find((each) => each.dataset.row === this.active);
    if (node) node.focus({ preventScroll: true });
  }
}

function blankRow(rows) {
  const node = html("tr", "lk-blank");
  node.setAttribute("aria-hidden", "true");
  const cell = html("td", "", "", node);
  cell.colSpan = 7;
  cell.style.height = `${rows * ROW_H}px`;
  node.hidden = rows <= 0;
  return node;
}
