// The playground: what a reader chooses goes to the worker, and what it answers is drawn here. The
// drawing itself (layout.js, rows.js, lanes.js) stands in front of this file, which is put into a block: its names
// do not meet those of the drawing. Text of a history is untrusted: it is set as textContent.

const data = JSON.parse(document.getElementById("pg-data").textContent);
const place = document.getElementById("playground");
const byId = (id) => document.getElementById(id);
const [state, said, bar, more] = ["pg-state", "pg-said", "pg-progress", "pg-more"].map(byId);
const panels = Object.fromEntries([...place.querySelectorAll(".pg-panel")].map((each) => [each.id.slice(3), each]));
const began = performance.now();
const [KEPT, WAYS] = [20, 4];   // results that Back finds again, and other ways that are listed at once
const kept = [];

// --- the picture ---

const drawing = { scene: {}, status: {}, live: false, beats: false, selected: "", cursor: -1 };
const heard = new Map();
const model = {
  get: (name) => drawing[name], set: (name, value) => { drawing[name] = value; },
  on: (name, act) => heard.set(act, name), off: (_name, act) => heard.delete(act),
  send: () => {}, save_changes: () => {},
};

function draw(replay) {
  byId("pg-picture").hidden = false;
  Object.assign(drawing, replay);
  for (const name of ["scene", "status", "selected", "cursor"]) {
    for (const [act, of] of heard) if (of === `change:${name}`) act();
  }
}

function themed() {
  byId("pg-picture").classList.toggle("lk-page-dark", document.documentElement.dataset.theme === "dark");
}

// --- the worker: one request at a time, the newest; a new one replaces what is under way ---

let [worker, ready, asked, waiting] = [null, false, 0, null];
const fetched = new Map();

function load() {
  if (!data.python) return fail("This copy of the documentation was built without Python for the browser (npm was not there), so only the prepared picture can be shown. With npm installed, make docs builds all of it.");
  if (location.protocol === "file:") return fail("A browser runs no Python in a page that was opened from a file. Serve the folder, for example with: python -m http.server --directory build/docs");
  worker = new Worker(new URL(data.python, document.baseURI), { type: "module" });
  worker.onmessage = ({ data: message }) => {
    if (message.ready) started();
    else if (message.loading) state.textContent = message.loading;
    else if (message.broken) fail(message.broken);
    else if (message.id === asked) told(message);
  };
  worker.onerror = (event) => fail(`Python could not be loaded: ${event.message || "a file is missing"}`);
}

function started() {
  ready = true;
  place.dataset.ready = "true";
  state.textContent = `Python runs in this page (loaded in ${((performance.now() - began) / 1000).toFixed(1)} s). Nothing that you enter leaves this page.`;
  if (waiting) { const [request, given, act] = waiting; ask(request, given, act); }
  for (const name of data.incidents) published(name).catch(() => {});   // it is tried again when it is chosen
}

function fail(why) {
  place.dataset.failed = "true";
  state.textContent = why;
  busy(false);
}

function ask(request, given, act) {
  asked += 1;
  waiting = [request, given, act];
  busy(true);
  say(ready ? "" : "This runs as soon as Python is loaded.");
  if (ready) worker.postMessage({ id: asked, request, given: JSON.stringify(given) });
}

function told(message) {
  const found = JSON.parse(message.said);
  if (!message.over) return found.said === undefined ? undefined : progress(found);
  const [, , act] = waiting;
  waiting = null;
  busy(false);
  if (found.error) refused(found.error);
  else act(found);
}

function progress({ said: words, done, of }) {
  say(of ? `${words} (${done} of ${of})` : words);
  bar.hidden = false;
  if (of) { bar.max = of; bar.value = done; } else bar.removeAttribute("value");
}

function stop() {
  asked += 1;
  waiting = null;
  if (worker) worker.postMessage({ stop: true });
  busy(false);
  say("Stopped.");
}

function busy(on) {
  for (const each of place.querySelectorAll("[name=stop]")) each.disabled = !on;
  place.dataset.busy = String(on);
  if (!on) bar.hidden = true;
}

function say(words, bad = false) {
  said.textContent = words;
  said.classList.toggle("pg-bad", bad);
}

function clear() {
  byId("pg-picture").hidden = true;
  delete place.dataset.trace;
  more.replaceChildren();
  say("");
}

/** What was asked for is not shown: nor is the result of something else, beside the reason. */
function refused(why) {
  clear();
  say(why, true);
}

/** The first ones are open, the rest is folded; `now` is the one that the picture shows. */
function list(items, most = Infinity, now = -1, rest = "more") {
  const made = (some) => {
    const ul = html("ul", "pg-list");
    for (const each of some) {
      const [text, link] = each;
      const item = html("li", "", "", ul);
      if (each === items[now]) item.setAttribute("aria-current", "step");
      if (link) { const a = html("a", "", text, item); a.href = `#${link}`; } else item.textContent = text;
    }
    return ul;
  };
  more.replaceChildren(...(most ? [made(items.slice(0, most))] : []));
  if (items.length <= most) return;
  const fold = html("details", "", "", more);
  html("summary", "", `${items.length - most} ${rest}`, fold);
  fold.append(made(items.slice(most)));
}

// --- tabs, and the moment in the address ---

const latest = {};   // how each tab shows again what it showed last

/** Open a tab; what is on the screen belongs to the one before. */
function open(name) {
  if (panels[name].hidden) clear();
  for (const [each, panel] of Object.entries(panels)) {
    panel.hidden = each !== name;
    const tab = byId(`pg-tab-${each}`);
    tab.setAttribute("aria-selected", String(each === name));
    tab.tabIndex = each === name ? 0 : -1;
  }
}

/** The address of what is shown; `again`: the reader came by an address, or stays at the same run. */
function linked(link, again = false) {
  if (link === location.hash.slice(1)) return;
  history[again ? "replaceState" : "pushState"](null, "", link ? `#${link}` : location.pathname);
}

/** A tab by its button: what it showed last, with the address of that; or nothing yet. */
function visit(name) {
  if (!panels[name].hidden) return;
  if (place.dataset.busy === "true") stop();
  open(name);
  if (latest[name]) latest[name]();
  else if (STARTED[name]) STARTED[name]();
  else history.pushState({ tab: name }, "", location.pathname);
}

/** Show what no address can name, a reader's own file: Back shows it again while the page is open. */
function keep(tab, show) {
  const again = () => { open(tab); latest[tab] = () => keep(tab, show); show(); };
  if (kept.push(again) > KEPT) kept[kept.length - KEPT - 1] = null;
  history.pushState({ kept: kept.length - 1 }, "", location.pathname);
  again();
}

/** What the entry of the browser's history shows, if the page kept it. */
const keptNow = () => kept[history.state?.kept];

/** Opens what the address names; nothing named: the prepared picture. */
function follow() {
  if (keptNow() || history.state?.tab) return;
  const named = location.hash.slice(1);
  if (byId(named)) return said.classList.contains("pg-bad") && clear();   // a heading of the page
  if (!named) { stop(); open("simulate"); return shown(data.first); }
  const [, opened] = Object.entries(OPENED).find(([field]) => new URLSearchParams(named).has(field)) || [];
  if (opened) opened(named);
  else refused(`This address names nothing that can be played: #${named.slice(0, 60)}`);
}

function tabs() {
  const all = [...place.querySelectorAll("[role=tab]")];
  all.forEach((tab, i) => {
    tab.addEventListener("click", () => visit(tab.id.slice(7)));
    tab.addEventListener("keydown", ({ key }) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1 + all.length, Home: 0, End: all.length - 1 }[key];
      if (to !== undefined) { const next = all[to % all.length]; next.focus(); next.click(); }
    });
  });
}

// --- the simulator ---

const sim = panels.simulate.elements;

function option(parent, value, words) {
  const one = html("option", "", words, parent);
  one.value = value;
}

function rules(scenario) {
  sim.rule.replaceChildren();
  option(sim.rule, "", "nothing: all rules are on");
  const found = data.menus.scenarios.find((each) => each.name === scenario);
  for (const rule of found ? found.rules : []) option(sim.rule, rule.name, `${rule.name}: ${rule.says}`);
}

function shown(found) {
  if (![...sim.scenario.options].some((each) => each.value === found.scenario)) option(sim.scenario, found.scenario, found.scenario);
  sim.scenario.value = found.scenario;
  rules(found.scenario);
  sim.rule.value = found.rule;
  sim.seed.value = found.seed;
  sim.step.min = found.begins;
  sim.step.max = found.steps;
  sim.step.value = found.step;
  place.dataset.link = found.link;
  place.dataset.trace = found.trace;
  latest.simulate = () => { linked(found.link); shown(found); };
  const runs = found.runs === 1 ? "1 run" : `${found.runs} runs`;
  const searched = found.runs ? `${found.found ? "Found" : "Nothing found"} after ${runs}. ` : "";
  const where = found.step === found.steps ? "the end" : `of ${found.steps}`;
  say(`${searched}Seed ${found.seed}, move ${found.step}, ${where}: ${found.because}.`);
  more.replaceChildren();
  draw(found.replay);
}

function simulate(moment, again = false) {
  open("simulate");
  ask("simulate", { moment }, (found) => { linked(found.link, again); shown(found); });
}

/** The number in the seed's field; null, and why, if there is none. */
function seeded() {
  if (/^\d{1,9}$/.test(sim.seed.value)) return Number(sim.seed.value);
  say("The seed is a whole number from 0 to 999999999.", true);
  return null;
}

function chosen(step) {
  const rule = sim.rule.value ? `/${sim.rule.value}` : "";
  return `${sim.scenario.value}${rule}:${sim.seed.value}${step === undefined ? "" : `@${step}`}`;
}

/** The same run at another of its moves: with the other ways that it took. */
function moved(step) {
  const now = Math.max(Number(sim.step.min), Math.min(Number(sim.step.max), step));
  sim.step.value = now;
  const fields = new URLSearchParams(place.dataset.link);
  fields.set("step", now);
  simulate(`#${fields}`, true);
}

function simulator() {
  for (const each of data.menus.scenarios) option(sim.scenario, each.name, `${each.name}: ${each.says}`);
  sim.scenario.addEventListener("change", () => rules(sim.scenario.value));
  panels.simulate.addEventListener("submit", () => { if (seeded() !== null) simulate(chosen()); });
  sim.seek.addEventListener("click", () => {
    if (seeded() === null) return;
    const [scenario, rule, now] = [sim.scenario.value, sim.rule.value, new URLSearchParams(place.dataset.link)];
    const same = now.get("scenario") === scenario && (now.get("rule") ?? "") === rule && Number(now.get("seed")) === seeded();
    const after = same && drawing.status.verdict === "INVALID" ? 1 : 0;   // this one is on the screen
    ask("seek", { scenario, rule, seed: seeded() + after, runs: 200 }, (found) => { linked(found.link); shown(found); });
  });
  sim.step.addEventListener("change", () => moved(Number(sim.step.value)));
  for (const each of panels.simulate.querySelectorAll("[data-by]")) {
    each.addEventListener("click", () => moved(Number(sim.step.value) + Number(each.dataset.by)));
  }
  sim.vary.addEventListener("click", () => ask("vary", { moment: `#${place.dataset.link}` }, (found) => {
    say(`${found.others}.`);
    list(found.wrong.map(({ link, because }) => [because, link]), WAYS);
  }));
  sim.copy.addEventListener("click", async () => {
    linked(place.dataset.link, true);
    try { await navigator.clipboard.writeText(location.href); say("The link is in the clipboard."); }
    catch { say(`The link is this page's address: ${location.href}`); }
  });
}

// --- the checker ---

function check(history) {
  ask("check", { history }, (found) => {
    keep("check", () => {
      panels.check.elements.history.value = history;
      say("");
      list(found.findings.map((each) => [`${each.verdict}: ${each.because}`]));
      draw(found.replay);
    });
  });
}

function checker() {
  const { history, file } = panels.check.elements;
  const take = async (files) => {
    if (files.length > 1) return refused("Drop one history at a time.");
    if (files.length) { history.value = await files[0].text(); check(history.value); }
  };
  panels.check.addEventListener("submit", () => check(history.value));
  file.addEventListener("change", () => take(file.files));
  droppable(panels.check, take);
}

// --- the explorer ---

const search = panels.explore.elements;

function explored(row, again = false) {
  open("explore");
  ask("explore", { row }, (found) => searched(found, again));
}

function searched(found, again) {
  latest.explore = () => searched(found, false);
  search.row.value = found.row;
  say(`${found.because}.`);
  list(found.story, Infinity, found.step - 1);
  byId("pg-picture").hidden = !found.replay;
  if (found.replay) draw(found.replay);
  linked(found.link, again);
}

function explorer() {
  for (const each of data.menus.rows) option(search.row, each.name, `${each.name}: ${each.says}`);
  panels.explore.addEventListener("submit", () => explored(search.row.value));
}

// --- the stepper ---

const BUTTONS = [
  ["answer", "Next", "carry out the next request, and let it be answered"],
  ["finish", "To the end", "carry out all of its requests"],
  ["lose", "Answer lost", "carry out the next request; its answer is lost"],
  ["drop", "Request lost", "the next request never arrives"],
  ["late", "Applied late", "no answer comes, and the write is still on its way: you decide when it arrives"],
  ["land", "Let it land", "the write that was on its way arrives now"],
  ["pause", "Pause", "pause the process; its clock goes on"],
  ["wake", "Wake", "resume the process"],
  ["kill", "Kill", "kill the process at this point"],
];
const stage = panels.step.elements;

function stepped(moment, who = "", what = "", again = false) {
  open("step");
  ask("step", { moment, who, what }, (found) => staged(found, again));
}

function staged(found, again) {
  latest.step = () => staged(found, false);
  stage.play.value = found.play;
  mistakes();
  stage.mistake.value = found.rule;
  stage.undo.disabled = !found.decisions;
  stage.ends.hidden = !found.lease;
  stage.ends.textContent = `Let the lease end (${found.lease} s pass)`;
  linked(found.link, again);
  const moment = place.dataset.play = `#${found.link}`;
  byId("pg-actors").replaceChildren(...found.actors.map((actor) => acting(actor, moment)));
  if (found.judged) say(`${found.well ? "As it should be" : "Wrong"}: ${found.because}.`, !found.well);
  else say("No client has written anything yet, so there is nothing to judge. Press Next.");
  const there = found.objects.map(([key, body]) => [`${key}: ${body}`]);
  list(there, 0, -1, there.length === 1 ? "object in the store" : "objects in the store");
  draw(found.replay);
}

function acting(actor, moment) {
  const box = html("section", "pg-actor");
  html("b", "", actor.name, box);
  const row = html("div", "pg-buttons", "", box);
  for (const [what, words, title] of BUTTONS) {
    if (!actor.choices.includes(what === "finish" ? "answer" : what)) continue;
    const button = html("button", "", words, row);
    Object.assign(button, { type: "button", title: `${actor.name}: ${title}` });
    button.addEventListener("click", () => stepped(moment, actor.name, what));
  }
  const table = html("table", "", "", box);
  const line = (cells, kind) => {
    const tr = html("tr", kind, "", table);
    for (const cell of cells) html("td", "", cell, tr);
  };
  for (const each of actor.lines) line(each, "");
  line(actor.ended ? [actor.ended] : [actor.next, actor.state], actor.ended ? "pg-ended" : "pg-next");
  return box;
}

function mistakes() {
  const play = data.menus.plays.find((each) => each.name === stage.play.value);
  byId("pg-play").textContent = play.says;
  stage.mistake.replaceChildren();
  option(stage.mistake, "", "nothing: as it should be");
  for (const each of play.rules) option(stage.mistake, each, each);
}

function stepper() {
  for (const each of data.menus.plays) option(stage.play, each.name, each.name);
  const start = () => stepped(`#${new URLSearchParams({ play: stage.play.value, rule: stage.mistake.value })}`);
  const now = () => place.dataset.play || `#play=${stage.play.value}`;
  mistakes();
  stage.play.addEventListener("change", () => { mistakes(); start(); });
  stage.mistake.addEventListener("change", start);
  panels.step.addEventListener("submit", start);
  stage.undo.addEventListener("click", () => stepped(now(), "", "undo"));
  stage.ends.addEventListener("click", () => stepped(now(), "the lease", "ends"));
  stage.undo.disabled = true;
}

// --- the incident reader ---

async function content(file) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
  return { name: file.name || "file", content: url.slice(url.indexOf(",") + 1) };
}

async function incidents(files) {
  if (!files.length) return refused("Drop a file, or choose one.");
  byId("pg-picture").hidden = true;
  more.replaceChildren();
  try { diagnosed(await Promise.all([...files].map(content))); }
  catch (error) { refused(`A file cannot be read: ${error.message}`); }
}

function diagnosed(files) {
  ask("incident", { files }, (found) => keep("incident", () => {
    say(found.taken.join("; "));
    const card = html("div", "pg-card");
    const line = (words, text) => { const p = html("p", "", "", card); html("b", "", words, p); p.append(` ${text}`); };
    line(`${found.pattern}:`, found.because);
    line("Do:", found.do);
    line("Don't:", found.dont);
    line("Run:", found.command);
    list([...found.proofs, ...found.also.map((each) => `Also: ${each}`), ...found.audit].map((each) => [each]));
    more.prepend(card);
    draw(found.replay);
  }));
}

function reader() {
  const { file, known } = panels.incident.elements;
  option(known, "", "choose");
  for (const name of data.incidents) option(known, name, name);
  const choose = () => {
    const name = known.value;
    file.value = "";
    if (name) published(name).then((found) => incidents([found]), (error) => refused(`${name} could not be loaded: ${error.message}`));
  };
  known.addEventListener("change", choose);
  file.addEventListener("change", () => { known.value = ""; incidents(file.files); });
  panels.incident.addEventListener("submit", () => (known.value ? choose() : incidents(file.files)));
  droppable(panels.incident, (files) => { known.value = ""; incidents(files); });
}

/** A published incident. All of them are fetched with Python, so that they are there offline. */
async function published(name) {
  if (!fetched.has(name)) {
    const answer = await fetch(new URL(name, new URL(data.incidents_at, document.baseURI)));
    if (!answer.ok) throw new Error(String(answer.status));
    fetched.set(name, await answer.blob());
  }
  return new File([fetched.get(name)], name);
}

/** The whole page takes what is dropped while the panel is open: a browser would open the file in the page's place. */
function droppable(panel, take) {
  for (const [kind, on] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
    document.addEventListener(kind, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;   // text, into a field
      event.preventDefault();
      if (panel.hidden) return;
      panel.classList.toggle("pg-over", on);
      if (kind === "drop") take(event.dataTransfer.files);
    });
  }
}

/** What a tab shows before anything was asked of it. */
const STARTED = { step: () => panels.step.requestSubmit() };

const OPENED = {
  scenario: (named) => simulate(`#${named}`, true),
  search: (named) => explored(`#${named}`, true),
  play: (named) => stepped(`#${named}`, "", "", true),
};

for (const panel of Object.values(panels)) {
  panel.addEventListener("submit", (event) => event.preventDefault());
  panel.elements.stop.addEventListener("click", stop);
}
tabs();
for (const set of [simulator, explorer, stepper, checker, reader]) set();
themed();
new MutationObserver(themed).observe(document.documentElement, { attributeFilter: ["data-theme"] });
draw(data.first.replay);
render({ model, el: byId("pg-picture") });
shown(data.first);
place.dataset.drawn = String(Math.round(performance.now()));
addEventListener("hashchange", follow);
addEventListener("popstate", () => {
  if (keptNow()) { stop(); keptNow()(); }
  else if (history.state?.tab) { stop(); clear(); open(history.state.tab); }
  else if (!location.hash) follow();
});
if (location.hash) follow();
load();
