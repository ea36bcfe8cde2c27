// The drawing's SVG, as the page has it: scenes in (LANES_SCENES), one text each out, as JSON. Run by
// test_lanes_js.py. Of a page's DOM only what the drawing of the diagram itself needs is made here.
import { readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const WIDTH = 560;
const HEADS = 34;
const { code, css, scenes } = JSON.parse(readFileSync(process.env.LANES_SCENES, "utf8"));

class Node {
  constructor(name) { Object.assign(this, { name, attributes: {}, children: [], dataset: {}, textContent: "" }); }
  get classList() {
    const all = () => (this.attributes.class ?? "").split(" ").filter(Boolean);
    return { add: (one) => this.setAttribute("class", [...all(), one].join(" ")), toggle() {} };
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  hasAttribute(name) { return name in this.attributes; }
  appendChild(child) { this.children.push(child); }
  insertBefore(child, next) { this.children.splice(this.children.indexOf(next), 0, child); }
  replaceChildren() { this.children = []; }
  querySelectorAll() { return []; }
  contains() { return false; }
}

const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");

/** One element a line; without what only the page's mouse and keys need. */
function written({ name, attributes, children, textContent }, indent) {
  if (/lk-hit|lk-future/.test(attributes.class)) return [];
  const said = Object.entries(attributes).filter(([each]) => !/^(data-|role|tabindex|aria-)/.test(each))
    .map(([each, value]) => ` ${each}="${escaped(value.replace(/\d+\.\d+/g, (number) => Math.round(number * 10) / 10))}"`).join("");
  const inside = children.flatMap((child) => written(child, `${indent} `));
  if (!inside.length) return name === "g" || name === "defs" ? [] : [`${indent}<${name}${said}>${escaped(textContent)}</${name}>`];
  return [`${indent}<${name}${said}>`, ...inside, `${indent}</${name}>`];
}

/** The rules of lanes.css that this picture uses: its colours, its letters, and what has a name in it. */
function styled(lines) {
  const used = new Set(lines.join(" ").match(/lk-[a-z0-9-]+/g));
  const whole = css.replace(/\/\*.*?\*\//gs, "").replace(/@container[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}/g, "");
  const rules = whole.match(/(?:@media[^{]*\{\s*)?[^{}]+\{[^{}]*\}/g).map((rule) => rule.trim().replace(/\s+/g, " "));
  return rules.flatMap((rule) => {
    if (rule.startsWith("@media")) return [`${rule} }`];
    const [names, body] = rule.split("{");
    const kept = names.split(",").map((each) => each.trim()).filter((each) => /^\.lk(?: text)?$/.test(each)
      || (!/:|\[/.test(each) && /lk-/.test(each) && each.match(/lk-[a-z0-9-]+/g).every((name) => used.has(name))));
    return kept.length ? [`${kept.join(", ")} {${body}`] : [];
  });
}

globalThis.document = { createElementNS: (_, name) => new Node(name), createElement: (name) => new Node(name), activeElement: null };
const file = join(tmpdir(), `lanes-${process.pid}.mjs`);
writeFileSync(file, code.replace(/export default [^;]+;/, "export { View };"));
const { View, layout } = await import(pathToFileURL(file));

function drawn(scene) {
  const plan = layout(scene, WIDTH, { reads: true });
  const view = Object.assign(Object.create(View.prototype), {
    scene, plan, prefix: "lk-", selected: "", foundIds: new Set(), heights: plan.stops.map((stop) => stop.y), byId: new Map(), rows: { select() {} },
    canvas: new Node("g"), scroller: { scrollTop: 0, clientHeight: plan.height },
    model: { get: (name) => ({ live: false, cursor: -1 })[name] }, preview: { hidden: true },
  });
  if (!plan.bars.some(({ kind }) => kind === "stall" || kind === "wrong")) view.patterns = () => {};
  view.canvas.setAttribute("transform", `translate(0 ${HEADS})`);
  view.visible(true);
  const heads = plan.lanes.map(({ x, title, role, hue }) => `<text class="lk-head-name ${role === "writer" ? `lk-w${hue % 6}` : "lk-truth"}" x="${x}" y="20" text-anchor="middle">${escaped(title)}</text>`);
  const lines = [...heads, ...written(view.canvas, "")];
  const height = Math.ceil(plan.height + HEADS);
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" class="lk-page" width="${plan.width}" height="${height}" viewBox="0 0 ${plan.width} ${height}" role="img">`,
    "<style>", ...styled(lines), ".lk text.lk-head-name { font-size: 13px; font-weight: 600; fill: var(--hue); }", "</style>",
    `<g class="lk"><rect width="${plan.width}" height="${height}" rx="6" fill="var(--bg)"/>`, ...lines, "</g>", "</svg>", "",
  ].join("\n");
}

process.stdout.write(JSON.stringify(Object.fromEntries(Object.entries(scenes).map(([name, scene]) => [name, drawn(scene)]))));
