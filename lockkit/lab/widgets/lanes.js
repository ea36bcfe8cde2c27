// The space-time diagram as people see it: one drawing for the live view, the replay and the
// one-file export. layout.js and rows.js stand in front of this file wherever it is loaded
// (`drawing` in export.py). Only what is in view is in the page. Text from a bucket is untrusted:
// it reaches the page through textContent and setAttribute only.

const WIDTH_MIN = 300;
const BESIDE = 1240;      // so wide that the generations are beside the picture, as lanes.css has it
const STATE_CHAR = 7.2;   // a state that is wider than its lane's head is one short word
const BRIEF = { running: "", stalled: "stall", "past lease": "expired", superseded: "over", "waits for itself": "waits", "counts wrongly": "no grant" };
// What each mark means: folded below the picture, and a page of the documentation.
const LEGEND = [
  ["left lane", "the states of the lock object, coloured by its holder. Each g is one successful write (a generation) with the first characters of its ETag. In a run without a lock, the lane shows what the run's objects contain after each write: \u201c3 jobs\u201d in a queue, \u201cslot 2 e1\u201d in a log (its epoch is 1), \u201cW1 e3\u201d (the holder, the epoch), \u201cfree e3\u201d, \u201clock_1 gone\u201d (deleted)"],
  ["writer's bar", "the time in which the writer counts on the lock. Red and hatched: the writer still counts on it, but its lease is over, or another client has the lock"],
  ["grey hatching", "the process is paused (SIGSTOP): it does nothing and notices nothing"],
  ["dotted box", "the lease has ended and no client has taken the lock yet"],
  ["solid arrow, dashed answer", "a write and the store's answer. Dotted arrows are reads: tick \u201creads\u201d to see all of them. A read is always drawn if its answer was lost, or if it settles a lost answer"],
  ["cross on an arrow", "the message was lost here, before or after the store applied the write"],
  ["bracket at a writer's lane", "one call of the client; its SDK sent several requests for it"],
  ["cross at the store, 412", "the store refused the write, because the object had changed: \u201cW2 wrote first\u201d names the writer that changed it. Red: a writer came too late, or work was lost. Grey: another client was first. Amber, 429: too many writes; this one was certainly not done"],
  ["ring, tests the store", "before a client relies on a store, it writes a scratch object under false conditions: the store must refuse them"],
  ["ring at a writer's lane, decided by another", "group commit: the client that replaced the fence decided this writer's offer. \u201cdecides 3\u201d marks a replacement that decided three commits; click it to see each commit and its owner"],
  ["tick / cross in a circle", "a commit was published / refused, with its epoch or the cause. \u201cconflict with ..335750\u201d (grey) names the commit that changed the same files first; \u201cfenced off: epoch 3 is over\u201d means that a later holder has committed. The right lane shows what readers of the table see; a diamond is a commit that has become visible"],
  ["rule broken here", "a simulated run broke a rule at this moment; the verdict above names it. Dashed rings mark the evidence. Hatching shows how long two clients count on the same thing"],
  ["ring, done", "a client of a queue learns that its request is done: another client, the broker, wrote for it. \u201cpush 80a4 +2\u201d is a write with two more changes"],
  ["lightning", "a fault that was injected: a request or an answer was lost, delayed or refused"],
  ["plus sign", "a process ended, was killed or started again, or lost its lease"],
  ["brace, looks x5", "reads of a waiting client, drawn as one"],
];
// What a state in a lane's head means; said on hover.
const HINT = "Point at an event, or Tab into the diagram and walk with the arrow keys.";
const STATES = {
  holds: "it counts on the lock, and the lock object names it",
  superseded: "it still counts on the lock, but another client has it",
  "counts wrongly": "it counts on a lock that was never granted to it",
  "past lease": "it still counts on the lock, but its lease is over",
  waits: "another client has the lock",
  "waits for itself": "the lock object names it, but it does not know that",
  stalled: "its process is paused (SIGSTOP)",
  starting: "its process starts", running: "its process runs", exited: "its process has ended", killed: "its process was killed",
};
const GLYPHED = new Set(["stalled", "holds", "exited", "killed"]);   // a glyph of two letters' width, but in a tiny picture
const SVG = "http://www.w3.org/2000/svg";
const BEGUN = new Set(["starting", "running"]);
const GLYPHS = { VALID: "\u2713", INVALID: "\u2717", UNKNOWN: "?" };
const BRIEFLY = 500;      // ms: what is left out is said from here on
const AROUND = 300;       // pixels that are drawn above and below what is in view
const KEYS = [
  ["arrow keys", "the previous event, the next (in the diagram, or in the table)"],
  ["Home, End", "the first event, the last"],
  ["/", "search: part of a writer, write, version, attempt, answer (412)"],
  ["Enter, Shift+Enter", "in the search: the next match, the previous one (elsewhere: n, N)"],
  ["v", "the first violation: the events that prove the verdict, one after the other"],
  ["space", "play, pause"],
  [", and .", "a step back, a step on"],
  ["r", "show or hide reads"],
  ["Escape", "clear the choice; leave the search, or this help"],
  ["?", "this help"],
];
// Explained where they appear: the words of this subject that are no everyday English.
const TERMS = {
  holder: "the client to which the lock was granted last",
  lease: "a grant that ends by itself unless its holder renews it in time",
  epoch: "the number of a grant; each grant has a higher one",
  fence: "the object that a commit must replace; the store refuses a commit whose conflict check is out of date",
  generation: "one state of the lock object, made by one successful write",
  offer: "a request to decide a commit, which any client may carry out",
  ghost: "a write that the store applied after its sender had given it up",
  takeover: "a grant that follows a lease which ended without a release",
  "roll-forward": "another writer made a commit visible that was decided, but not yet visible",
  "lost response": "the store applied a write, and its answer never arrived",
};
const TERM = new RegExp(`\\b(${Object.keys(TERMS).join("|")})s?\\b`, "gi");

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

/** Text, in which each term is explained on hover where it first appears. */
function explained(text) {
  const seen = new Set();
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(TERM)) {
    const term = found[1].toLowerCase();
    if (seen.has(term)) continue;
    seen.add(term);
    nodes.push(text.slice(from, found.index));
    const word = html("abbr", "", found[0]);
    word.title = `${term}: ${TERMS[term]}`;
    nodes.push(word);
    from = found.index + found[0].length;
  }
  return [...nodes, text.slice(from)];
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
    // Each picture may load a copy of this file, and a page has one name for one pattern.
    globalThis.lockkitPictures = (globalThis.lockkitPictures ?? 0) + 1;
    this.prefix = `lk${globalThis.lockkitPictures}-`;
    this.reads = false;
    this.away = new Set();        // writers whose lanes are hidden
    this.found = [];              // places of the stops that the search finds, and their ids
    this.foundIds = new Set();
    this.selected = "";
    this.held = false;            // the reader is looking: keep the live picture still
    this.pinned = true;           // follow the newest event: the reader has not scrolled away from it
    this.put = 0;                 // where the picture was scrolled to last, unless the reader scrolled since
    this.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.build(el);
    this.listeners = ["scene", "status", "cursor", "selected", "live"].map((name) => {
      const heard = () => this.heard(name);
      model.on(`change:${name}`, heard);
      return [`change:${name}`, heard];
    });
    const received = (message, buffers) => { if (message.type === "page") save(message.name, buffers[0]); };
    model.on("msg:custom", received);
    this.listeners.push(["msg:custom", received]);
    const connected = () => setTimeout(() => this.connected());
    model.on("comm_live_update", connected);
    this.listeners.push(["comm_live_update", connected]);
    this.timers = [];
    if (model.get("beats")) this.timers.push(setInterval(() => this.beat(), 5000));
    this.resized = new ResizeObserver(() => {
      if (this.plan && this.laid === this.pane.clientWidth) this.visible(false);
      else this.draw();
    });
    this.resized.observe(this.pane);
    this.status();
    this.draw();
    this.select(this.model.get("selected") || "", false);
  }

  close() {
    for (const [name, heard] of this.listeners) this.model.off(name, heard);
    this.timers.forEach(clearInterval);
    this.stop();
    this.resized.disconnect();
  }

  /** The page is open. A kernel that was restarted no longer has the widget. */
  beat() {
    try { this.model.send({ type: "hb" }); } catch { this.timers.forEach(clearInterval); }
  }

  /** A kernel that ended has left the picture as it was last; nothing more will come. */
  connected() {
    this.gone = Boolean(this.root.closest(".jupyter-widgets-disconnected"));
    this.status();
    this.draw();
  }

  /** Up to when the picture is shown; the kernel does not know where a recorded run is. */
  get cursor() { return this.preview.hidden ? this.model.get("cursor") : this.ownCursor; }

  get live() { return Boolean(this.model.get("live")) && !this.gone; }

  heard(name) {
    if (name === "status") this.status();
    else if (name === "live") this.mode();
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
    this.scroller.tabIndex = -1;
    this.canvas = svg("svg", { role: "group", "aria-label": "Space-time diagram: time runs down; arrow keys walk through the events" }, this.scroller);
    this.empty = html("div", "lk-empty", "", this.pane);
    this.detail = html("div", "lk-detail", HINT, this.pane);
    this.detail.setAttribute("aria-live", "polite");
    this.side = html("div", "lk-side", "", body);
    this.rows = new Rows(this.side, (row) => this.rowed(row));
    this.fold = html("details", "lk-legend", "", this.root);
    html("summary", "", "Log", this.fold);
    this.log = html("pre", "lk-log", "", this.fold);
    this.legend(this.root);
    this.controls();
    this.helped();
    this.root.addEventListener("keydown", (event) => this.shortcut(event));
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
    this.preview = html("span", "lk-badge", "a recorded run, until yours begins", this.bar);
    this.preview.hidden = true;
    this.window = html("span", "lk-clock", "live", this.bar);
    const back = this.button("\u25C0", "Previous event", () => this.step(-1));
    this.play = this.button("\u25B6 Play", "Play", () => this.toggle());
    const on = this.button("\u25B6\u275A", "Next event", () => this.step(1));
    this.slider = html("input", "lk-slider", "", this.bar);
    Object.assign(this.slider, { type: "range", min: 0, max: 1000, value: 1000 });
    this.slider.setAttribute("aria-label", "Time");
    this.slider.addEventListener("input", () => this.slid());
    this.clock = html("span", "lk-clock", "", this.bar);
    this.replaying = [back, this.play, on, this.slider, this.clock];
    this.proof = this.button("Show the evidence", "Show the evidence: jump to the events that prove the verdict (v)", () => this.prove());
    this.proof.hidden = true;
    this.seek();
    this.back = html("span", "lk-away", "", this.bar);
    const ends = html("span", "lk-ends", "", this.bar);   // they go to the next line together
    const label = html("label", "lk-check", "", ends);
    this.box = html("input", "", "", label);
    Object.assign(this.box, { type: "checkbox", checked: false });
    label.append(" reads");
    this.box.addEventListener("change", () => this.showReads(this.box.checked));
    this.saves = this.button("Export", "Save this run as one HTML page, which needs no kernel", () => this.model.send({ type: "export" }));
    this.ask = this.button("?", "Keys", () => this.help(this.keys.hidden));
    ends.append(this.saves, this.ask);
  }

  /** The search: what it finds is marked, Enter goes from one to the next, the count is said. */
  seek() {
    this.search = html("input", "lk-search", "", this.bar);
    Object.assign(this.search, { type: "search", placeholder: "Find", autocomplete: "off", spellcheck: false, maxLength: 200 });
    this.search.setAttribute("aria-label", "Find events by writer, write, version, attempt or answer");
    this.count = html("span", "lk-count", "", this.bar);
    this.count.setAttribute("role", "status");
    this.search.addEventListener("input", () => this.sought());
    this.search.addEventListener("keydown", (event) => {
      event.stopPropagation();    // letters are letters here, not keys of ours or the notebook's
      if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") { this.search.value = ""; this.sought(); this.scroller.focus(); }
    });
  }

  helped() {
    this.keys = html("div", "lk-keys", "", this.root);
    this.root.insertBefore(this.keys, this.bar.nextSibling);
    this.keys.id = `${this.prefix}keys`;
    this.keys.setAttribute("role", "note");
    this.keys.hidden = true;
    const list = html("dl", "", "", this.keys);
    for (const [key, words] of KEYS) {
      const pair = html("div", "", "", list);
      html("dt", "", key, pair);
      html("dd", "", words, pair);
    }
    this.ask.setAttribute("aria-expanded", "false");
    this.ask.setAttribute("aria-controls", this.keys.id);
  }

  /** Live: a short window that follows. Afterwards: all of it, to be scrubbed. */
  mode() {
    const { live } = this;
    const any = Boolean(this.plan);
    for (const node of this.replaying) node.hidden = live || !any;
    this.window.hidden = !live || !any;
    if (!live) this.held = false;
    this.saves.hidden = !this.model.get("exports") || !this.preview.hidden || this.gone;
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

  legend(parent) {
    const fold = html("details", "lk-legend", "", parent);
    html("summary", "", "How to read this", fold);
    const list = html("ul", "", "", fold);
    for (const [sign, words] of LEGEND) {
      const item = html("li", "", "", list);
      html("b", "", sign, item);
      item.append(": ", ...explained(words));
    }
  }

  status() {
    const status = this.model.get("status") || {};
    const state = this.gone && this.model.get("beats") ? "disconnected" : status.state || "idle";
    this.pill.className = `lk-pill lk-state-${word(state)}`;
    this.pill.textContent = state;
    this.facts.replaceChildren(...(status.facts || []).map((fact) => {
      const part = html("span");
      part.append(...explained(fact));
      return part;
    }));
    const said = state === "disconnected" ? "its kernel has ended: run the notebook again" : status.said || "";
    if (this.said.textContent !== said) this.said.textContent = said;
    this.head.hidden = state === "replay" && !said && !(status.facts || []).length;
    const verdict = status.verdict || "";
    this.verdict.hidden = !verdict;
    this.verdict.className = `lk-verdict lk-${word(verdict)}`;
    this.verdict.replaceChildren(html("b", "", `${GLYPHS[verdict] || ""} ${verdict}`));
    if (status.because) this.verdict.append("  ", ...explained(status.because));
    const log = (status.log || []).join("\n");
    this.fold.hidden = !log;
    if (this.log.textContent !== log) this.log.textContent = log;
    this.fail(status.error);
    this.playRecorded(Boolean(status.recorded) && !this.gone);
    const before = this.root.dataset.state;
    if (before && !BEGUN.has(before) && BEGUN.has(state)) {
      this.comes = true;
      setTimeout(() => { if (this.plan && this.comes) this.come(); });   // drawn before the state came
    }
    this.root.dataset.state = state;
    this.root.dataset.recorded = String(Boolean(status.recorded));
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

  /** The scene; null while one that came compressed is still being opened. */
  current() {
    const scene = this.model.get("scene") || {};
    const { packed } = scene;
    if (!packed) return scene;
    if (this.opened && this.opened.packed === packed) return this.opened.scene;
    const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    new Response(plain).json().then((whole) => {
      this.opened = { packed, scene: whole };
      this.draw();
    });
    return null;
  }

  draw() {
    const scene = this.current();
    if (!scene) return;
    const any = Boolean(scene.lanes && scene.lanes.some((lane) => lane.role === "writer"));
    const again = this.scene === scene;   // in another width, or with other lanes
    this.scene = scene;
    if (scene.reads && !this.asked) { this.asked = this.reads = this.box.checked = true; }
    this.empty.hidden = any;
    for (const part of [this.scroller, this.titles, this.detail]) part.hidden = !any;
    this.side.hidden = !any || !(this.live || (scene.rows || []).length);
    this.root.dataset.events = String(scene.events || 0);
    this.badge.hidden = true;
    const { live } = this;
    // Not when "live" changes: a message's traits come in any order.
    const ended = this.drawnLive && !live && !(this.model.get("status") || {}).recorded;
    if (live && this.drawnLive === false && this.comes === false) this.comes = true;   // it is taller now
    if (live && !this.drawnLive) { this.pinned = true; this.freed = false; }   // nobody chose a place in it
    this.drawnLive = live;
    if (any) this.paint(scene, ended, again && this.plan ? this.seen() : null);
    else { this.canvas.replaceChildren(); this.plan = this.hay = this.times = null; }
    if (any && !again && !this.live) this.tell(this.selected);   // not of the run before
    this.mode();
    this.rows.name(scene.caption || GENERATIONS);
    if (live) this.rows.until(Infinity);   // the recorded run before it was played up to some time
    this.rows.fill(scene.rows || [], live, ended);
    this.root.dataset.ready = "true";
    if (any && this.comes) this.come();
  }

  /** What a launch begins to draw is in view, unless the reader is elsewhere in the page. */
  come() {
    this.comes = false;
    const { top, bottom } = this.root.getBoundingClientRect();
    if (top >= innerHeight || bottom <= 0) return;
    const page = document.scrollingElement;   // no scrollIntoView: the next Tab would begin at the page's top
    const scrolls = (node) => node === page || (node.scrollHeight > node.clientHeight && /auto|scroll/.test(getComputedStyle(node).overflowY));
    for (let node = this.pane.parentElement; node; node = node.parentElement) {
      if (!scrolls(node)) continue;
      const view = node === page ? { top: 0, bottom: innerHeight } : node.getBoundingClientRect();
      const pane = this.pane.getBoundingClientRect();
      node.scrollTop += Math.max(0, Math.min(pane.bottom - view.bottom, pane.top - view.top));
    }
  }

  /** What is in view: the time of what is chosen, if that is, or of the middle, or the picture's end. */
  seen() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    if (!clientHeight || this.live) return null;
    const chosen = this.plan.stops[this.byId.get(this.selected)];
    if (chosen && chosen.y >= scrollTop && chosen.y2 <= scrollTop + Math.max(clientHeight, this.tall)) return timeAt(this.plan.anchors, chosen.y2);
    if (!scrollTop) return null;
    if (scrollTop + clientHeight >= scrollHeight - 4) return Infinity;
    return timeAt(this.plan.anchors, scrollTop + clientHeight / 2);
  }

  paint(scene, ended, seen) {
    if (!this.laid) this.rows.open(this.root.dataset.bench === "true" || this.root.clientWidth >= BESIDE);
    this.laid = this.pane.clientWidth;
    const width = Math.max(WIDTH_MIN, this.scroller.clientWidth || this.laid);   // without its scrollbar
    this.plan = layout(scene, width, { reads: this.reads, away: this.away });
    this.hay = this.times = null;
    this.sift();
    this.heights = this.plan.stops.map((stop) => stop.y);
    this.byId = new Map(this.plan.stops.map((stop, i) => [stop.id, i]));
    this.details = new Map([...this.plan.bars, ...this.plan.arrows, ...this.plan.marks].map(({ id, detail }) => [id, detail]));
    this.canvas.setAttribute("width", this.plan.width);
    this.canvas.setAttribute("height", this.plan.height);
    this.heads();
    this.proof.hidden = !this.plan.stops.some((stop) => stop.evidence);
    if (this.live) this.follow(scene.keep ?? null);
    else if (ended) this.scroll((box) => { box.scrollTop = this.plan.height; });
    else if (seen !== null && (this.put === undefined || this.selected || typeof this.shownHarm !== "string")) this.scroll((box) => { box.scrollTop = interpolate(this.plan.anchors, seen) - box.clientHeight / 2; });
    else this.atHarm();
    this.tall = this.scroller.clientHeight;   // a narrow picture may be lower
    this.visible(true);
    this.scrub();
  }

  /** The newest event is at the bottom; while a writer stands still, the takeover does not leave; after that, its outcome does not, nor a request whose answer was lost. */
  follow(keep) {
    const { omitted, lanes, span } = this.scene;
    const between = omitted >= BRIEFLY ? `; ${seconds(omitted, 0)} between are left out` : "";
    const since = lanes.some(({ state }) => state === "stalled") ? "live, since the stall" : "live; what you did stays in view for 10 s";
    this.window.textContent = keep === null ? `live, the last ${seconds(span[1] - span[0], 1)}` : `${since}; the newest is at the bottom${between}`;
    if (keep === null) this.freed = false;
    if (this.held || !this.pinned) return;
    this.scroll((box) => {
      const takeover = keep === null || this.freed ? Infinity : interpolate(this.plan.anchors, keep) - 0.45 * box.clientHeight;
      box.scrollTop = Math.min(this.plan.height, takeover);
    });
  }

  /** Scroll, and remember where to: any other place is one that the reader chose. */
  scroll(by) {
    by(this.scroller);
    this.put = this.scroller.scrollTop;
  }

  /**
   * A recorded run is opened at its evidence, and at the stale commit that follows, unless the page
   * was asked for another place. A simulated run without evidence ends with its harm, or with its
   * newest event.
   */
  atHarm() {
    const proof = this.plan.stops.filter((stop) => stop.evidence).at(-1);
    const selected = this.model.get("selected");
    const opens = proof || this.scene.newest || (this.model.get("status") || {}).verdict === "INVALID";
    if (this.shownHarm === true || !(opens || selected)) return;
    if (!this.scroller.clientHeight) return;   // not in the page yet: it cannot be scrolled
    if (selected && !this.shownHarm) { this.shownHarm = true; this.reveal(); }
    const asked = selected || this.cursor >= 0;
    const harm = proof ?? this.plan.stops.at(-1);
    const which = `${harm?.id} ${this.scene.span}`;   // another run has another harm
    if ((this.shownHarm === which && this.put === undefined) || asked || !opens || !harm || this.live) return;
    this.shownHarm = which;
    const room = 0.7 * this.scroller.clientHeight;
    const stale = this.plan.marks.filter(({ kind, y }) => kind === "stale" && y > harm.y2 && y < harm.y2 + room).at(-1);
    this.scroll((box) => { box.scrollTop = Math.max(0, (stale?.y ?? harm.y2) - room); });
  }

  heads() {
    const { width } = this.plan;
    const then = this.past() ? statesAt(this.scene, this.cursor) : null;
    const lanes = this.plan.lanes.map((lane) => (then && lane.role === "writer" ? { ...lane, state: then[lane.id] ?? "" } : lane));
    const stamp = JSON.stringify([lanes, width, [...this.away]]);
    if (stamp === this.headed) return;
    this.headed = stamp;
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.lane : undefined;
    this.titles.replaceChildren();
    const strip = html("div", "lk-strip", "", this.titles);
    strip.style.width = `${width}px`;
    if (lanes.length > 1 && lanes[1].x - lanes[0].x < LANE_CROWDED - 10) strip.style.fontSize = "10.5px";
    for (const [i, lane] of lanes.entries()) {
      const writer = lane.role === "writer";
      const title = html(writer ? "button" : "div", `lk-title ${writer ? `lk-w${lane.hue % 6}` : "lk-truth"}`, "", strip);
      const { x, room, said } = headOf(lanes, i, width);
      title.style.left = `${x}px`;
      title.style.maxWidth = `${room}px`;
      const head = html("b", "", said, title);
      for (let n = said.length - 1; n > 3 && head.scrollWidth > head.clientWidth; n -= 1) head.textContent = middled(said, n);
      const glyph = GLYPHED.has(lane.state) && this.laid >= TINY ? 2 : 0;
      const fits = (each) => wideness(each, STATE_CHAR) + STATE_CHAR * glyph <= room;
      if (lane.state) html("i", `lk-is-${word(lane.state)}`, [lane.state, BRIEF[lane.state] ?? ""].find(fits) ?? "", title);
      else if (!writer) html("i", "", lane.id === "lock" ? (room < 60 ? "" : "the truth") : room < 66 ? "" : room < 106 ? "for readers" : "what readers see", title);
      if (writer) this.folds(title, lane, `Hide the lane of ${lane.title}`);
    }
    strip.style.transform = `translateX(${-this.scroller.scrollLeft}px)`;
    this.back.replaceChildren(...this.scene.lanes.filter((lane) => this.away.has(lane.id)).map((lane) => {
      const chip = html("button", `lk-button lk-chip lk-w${lane.hue % 6}`, `+ ${lane.title}`);
      this.folds(chip, lane, `+ ${lane.title}: show the lane again`);
      return chip;
    }));
    const again = focused && [...this.root.querySelectorAll("button")].find((each) => each.dataset.lane === focused);
    if (again) again.focus();
  }

  /** A button that takes a writer's lane out of the picture, or brings it back. */
  folds(button, lane, title) {
    button.type = "button";
    button.title = lane.state && STATES[lane.state] ? `${lane.state}: ${STATES[lane.state]}. ${title}` : title;
    button.setAttribute("aria-label", lane.state && !this.away.has(lane.id) ? `${lane.title}, ${lane.state}. ${title}` : title);
    button.dataset.lane = lane.id;
    button.addEventListener("click", () => {
      if (!this.away.delete(lane.id)) this.away.add(lane.id);
      button.focus();             // so that it is in its new place, too
      this.draw();
    });
  }

  scrolled() {
    const box = this.scroller;
    const end = box.scrollHeight - box.clientHeight;
    if (this.put === undefined || Math.abs(box.scrollTop - Math.min(this.put, end)) > 4) {   // the reader scrolls
      this.put = undefined;
      this.pinned = box.scrollTop >= end - 40;
      this.freed = true;
    }
    const strip = this.titles.firstChild;
    if (strip) strip.style.transform = `translateX(${-box.scrollLeft}px)`;
    this.visible(false);
  }

  /** Only what is in view gets nodes: a soak's replay has a hundred thousand events. */
  visible(force) {
    if (!this.plan) return;
    const top = this.scroller.scrollTop - AROUND;
    const bottom = this.scroller.scrollTop + (this.scroller.clientHeight || 600) + AROUND;
    if (!force && this.from <= Math.max(0, top + AROUND - 50) && this.to >= Math.min(this.plan.height, bottom - AROUND + 50)) return;
    this.from = top;
    this.to = bottom;
    const focused = this.canvas.contains(document.activeElement);
    this.canvas.replaceChildren();
    this.patterns();
    const seen = inView(this.plan, top, bottom);
    const layer = (name) => svg("g", { class: name }, this.canvas);
    this.grid(layer("lk-grid"), seen);
    const [bars, arrows, marks, labels] = ["bars", "arrows", "marks", "labels"].map((name) => layer(`lk-${name}`));
    for (const bar of seen.bars) this.drawBar(bar, bars);
    for (const arrow of seen.arrows) this.drawArrow(arrow, arrows);
    this.shade = svg("rect", { class: "lk-future", x: 0, width: this.plan.width, height: 0, y: 0 });
    this.canvas.insertBefore(this.shade, marks);   // what has a moment of its own is faded as a whole, or not
    this.whole = [...seen.marks.map((mark) => [this.drawMark(mark, marks), mark]), ...seen.labels.map((label) => [this.drawLabel(label, labels), label])];
    this.shadeFrom();
    this.mark(top + AROUND);   // where it is scrolled to: to measure it again lays the page out again
    if (focused) this.focus();
  }

  patterns() {
    const defs = svg("defs", {}, this.canvas);
    for (const name of ["stall", "wrong"]) {
      const hatch = svg("pattern", { id: this.prefix + name, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${name === "stall" ? 45 : -45})` }, defs);
      svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: `lk-hatch-${name}` }, hatch);
    }
  }

  grid(layer, seen) {
    for (const lane of this.plan.lanes) {
      svg("line", { class: `lk-lane lk-${lane.role}`, x1: lane.x, x2: lane.x, y1: 0, y2: this.plan.height }, layer);
    }
    for (const tick of seen.ticks) {
      svg("line", { class: "lk-tick", x1: this.plan.clock - 4, x2: this.plan.width, y1: tick.y, y2: tick.y }, layer);
      svg("text", { class: "lk-time", x: this.plan.clock - 10, y: tick.y + 4, "text-anchor": "end" }, layer).textContent = seconds(tick.t, tick.digits);
    }
    for (const gap of seen.gaps) {
      if (seen.ticks.some((tick) => Math.abs(tick.y - gap.y) < 13)) continue;
      svg("text", { class: "lk-gap", x: this.plan.clock - 10, y: gap.y + 4, "text-anchor": "end" }, layer).textContent = `\u2248 ${seconds(gap.ms, 1)}`;
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
    const wide = { owner: 14, over: 14, belief: 8, wrong: 8, stall: 15, call: 2, polls: 2 }[bar.kind];
    const [y, y2] = [Math.max(bar.y, this.from - 20), Math.min(bar.y2, this.to + 20)];
    const box = { x: bar.x - wide / 2, y, width: wide, height: y2 - y, rx: bar.kind === "polls" ? 0 : 2 };
    if (bar.kind === "call") {
      svg("path", { d: `M${bar.x + 5} ${y}h4V${y2}h-4`, class: "lk-call" }, node);
      return;
    }
    if (bar.kind === "polls") {
      svg("line", { x1: bar.x + 7, x2: bar.x + 7, y1: y, y2, class: "lk-run" }, node);
      return;
    }
    svg("rect", { ...box, class: "lk-fill" }, node);
    if (bar.kind === "stall" || bar.kind === "wrong") {
      svg("rect", { ...box, fill: `url(#${this.prefix}${bar.kind})`, class: "lk-over" }, node);
    }
  }

  drawArrow(arrow, parent) {
    const node = this.group(arrow, `lk-arrow lk-${arrow.kind} lk-look-${arrow.look} lk-w${arrow.hue % 6}${arrow.busy ? " lk-busy" : ""}`, parent);
    for (const leg of arrow.legs) {
      const line = { x1: leg.x1, y1: leg.y1, x2: leg.x2, y2: leg.y2 };
      svg("line", { ...line, class: "lk-hit" }, node);
      svg("line", { ...line, class: `lk-${leg.way}` }, node);
      if (leg.head) svg("path", { d: headPath(leg), class: `lk-tip lk-tip-${leg.way}` }, node);
    }
    const end = arrow.legs[0];
    if (arrow.look === "refused" || arrow.look === "unheard") svg("path", { d: crossPath(end.x2, end.y2, 4), class: "lk-no" }, node);
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
      case "harm":
      case "conflict":
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
      case "decided":
      case "told":
      case "tests":
        svg("circle", { cx: x, cy: y, r: 4, class: "lk-ring" }, node);
        break;
      default:
        svg("path", { d: `M${x - 6} ${y}h12M${x} ${y - 5}v10`, class: "lk-stop" }, node);
    }
    if (mark.evidence) svg("circle", { cx: x, cy: y, r: 10, class: "lk-halo" }, node);
    return node;
  }

  drawLabel(label, parent) {
    const hue = label.kind === "generation" || label.kind === "owner" || label.kind === "commit" ? ` lk-w${label.hue % 6}` : "";
    const node = svg("text", { class: `lk-label lk-label-${label.kind}${hue}`, x: label.x, y: label.y, "text-anchor": label.anchor, "data-for": label.id }, parent);
    node.textContent = label.text;
    if (label.points) svg("path", { d: `M${label.x + 2 * label.points} ${label.y - 8}v8l${5 * label.points} -4z`, class: `lk-points lk-w${label.hue % 6}` }, parent);
    return node;
  }

  // --- choosing, walking, holding still ---

  hold(on) {
    if (!this.live) return;
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
    const found = this.plan && this.details.get(id);
    if (found || !this.live) this.detail.textContent = found || HINT;
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
  mark(top = null) {
    const stop = this.plan && this.plan.stops[this.byId.get(this.selected)];
    const [found, open] = [this.foundIds, this.selected || this.first(top)];
    for (const node of this.canvas.querySelectorAll("[data-id]")) {
      const same = Boolean(this.selected) && (node.dataset.id === this.selected || (stop && stop.row && node.dataset.id === stop.row));
      node.classList.toggle("lk-selected", same);
      node.classList.toggle("lk-found", found.has(node.dataset.id));
      node.setAttribute("tabindex", node.hasAttribute("role") && node.dataset.id === open ? "0" : "-1");
    }
    this.rows.select(stop ? stop.row : "");
  }

  first(top = null) {
    if (!this.plan || !this.plan.stops.length) return "";
    const place = upTo(this.heights, top ?? this.scroller.scrollTop) + 1;
    return this.plan.stops[Math.min(place, this.heights.length - 1)].id;
  }

  key(event) {
    const moves = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
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

  /** The next of the events that prove the verdict, in the order of time; first, the first. */
  prove() {
    this.leap(this.plan.stops.flatMap((stop, place) => (stop.evidence ? [place] : [])), 1);
  }

  /** On to the next of these stops (or back) from the one that is chosen. */
  leap(places, by) {
    if (!places.length) return;
    const now = this.byId.get(this.selected);
    const at = now === undefined ? -1 : upTo(places, now);
    const exact = at >= 0 && places[at] === now;
    const next = by > 0 ? at + 1 : at - (exact ? 1 : 0);
    const place = places[(next + places.length) % places.length];
    this.select(this.plan.stops[place].id, true);
    this.reveal();
    return places.indexOf(place) + 1;
  }

  // --- keys, search, help ---

  /** Keys of the whole panel, while nothing in it takes letters itself. */
  shortcut(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.plan) return;
    const typing = event.target.closest("input, summary, pre");
    const pressed = event.target.closest("button");
    const replaying = !this.live;
    const acts = {
      "/": () => this.search.focus(),
      "?": () => this.help(this.keys.hidden),
      n: () => this.next(1),
      N: () => this.next(-1),
      v: () => this.prove(),
      r: () => { this.box.checked = !this.box.checked; this.showReads(this.box.checked); },
      Escape: () => { if (this.keys.hidden) this.select("", true); else this.help(false); },
      ...(replaying ? { ",": () => this.step(-1), ".": () => this.step(1) } : {}),
      ...(replaying && !pressed ? { " ": () => this.toggle() } : {}),
    };
    if (typing || !(event.key in acts)) return;
    event.preventDefault();
    event.stopPropagation();        // the notebook has keys of its own
    acts[event.key]();
  }

  help(open) {
    this.keys.hidden = !open;
    this.ask.setAttribute("aria-expanded", String(open));
  }

  showReads(on) {
    this.reads = on;
    this.draw();
  }

  sought() {
    this.sift();
    this.mark();
  }

  sift() {
    const wanted = this.search.value.trim();
    if (wanted) this.hay = this.hay || haystack(this.plan.stops);
    this.found = matches(this.hay || [], this.search.value);
    this.count.textContent = wanted ? `${this.found.length} of ${this.plan.stops.length} events` : "";
    this.foundIds = new Set(this.found.map((place) => this.plan.stops[place].id));
  }

  next(by) {
    const place = this.leap(this.found, by);
    if (place) this.count.textContent = `${place} of ${this.found.length} found`;
  }

  // --- replay ---

  slid() {
    const [from, to] = this.scene.span;
    this.move(from + ((to - from) * this.slider.value) / 1000);
  }

  move(t) {
    if (this.preview.hidden) {
      this.model.set("cursor", t);
      this.model.save_changes();
    } else this.ownCursor = t;
    this.scrub();
  }

  scrub() {
    if (this.live || !this.plan) return;
    const [from, to] = this.scene.span;
    const t = this.cursor;
    const now = t < 0 ? to : Math.min(t, to);
    this.slider.value = to > from ? ((now - from) / (to - from)) * 1000 : 1000;
    this.clock.textContent = seconds(now);
    this.slider.setAttribute("aria-valuetext", seconds(now));
    this.shadeFrom();
    this.heads();
    this.rows.until(this.past() ? now : Infinity);
    if (t >= 0) this.scroll((box) => within(box, interpolate(this.plan.anchors, now) - 60, 120));
  }

  /** Whether a moment before the end is shown. */
  past() { return !this.live && this.cursor >= 0 && this.cursor < this.scene.span[1]; }

  shadeFrom() {
    if (!this.shade) return;
    const past = this.past();
    const y = past ? interpolate(this.plan.anchors, this.cursor) + 2 : this.plan.height;
    this.shade.setAttribute("y", y);
    this.shade.setAttribute("height", Math.max(0, this.plan.height - y));
    for (const [node, { t, y: at }] of this.whole) node.classList.toggle("lk-later", past && (t === undefined ? at > y : t > this.cursor));
  }

  /** Every moment at which something happens, rising. */
  moments() {
    this.times = this.times || [...new Set(this.plan.anchors.map(([t]) => t))];
    return this.times;
  }

  step(by) {
    if (!this.plan) return;
    this.stop();
    const times = this.moments();
    const t = this.cursor;
    const now = t < 0 ? times.length - 1 : upTo(times, t);
    this.move(times[Math.max(0, Math.min(times.length - 1, now + by))]);
  }

  toggle() {
    if (this.playing) { this.stop(); return; }
    const [from, to] = this.scene.span;
    const t = this.cursor;
    if (t < 0 || t >= to) this.move(from);
    this.play.textContent = "\u275A\u275A Pause";
    this.play.setAttribute("aria-label", "Pause");
    this.playing = setInterval(() => {
      const next = this.moments()[upTo(this.moments(), this.cursor) + 1];
      if (next !== undefined) this.move(next);
      else if (this.preview.hidden) this.stop();
      else this.move(from);
    }, this.still ? 600 : 120);
  }

  /** While writers start, a recorded run plays by itself, again and again. */
  playRecorded(on) {
    if (on !== this.preview.hidden) return;
    this.preview.hidden = !on;
    this.stop();
    this.ownCursor = -1;
    if (on) setTimeout(() => { if (!this.preview.hidden && this.plan) this.toggle(); });
  }

  stop() {
    if (!this.playing) return;
    clearInterval(this.playing);
    this.playing = null;
    this.play.textContent = "\u25B6 Play";
    this.play.setAttribute("aria-label", "Play");
  }

  /** A row of the table was chosen: the write that made it is chosen in the diagram. */
  rowed(row) {
    const id = this.byId && this.byId.has(row.arrow) ? row.arrow : "";
    this.select(id, true);
    this.reveal();
    if (!id) this.detail.textContent = `generation ${row.n} is not drawn: it is older, or its lane is hidden`;
  }
}

/** Give the reader a file to keep. */
function save(name, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "text/html" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function named(node) {
  const group = node.closest ? node.closest("[data-id], [data-for]") : null;
  return group ? group.dataset.id ?? group.dataset.for : "";
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
