// The geometry of the space-time diagram, without a browser: scene in, shapes and labels out.
//
// Time runs down. The lock object is on the left, the table on the right, the writers between them,
// so that traffic with the lock goes left and commits go right. Nothing here takes longer than the
// history is long: a soak's has a hundred thousand events.

const TIME_W = 66;        // gutter of the clock, at least
const GEN_W = 86;         // gutter of the generations' and the holders' labels, at least
const GEN_W_MAX = 170;
const GEN_NARROW = 48;
const LOCKLESS = 12;      // ... of a picture without a lock object
const TABLE_W = 84;       // gutter of the completed instants
const WRITER_W = 170;     // gutter of the last writer's labels, where no table is drawn
const LANE_MIN = 118;     // between two neighbouring lanes, if there is room
const LANE_LEAST = 84;    // ... and if there is not
const NARROW = 600;       // below this width gutters and lanes are closer still
const LANE_NARROW = 64;
const TINY = 420;         // a notebook of 800 pixels beside its list of files
const LANE_TINY = 44;
const LANE_WORDS = 48;    // ... so that a short word has room beside it: an instant at the edge does not take it
const LANE_CROWDED = 40;
const LANE_PACKED = 20;
const MANY_LANES = 6;     // with so many, a tiny picture has less room for the holders' names
const MOST_LANES = 10;    // with so many, a lane is as narrow as its name: nothing is beyond the edge
const GEN_TINY = 34;
const EDGE_CROWDED = 26;
const EDGE_TINY = 34;     // ... if an instant has no room beside the table's lane
const LETTERS_MIN = 3;    // a label of which less would be left is left out
const CLEAR = 10;         // between a label and the next lane
const CLEAR_TINY = 8;     // ... in a tiny picture: a bar of the lock, or a diamond, is half as wide
const NEARER = 2;         // so much nearer to its lane is a label of a tiny picture
const SMALLER = 0.96;     // ... and so much smaller, as lanes.css has it
const THIN = /[ijlft.,:' ]/g;
const THIN_LESS = 0.35;   // so much narrower than the others is a thin letter
const WIDE = /[A-Zmw]/g;
const WIDE_MORE = 0.3;    // ... and so much wider a wide one
const WIDEST = /[W@%\u2e80-\uffff]/g;
const WIDEST_MORE = 0.5;  // ... and so much more one of the widest
const LINE = 14;          // a line of labels
const LETTER = 11;        // ... above its baseline, with the pale edge that lanes.css draws around it
const APART = 4;          // between two labels, of which one has several lines
const BELOW = 2.5;        // ... below it
const DESCENDER = 5;      // ... where a letter goes down
const DESCENDS = /[gjpqy_]/;
const TOP = 18;           // room for the first label
const FLIGHT = 9;         // an arrow falls at least this far, so that its direction can be seen
const INSTANT = "..000000";   // each instant of a page has this one short form, or none
const ASIDE = 13;         // so far from its lane is the label of a mark
const GAP_MAX = 46;       // idle time is elided beyond this
const ELIDED_MS = 1500;
const CHAR = 6.8;         // an estimate of a label's width
const TIME_CHAR = 6.3;
const BOLD_CHAR = 7.9;
const HEAD_CHAR = 8.2;      // of a lane's head
const HEAD_MAX = 220;
const HEAD_LEAST = 66;      // what it needs at least, for the state below it
const LOCK_OBJECT = 92;     // the room of a head that says "lock object"
const FIRST_MAX = 5;        // letters that the first one has at least, as "lock"
const MONO_CHAR = 6.65;   // of a generation, in every picture
const BOLD = new Set(["harm", "published", "refused", "conflict", "stale", "unheard", "lost", "dropped", "throttled", "fault", "wrong", "stall"]);  // of the bold ones, those of wide letters
const LABEL = 170;        // an answer is lost so far from the writer, beyond the label of its request
const TICK = 30;
const PAGE = 600;         // what is drawn is found by pages of so many pixels
const TALL = 8;           // a shape over more pages than this is looked at wherever one is
const NUDGES = [0, -2, 2, -4, 4, -6, 6, -8, 8, -10, 10];   // so far a label makes way for what it would touch
const ROUNDS = 6;         // a picture is laid out so often, with more room where a label still touches something
const MORE = 5;           // ... so much more each time
const MANY = 400;         // arrows from which on two rounds have to do
const ENDS = new Set(["exited", "killed"]);
const SILENT = new Set(["lost", "dropped", "unheard"]);
const STUB = 46;          // the arrow of a client without a lane
const AFTER_ALL = 1e15;   // the number of what has none: a bar's end, the harm of a whole run
const TRIES_MAX = 200;    // places that are tried for a bar's label, and lines of the page that an arrow is looked for in

/** What may be left out of a label that has no room; the detail line has all of it. */
const SHORTER = [
  [/^(rule broken here): .*$/, "$1"], [/^(?:rule broken|no grant|expired|fenced)$/, ""], [/^stalled$/, "stall"],
  [/^committed, (epoch \d+)$/, "$1"], [/^epoch (\d+)$/, "e$1"],
  [/^decided by (.+)$/, "by $1"], [/^by (W\d+)$/, "$1"], [/^decides (\d+)$/, "\u00d7$1"], [/^committed$/, "done"],
  [/^stale commit accepted$/, "stale commit"], [/^stale commit$/, "stale"],
  [/^(.+): done$/, "$1 \u2713"], [/^(.+) wrote first$/, "$1 first"], [/its own write was first$/, "own write first"],
  [/^conflict with( .*)?$/, "conflict"], [/^write, epoch (\d+)$/, "write e$1"], [/^(write) e\d+$/, "$1"], [/^(epoch \d+) is over$/, "$1 over"], [/^epoch (\d+) over$/, "e$1 over"], [/^(fault: .+) \(.*\)$/, "$1"], [/^fault: (.+)$/, "$1"], [/^(?:answer|request) (dropped|cut off|withheld|delayed|held back)$/, "$1"], [/^(fenced off): .*$/, "$1"], [/^(commit )?refused.*$/, "refused"],
  [/^the SDK's (own )?retry( \d+)?(?=:|$)/, "retry"], [/^[^:]+: (.+)$/, "$1"], [/^answer (\d+ )?lost$/, "lost"],
  [/^stalled .+$/, "stalled"], [/^rule broken here$/, "rule broken"], [/^(\d{2,})\.\d s$/, "$1 s"], [/^past its lease$/, "past lease"], [/^past lease$/, "expired"], [/^superseded$/, "replaced"], [/^replaced$/, "over"], [/^counts wrongly$/, "no grant"], [/^fenced off$/, "fenced"], [/^lease (over|lost)$/, "$1"],
  [/^(g\d+) .*$/, "$1"], [/^\.\.\d{6}$/, ""], [/^(\S+?),? epoch \d+$/, "$1"],
  [/^PUT if (?:absent|unchanged) (.+)$/, "PUT $1"], [/^(PUT|GET|LIST) .+$/, "$1"],
  [/^commit (\d+)$/, "com. $1"], [/^com\. (\d+)$/, "c$1"], [/^acquire$/, "acq."], [/^release$/, "rel."], [/^renew$/, "ren."], [/^publish for (.+)$/, "for $1"], [/^for \w+$/, "pub."], [/^publish$/, "pub."], [/^fence$/, "fen."], [/^confirm$/, "conf."], [/^exited$/, "exit"], [/^checked$/, ""], [/^tests the store$/, "tests"],
  [/^(.+) \+\d+$/, "$1"], [/^(\w+) stripe (\d+)$/, "$1 $2"], [/^complete (.+)$/, "compl. $1"], [/^acquire (.+)$/, "acq. $1"], [/^release (.+)$/, "rel. $1"], [/^renew (.+)$/, "ren. $1"], [/^append (.+)$/, "app. $1"], [/^campaign (.+)$/, "camp. $1"], [/^collect (.+)$/, "coll. $1"], [/^resign (.+)$/, "res. $1"],
  [/^queue (to .+)$/, "$1"], [/^(\w+) leaves$/, "$1 out"], [/^move (head) to (.+)$/, "$1 $2"], [/^\S+ (gone)$/, "$1"], [/^(slot \d+) e\d+$/, "$1"], [/^free e\d+$/, "free"], [/^(\d+) jobs?$/, "$1"], [/(\w\d+) reads/g, "$1 r"], [/(\w\d+) writes/g, "$1 w"], [/^(\w\d+ [rw]), .+$/, "$1 \u2026"],
  [/^slot (\d+)$/, "s$1"], [/^to (read|write)$/, "$1"], [/^unlock$/, "unl."], [/^fence \d+$/, "fence"], [/^number of stripes$/, "number"], [/^hidden retry$/, "retry"], [/^200 with an error$/, "error"], [/^landed late$/, "late"], [/^on its way$/, "sent"], [/^killed$/, "kill."], [/^done$/, "ok"], [/^conflict$/, "confl."], [/^stale$/, "old"],
  [/^no answer, and the request is still (on its way)$/, "no answer: $1"], [/^(?:request lost|dropped)$/, "lost"], [/^an error sent .+$/, "error"], [/^something .+ again.*$/, "sent again"], [/^(arrived late|held back)$/, "late"], [/^(read|push|claim|beat|acq\.|rel\.|ren\.|app\.|res\.|camp\.|coll\.|compl\.|head) \S+( \u2713)?$/, "$1$2"], [/^(4\d\d), .+$/, "$1"],
];

/** Where a label that has no room on one line breaks into more: what happened, and why. */
const BREAKS = [
  /^(.+: 4\d\d), (.+)$/, /^(.+): (4\d\d), (.+)$/, /^(conflict with) (.+)$/,
  /^(fenced off|refused|rule broken here): (.+)$/, /^(fenced off): (epoch \d+) (is over)$/,
];
/** ... and words that are not shortened then. */
const WORDS = [/^decided (by) (.+)$/, /^(.+): (4\d\d)(?:, .+)?$/, /^(commit)ted, (epoch \d+)$/, /^(stale) (commit)(?: accepted)?$/, /^(lease) (over|lost)$/, /^(stalled) (.+)$/];

/** An estimate of how wide a text is. */
function wideness(said, char, mono = false) {
  const many = (letters) => (said.match(letters) ?? []).length;
  return char * (said.length + (mono ? 0 : WIDE_MORE * many(WIDE) + WIDEST_MORE * many(WIDEST) - THIN_LESS * many(THIN)));
}

/** The longest form of a label that is no wider than `room`, with letters of this width. */
export function fitted(text, room, char = CHAR, mono = false) {
  const fits = (said) => wideness(said, char, mono) <= room;
  let said = text;
  while (!fits(said)) {
    const next = SHORTER.map(([long, short]) => said.replace(long, short)).find((each) => each.length < said.length);
    if (next === undefined) {
      let letters = Math.floor(room / char) - 1;
      while (letters >= LETTERS_MIN && !fits(`${said.slice(0, letters)}\u2026`)) letters -= 1;
      return letters < LETTERS_MIN ? "" : `${said.slice(0, letters)}\u2026`;
    }
    said = next;
  }
  return said;
}

const isCut = (said) => !said || said.endsWith("\u2026");

/**
 * Where a lane's head is, how wide it may be, and what it says. The last one leans inward, up to the
 * head before it, if its name has no room at the edge, and the first one outward, off the head after
 * it. One between two others has the room that they do not need.
 */
export function headOf(lanes, i, width) {
  const { x, title } = lanes[i];
  const roomAt = (j) => {
    const near = Math.min(HEAD_MAX, lanes[j].x - (lanes[j - 1]?.x ?? -lanes[j].x), (lanes[j + 1]?.x ?? 2 * width - lanes[j].x) - lanes[j].x);
    return near - (near > LANE_CROWDED ? 4 : 0);
  };
  const said = (j) => (lanes[j].title === "lock object" && roomAt(j) < LOCK_OBJECT ? "lock" : lanes[j].title);
  const room = roomAt(i);
  const wide = HEAD_CHAR * (i ? title.length : Math.min(FIRST_MAX, title.length));
  if (wide <= room) return { x, room, said: said(i) };
  if (i && i < lanes.length - 1) {
    const needs = (j) => Math.min(roomAt(j), Math.max(HEAD_LEAST, HEAD_CHAR * said(j).length, HEAD_CHAR * (lanes[j].state ?? "").length));
    const half = Math.min(...[i - 1, i + 1].map((j) => Math.abs(lanes[j].x - x) - needs(j) / 2)) - 4;
    return { x, room: Math.max(room, Math.min(HEAD_MAX, wide, 2 * half)), said: title };
  }
  if (i === 0) return { x: Math.min(x, lanes[1].x - (HEAD_CHAR * lanes[1].title.length + wide) / 2), room: wide, said: said(0) };
  const before = lanes[i - 1].x + (HEAD_CHAR * lanes[i - 1].title.length) / 2 + 6;
  const leaning = Math.max(room, Math.min(HEAD_MAX, wide, width - 2 - before));
  return { x: Math.min(x, width - 2 - leaning / 2), room: leaning, said: title };
}

/** A name with so many letters, its middle left out. */
export function middled(name, letters) {
  const tail = Math.floor((letters - 1) / 2);
  return `${name.slice(0, letters - 1 - tail)}\u2026${name.slice(name.length - tail)}`;
}

/** How far down the page `ms` of quiet go: bursts are spread, idle time is squeezed. */
export function fall(ms) {
  return Math.min(GAP_MAX, 1.25 * Math.sqrt(Math.max(0, ms)));
}

/** Scene in, geometry out. No DOM; the same scene and width always give the same answer. */
export function layout(scene, width, options = {}) {
  const reads = options.reads !== false;
  const away = options.away || new Set();
  const narrow = width < NARROW;
  const answers = reads ? null : readBacks(scene.arrows);
  const arrows = scene.arrows.filter((a) => (reads || a.kind !== "read" || a.evidence || answers.has(a.id)) && !away.has(a.lane))
    .map((a) => ({ ...a, busy: a.busy ?? busy(a, scene.marks) }));
  const used = new Set([...arrows.map((a) => a.side), ...scene.marks.map((m) => m.lane)]);
  const grouped = scene.arrows.some((a) => a.op === "offer");   // group commit takes no lock
  const needless = (lane) => !used.has(lane) && (lane === "table" || (lane === "lock" && grouped));
  const shown = scene.lanes.filter((lane) => !away.has(lane.id) && !needless(lane.id));
  const crowded = width < TINY && shown.length >= MANY_LANES;
  const gutter = gutters(scene, narrow, shown.some((lane) => lane.id === "lock"), crowded);
  const margin = shown.length && shown[shown.length - 1].role === "writer" ? WRITER_W : TABLE_W;
  const tiny = width < TINY;
  const packed = shown.length >= MOST_LANES;
  const least = crowded ? (packed ? LANE_PACKED : LANE_CROWDED) : tiny ? LANE_TINY : packed ? LANE_CROWDED : narrow ? LANE_WORDS : shown.length >= MANY_LANES ? LANE_NARROW : LANE_LEAST;
  const small = crowded && !packed ? EDGE_CROWDED : tiny ? EDGE_TINY : narrow ? Math.min(margin, LANE_NARROW) : margin;
  const edge = edgeOf(scene.marks, small, width - gutter[0] - gutter[1] - Math.max(least, LANE_WORDS) * (shown.length - 1), tiny);
  const lanes = place(shown, width, gutter, edge, least);
  const at = Object.fromEntries(lanes.map((lane) => [lane.id, lane.x]));
  const marks = scene.marks.filter((m) => at[m.lane] !== undefined);
  const wide = lanes.length ? Math.max(width, lanes[lanes.length - 1].x + edge) : width;
  const room = rooms(lanes, gutter[0], wide, tiny);
  const calls = new Set(arrows.map((a) => `c${a.id}`));   // each call by its first request
  const kept = scene.bars.filter((b) => at[b.lane] !== undefined && (reads || b.kind !== "polls") && (b.kind !== "call" || calls.has(b.id)));
  const more = new Map();
  const rounds = arrows.length > MANY ? 2 : ROUNDS;
  let found = null;
  for (let round = 1; round <= rounds && found?.tight.length !== 0; round += 1) {
    found = laid(scene, arrows, kept, marks, at, room, more, round === rounds);
  }
  const { axis, bars, drawn, points, labels } = found;
  const plan = {
    clock: gutter[0],
    width: wide,
    height: axis.height + 18,
    lanes, bars, arrows: drawn, marks: points, labels,
    ticks: axis.ticks, gaps: axis.gaps, anchors: axis.anchors,
    stops: stops(drawn, points, bars),
  };
  return { ...plan, pages: pages(plan) };
}

/** One try: where everything is. `more` is where labels wanted more room, by places of the timeline. */
function laid(scene, arrows, kept, marks, at, room, more, last) {
  const axis = stretch(scene, arrows, marks, at, room, more);
  const bars = kept.map((b) => {
    const [y, y2] = b.t.map((t, end) => axis.of.get(`${b.id}:${end}`) ?? axis.at(t));
    return { ...b, x: at[b.lane], y, y2: Math.max(y2, y + 2) };
  });
  const drawn = arrows.map((a) => fly(a, at, axis));
  const points = marks.map((m) => ({ ...m, x: at[m.lane], y: axis.of.get(m.id) ?? axis.at(m.t) }));
  const page = new Page(drawn, points);
  const { labels, tight } = settle(axis.labels, page, room, last);
  for (const place of tight) more.set(place, (more.get(place) ?? 0) + MORE);
  return { axis, bars, drawn, points, tight, labels: pointed([...labels, ...caption(bars, page, at, room)], drawn, at) };
}

/**
 * Where a label stands on the side of its lane that its arrow does not go to, or right of the lock
 * object, it is near what belongs to the next lane: `points` is where its lane is, from its last line.
 */
function pointed(labels, arrows, at) {
  const sides = new Map(arrows.filter(({ lane }) => at[lane] !== undefined).map(({ id, side }) => [id, side]));
  const usual = ({ id, kind }) => (kind === "owner" || kind === "over" || sides.get(id) === "lock" ? "end" : sides.has(id) ? "start" : "");
  const last = new Map(labels.map((label) => [label.id, label]));   // of its lines
  return labels.map((label) => {
    const away = usual(label) && label.anchor !== usual(label) && last.get(label.id) === label;
    return away ? { ...label, points: label.anchor === "end" ? 1 : -1 } : label;
  });
}

/** Room for the longest time, and, where there is a lock object, for the longest name of a holder. */
function gutters(scene, narrow, locks, crowded) {
  const clock = seconds(scene.span[1], 3).length * TIME_CHAR + 6;
  const names = [...scene.bars.filter((bar) => bar.kind === "owner"), ...scene.marks.filter((mark) => mark.kind === "generation")];
  const longest = names.reduce((most, { label }) => Math.max(most, label.length), 0);
  if (narrow) return [Math.ceil(clock) + 4, !locks ? LOCKLESS : crowded ? GEN_TINY : GEN_NARROW];
  return [Math.max(TIME_W, Math.ceil(clock) + 4), !locks ? LOCKLESS : Math.min(GEN_W_MAX, Math.max(GEN_W, Math.ceil(longest * CHAR) + 18))];
}

/** What is beside the last lane: room for a whole instant, where there is any. */
function edgeOf(marks, small, left, tiny) {
  const commit = marks.find((mark) => mark.kind === "commit" && mark.label.length === INSTANT.length);
  const needs = !commit ? 0 : Math.ceil(ASIDE + 2 + (tiny ? SMALLER * wideness(INSTANT, CHAR) - NEARER : wideness(INSTANT, CHAR)));
  return needs <= left ? Math.max(small, needs) : small;
}

/** Reads without an answer, or that settle a write without one: they are always shown. */
function readBacks(arrows) {
  const silent = new Set();
  const found = new Set();
  for (const arrow of arrows) {
    const place = `${arrow.lane} ${arrow.side}`;
    if (arrow.kind === "read") {
      if (silent.delete(place) || SILENT.has(arrow.look)) found.add(arrow.id);
    } else if (SILENT.has(arrow.look)) silent.add(place);
    else silent.delete(place);
  }
  return found;
}

/** Lanes share the width; where it is short they stand closer, before anything must be scrolled. */
function place(lanes, width, gutter, margin, least) {
  const between = lanes.length - 1;
  const first = gutter[0] + gutter[1];
  const fit = between > 0 ? (width - first - margin) / between : LANE_MIN;
  const step = Math.max(least, fit);
  return lanes.map((lane, i) => ({ ...lane, x: Math.round(first + i * step) }));
}

/** How wide a label may be that begins, or ends (`left`), at x: up to the next lane, or the edge. */
function rooms(lanes, clock, width, tiny) {
  const clear = tiny ? CLEAR_TINY : CLEAR;
  const found = (x, left) => {
    const others = lanes.map((lane) => lane.x).filter((each) => (left ? each < x - 5 : each > x + 5));
    if (left) return x - (others.length ? Math.max(...others) + clear : clock - 4);
    return (others.length ? Math.min(...others) - clear : width - 2) - x;
  };
  return Object.assign(found, { nearer: tiny ? NEARER : 0, scale: tiny ? SMALLER : 1 });
}

/** The clock's y for every event: time order is kept, labels never meet, idle time is elided. */
function stretch(scene, arrows, marks, at, room, more) {
  const entries = timeline(scene, arrows, marks);
  const placed = { anchors: [], of: new Map(), labels: [], ticks: [], gaps: [], recent: [] };
  let y = TOP;
  let before = entries[0].t;
  let ticked = -TICK;
  for (const [place, entry] of entries.entries()) {
    const quiet = entry.t - before;
    const down = fall(quiet);
    if (quiet > ELIDED_MS) placed.gaps.push({ y: y + down / 2, ms: quiet });
    const boxes = boxesOf(entry, at, room);
    y = Math.max(y + down, apart(entry, placed.of), ...boxes.map((box) => clear(placed.recent, box))) + (more.get(place) ?? 0);
    if (entry.arrow) placed.of.set(entry.arrow.id + entry.stage, y);
    if (entry.mark) placed.of.set(entry.mark.id, y);
    if (entry.bar?.n?.[entry.end]) placed.of.set(`${entry.bar.id}:${entry.end}`, y);
    for (const box of boxes) {
      box.y = y + box.dy;
      placed.recent.push(box);
      if (box.text) placed.labels.push(Object.assign(box, { place, t: entry.t }));
    }
    if (placed.recent.length > 60) placed.recent.splice(0, 20);
    if ((boxes.some((box) => box.text) || placed.anchors.length === 0) && y - ticked >= TICK) {
      const last = placed.ticks.at(-1);
      const same = last && seconds(last.t, 3) === seconds(entry.t, 3);
      const near = !same && last && entry.t - last.t < 60;
      if (near) last.digits = 3;   // rounded, it might be the later one
      if (!same) placed.ticks.push({ y, t: entry.t, digits: near ? 3 : 2 });
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
  for (const bar of scene.bars) bar.t.forEach((t, end) => entries.push({ t, bar, end }));
  entries.push({ t: scene.span[0] }, { t: scene.span[1] });
  const numbered = arrows.some((arrow) => arrow.n);
  return entries.sort((p, q) => p.t - q.t || turn(p, numbered) - turn(q, numbered));
}

/**
 * Of one instant, a cause is before its effect: by the numbers of the events (`n`), else what comes
 * back from a request of before is first, for a client may react to it at once.
 */
function turn({ t, arrow, mark, bar, end, stage = -1 }, numbered) {
  if (numbered) return arrow?.n?.[stage] ?? bar?.n?.[end] ?? mark?.n ?? AFTER_ALL;
  return stage > 0 && arrow.t[0] !== null && arrow.t[0] < t ? stage - 4 : stage;
}

/** An arrow falls a little on each leg, however fast the store was. */
function apart({ arrow, stage }, of) {
  if (!arrow || !stage) return -Infinity;
  const from = of.get(arrow.id + (stage - 1)) ?? of.get(`${arrow.id}0`);
  return from === undefined ? -Infinity : from + FLIGHT;
}

/** An ordinary lost race: another claim was first, or a fence was refused and its commit not (yet). */
function busy({ look, label, lane, t }, marks) {
  if (look !== "refused") return false;
  const ends = ["refused", "conflict", "published", "stale", "decided"];
  const end = marks.find((m) => m.lane === lane && m.t >= t[0] && ends.includes(m.kind));
  return label.startsWith("acquire") || label.startsWith("PUT if absent") || (label.startsWith("fence") && end?.kind !== "refused");
}

/** What an event occupies: its label beside its lane, its disc, and where an arrow ends. */
function boxesOf({ arrow, mark, stage }, at, room) {
  const boxes = [];
  if (arrow) {
    const home = at[arrow.lane];
    const store = at[arrow.side];
    const left = arrow.side === "lock";
    const kind = arrow.kind === "read" ? "read" : arrow.busy ? "busy" : arrow.look;
    // Where no answer comes back to hold the next label off, the arrow itself has to.
    if (stage === 0 && home !== undefined && arrow.t[2] === null) boxes.push(blank(left ? home - 110 : home + 10, left ? home - 10 : home + 110, 15));
    if (stage === 0 && home !== undefined) {
      boxes.push(...lined(arrow.id, arrow.label, home, 12, left, true, kind, arrow.hue, room));
    }
    if (stage === 1 && home === undefined) {
      boxes.push(labelled(arrow.id, arrow.label, store + (left ? 1 : -1) * 12, left ? "start" : "end", -7, kind, arrow.hue, room));
    }
    if (stage === 1) boxes.push(blank(left ? store + 2 : store - 24, left ? store + 24 : store - 2, 6));
    if (stage === 2 && home !== undefined) boxes.push(blank(left ? home - 46 : home + 10, left ? home - 10 : home + 46, 12));
  }
  if (mark) {
    const x = at[mark.lane];
    const left = mark.kind === "generation";
    if (mark.label) boxes.push(...lined(mark.id, mark.label, x, ASIDE, left, false, mark.kind, mark.hue, room));
    if (!left) boxes.push(mark.kind === "commit" ? blank(x - 9, x + 9, 12) : blank(x - 16, x + 9, 12));
  }
  return boxes;
}

/** Room without a label; `tall` is how near the next thing may come. */
function blank(x0, x1, tall) {
  return { text: "", x0, x1, dy: 0, tall, y: 0 };
}

function labelled(id, whole, x, anchor, dy, kind, hue, room, most = Infinity) {
  const mono = kind === "generation";
  const char = mono ? MONO_CHAR : room.scale * (BOLD.has(kind) ? BOLD_CHAR : CHAR);
  const text = fitted(whole, Math.min(most, room(x, anchor === "end")), char, mono);
  const wide = wideness(text, char, mono);
  return { id, text, x, anchor, dy, kind, hue, x0: anchor === "end" ? x - wide : x, x1: anchor === "end" ? x : x + wide, y: 0 };
}

/** A label beside its lane, on the side where it is not cut. */
function sided(id, whole, lane, off, left, dy, kind, hue, room) {
  const on = (toLeft) => labelled(id, whole, lane + (toLeft ? -1 : 1) * (off - room.nearer), toLeft ? "end" : "start", dy, kind, hue, room);
  const [one, other] = [on(left), on(!left)];
  return isCut(one.text) && !isCut(other.text) ? { ...other, other: one } : { ...one, other };
}

/** The lines of a label beside its lane, upwards or downwards from there: one, or as many as its words need. */
function lined(id, whole, lane, off, left, up, kind, hue, room) {
  const on = (said, toLeft) => sided(id, said, lane, off, toLeft, up ? -4 : 4, kind, hue, room);
  const one = on(whole, left);
  if (one.text === whole || BREAKS.some((each) => each.test(one.text))) return [one];
  const broken = [...BREAKS, ...WORDS].filter((each) => each.test(whole))
    .flatMap((each) => [left, !left].map((side) => whole.match(each).slice(1).map((part) => ({ ...on(part, side), part, side, stays: WORDS.includes(each) }))));
  const fits = ({ text, part, anchor, side, stays }) => (stays ? text === part : !isCut(text)) && anchor === (side ? "end" : "start");
  const letters = (lines) => lines.reduce((sum, { text }) => sum + text.length, 0);
  const best = broken.filter((lines) => lines.every(fits)).sort((some, more) => letters(more) - letters(some))[0] ?? broken.find(([line]) => !line.stays);
  const lines = (best ?? []).filter((line) => !isCut(line.text));
  if (!isCut(one.text) && one.text.length >= letters(lines)) return [one];   // "by W1" needs no second line
  return lines.length ? lines.map((line, i) => ({ ...line, one, apart: APART, dy: line.dy + LINE * (up ? i + 1 - lines.length : i) })) : [one];
}

/** The highest place at which this box touches none of those above it. */
function clear(recent, label) {
  let y = -Infinity;
  for (const other of recent) {
    if (other.x0 >= label.x1 + 4 || label.x0 >= other.x1 + 4) continue;
    const apart = other.id === label.id ? 0 : Math.max(label.apart ?? 0, other.apart ?? 0);
    const room = label.text && other.text ? LINE + apart : Math.max(label.tall ?? 0, other.tall ?? 0);
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

/** What a label must not touch: arrows, their tips and crosses, marks, and the labels before it. */
class Page {
  constructor(arrows, marks) {
    this.rows = new Map();      // boxes by lines of the page: only those near by can be in the way
    this.legs = new Map();
    for (const leg of arrows.flatMap((arrow) => arrow.legs)) {
      const [first, last] = [rowOf(Math.min(leg.y1, leg.y2)), rowOf(Math.max(leg.y1, leg.y2))];
      for (let row = first; row <= Math.min(last, first + TRIES_MAX); row += 1) listed(this.legs, row, leg);
    }
    for (const arrow of arrows) {
      for (const { x1, y1, x2, y2, head } of arrow.legs) {
        const angle = Math.atan2(y2 - y1, x2 - x1);
        if (head) this.block(Math.min(x2, x2 - 8 * Math.cos(angle)), Math.max(x2, x2 - 8 * Math.cos(angle)), y2 - 4 * Math.sin(angle), 4 + 4 * Math.sin(angle));
      }
      if (["refused", "unheard"].includes(arrow.look)) this.block(arrow.legs[0].x2 - 5, arrow.legs[0].x2 + 5, arrow.legs[0].y2, 6);
      if (arrow.cross) this.block(arrow.cross.x - 7, arrow.cross.x + 7, arrow.cross.y, 7);
    }
    for (const { x, y, kind } of marks) this.block(x - 9, x + 9, y, kind === "generation" ? 1 : 9);
  }

  /** A drawn thing, so far up and down from y. */
  block(x0, x1, y, tall) {
    for (let row = rowOf(y - tall); row <= rowOf(y + tall); row += 1) listed(this.rows, row, { x0, x1, top: y - tall, bottom: y + tall });
  }

  put(label) { listed(this.rows, rowOf(label.y), label); }

  /** Where the label touches something, as a share of the way of what it touches; null if nowhere. */
  touched(box) {
    if (box.y < LETTER - 2) return 0;   // above the picture
    const [top, bottom] = [box.y - LETTER, box.y + (DESCENDS.test(box.text) ? DESCENDER : BELOW)];
    for (const by of [-1, 0, 1]) {
      for (const other of this.rows.get(rowOf(box.y) + by) ?? []) {
        if (other.x0 >= box.x1 + 4 || box.x0 >= other.x1 + 4) continue;
        if (other.text ? Math.abs(other.y - box.y) < LINE : other.x0 < box.x1 && box.x0 < other.x1 && other.top < bottom && top < other.bottom) return 0;
      }
    }
    for (let row = rowOf(top); row <= rowOf(bottom); row += 1) {
      for (const leg of this.legs.get(row) ?? []) {
        const [from, to] = [Math.max(box.x0, Math.min(leg.x1, leg.x2)), Math.min(box.x1, Math.max(leg.x1, leg.x2))];
        if (from > to) continue;
        const [y, y2] = [level(leg, from), level(leg, to)];
        if (Math.max(y, y2) > top && Math.min(y, y2) < bottom) return leg.y2 <= box.y ? 0 : ((from + to) / 2 - leg.x1) / (leg.x2 - leg.x1 || 1);
      }
    }
    return null;
  }

  /** The first of these places at which the label touches nothing; it is taken then. */
  take(places) {
    const found = places.find((box) => this.touched(box) === null);
    if (found) this.put(found);
    return found;
  }

  /** The first of these places of several lines at which none of them touches anything. */
  takeAll(places) {
    const found = places.find((lines) => lines.every((box) => this.touched(box) === null)) ?? [];
    found.forEach((line) => this.put(line));
    return found;
  }
}

const rowOf = (y) => Math.floor(y / LINE);
const listed = (map, row, one) => (map.get(row) ?? map.set(row, []).get(row)).push(one);
const level = (leg, x) => leg.y1 + ((leg.y2 - leg.y1) * (x - leg.x1)) / (leg.x2 - leg.x1 || 1);
const nudged = (label) => NUDGES.map((by) => ({ ...label, y: label.y + by }));

/**
 * No label touches a line, a mark or another label: it makes way a little; else there is more room
 * (`tight`: at these places of the timeline); and if that did not help, it flips, says less, or is
 * left out: the detail line says it all the same.
 */
function settle(labels, page, room, last) {
  const tight = [];
  const found = [];
  const blocks = new Map();   // the lines of one label stay together
  for (const label of labels) listed(blocks, `${label.place} ${label.id}`, label);
  for (const lines of blocks.values()) {
    const moved = (some) => NUDGES.map((by) => some.map((line) => ({ ...line, y: line.y + by })));
    let places = page.takeAll(moved(lines));
    if (last && !places.length && lines.length > 1 && lines.every((line) => line.other && !isCut(line.other.text))) {
      places = page.takeAll(moved(lines.map((line) => ({ ...line, ...line.other, y: line.y }))));
    }
    if (last && !places.length) {
      const one = { ...lines[0], ...lines[0].one, y: lines.at(-1).y };
      places = [page.take(nudged(one)) ?? page.take(fewer(one, room).flatMap(nudged)) ?? []].flat();
    }
    found.push(...places);
    if (!last && !places.length) tight.push(lines[0].place + (lines.every((line) => (page.touched(line) ?? 1) > 0.5) ? 1 : 0));
  }
  return { labels: found, tight };
}

/** The label on its lane's other side, and with fewer and fewer words; cut only at last. */
function fewer(label, room) {
  const flipped = label.other?.text ? [{ ...label, ...label.other, y: label.y }] : [];
  const forms = [];
  for (let each = label; ;) {
    const { id, text, x, x0, x1, anchor, dy, kind, hue } = each;
    each = { ...each, ...labelled(id, text, x, anchor, dy, kind, hue, room, x1 - x0 - 1), y: label.y };
    if (isCut(each.text)) break;
    forms.push(each);
  }
  return isCut(label.other?.text) ? [...forms, ...flipped] : [...flipped, ...forms];
}

/** Labels of bars go where there is room, on either side, or nowhere. */
function caption(bars, page, at, room) {
  const found = [];
  for (const bar of bars) {
    if (!bar.label) continue;
    const left = bar.kind !== "polls" && bar.kind !== "call";
    const one = sided(bar.id, bar.label, at[bar.lane], 14, left, 4, bar.kind, bar.hue, room);
    const lines = [left, !left].map((side) => lined(bar.id, bar.label, at[bar.lane], 14, side, false, bar.kind, bar.hue, room));
    const middle = (bar.y + bar.y2) / 2;
    const placesOf = (labels) => {
      const more = (LINE * (labels.length - 1)) / 2;
      const steps = Math.min(TRIES_MAX, Math.floor(((bar.y2 - bar.y) / 2 - 4 - more) / 4));
      return labels[0].text && Array.from({ length: Math.max(0, steps + 1) }, (_, step) => [middle - 4 * step, middle + 4 * step])
        .flat().map((y) => labels.map((label) => ({ ...label, y: y - more + label.dy })));
    };
    found.push(...page.takeAll([...lines, [one], [one.other]].flatMap((labels) => placesOf(labels) || [])));
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
    const side = arrow.side === "lock" ? 1 : -1;
    legs.push({ x1: store + side * (9 + STUB), y1: decided, x2: store + side * 9, y2: decided, head: true, way: "there" });
  } else {
    const from = inset(home, store);
    const to = inset(store, home);
    const apart = Math.abs(store - home);   // the label that the answer must not touch is beside home
    const half = home + Math.sign(store - home) * Math.max(0.55 * apart, Math.min(LABEL, apart - 40));
    if (decided === null) {
      legs.push({ x1: from, y1: asked, x2: half, y2: asked + FLIGHT, head: false, way: "there" });
      if (arrow.look === "dropped") cross = { x: half, y: asked + FLIGHT };
      else if (answered !== null) legs.push({ x1: half, y1: asked + FLIGHT, x2: from, y2: Math.max(answered, asked + 2 * FLIGHT), head: true, way: "back" });
    } else {
      legs.push({ x1: from, y1: asked, x2: to, y2: decided, head: true, way: "there" });
      if (arrow.look === "lost" || arrow.look === "unheard") {
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
  const kinds = ["stall", "wrong", "over", "call", "polls"];
  return [
    ...arrows.map((a) => stop(a, a.y, a.y2)),
    ...marks.map((m) => stop(m, m.y - 6, m.y + 6)),
    ...bars.filter((b) => kinds.includes(b.kind) || (b.kind === "belief" && b.evidence)).map((b) => stop(b, b.y, b.y2)),
  ].sort((p, q) => p.y - q.y || (p.id < q.id ? -1 : 1));
}

/** What each lane's head says at a moment before the end: what its bars and marks show there. */
export function statesAt(scene, t) {
  const found = {};
  for (const { lane, kind, t: at } of scene.marks) if (ENDS.has(kind) && at <= t) found[lane] = kind;
  for (const { lane, kind, label, t: [from, to] } of scene.bars) {
    const said = { belief: "holds", wrong: label, stall: "stalled" }[kind];
    if (said && from <= t && t < to && found[lane] !== "stalled") found[lane] = said;
  }
  return found;
}

/** The time that is drawn at this height. */
export function timeAt(anchors, y) {
  const place = upTo(anchors.map(([, at]) => at), y);
  if (place < 0) return anchors[0][0];
  const [[t0, y0], [t1, y1]] = [anchors[place], anchors[place + 1] ?? anchors[place]];
  return y1 > y0 ? t0 + ((t1 - t0) * (y - y0)) / (y1 - y0) : t0;
}

function stop({ id, lane, detail, label, row, evidence }, y, y2) {
  return { id, y, y2, lane, detail, find: `${lane} ${label ?? ""}`, row: row || "", evidence };
}

/** Every shape by the pages of the drawing that it touches. */
function pages(plan) {
  const kinds = { bars: plan.bars, arrows: plan.arrows, marks: plan.marks, labels: plan.labels, ticks: plan.ticks, gaps: plan.gaps };
  return Object.fromEntries(Object.entries(kinds).map(([name, shapes]) => {
    const by = new Map();
    const tall = [];
    shapes.forEach((shape, order) => {
      const [first, last] = [shape.y, shape.y2 ?? shape.y].map((y) => Math.floor(y / PAGE));
      if (last - first > TALL) { tall.push(order); return; }
      for (let page = first; page <= last; page += 1) (by.get(page) ?? by.set(page, []).get(page)).push(order);
    });
    return [name, { shapes, by, tall }];
  }));
}

/** What of a plan lies between two heights, in the plan's order, by kind of shape. */
export function inView(plan, top, bottom) {
  return Object.fromEntries(Object.entries(plan.pages).map(([name, { shapes, by, tall }]) => {
    const found = new Set(tall);
    for (let page = Math.floor((top - 12) / PAGE); page <= Math.floor((bottom + 12) / PAGE); page += 1) {
      for (const order of by.get(page) ?? []) found.add(order);
    }
    const seen = [...found].sort((p, q) => p - q).map((order) => shapes[order]);
    return [name, seen.filter((shape) => (shape.y2 ?? shape.y) >= top - 12 && shape.y <= bottom + 12)];
  }));
}

/** What a search looks through, of each stop: whose, what, answer, version, attempt; no times. */
export function haystack(stops) {
  return stops.map((stop) => ` ${stop.find} ${stop.detail.replace(/-?\d+\.\d+ s\b/g, "")}`.toLowerCase());
}

/** The places of the stops that have every word of `query` at the beginning of a word; of an instant, its end. */
export function matches(hay, query) {
  const words = query.replace(/\b\d{8,11}(\d{6})\b/g, "$1").toLowerCase().split(/\s+/).filter(Boolean)
    .map((each) => new RegExp(`(^|[^a-z0-9])${each.replace(/[^a-z0-9]/g, "\\$&")}`));
  if (!words.length) return [];
  return hay.flatMap((text, place) => (words.every((each) => each.test(text)) ? [place] : []));
}

/** The last place in a rising list whose value is not above `value`; -1 where all are. */
export function upTo(rising, value) {
  let low = 0;
  let high = rising.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rising[middle] <= value) low = middle + 1; else high = middle;
  }
  return low - 1;
}

export function seconds(ms, digits = 2) {
  return `${(ms / 1000).toFixed(digits)} s`;
}
