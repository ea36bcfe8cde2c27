// The drawing's geometry, layout.js: `layout` turns a scene into geometry. Run by test_lanes_js.py, which
// makes the scenes from datasets/histories and hands them over in LANES_SCENES.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { fall, fitted, haystack, headOf, inView, layout, matches, middled, seconds, statesAt, timeAt, upTo } from "../lockkit/lab/widgets/layout.js";

const { _scanned: scanned, ...scenes } = JSON.parse(readFileSync(process.env.LANES_SCENES, "utf8"));
const GOLDEN = new URL("./lanes.golden.json", import.meta.url);
const WIDTHS = [340, 440, 640, 800, 900, 1300];
const named = (name) => scenes[name];
const labelled = (plan, text) => plan.labels.find((label) => label.text === text);

/** A plan as a few readable lines: what is where, to the pixel. */
function summary(plan) {
  const r = Math.round;
  return [
    `size ${plan.width} x ${r(plan.height)}`,
    ...plan.lanes.map((lane) => `lane ${lane.id} at ${lane.x}`),
    ...plan.bars.map((bar) => `bar ${bar.kind} in ${bar.lane} ${r(bar.y)}..${r(bar.y2)}`),
    ...plan.arrows.map((a) => `arrow ${a.lane} ${a.op} ${a.look} ${a.legs.map((l) => `${r(l.x1)},${r(l.y1)}>${r(l.x2)},${r(l.y2)}`).join(" ")}`),
    ...plan.marks.map((mark) => `mark ${mark.kind} ${r(mark.x)},${r(mark.y)}`),
    ...plan.labels.map((label) => `label ${label.anchor} ${r(label.x)},${r(label.y)} ${label.text}`),
  ];
}

test("the pictures are the ones that were looked at", () => {
  const drawn = Object.fromEntries(Object.entries(scenes).filter(([name]) => !name.startsWith("_"))
    .map(([name, scene]) => [name, summary(layout(scene, 900))]));
  if (process.env.LOCKKIT_REWRITE) writeFileSync(GOLDEN, `${JSON.stringify(drawn, null, 1)}\n`);
  assert.deepEqual(drawn, JSON.parse(readFileSync(GOLDEN, "utf8")));
});

for (const [name, scene] of Object.entries(scenes)) {
  for (const width of WIDTHS) {
    const plan = layout(scene, width);

    test(`no two labels meet: ${name} at ${width}`, () => {
      const down = [...plan.labels].sort((one, two) => one.y - two.y);
      down.forEach((one, i) => {
        for (let k = i + 1; k < down.length && down[k].y - one.y < 11; k += 1) {
          const two = down[k];
          assert.ok(one.x1 <= two.x0 || two.x1 <= one.x0, `"${one.text}" meets "${two.text}" at ${one.y}, ${two.y}`);
        }
      });
    });

    test(`five lanes are as wide as their room: ${name} at ${width}`, () => {
      if (plan.lanes.length <= 5) assert.equal(plan.width, width);
    });

    test(`time runs down, never up: ${name} at ${width}`, () => {
      plan.anchors.reduce(([t0, y0], [t, y]) => {
        assert.ok(t >= t0 && y >= y0, `${t} at ${y} after ${t0} at ${y0}`);
        return [t, y];
      });
    });

    test(`no label is cut: ${name} at ${width}`, () => {
      for (const label of plan.labels) {
        assert.ok(label.y >= 9, `"${label.text}" at ${label.y}, and its letters are nine pixels high`);
        assert.ok(label.x0 >= 0 && label.x1 <= plan.width, `"${label.text}" from ${label.x0} to ${label.x1} of ${plan.width}`);
      }
    });

    test(`no label touches another lane or a commit's diamond: ${name} at ${width}`, () => {
      const lanes = plan.lanes.map((lane) => lane.x);
      const diamonds = plan.marks.filter((mark) => mark.kind === "commit");
      for (const label of plan.labels) {
        const crossed = lanes.find((x) => x > label.x0 - 3 && x < label.x1 + 3);
        assert.equal(crossed, undefined, `"${label.text}" from ${label.x0} to ${label.x1}`);
        const met = diamonds.find((mark) => Math.abs(mark.y - label.y) < 14 && mark.x + 7 > label.x0 && mark.x - 7 < label.x1);
        assert.equal(met, undefined, `"${label.text}" at ${label.y}`);
      }
    });

    test(`no label touches an arrow or a cross: ${name} at ${width}`, () => {
      const legs = plan.arrows.flatMap((arrow) => arrow.legs);
      const crosses = plan.arrows.flatMap((arrow) => arrow.cross ?? []);
      for (const { x0, x1, y, text } of plan.labels) {
        const near = legs.filter((leg) => leg.y1 < y + 2 && leg.y2 > y - 11 && leg.x1 !== leg.x2);
        const met = near.find(({ x1: from, y1, x2: to, y2 }) => {
          const ends = [Math.max(x0, Math.min(from, to)), Math.min(x1, Math.max(from, to))];
          const heights = ends.map((x) => y1 + ((y2 - y1) * (x - from)) / (to - from));
          return ends[0] < ends[1] && Math.max(...heights) > y - 10.5 && Math.min(...heights) < y + 2;
        });
        assert.equal(met, undefined, `"${text}" at ${y}, or the pale edge around its letters`);
        assert.ok(!crosses.some((cross) => cross.x > x0 && cross.x < x1 && Math.abs(cross.y - y + 4) < 9), `"${text}" at ${y}`);
      }
    });

    test(`nothing is scrolled sideways: ${name} at ${width}`, () => {
      assert.equal(plan.width, width);
    });

    test(`every arrow falls: ${name} at ${width}`, () => {
      for (const arrow of plan.arrows) {
        for (const leg of arrow.legs) assert.ok(leg.y2 > leg.y1 || leg.x1 === leg.x2 || arrow.hue < 0, JSON.stringify(leg));
      }
    });
  }
}

test("without reads, a read that settles a lost answer is still drawn, and no other", () => {
  const reads = (name) => layout(named(name), 900, { reads: false }).arrows.filter((arrow) => arrow.kind === "read");
  assert.equal(reads("good/lost_response_recovered").length, 1);
  assert.equal(reads("good/throttled_release").length, 0);
});

test("a label without room says less, and what it says is still true", () => {
  const told = (text, chars) => fitted(text, chars * 6.8 + 1);
  assert.equal(told("committed, epoch 12", 30), "committed, epoch 12");
  assert.equal(told("committed, epoch 12", 10), "epoch 12");
  assert.equal(told("committed, epoch 12", 4), "e12");
  assert.equal(told("acquire: 412", 8), "412");
  assert.deepEqual([13, 9].map((room) => told("acquire: 412, W2 first", room)), ["412, W2 first", "412"]);
  assert.deepEqual([10, 6].map((room) => told("write, epoch 2", room)), ["write e2", "write"]);
  assert.equal(told("the SDK's own retry: answer 412 lost", 23), "retry: answer 412 lost");
  assert.equal(told("stale commit accepted", 14), "stale commit");
  assert.deepEqual([8, 7].map((chars) => told("superseded", chars)), ["replaced", "over"]);
  assert.equal(told("acquire", 5), "acq.");
  assert.deepEqual(["fence", "confirm", "exited"].map((each) => told(each, each.length - 1)), ["fen.", "conf.", "exit"]);
  assert.equal(told("fault: answer dropped", 14), "answer dropped");
  assert.equal(told("fault: answer dropped", 7), "dropped");
  assert.equal(told("request dropped", 5), "lost");
  assert.notEqual(told("stale commit accepted", 4), told("arrived late", 4));
  assert.equal(told("stalled 300.1 s", 7), "stalled");
  assert.deepEqual([8, 7].map((room) => told("..204123", room)), ["..204123", ""], "an instant has one short form");
  assert.equal(told("checked", 4), "", "its ring says it");
  assert.deepEqual([13, 8].map((room) => told("conflict with", room)), ["conflict with", "conflict"], "above the commit's name");
  assert.deepEqual([10, 7, 4].map((room) => told("acquire stripe 12", room)), ["acquire 12", "acq. 12", "acq."]);
  assert.deepEqual([7, 3].map((room) => told("slot 12 e3", room)), ["slot 12", "s12"]);
  assert.deepEqual([10, 6].map((room) => told("Q1 reads, Q3 writes", room)), ["Q1 r, Q3 w", "Q1 r \u2026"]);
  assert.equal(told("claim 41c7: done", 7), "claim \u2713");
  assert.deepEqual([11, 6, 4].map((room) => told("rule broken here: S3 and W1", room)), ["rule broken", "", ""]);
  assert.deepEqual([10, 7, 4].map((room) => told("past its lease", room)), ["past lease", "expired", ""]);
  assert.deepEqual([8, 4].map((room) => told("counts wrongly", room)), ["no grant", ""], "one word of it would say nothing");
  assert.deepEqual([22, 11].map((room) => told("no answer, and the request is still on its way", room)), ["no answer: on its way", "on its way"]);
  assert.notEqual(told("epoch 7 wrote after epoch 9", 20), "epoch 7 wrote after");
  assert.equal(told("takeover", 5), "take\u2026");
  assert.equal(told("fault: request held back", 9), "held back");
  const letters = told("W".repeat(40), 20).length;
  assert.ok(letters * 10.9 <= 20 * 6.8 && letters > 8, "W is as wide as 10.9 pixels in the page's letters");
  assert.ok(told("g17 9f1c", 3).length === 3 && told("", 0) === "");
});

test("eight lanes fit a notebook of 800 pixels without its list of files", () => {
  const scene = named("good/throttled_release");
  const writers = [1, 2, 3, 4, 5, 6].map((n) => ({ id: `W${n}`, title: `W${n}`, role: "writer", hue: n - 1, state: "" }));
  const table = { id: "table", title: "table", role: "truth", state: "" };
  const mark = { id: "t", kind: "commit", label: "..000001", lane: "table", hue: 0, t: 0 };
  const plan = layout({ ...scene, lanes: [scene.lanes[0], ...writers, table], marks: [...scene.marks, mark] }, 735);
  assert.deepEqual([plan.lanes.length, plan.width], [8, 735]);
});

test("a bold label takes more room than another one of as many letters", () => {
  const mark = (kind) => ({ id: kind, kind, label: "committed, epoch 2", lane: "W1", hue: 0, t: 0 });
  const scene = { ...named("good/throttled_release"), arrows: [], bars: [], stages: [], marks: [mark("published"), mark("checked")] };
  const [bold, plain] = ["published", "checked"].map((kind) => layout(scene, 900).labels.find((label) => label.id === kind));
  assert.ok(bold.x1 - bold.x0 > plain.x1 - plain.x0);
});

test("a write of a client without a lane has a label, in no writer's colour", () => {
  const made = { id: "x1", lane: "", side: "table", op: "fence", label: "fence", kind: "write", look: "ok", t: [0, 1, null], hue: -1 };
  const scene = named("good/throttled_release");
  const plan = layout({ ...scene, arrows: [made, ...scene.arrows] }, 900);
  const label = plan.labels.find((each) => each.id === "x1");
  const [leg] = plan.arrows.find((each) => each.id === "x1").legs;
  assert.equal(label.text, "fence");
  assert.ok(label.x1 < leg.x2 && label.y < leg.y1 && label.y > leg.y1 - 8);
});

test("a label makes way for an answer that would cross it", () => {
  const lanes = ["lock", "W1", "W2"].map((id) => ({ id, title: id, role: id === "lock" ? "truth" : "writer", state: "" }));
  for (let t = 20; t < 80; t += 2) {
    const arrows = [{ id: "x", lane: "W2", side: "lock", op: "acquire", label: "acquire", kind: "write", look: "ok", t: [10, 12, 90], hue: 1 }];
    const marks = [{ id: "m", kind: "checked", label: "checked", lane: "W1", hue: 0, t }];
    const plan = layout({ span: [0, 100], lanes, arrows, marks, bars: [] }, 900);
    const { x0, x1, y } = plan.labels.find((each) => each.id === "m");
    const back = plan.arrows[0].legs.find((leg) => leg.way === "back");
    const heights = [x0, x1].map((x) => back.y1 + ((back.y2 - back.y1) * (x - back.x1)) / (back.x2 - back.x1));
    assert.ok(Math.max(...heights) < y - 10.5 || Math.min(...heights) > y + 2, `at ${t}: ${heights} through ${y}`);
  }
});

test("a table that nothing was written to has no lane", () => {
  const scene = named("one call, 2 requests");
  assert.ok(!layout(scene, 900).lanes.some((lane) => lane.id === "table"));
  assert.ok(layout(named("good/throttled_release"), 900).lanes.some((lane) => lane.id === "table"));
});

test("a generation stands exactly where the write that made it arrives", () => {
  const plan = layout(named("good/stalled_commit_refused"), 900);
  for (const mark of plan.marks.filter((each) => each.kind === "generation")) {
    const arrow = plan.arrows.find((each) => each.row === mark.id);
    assert.equal(mark.y, arrow.legs[0].y2);
  }
});

test("a request that an answer of the same instant caused leaves after that answer has come", () => {
  const { arrows } = layout(named("_reacts"), 900);
  const pairs = arrows.flatMap((one) => arrows.filter((two) =>
    two.lane === one.lane && two.t[0] === one.t[2] && one.legs.length === 2).map((two) => [one, two]));
  assert.ok(pairs.length);
  for (const [one, two] of pairs) {
    const [come, left] = [one.legs.at(-1).y2, two.legs[0].y1];
    assert.ok(left > come, `${two.op} leaves at ${left}, and what it reacts to comes at ${come}`);
  }
});

test("of one instant, a cause is drawn before its effect", () => {
  let compared = 0;
  for (const scene of scanned) {
    const plan = layout(scene, 900);
    const places = plan.arrows.flatMap(({ id, lane, t, n, legs }) => [
      { what: `${id} is sent`, lane, t: t[0], n: n[0], y: legs[0].y1 }, { what: `${id} is answered`, lane, t: t[2], n: n[2], y: legs.at(-1).y2 },
    ].filter((place) => place.t !== null && legs.length === 2 && legs[1].head));
    const all = [...places, ...plan.marks.filter((mark) => mark.n).map(({ label, lane, t, n, y }) => ({ what: label, lane, t, n, y }))];
    for (const one of all) {
      for (const two of all.filter((each) => each.lane === one.lane && each.t === one.t && each.n > one.n)) {
        compared += 1;
        assert.ok(two.y >= one.y, `${two.lane}: ${two.what} at ${two.y}, before ${one.what} at ${one.y}`);
      }
    }
  }
  assert.ok(compared > 5, String(compared));
});

test("an instant has the same short form in every picture, and has it where there is room", () => {
  for (const width of [...WIDTHS, 336, 366, 500]) {
    const plan = layout(named("bad/stalled_commit_accepted"), width);
    const said = plan.labels.filter((label) => label.kind === "commit").map((label) => label.text);
    assert.deepEqual(said, width < 360 ? [] : ["..201123", "..202123", "..204123", "..203123", "..205123"], String(width));
  }
});

test("a label keeps its word where its lane is narrow: it has more lines", () => {
  const said = layout(named("bad/stalled_commit_accepted"), 500).labels.map((label) => label.text).join("|");
  for (const words of ["stalled|7.5 s", "lease|over", "stale|commit", "lease|lost", "commit|epoch 4", "acquire|412|W2 first"]) {
    assert.ok(`|${said}|`.includes(`|${words}|`), `${words} in ${said}`);
  }
});

test("the lines of one label stay together, and what fits one line has one", () => {
  const { labels } = layout(named("_group"), 660, { reads: false });
  const refused = Map.groupBy(labels.filter((label) => label.kind === "busy"), (label) => label.id);
  assert.ok(refused.size > 3);
  for (const [one, two, ...more] of refused.values()) {
    assert.match(`${one.text}|${two?.text}`, /^fence: 412\|W\d first$/);
    assert.ok(!more.length && two.y - one.y === 14 && two.anchor === one.anchor && two.x === one.x);
  }
  assert.deepEqual([...new Set(labels.filter((label) => label.kind === "decided").map((label) => label.text.replace(/\d/, "")))], ["by W"]);
});

test("the lines of one label are below one another, on one side of their lane", () => {
  let several = 0;
  for (const [name, scene] of Object.entries(scenes).filter(([each]) => each !== "_long")) {
    for (let width = 343; width < 800; width += 18) {
      const lines = Map.groupBy(layout(scene, width, { reads: false }).labels.filter((label) => label.dy), (label) => `${label.place} ${label.id}`);
      for (const [one, ...more] of [...lines.values()].map((some) => some.sort((p, q) => p.dy - q.dy))) {
        several += more.length;
        more.forEach((line, i) => assert.ok(line.x === one.x && line.anchor === one.anchor && Math.abs(line.y - one.y - 14 * (i + 1)) < 0.01,
          `${name} at ${width}: "${line.text}" is not below "${one.text}"`));
      }
    }
  }
  assert.ok(several > 100);
});

test("a label between its lane and what belongs to the next one points at its lane", () => {
  const plan = layout(named("_group"), 690);
  const away = plan.labels.filter((label) => label.anchor === "end" && plan.arrows.some(({ id }) => id === label.id));
  const pointing = away.filter((label) => label.points === 1);
  assert.ok(pointing.length && plan.arrows.every(({ side }) => side === "table"));
  assert.deepEqual(new Set(pointing.map(({ id }) => id)), new Set(away.map(({ id }) => id)), "each one, from one of its lines");
  const held = layout(named("_retried"), 366).labels.filter((label) => label.kind === "owner");
  assert.ok(held.every(({ anchor, points }) => (points === -1) === (anchor === "start")));
});

test("a refusal says its cause, on more lines where one is too short", () => {
  const said = (name, width) => layout(named(name), width).labels.filter((label) => ["refused", "busy"].includes(label.kind)).map((label) => label.text);
  const refused = (width) => said("good/stalled_commit_refused", width);
  assert.deepEqual(refused(1300), ["acquire: 412, W2 wrote first", "fence: 412, W2 wrote first", "fenced off: epoch 3 is over"]);
  assert.deepEqual(refused(640).join("|"), "acquire: 412|W2 first|fence: 412|W2 first|fenced off|epoch 3|is over");
  assert.deepEqual(said("one call, 2 requests", 1300), ["the SDK's own retry: 412, its own write was first"]);
  assert.deepEqual(said("_deleted", 752), ["renew: 412", "W2 wrote first"]);   // below an arrow that ends beside it
});

test("a head says what its lane shows at that moment, and not what it shows at the end", () => {
  const scene = named("good/stalled_commit_refused");
  const states = (t) => statesAt(scene, t).W1;
  const stall = scene.bars.find((bar) => bar.kind === "stall" && bar.lane === "W1");
  const held = scene.bars.find((bar) => bar.kind === "belief" && bar.lane === "W1");
  assert.deepEqual([0, held.t[0], held.t[1], stall.t[0] + 1, scene.span[1]].map(states), [undefined, "holds", undefined, "stalled", "exited"]);
});

test("a height and its time are found from each other", () => {
  const { anchors, ticks } = layout(named("good/stalled_commit_refused"), 900);
  for (const { t, y } of ticks) assert.ok(Math.abs(timeAt(anchors, y) - t) < 1e-6, `${t} at ${y}`);
});

test("no two rows of the axis say the same time", () => {
  const said = layout(named("_reacts"), 900).ticks.map((tick) => seconds(tick.t, 3));
  assert.deepEqual(said, [...new Set(said)]);
  const mark = (_, n) => ({ id: `m${n}`, lane: "W1", kind: "exited", t: 145.2 + 0.7 * n, label: "exited", detail: "", hue: 0 });
  const lanes = [{ id: "W1", title: "W1", role: "writer", hue: 0, state: "" }];
  const burst = { span: [0, 200], lanes, bars: [], arrows: [], marks: Array.from({ length: 20 }, mark), rows: [] };
  const rows = layout(burst, 900).ticks.map((tick) => Number.parseFloat(seconds(tick.t, tick.digits)));
  assert.deepEqual(rows, [...rows].sort((one, two) => one - two), "or an earlier one than the row above");
});

test("an arrow leaves the letters alone that go below the line", () => {
  const lanes = ["lock", "W1", "W2"].map((id) => ({ id, title: id, role: id === "lock" ? "truth" : "writer", state: "" }));
  const write = (id, lane, look, label, t) => ({ id, lane, side: "lock", op: "acquire", label, kind: "write", look, t, hue: 1 });
  for (let t = 40; t < 90; t += 1) {
    const arrows = [write("a", "W2", "refused", "acquire: 412", [10, 12, t]), write("b", "W2", "ok", "acquire", [t + 1, t + 2, t + 3])];
    const plan = layout({ span: [0, 100], lanes, arrows, marks: [], bars: [] }, 900);
    const { x0, x1, y } = plan.labels.find((each) => each.id === "b");
    for (const leg of plan.arrows.flatMap((arrow) => arrow.legs)) {
      const at = (x) => leg.y1 + ((leg.y2 - leg.y1) * (x - leg.x1)) / (leg.x2 - leg.x1);
      for (const x of [x0, x1]) assert.ok(at(x) <= y || at(x) >= y + 3, `at ${t}: ${at(x)} through ${y}`);
    }
  }
});

test("an answer that was lost stops at a cross on its way back", () => {
  const plan = layout(named("good/lost_response_recovered"), 900);
  const lost = plan.arrows.find((arrow) => arrow.look === "lost");
  assert.equal(lost.legs.length, 2);
  assert.equal(lost.legs[1].head, false);
  assert.deepEqual(lost.cross, { x: lost.legs[1].x2, y: lost.legs[1].y2 });
  assert.ok(labelled(plan, "acquire: answer lost"));
});

test("idle time is elided and bursts are spread", () => {
  assert.ok(fall(60_000) < 60);
  assert.ok(fall(4) >= 2);
  const plan = layout(named("good/stalled_commit_refused"), 900);
  assert.ok(plan.gaps.length >= 1 && plan.height < 1400);
});

test("without reads there are no reads, and nothing else is missing", () => {
  const scene = named("good/stalled_commit_refused");
  const [all, writes] = [layout(scene, 900), layout(scene, 900, { reads: false })];
  assert.ok(writes.arrows.every((arrow) => arrow.kind === "write"));
  assert.equal(writes.arrows.length, all.arrows.filter((arrow) => arrow.kind === "write").length);
  assert.equal(writes.marks.length, all.marks.length);
});

test("the keyboard visits every event once, in the order of time", () => {
  const plan = layout(named("bad/stalled_commit_accepted"), 900);
  const ids = plan.stops.map((stop) => stop.id);
  assert.equal(new Set(ids).size, ids.length);
  assert.ok(plan.stops.every((stop, i) => i === 0 || stop.y >= plan.stops[i - 1].y));
  assert.ok(plan.stops.every((stop) => stop.detail));
});

test("what is drawn is what is in view, however long the history is", () => {
  const plan = layout(named("_long"), 900);
  const most = (shapes) => Object.values(shapes).reduce((sum, each) => sum + each.length, 0);
  assert.ok(plan.arrows.length > 1500 && plan.height > 50_000, `${plan.arrows.length} in ${plan.height}`);
  for (const top of [0, plan.height / 2, plan.height - 1200]) {
    const seen = inView(plan, top, top + 1200);
    assert.ok(most(seen) > 50 && most(seen) < 500, String(most(seen)));
    for (const kind of ["bars", "arrows", "marks", "labels", "ticks"]) {
      const inside = plan[kind].filter((each) => (each.y2 ?? each.y) >= top && each.y <= top + 1200);
      const drawn = new Set(seen[kind]);
      assert.ok(inside.every((each) => drawn.has(each)), `${kind} at ${top}`);
    }
  }
});

test("a writer's lane can be hidden: the lock object and the table still show what it did", () => {
  const scene = named("bad/stalled_commit_accepted");
  const [all, without] = [layout(scene, 900), layout(scene, 900, { away: new Set(["W2"]) })];
  assert.ok(without.lanes.every((lane) => lane.id !== "W2"));
  assert.ok([...without.arrows, ...without.stops].every((each) => each.lane !== "W2"));
  for (const kind of ["generation", "commit"]) {
    const count = (plan) => plan.marks.filter((mark) => mark.kind === kind).length;
    assert.equal(count(without), count(all), kind);
  }
});

test("a search finds writers, writes, answers and versions, at the beginning of words, and no times", () => {
  const { stops } = layout(named("bad/stalled_commit_accepted"), 900);
  const found = (query) => matches(haystack(stops), query).map((place) => stops[place]);
  assert.ok(found("w2 ACQUIRE").length >= 2 && found("w2 acquire").every((stop) => /W2/.test(stop.detail) && /acquire/.test(stop.detail)));
  assert.deepEqual(found("412").map((stop) => /answer 412/.test(stop.detail)), [true, true]);
  const row = named("bad/stalled_commit_accepted").rows[2];
  assert.ok(found(row.full).some((stop) => stop.row === row.id), "a whole version, as it was pasted");
  assert.ok(found("20250106101204123").some((stop) => stop.detail.includes("..204123")), "a whole instant, as it was pasted");
  assert.equal(found("").length + found("   ").length + found("zebra").length, 0);
  assert.ok(found("(.*) [").length === 0, "a search is no pattern");
});

test("the last of the places up to a value", () => {
  assert.deepEqual([-1, 0, 5, 6, 99].map((value) => upTo([0, 5, 5, 9], value)), [-1, 0, 2, 2, 3]);
});

test("an empty history is laid out as nothing", () => {
  const plan = layout(named("_empty"), 900);
  assert.equal(plan.arrows.length + plan.bars.length + plan.marks.length, 0);
  assert.ok(Number.isFinite(plan.height));
});

test("seconds are said in seconds", () => assert.equal(seconds(16300), "16.30 s"));

test("an arrow does not cross a bar's label where there is another place", () => {
  const writer = (id, hue) => ({ id, title: id, role: "writer", hue });
  const plan = layout({
    span: [0, 400], rows: [], marks: [],
    lanes: [{ id: "lock", title: "lock object", role: "lock" }, writer("W1", 0), writer("W2", 1)],
    arrows: [{ id: "x1", lane: "W2", side: "lock", kind: "write", look: "ok", op: "acquire", label: "acquire", hue: 1, t: [200, 201, 202] }],
    bars: [{ id: "b1", lane: "W1", kind: "wrong", label: "past its lease", hue: 0, t: [0, 400] }],
  }, 900);
  const label = labelled(plan, "past its lease");
  for (const leg of plan.arrows[0].legs) {
    const y = leg.y1 + ((leg.y2 - leg.y1) * ((label.x0 + label.x1) / 2 - leg.x1)) / (leg.x2 - leg.x1);
    assert.ok(y < label.y - 11 || y > label.y + 2, `the arrow is at ${y}, and the label at ${label.y}`);
  }
});

test("a lost race is grey, and a refusal that cost a commit is red", () => {
  const writer = (id, hue) => ({ id, title: id, role: "writer", hue });
  const refused = (id, lane, label, t) => ({ id, lane, side: label.startsWith("a") ? "lock" : "table", kind: "write", look: "refused", op: "", label, hue: 1, t: [t, t + 1, t + 2] });
  const mark = (id, lane, kind, t) => ({ id, lane, kind, label: kind, hue: 0, t });
  const plan = layout({
    span: [0, 400], rows: [], bars: [],
    lanes: [{ id: "lock", title: "lock object", role: "lock" }, writer("W1", 0), writer("W2", 1), writer("W3", 2), { id: "table", title: "table", role: "truth" }],
    arrows: [refused("race", "W1", "acquire: 412", 10), refused("unsettled", "W3", "fence: 412", 15), refused("retry", "W1", "the SDK's own retry: 412", 20),
      refused("again", "W1", "fence: 412", 30), refused("late", "W2", "fence: 412", 40),
      refused("slot", "W2", "PUT if absent \u20260: 412", 60), refused("term", "W2", "PUT if unchanged term: 412", 70)],
    marks: [mark("m1", "W1", "published", 50), mark("m2", "W2", "refused", 50), mark("m3", "W3", "conflict", 50), mark("m4", "W3", "refused", 60)],
  }, 900);
  const grey = plan.arrows.filter((arrow) => arrow.busy).map((arrow) => arrow.id);
  assert.deepEqual(grey, ["race", "unsettled", "again", "slot"]);
});

test("a long name is not cut where it has room beside its lane: a head leans inward, a holder's label flips", () => {
  const name = "botocore-claim-retried";
  const lanes = [{ id: "lock", title: "lock object", role: "lock" }, { id: "W", title: name, role: "writer", hue: 0 }];
  const bars = [{ id: "b", kind: "owner", lane: "lock", label: name, hue: 0, t: [0, 900], detail: "" }];
  const arrows = [{ id: "a", lane: "W", side: "lock", kind: "write", look: "ok", op: "acquire", label: "acquire", hue: 0, t: [0, 5, 9] }];
  const plan = layout({ span: [0, 900], rows: [], bars, arrows, marks: [], lanes }, 366);
  assert.equal(plan.labels.find((label) => label.id === "b").text, name);
  const { x, room } = headOf(plan.lanes, 1, plan.width);
  assert.ok(room >= 8 * name.length && x + room / 2 <= plan.width);
  assert.ok(x - room / 2 > plan.lanes[0].x + 40, "the head before it stays readable");
  assert.equal(headOf(plan.lanes, 0, plan.width).x, plan.lanes[0].x);
});

test("a name between two lanes has the room that they do not need; a longer one loses its middle", () => {
  const writer = (id, x, state) => ({ id, title: id, role: "writer", x, state });
  const lanes = [{ id: "lock", title: "lock object", role: "lock", x: 112 }, writer("spark-orders", 206, "superseded"), writer("backfill", 300, "holds")];
  const { x, room } = headOf(lanes, 1, 352);
  assert.deepEqual([x, headOf(lanes, 0, 352).said], [206, "lock"]);
  assert.ok(room >= 8.2 * "spark-orders".length);
  assert.ok(x + room / 2 < 300 - (8.2 * "backfill".length) / 2, "the next head stays readable");
  lanes[2].title = "backfill-2026";
  assert.ok(headOf(lanes, 1, 352).room < 8.2 * "spark-orders".length);
  assert.equal(middled("spark-orders", 9), "spar\u2026ders");
});

test("eleven lanes are drawn whole at 800 pixels, also beside a list of files", () => {
  const truth = (id, title) => ({ id, title, role: "truth" });
  const lanes = [truth("lock", "lock object"), ...[1, 2, 3, 4, 5, 6, 7, 8, 9].map((n) => ({ id: `S${n}`, title: `S${n}`, role: "writer", hue: n })), truth("table", "table")];
  const arrows = ["lock", "table"].map((side) => ({ id: side, lane: "S5", side, kind: "write", look: "throttled", op: "fence", label: "fence: 429", hue: 0, t: [1, 2, 3] }));
  for (const width of [724, 346]) {
    const plan = layout({ span: [0, 12_420], rows: [], bars: [], marks: [], lanes, arrows }, width);
    assert.equal(plan.width, width);
    const heads = plan.lanes.map((_, i) => headOf(plan.lanes, i, plan.width));
    const ends = heads.map(({ x, room }, i) => x + Math.min(room, 8.2 * Math.min(5, plan.lanes[i].title.length)) / 2);
    assert.ok(ends.at(-1) <= width && heads.every(({ x }, i) => !i || x > ends[i - 1]), "no head covers the one before");
  }
});

test("group commit takes no lock, so its picture has no lane of the lock object", () => {
  const lanes = [{ id: "lock", title: "lock object", role: "lock" }, { id: "W1", title: "W1", role: "writer", hue: 0 }, { id: "table", title: "table", role: "truth" }];
  const write = (op) => ({ id: op, lane: "W1", side: "table", kind: "write", look: "ok", op, label: op, hue: 0, t: [1, 2, 3] });
  const drawn = (...ops) => layout({ span: [0, 9], rows: [], bars: [], marks: [], lanes, arrows: ops.map(write) }, 900).lanes.map((lane) => lane.id);
  assert.deepEqual(drawn("offer", "fence"), ["W1", "table"]);
  const five = [1, 2, 3, 4, 5].map((n) => ({ id: `W${n}`, title: `W${n}`, role: "writer", hue: n }));
  const many = layout({ span: [0, 1980], rows: [], bars: [], marks: [], lanes: [lanes[0], ...five, lanes[2]], arrows: [write("offer")] }, 336);
  assert.equal(many.width, 336, "five writers and the table fit a notebook of 800 pixels");
  assert.equal(layout({ span: [0, 1980], rows: [], bars: [], marks: [], lanes: [lanes[0], ...five, lanes[2]], arrows: [write("offer")] }, 636).width, 636);
  const locked = layout({ span: [0, 1980], rows: [], bars: [], marks: [], lanes: [lanes[0], ...five.slice(1), lanes[2]], arrows: [{ ...write("fence"), lane: "W2" }] }, 336);
  assert.equal(locked.width, 336, "and so do four with a lock");
  assert.deepEqual(drawn("fence"), ["lock", "W1", "table"]);
});
