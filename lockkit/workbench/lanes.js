// The space-time diagram: one drawing for the live view, the replay and the one-file export.
//
// Time runs down. The lock object is on the left, the table on the right, the writers between them,
// so that traffic with the lock goes left and commits go right. `layout` is pure (scene in, shapes
// and labels out) and is tested without a browser; `render` draws what is in view. Text from a
// bucket is untrusted: it reaches the page through textContent and setAttribute only.

const TIME_W = 66;        // gutter of the clock
const GEN_W = 86;         // gutter of the generation labels
const TABLE_W = 84;       // gutter of the completed instants
const LANE_MIN = 118;     // between two neighbouring lanes
const LINE = 14;          // a line of labels
const TOP = 14;
const FLIGHT = 9;         // an arrow falls at least this far, so that its direction can be seen
const GAP_MAX = 46;       // idle time is elided beyond this
const ELIDED_MS = 1500;
const CHAR = 6.3;         // an estimate of a label's width; the halo forgives the rest
const TICK = 30;

/** How far down the page `ms` of quiet go: bursts are spread, idle time is squeezed. */
export function fall(ms) {
  return Math.min(GAP_MAX, 1.25 * Math.sqrt(Math.max(0, ms)));
}

/** Scene in, geometry out. No DOM; the same scene and width always give the same answer. */
export function layout(scene, width, options = {}) {
  const reads = options.reads !== false;
  const lanes = place(scene.lanes, width);
  const at = Object.fromEntries(lanes.map((lane) => [lane.id, lane.x]));
  const arrows = scene.arrows.filter((a) => reads || a.kind !== "read");
  const marks = scene.marks.filter((m) => at[m.lane] !== undefined);
  const axis = stretch(scene, arrows, marks, at);
  const bars = scene.bars
    .filter((b) => at[b.lane] !== undefined && (reads || b.kind !== "polls"))
    .map((b) => ({ ...b, x: at[b.lane], y: axis.at(b.t[0]), y2: Math.max(axis.at(b.t[1]), axis.at(b.t[0]) + 2) }));
  const drawn = arrows.map((a) => fly(a, at, axis));
  const points = marks.map((m) => ({ ...m, x: at[m.lane], y: axis.of.get(m.id) ?? axis.at(m.t) }));
  const labels = [...axis.labels, ...caption(bars, axis.labels, lanes)];
  return {
    width: lanes.length ? Math.max(width, lanes[lanes.length - 1].x + TABLE_W) : width,
    height: axis.height + 18,
    lanes, bars, arrows: drawn, marks: points, labels,
    ticks: axis.ticks, gaps: axis.gaps, anchors: axis.anchors,
    stops: stops(drawn, points, bars),
  };
}

function place(lanes, width) {
  const between = lanes.length - 1;
  const first = TIME_W + GEN_W;
  const step = Math.max(LANE_MIN, between > 0 ? (width - first - TABLE_W) / between : 0);
  return lanes.map((lane, i) => ({ ...lane, x: Math.round(first + i * step) }));
}

/** The clock's y for every event: time order is kept, labels never meet, idle time is elided. */
function stretch(scene, arrows, marks, at) {
  const entries = timeline(scene, arrows, marks);
  const placed = { anchors: [], of: new Map(), labels: [], ticks: [], gaps: [], recent: [] };
  let y = TOP;
  let before = entries[0].t;
  let ticked = -TICK;
  for (const entry of entries) {
    const quiet = entry.t - before;
    const down = fall(quiet);
    if (quiet > ELIDED_MS) placed.gaps.push({ y: y + down / 2, ms: quiet });
    const boxes = boxesOf(entry, at);
    y = Math.max(y + down, apart(entry, placed.of), ...boxes.map((box) => clear(placed.recent, box)));
    if (entry.arrow) placed.of.set(entry.arrow.id + entry.stage, y);
    if (entry.mark) placed.of.set(entry.mark.id, y);
    for (const box of boxes) {
      box.y = y + box.dy;
      placed.recent.push(box);
      if (box.text) placed.labels.push(box);
    }
    if (placed.recent.length > 60) placed.recent.splice(0, 20);
    if ((boxes.some((box) => box.text) || placed.anchors.length === 0) && y - ticked >= TICK) {
      const last = placed.ticks.at(-1);
      placed.ticks.push({ y, t: entry.t, digits: last && entry.t - last.t < 60 ? 3 : 2 });
      ticked = y;
    }
    placed.anchors.push([entry.t, y]);
    before = entry.t;
  }
  return { ...placed, height: y + TOP, at: (t) => interpolate(placed.anchors, t) };
}

/** Every moment that needs a y. A mark that an arrow makes (a generation, a commit) shares its tip. */
function timeline(scene, arrows, marks) {
  const made = new Map(marks.filter((m) => m.arrow).map((m) => [m.arrow, m]));
  const entries = [];
  for (const arrow of arrows) {
    arrow.t.forEach((t, stage) => {
      if (t !== null) entries.push({ t, arrow, stage, mark: stage === 1 ? made.get(arrow.id) : undefined });
    });
  }
  const known = new Set(arrows.map((a) => a.id));
  for (const mark of marks) if (!known.has(mark.arrow)) entries.push({ t: mark.t, mark });
  for (const bar of scene.bars) bar.t.forEach((t) => entries.push({ t }));
  entries.push({ t: scene.span[0] }, { t: scene.span[1] });
  return entries.sort((p, q) => p.t - q.t || (p.stage ?? -1) - (q.stage ?? -1));
}

/** An arrow falls a little on each leg, however fast the store was. */
function apart({ arrow, stage }, of) {
  if (!arrow || !stage) return -Infinity;
  const from = of.get(arrow.id + (stage - 1)) ?? of.get(`${arrow.id}0`);
  return from === undefined ? -Infinity : from + FLIGHT;
}

/** What an event occupies: its label beside its lane, its disc, and where an arrow ends. */
function boxesOf({ arrow, mark, stage }, at) {
  const boxes = [];
  if (arrow) {
    const home = at[arrow.lane];
    const store = at[arrow.side];
    const left = arrow.side === "lock";
    const kind = arrow.kind === "read" ? "read" : arrow.look === "refused" && arrow.op === "acquire" ? "busy" : arrow.look;
    // Where no answer comes back to hold the next label off, the arrow itself has to.
    if (stage === 0 && home !== undefined && arrow.t[2] === null) boxes.push(blank(left ? home - 110 : home + 10, left ? home - 10 : home + 110, 15));
    if (stage === 0 && home !== undefined) {
      boxes.push(labelled(arrow.id, arrow.label, home + (left ? -12 : 12), left ? "end" : "start", -4, kind, arrow.hue));
    }
    if (stage === 1) boxes.push(blank(left ? store + 2 : store - 24, left ? store + 24 : store - 2, 6));
    if (stage === 2 && home !== undefined) boxes.push(blank(left ? home - 46 : home + 10, left ? home - 10 : home + 46, 12));
  }
  if (mark) {
    const x = at[mark.lane];
    const left = mark.kind === "generation";
    if (mark.label) boxes.push(labelled(mark.id, mark.label, x + (left ? -13 : 13), left ? "end" : "start", 4, mark.kind, mark.hue));
    if (!left && mark.kind !== "commit") boxes.push(blank(x - 16, x + 9, 12));
  }
  return boxes;
}

/** Room without a label; `tall` is how near the next thing may come. */
function blank(x0, x1, tall) {
  return { text: "", x0, x1, dy: 0, tall, y: 0 };
}

function labelled(id, text, x, anchor, dy, kind, hue) {
  const wide = text.length * CHAR;
  return { id, text, x, anchor, dy, kind, hue, x0: anchor === "end" ? x - wide : x, x1: anchor === "end" ? x : x + wide, y: 0 };
}

/** The highest place at which this box touches none of those above it. */
function clear(recent, label) {
  let y = -Infinity;
  for (const other of recent) {
    if (other.x0 >= label.x1 + 4 || label.x0 >= other.x1 + 4) continue;
    const room = label.text && other.text ? LINE : Math.max(label.tall ?? 0, other.tall ?? 0);
    y = Math.max(y, other.y + room - label.dy);
  }
  return y;
}

/** The y of a time: the last thing that happened then, or a point between two happenings. */
function interpolate(anchors, t) {
  let low = 0;
  let high = anchors.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (anchors[middle][0] <= t) low = middle + 1; else high = middle;
  }
  if (low === 0) return anchors[0][1];
  const [t0, y0] = anchors[low - 1];
  if (low === anchors.length || t === t0) return y0;
  const [t1, y1] = anchors[low];
  return y0 + ((y1 - y0) * (t - t0)) / (t1 - t0);
}

/** Labels of bars go where there is room, or nowhere: the detail line says it all the same. */
function caption(bars, taken, lanes) {
  const found = [];
  const free = (box) => ![...taken, ...found].some(
    (other) => other.x0 < box.x1 + 4 && box.x0 < other.x1 + 4 && Math.abs(other.y - box.y) < LINE);
  const wanted = bars.filter((b) => b.label);
  for (const bar of wanted) {
    const left = bar.kind !== "polls";
    const lane = lanes.find((l) => l.id === bar.lane);
    const label = labelled(bar.id, bar.label, lane.x + (left ? -14 : 14), left ? "end" : "start", 4, bar.kind, bar.hue);
    const middle = (bar.y + bar.y2) / 2;
    for (let step = 0; step <= (bar.y2 - bar.y) / 2 - 4; step += 4) {
      const spot = [middle - step, middle + step].find((y) => free({ ...label, y: y + 4 }));
      if (spot === undefined) continue;
      found.push({ ...label, y: spot + 4 });
      break;
    }
  }
  return found;
}

/** An arrow's legs: there, and back unless nothing came back. */
function fly(arrow, at, axis) {
  const store = at[arrow.side];
  const home = at[arrow.lane];
  const [asked, decided, answered] = arrow.t.map((t, i) => (t === null ? null : axis.of.get(arrow.id + i) ?? axis.at(t)));
  const inset = (x, towards) => x + Math.sign(towards - x) * 9;
  const legs = [];
  let cross = null;
  if (home === undefined || asked === null) {
    legs.push({ x1: inset(store, store + (arrow.side === "lock" ? 1 : -1)) + (arrow.side === "lock" ? 46 : -46), y1: decided, x2: inset(store, store + (arrow.side === "lock" ? 1 : -1)), y2: decided, head: true, way: "there" });
  } else {
    const from = inset(home, store);
    const to = inset(store, home);
    const half = home + (store - home) * 0.55;
    if (decided === null) {
      legs.push({ x1: from, y1: asked, x2: half, y2: asked + FLIGHT, head: false, way: "there" });
      if (arrow.look === "dropped") cross = { x: half, y: asked + FLIGHT };
      else if (answered !== null) legs.push({ x1: half, y1: asked + FLIGHT, x2: from, y2: Math.max(answered, asked + 2 * FLIGHT), head: true, way: "back" });
    } else {
      legs.push({ x1: from, y1: asked, x2: to, y2: decided, head: true, way: "there" });
      if (arrow.look === "lost") {
        legs.push({ x1: to, y1: decided, x2: half, y2: decided + FLIGHT, head: false, way: "back" });
        cross = { x: half, y: decided + FLIGHT };
      } else if (answered !== null && answered >= decided) {
        legs.push({ x1: to, y1: decided, x2: from, y2: answered, head: true, way: "back" });
      }
    }
  }
  const ys = legs.flatMap((leg) => [leg.y1, leg.y2]);
  return { ...arrow, legs, cross, y: Math.min(...ys), y2: Math.max(...ys), x: home ?? store };
}

/** What the keyboard visits, in the order of time. */
function stops(arrows, marks, bars) {
  const kinds = ["stall", "wrong", "over", "polls"];
  return [
    ...arrows.map((a) => ({ id: a.id, y: a.y, y2: a.y2, lane: a.lane, detail: a.detail, row: a.row, evidence: a.evidence })),
    ...marks.map((m) => ({ id: m.id, y: m.y - 6, y2: m.y + 6, lane: m.lane, detail: m.detail, row: m.row || "", evidence: m.evidence })),
    ...bars.filter((b) => kinds.includes(b.kind)).map((b) => ({ id: b.id, y: b.y, y2: b.y2, lane: b.lane, detail: b.detail, row: "", evidence: b.evidence })),
  ].sort((p, q) => p.y - q.y || (p.id < q.id ? -1 : 1));
}

export function seconds(ms, digits = 2) {
  return `${(ms / 1000).toFixed(digits)} s`;
}

// --- drawing -----------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";
const GLYPHS = { VALID: "\u2713", INVALID: "\u2717", UNKNOWN: "?" };
let instances = 0;

function svg(name, attributes = {}, parent = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (parent) parent.appendChild(node);
  return node;
}

function html(name, className = "", text = "", parent = null) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}

/** anywidget's entry, and the export's: `model` needs get, set, save_changes, on, off, send. */
export function render({ model, el }) {
  const view = new View(model, el);
  model.send({ type: "snapshot" });   // a reloaded page has missed what was sent before it came
  return () => view.close();
}

class View {
  constructor(model, el) {
    this.model = model;
    this.prefix = `lk${++instances}-`;
    this.reads = true;
    this.selected = "";
    this.held = false;            // the reader is looking: keep the live picture still
    this.pinned = true;           // follow the newest event
    this.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.build(el);
    this.listeners = ["scene", "status", "cursor", "selected", "live"].map((name) => {
      const heard = () => this.heard(name);
      model.on(`change:${name}`, heard);
      return [name, heard];
    });
    this.timers = [];
    if (model.get("beats")) this.timers.push(setInterval(() => model.send({ type: "hb" }), 5000));
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.pane);
    this.status();
    this.draw();
  }

  close() {
    for (const [name, heard] of this.listeners) this.model.off(`change:${name}`, heard);
    this.timers.forEach(clearInterval);
    this.stop();
    this.resized.disconnect();
  }

  heard(name) {
    if (name === "status") this.status();
    else if (name === "live") { this.ended = !this.model.get("live"); this.mode(); }
    else if (name === "selected") this.select(this.model.get("selected"), false);
    else if (name === "cursor") this.scrub();
    else if (this.held) this.badge.hidden = false;
    else this.draw();
  }

  // --- the frame around the diagram ---

  build(el) {
    this.root = html("section", "lk", "", el);
    this.root.setAttribute("aria-label", "Lock workbench");
    this.root.dataset.bench = String(Boolean(this.model.get("beats")));
    this.head = html("div", "lk-head", "", this.root);
    this.pill = html("span", "lk-pill", "", this.head);
    this.facts = html("span", "lk-facts", "", this.head);
    this.said = html("span", "lk-said", "", this.head);
    this.said.setAttribute("role", "status");
    this.verdict = html("div", "lk-verdict", "", this.root);
    this.error = html("div", "lk-error", "", this.root);
    this.error.setAttribute("role", "alert");
    this.error.hidden = true;
    this.bar = html("div", "lk-bar", "", this.root);
    const body = html("div", "lk-body", "", this.root);
    this.pane = html("div", "lk-pane", "", body);
    this.titles = html("div", "lk-titles", "", this.pane);
    this.scroller = html("div", "lk-scroll", "", this.pane);
    this.canvas = svg("svg", { role: "group", "aria-label": "Space-time diagram: time runs down; arrow keys walk through the events" }, this.scroller);
    this.empty = html("div", "lk-empty", "", this.pane);
    this.detail = html("div", "lk-detail", "Point at an event, or Tab into the diagram and walk with the arrow keys.", this.pane);
    this.detail.setAttribute("aria-live", "polite");
    this.side = html("div", "lk-side", "", body);
    this.table(this.side);
    this.fold = html("details", "lk-legend", "", this.root);
    html("summary", "", "Log", this.fold);
    this.log = html("pre", "lk-log", "", this.fold);
    this.legend(this.root);
    this.controls();
    this.scroller.addEventListener("scroll", () => this.scrolled());
    this.scroller.addEventListener("pointerenter", () => this.hold(true));
    this.scroller.addEventListener("pointerleave", () => this.hold(false));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("pointerover", (event) => this.hover(event));
    this.canvas.addEventListener("click", (event) => this.clicked(event));
    this.canvas.addEventListener("focusin", (event) => this.clicked(event));
  }

  controls() {
    this.badge = html("span", "lk-badge", "paused while you look", this.bar);
    this.badge.hidden = true;
    this.window = html("span", "lk-clock", "live, the last 15 s", this.bar);
    const back = this.button("\u25C0", "Previous event", () => this.step(-1));
    this.play = this.button("\u25B6 Play", "Play", () => this.toggle());
    const on = this.button("\u25B6\u275A", "Next event", () => this.step(1));
    this.slider = html("input", "lk-slider", "", this.bar);
    Object.assign(this.slider, { type: "range", min: 0, max: 1000, value: 1000 });
    this.slider.setAttribute("aria-label", "Time");
    this.slider.addEventListener("input", () => this.slid());
    this.clock = html("span", "lk-clock", "", this.bar);
    this.replaying = [back, this.play, on, this.slider, this.clock];
    this.proof = this.button("Show the evidence", "Jump to the events that prove the verdict", () => this.prove());
    this.proof.hidden = true;
    const label = html("label", "lk-check", "", this.bar);
    const box = html("input", "", "", label);
    Object.assign(box, { type: "checkbox", checked: true });
    label.append(" reads");
    box.addEventListener("change", () => { this.reads = box.checked; this.draw(); });
  }

  /** Live: a short window that follows. Afterwards: all of it, to be scrubbed. */
  mode() {
    const live = Boolean(this.model.get("live"));
    const any = Boolean(this.plan);
    for (const node of this.replaying) node.hidden = live || !any;
    this.window.hidden = !live || !any;
    if (!live) this.held = false;
    this.bar.hidden = !any;
    this.root.classList.toggle("lk-live", live);
  }

  button(text, title, act) {
    const node = html("button", "lk-button", text, this.bar);
    node.type = "button";
    node.title = title;
    node.setAttribute("aria-label", title);
    node.addEventListener("click", act);
    return node;
  }

  table(side) {
    html("div", "lk-caption", "Generations of the lock object", side);
    const box = html("div", "lk-rows", "", side);
    const table = html("table", "", "", box);
    const row = html("tr", "", "", html("thead", "", "", table));
    for (const name of ["#", "time", "version", "by", "epoch", "write", "answer"]) {
      html("th", "", name, row).setAttribute("scope", "col");
    }
    this.rows = html("tbody", "", "", table);
    this.rowBox = box;
    this.rows.addEventListener("click", (event) => this.rowed(event));
    this.rows.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.rowed(event); }
    });
  }

  legend(parent) {
    const fold = html("details", "lk-legend", "", parent);
    html("summary", "", "How to read this", fold);
    const list = html("ul", "", "", fold);
    for (const [sign, words] of [
      ["left lane", "what the lock object says, coloured by its holder; each g is one successful write (generation) with the head of its ETag"],
      ["writer's bar", "what that writer believes: it holds the lock. Red, hatched: it still believes, but its lease is over"],
      ["grey hatching", "the process stands still (SIGSTOP): it can neither act nor notice"],
      ["dotted box", "the lease has run out and nobody has taken the lock yet"],
      ["solid arrow, dashed answer", "a write and the store's answer; dotted arrows are reads"],
      ["cross on an arrow", "the message was lost there: after the store applied the write, or before"],
      ["red, 412", "the store refused the write: the object had changed; amber, 429: too many writes, certainly not done"],
      ["proof", "at its first grant a lock writes twice under a false condition: the store must refuse both"],
      ["tick / cross in a circle", "a commit was published / refused, with its epoch; the right lane shows what readers of the table see"],
    ]) {
      const item = html("li", "", "", list);
      html("b", "", sign, item);
      item.append(`: ${words}`);
    }
  }

  status() {
    const status = this.model.get("status") || {};
    const state = status.state || "idle";
    this.pill.className = `lk-pill lk-state-${word(state)}`;
    this.pill.textContent = state;
    this.facts.replaceChildren(...(status.facts || []).map((fact) => html("span", "", fact)));
    if (this.said.textContent !== (status.said || "")) this.said.textContent = status.said || "";
    const verdict = status.verdict || "";
    this.verdict.hidden = !verdict;
    this.verdict.className = `lk-verdict lk-${word(verdict)}`;
    this.verdict.replaceChildren(html("b", "", `${GLYPHS[verdict] || ""} ${verdict}`));
    if (status.because) this.verdict.append(`  ${status.because}`);
    const log = (status.log || []).join("\n");
    this.fold.hidden = !log;
    if (this.log.textContent !== log) this.log.textContent = log;
    this.fail(status.error);
    this.root.dataset.state = state;
    this.root.dataset.verdict = verdict;
    this.root.dataset.said = status.said || "";
    this.empty.textContent = status.empty || "Nothing has happened yet.";
  }

  fail(error) {
    this.error.hidden = !error;
    if (!error || this.error.dataset.shown === error.summary) return;
    this.error.dataset.shown = error.summary;
    this.error.replaceChildren();
    html("b", "", error.summary, this.error);
    if (!error.traceback) return;
    const fold = html("details", "", "", this.error);
    html("summary", "", "Traceback", fold);
    html("pre", "", error.traceback, fold);
  }

  // --- the diagram ---

  draw() {
    const scene = this.model.get("scene") || {};
    const any = Boolean(scene.lanes && scene.lanes.length > 2);
    this.scene = scene;
    this.empty.hidden = any;
    for (const part of [this.scroller, this.titles, this.detail, this.side]) part.hidden = !any;
    this.root.dataset.events = String(scene.events || 0);
    this.badge.hidden = true;
    if (any) this.paint(scene);
    else { this.canvas.replaceChildren(); this.plan = null; }
    this.mode();
    this.fill(scene.rows || []);
    this.root.dataset.ready = "true";
  }

  paint(scene) {
    const width = Math.max(420, this.pane.clientWidth - 2);
    this.plan = layout(scene, width, { reads: this.reads });
    this.byId = new Map(this.plan.stops.map((stop, i) => [stop.id, i]));
    this.canvas.setAttribute("width", this.plan.width);
    this.canvas.setAttribute("height", this.plan.height);
    this.heads();
    this.proof.hidden = !this.plan.stops.some((stop) => stop.evidence);
    const follow = this.model.get("live") ? this.pinned && !this.held : this.ended;
    if (follow) this.scroller.scrollTop = this.plan.height;
    this.ended = false;
    this.visible(true);
    this.scrub();
  }

  heads() {
    this.titles.replaceChildren();
    const strip = html("div", "lk-strip", "", this.titles);
    strip.style.width = `${this.plan.width}px`;
    for (const lane of this.plan.lanes) {
      const hue = lane.role === "writer" ? `lk-w${lane.hue % 6}` : "lk-truth";
      const title = html("div", `lk-title ${hue}`, "", strip);
      title.style.left = `${lane.x}px`;
      html("b", "", lane.title, title);
      if (lane.state) html("i", `lk-is-${word(lane.state)}`, lane.state, title);
      else html("i", "", lane.id === "lock" ? "the truth" : "what readers see", title);
    }
    strip.style.transform = `translateX(${-this.scroller.scrollLeft}px)`;
  }

  scrolled() {
    const box = this.scroller;
    this.pinned = box.scrollTop + box.clientHeight >= box.scrollHeight - 40;
    const strip = this.titles.firstChild;
    if (strip) strip.style.transform = `translateX(${-box.scrollLeft}px)`;
    this.visible(false);
  }

  /** Only what is in view gets nodes: a soak's replay has tens of thousands of events. */
  visible(force) {
    if (!this.plan) return;
    const top = this.scroller.scrollTop - 300;
    const bottom = this.scroller.scrollTop + (this.scroller.clientHeight || 600) + 300;
    if (!force && this.from <= top + 250 && this.to >= bottom - 250) return;
    this.from = top;
    this.to = bottom;
    const focused = this.canvas.contains(document.activeElement);
    this.canvas.replaceChildren();
    this.patterns();
    const inside = (y, y2 = y) => y2 >= top && y <= bottom;
    const layer = (name) => svg("g", { class: name }, this.canvas);
    this.grid(layer("lk-grid"), inside);
    const bars = layer("lk-bars");
    for (const bar of this.plan.bars) if (inside(bar.y, bar.y2)) this.drawBar(bar, bars);
    const arrows = layer("lk-arrows");
    for (const arrow of this.plan.arrows) if (inside(arrow.y, arrow.y2)) this.drawArrow(arrow, arrows);
    const marks = layer("lk-marks");
    for (const mark of this.plan.marks) if (inside(mark.y - 10, mark.y + 10)) this.drawMark(mark, marks);
    const labels = layer("lk-labels");
    for (const label of this.plan.labels) if (inside(label.y)) this.drawLabel(label, labels);
    this.shade = svg("rect", { class: "lk-future", x: 0, width: this.plan.width, height: 0, y: 0 }, this.canvas);
    this.shadeFrom();
    this.mark();
    if (focused) this.focus();
  }

  patterns() {
    const defs = svg("defs", {}, this.canvas);
    for (const name of ["stall", "wrong"]) {
      const hatch = svg("pattern", { id: this.prefix + name, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${name === "stall" ? 45 : -45})` }, defs);
      svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: `lk-hatch-${name}` }, hatch);
    }
  }

  grid(layer, inside) {
    for (const lane of this.plan.lanes) {
      svg("line", { class: `lk-lane lk-${lane.role}`, x1: lane.x, x2: lane.x, y1: 0, y2: this.plan.height }, layer);
    }
    for (const tick of this.plan.ticks) {
      if (!inside(tick.y)) continue;
      svg("line", { class: "lk-tick", x1: TIME_W - 4, x2: this.plan.width, y1: tick.y, y2: tick.y }, layer);
      svg("text", { class: "lk-time", x: TIME_W - 10, y: tick.y + 4, "text-anchor": "end" }, layer).textContent = seconds(tick.t, tick.digits);
    }
    for (const gap of this.plan.gaps) {
      if (!inside(gap.y)) continue;
      if (this.plan.ticks.some((tick) => Math.abs(tick.y - gap.y) < 13)) continue;
      svg("text", { class: "lk-gap", x: TIME_W - 10, y: gap.y + 4, "text-anchor": "end" }, layer).textContent = `\u2248 ${seconds(gap.ms, 1)}`;
    }
  }

  group(item, className, parent) {
    const node = svg("g", { class: className, "data-id": item.id }, parent);
    if (this.byId.has(item.id)) {
      node.setAttribute("role", "button");
      node.setAttribute("tabindex", "-1");
      node.setAttribute("aria-label", item.detail);
    }
    if (item.evidence) node.classList.add("lk-evidence");
    return node;
  }

  drawBar(bar, parent) {
    const node = this.group(bar, `lk-bar-${bar.kind} lk-w${bar.hue % 6}`, parent);
    const wide = { owner: 14, over: 14, belief: 8, wrong: 8, stall: 18, polls: 2 }[bar.kind];
    const box = { x: bar.x - wide / 2, y: bar.y, width: wide, height: bar.y2 - bar.y, rx: bar.kind === "polls" ? 0 : 2 };
    if (bar.kind === "polls") {
      svg("line", { x1: bar.x + 7, x2: bar.x + 7, y1: bar.y, y2: bar.y2, class: "lk-run" }, node);
      return;
    }
    svg("rect", { ...box, class: "lk-fill" }, node);
    if (bar.kind === "stall" || bar.kind === "wrong") {
      svg("rect", { ...box, fill: `url(#${this.prefix}${bar.kind})`, class: "lk-over" }, node);
    }
  }

  drawArrow(arrow, parent) {
    const node = this.group(arrow, `lk-arrow lk-${arrow.kind} lk-look-${arrow.look} lk-w${arrow.hue % 6}`, parent);
    for (const leg of arrow.legs) {
      const line = { x1: leg.x1, y1: leg.y1, x2: leg.x2, y2: leg.y2 };
      svg("line", { ...line, class: "lk-hit" }, node);
      svg("line", { ...line, class: `lk-${leg.way}` }, node);
      if (leg.head) svg("path", { d: headPath(leg), class: `lk-tip lk-tip-${leg.way}` }, node);
    }
    const end = arrow.legs[0];
    if (arrow.look === "refused") svg("path", { d: crossPath(end.x2, end.y2, 4), class: "lk-no" }, node);
    if (arrow.cross) svg("path", { d: crossPath(arrow.cross.x, arrow.cross.y, 5.5), class: "lk-lost" }, node);
  }

  drawMark(mark, parent) {
    const node = this.group(mark, `lk-mark lk-mark-${mark.kind} lk-w${mark.hue % 6}`, parent);
    const { x, y } = mark;
    switch (mark.kind) {
      case "generation":
        svg("line", { x1: x - 10, x2: x + 8, y1: y, y2: y, class: "lk-notch" }, node);
        break;
      case "published":
      case "stale":
        svg("circle", { cx: x, cy: y, r: 7.5, class: "lk-disc" }, node);
        svg("path", { d: `M${x - 3.6} ${y + 0.2}l2.6 2.9l4.8 -5.8`, class: "lk-glyph" }, node);
        break;
      case "refused":
        svg("circle", { cx: x, cy: y, r: 7.5, class: "lk-ring" }, node);
        svg("path", { d: crossPath(x, y, 3), class: "lk-no" }, node);
        break;
      case "commit":
        svg("path", { d: `M${x} ${y - 7}l7 7l-7 7l-7 -7z`, class: "lk-disc" }, node);
        break;
      case "fault":
        svg("path", { d: `M${x + 2} ${y - 9}l-7 10h4.5l-1.5 8l7 -11h-4.5z`, class: "lk-bolt" }, node);
        break;
      case "checked":
        svg("circle", { cx: x, cy: y, r: 4, class: "lk-ring" }, node);
        break;
      default:
        svg("path", { d: `M${x - 6} ${y}h12M${x} ${y - 5}v10`, class: "lk-stop" }, node);
    }
    if (mark.evidence) svg("circle", { cx: x, cy: y, r: 12, class: "lk-halo" }, node);
  }

  drawLabel(label, parent) {
    const hue = label.kind === "generation" || label.kind === "owner" || label.kind === "commit" ? ` lk-w${label.hue % 6}` : "";
    svg("text", { class: `lk-label lk-label-${label.kind}${hue}`, x: label.x, y: label.y, "text-anchor": label.anchor, "data-for": label.id }, parent).textContent = label.text;
  }

  // --- choosing, walking, holding still ---

  hold(on) {
    if (!this.model.get("live")) return;
    this.held = on;
    if (!on && !this.badge.hidden) this.draw();
  }

  hover(event) {
    const id = named(event.target);
    if (id && !this.selected) this.tell(id);
  }

  clicked(event) {
    const id = named(event.target);
    if (event.type === "click" || id) this.select(id, true);
  }

  tell(id) {
    const stop = this.plan && this.plan.stops[this.byId.get(id)];
    if (stop) this.detail.textContent = stop.detail;
  }

  select(id, mine) {
    if (id === this.selected) return;
    this.selected = id || "";
    this.tell(id);
    this.mark();
    if (!mine) this.reveal();
    if (mine) { this.model.set("selected", this.selected); this.model.save_changes(); }
  }

  /** Show the selection in both pictures: the events and the table of generations. */
  mark() {
    const stop = this.plan && this.plan.stops[this.byId.get(this.selected)];
    for (const node of this.canvas.querySelectorAll("[data-id]")) {
      const same = Boolean(this.selected) && (node.dataset.id === this.selected || (stop && stop.row && node.dataset.id === stop.row));
      node.classList.toggle("lk-selected", same);
      node.setAttribute("tabindex", node.hasAttribute("role") && node.dataset.id === (this.selected || this.first()) ? "0" : "-1");
    }
    const row = stop ? stop.row : "";
    for (const node of this.rows.children) {
      const same = Boolean(row) && node.dataset.row === row;
      node.classList.toggle("lk-selected", same);
      node.setAttribute("aria-selected", String(same));
      if (same) within(this.rowBox, node.offsetTop, node.offsetHeight);
    }
  }

  first() {
    const stop = this.plan.stops.find((each) => each.y2 >= this.scroller.scrollTop);
    return stop ? stop.id : "";
  }

  key(event) {
    const moves = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") { this.select("", true); return; }
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation();      // the notebook would move to another cell
    this.walk(moves[event.key]);
    this.focus();
  }

  walk(by) {
    const stops = this.plan.stops;
    const now = this.byId.get(this.selected || this.first()) ?? 0;
    const next = this.selected ? now + by : now;
    this.select(stops[Math.max(0, Math.min(stops.length - 1, next))].id, true);
    this.reveal();
  }

  reveal() {
    const stop = this.plan && this.plan.stops[this.byId.get(this.selected)];
    if (!stop) return;
    within(this.scroller, stop.y, stop.y2 - stop.y);
    this.visible(false);
  }

  focus() {
    const node = [...this.canvas.querySelectorAll("[data-id]")].find((each) => each.dataset.id === this.selected);
    if (node) node.focus({ preventScroll: true });
  }

  prove() {
    const proofs = this.plan.stops.filter((stop) => stop.evidence);
    const now = proofs.findIndex((stop) => stop.id === this.selected);
    this.select(proofs[(now + 1) % proofs.length].id, true);
    this.reveal();
  }

  // --- replay ---

  slid() {
    const [from, to] = this.scene.span;
    this.move(from + ((to - from) * this.slider.value) / 1000);
  }

  move(t) {
    this.model.set("cursor", t);
    this.model.save_changes();
    this.scrub();
  }

  scrub() {
    if (this.model.get("live") || !this.plan) return;
    const [from, to] = this.scene.span;
    const t = this.model.get("cursor");
    const now = t < 0 ? to : Math.min(t, to);
    this.slider.value = to > from ? ((now - from) / (to - from)) * 1000 : 1000;
    this.clock.textContent = seconds(now);
    this.shadeFrom();
    if (t >= 0) within(this.scroller, interpolate(this.plan.anchors, now) - 60, 120);
  }

  shadeFrom() {
    if (!this.shade) return;
    const t = this.model.get("live") ? -1 : this.model.get("cursor");
    const y = t < 0 ? this.plan.height : interpolate(this.plan.anchors, t) + 2;
    this.shade.setAttribute("y", y);
    this.shade.setAttribute("height", Math.max(0, this.plan.height - y));
  }

  step(by) {
    if (!this.plan) return;
    this.stop();
    const times = [...new Set(this.plan.anchors.map(([t]) => t))];
    const t = this.model.get("cursor");
    const now = t < 0 ? times.length - 1 : times.findLastIndex((each) => each <= t);
    this.move(times[Math.max(0, Math.min(times.length - 1, now + by))]);
  }

  toggle() {
    if (this.playing) { this.stop(); return; }
    const [from, to] = this.scene.span;
    const t = this.model.get("cursor");
    if (t < 0 || t >= to) this.move(from);
    this.play.textContent = "\u275A\u275A Pause";
    const times = [...new Set(this.plan.anchors.map(([each]) => each))];
    this.playing = setInterval(() => {
      const next = times.find((each) => each > this.model.get("cursor"));
      if (next === undefined) this.stop();
      else this.move(next);
    }, this.still ? 600 : 120);
  }

  stop() {
    if (!this.playing) return;
    clearInterval(this.playing);
    this.playing = null;
    this.play.textContent = "\u25B6 Play";
  }

  // --- the table of generations ---

  fill(rows) {
    const below = this.rowBox.scrollTop + this.rowBox.clientHeight >= this.rowBox.scrollHeight - 30;
    const newest = rows.length ? rows[rows.length - 1] : null;
    const stamp = JSON.stringify([rows.length, newest, rows[0]]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    this.rows.replaceChildren(...rows.map((row) => this.row(row)));
    if (below && this.model.get("live")) this.rowBox.scrollTop = this.rowBox.scrollHeight;
  }

  row(row) {
    const node = document.createElement("tr");
    node.dataset.row = row.id;
    node.dataset.arrow = row.arrow;
    node.tabIndex = 0;
    const cells = [row.n, seconds(row.t), row.version, row.who, row.epoch || "", row.op, row.answer];
    cells.forEach((cell, i) => {
      const td = html("td", i === 3 ? `lk-who lk-w${row.hue % 6}` : "", String(cell), node);
      if (i === 2) td.title = row.full;
    });
    return node;
  }

  rowed(event) {
    const row = event.target.closest("tr");
    if (!row) return;
    const id = this.byId && this.byId.has(row.dataset.arrow) ? row.dataset.arrow : "";
    this.select(id, true);
    this.reveal();
    if (!id) this.detail.textContent = `generation ${row.dataset.row.slice(1)} is older than what is drawn`;
  }
}

function named(node) {
  const group = node.closest ? node.closest("[data-id]") : null;
  return group ? group.dataset.id : "";
}

/** A class name may only be made of what we know: letters. */
function word(text) {
  return String(text).toLowerCase().replace(/[^a-z]/g, "");
}

function within(box, top, height) {
  if (top < box.scrollTop + 30) box.scrollTop = top - 30;
  else if (top + height > box.scrollTop + box.clientHeight - 30) box.scrollTop = top + height - box.clientHeight + 30;
}

function headPath({ x1, y1, x2, y2 }) {
  const angle = Math.atan2(y2 - y1, x2 - x1);
  const point = (turn) => `${(x2 - 8 * Math.cos(angle + turn)).toFixed(1)} ${(y2 - 8 * Math.sin(angle + turn)).toFixed(1)}`;
  return `M${x2} ${y2}L${point(0.4)}L${point(-0.4)}Z`;
}

function crossPath(x, y, r) {
  return `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`;
}

export default { render };
