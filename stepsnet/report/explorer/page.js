// The page: state in, drawing, tables and texts out. Every change goes through `apply`.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const TITLES = {
  blocks: "blocks", layers: "layers", params: "parameters", macs: "MACs", kv_cache: "KV cache",
  activations: "activations",
};
const $ = (id) => document.getElementById(id);
const svgNode = (name, attributes, ...children) => node(name, attributes, children, "http://www.w3.org/2000/svg");
const html = (name, attributes, ...children) => node(name, attributes, children, "http://www.w3.org/1999/xhtml");

function node(name, attributes, children, space) {
  const made = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

let state = null;  // {subject, plan, tokens, lock, budget}

const short = (count) => {
  const value = Number(count);
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${letter}`;
  }
  return String(value);
};
const exact = (count) => count.toLocaleString("en-US");
const shown = (metric, count) => {
  if (count === undefined || (metric === "kv_cache" && count === 0n)) return "–";
  if (metric === "blocks" || metric === "layers") return exact(count);
  return short(count) + (metric === "kv_cache" || metric === "activations" ? "B" : "");
};

// Take over a changed plan, or say why not. `changed` is the step that the user changed: others compensate it.
function apply(plan, changed = null) {
  const problem = problemOf(state.subject, plan);
  $("problem").textContent = problem && `Not possible: ${problem}.`;
  if (problem) return;
  if (changed && state.lock) plan = compensate(state.subject, plan, changed, state.lock, state.budget, state.tokens);
  state.plan = plan;
  render();
}

function setLock(metric) {
  state.lock = metric;
  state.budget = metric ? costOf(state.subject, state.plan, state.tokens)[metric] : null;
}

function choose(subject, plan = subject.plan, tokens = subject.tokens, lock = "") {
  state = { subject, plan: copyPlan(plan), tokens, lock: "", budget: null };
  setLock(lock);
  $("lock").value = lock;
  $("model").value = subject.config ? "" : subject.name;
  $("tokens-label").hidden = subject.tokens === null;
  $("tokens").value = tokens ?? "";
  apply(state.plan);
}

function setStep(stage, index, key, value) {
  const plan = copyPlan(state.plan);
  plan[stage][index][key] = value;
  apply(plan, { stage, step: index });
}

// The smallest and largest width of a step between its neighbours.
function widthRange(stage, index) {
  const steps = state.plan[stage], unit = state.subject.unit, last = index === steps.length - 1;
  const low = index ? steps[index - 1].width + unit : unit;
  if (!last) return [low, steps[index + 1].width - unit];
  return state.subject.free ? [low, state.subject.widest] : [steps[index].width, steps[index].width];
}

function moveWidth(stage, index, wanted) {
  const [low, high] = widthRange(stage, index), snap = snapOf(state.subject, wanted);
  const width = Math.min(high, Math.max(low, Math.round(wanted / snap) * snap));
  if (width !== state.plan[stage][index].width) setStep(stage, index, "width", width);
}

function moveDepth(stage, index, wanted) {
  const depth = Math.max(0, Math.round(wanted));
  if (depth !== state.plan[stage][index].depth) setStep(stage, index, "depth", depth);
}

// Drawing

const HEIGHT = 210, TOP = 26, BOTTOM = 40, GAP = 26, FEWEST = 5;

// Steps without blocks get a little room.
const roomOf = (step) => Math.max(step.depth, 0.6);
const lengthOf = (plan) => plan.flat().reduce((sum, step) => sum + roomOf(step), 0);

// Where every step lies: to scale, blocks to the right, channels upwards.
function layout(plan, width, scale) {
  const perBlock = (width - 16 - GAP * (plan.length - 1)) / scale.longest, perChannel = HEIGHT / scale.widest;
  let x = 4;
  const steps = [];
  plan.forEach((stage, s) => {
    stage.forEach((step, i) => {
      const size = perBlock * roomOf(step);
      steps.push({ ...step, stage: s, index: i, x, size, before: i ? stage[i - 1].width : 0, end: stage.at(-1).width });
      x += size;
    });
    x += GAP;
  });
  return { steps, perBlock, perChannel };
}

const yOf = (channels, place) => TOP + HEIGHT - channels * place.perChannel;

function draw(into, plan, scale, editable) {
  const width = Math.max(into.clientWidth, 280), place = layout(plan, width, scale);
  const parts = [];
  for (const step of place.steps) {
    const collapsed = step.depth && place.perBlock < FEWEST;
    const columns = collapsed || step.depth === 0 ? 1 : step.depth, size = step.size / columns;
    const rect = (color, column, from, to) => svgNode("rect", {
      class: color, x: (step.x + column * size).toFixed(1), y: yOf(to, place).toFixed(1), fill: "currentColor",
      width: Math.max(size - 1, 0.5).toFixed(1), height: ((to - from) * place.perChannel).toFixed(1),
    });
    for (let column = 0; column < columns; column++) {
      if (step.depth === 0) { parts.push(rect("empty", column, 0, step.end)); continue; }
      parts.push(rect("old", column, 0, step.before || step.width));
      if (step.before) parts.push(rect("new", column, step.before, step.width));
      if (step.end > step.width) parts.push(rect("empty", column, step.width, step.end));
    }
    const middle = step.x + step.size / 2, roomy = step.size > 26;
    const label = (y, words, color) => svgNode(
      "text", { class: color, x: middle.toFixed(1), y, "text-anchor": "middle", "font-size": 12, fill: "currentColor" }, words);
    if (roomy) parts.push(label(TOP + HEIGHT + 16, step.width, "ink"));
    if (roomy) parts.push(label(TOP + HEIGHT + 32, `×${step.depth}`, "faint"));
  }
  if (editable) parts.push(...place.steps.flatMap((step) => handles(step, place)));  // above all bars
  const words = plan.map((stage) => stage.map((step) => `${step.depth} blocks of width ${step.width}`).join(", "));
  const focused = document.activeElement?.id;
  into.replaceChildren(svgNode("svg", {
    viewBox: `0 0 ${width} ${TOP + HEIGHT + BOTTOM}`, height: TOP + HEIGHT + BOTTOM, role: editable ? "group" : "img",
    "aria-label": `Drawing to scale: ${words.join("; ")}`,
  }, ...parts));
  if (editable && focused) $(focused)?.focus();
}

// Two sliders for each step: width at its upper edge, depth at its right edge.
function handles(step, place) {
  const { stage, index } = step, [low, high] = widthRange(stage, index);
  const name = `step ${index + 1}` + (state.plan.length > 1 ? ` of stage ${stage + 1}` : "");
  const knob = (kind, x, y, value, range, move, perPixel) => svgNode("g", {
    class: `handle ${kind} ink`, id: `${kind}-${stage}-${index}`, tabindex: 0, role: "slider",
    "aria-label": `${kind === "width" ? "Width" : "Blocks"} of ${name}`, "aria-valuenow": value,
    "aria-valuemin": range[0], "aria-valuemax": Number.isFinite(range[1]) ? range[1] : null,
    "aria-orientation": kind === "width" ? "vertical" : "horizontal",
    onkeydown: (event) => onKey(event, kind, stage, index, value, range, move),
    onpointerdown: (event) => onDrag(event, kind, value, perPixel, (to) => move(stage, index, to)),
  }, svgNode("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: 14, "fill-opacity": 0 }),
  svgNode("circle", { class: "knob", cx: x.toFixed(1), cy: y.toFixed(1), r: 5, fill: "var(--paper)",
    stroke: "currentColor", "stroke-width": 2 }));
  const made = [knob("depth", step.x + step.size, yOf(step.width / 2, place), step.depth, [0, 1000], moveDepth,
    1 / place.perBlock)];
  if (high > low) {
    made.push(knob("width", step.x + step.size / 2, yOf(step.width, place), step.width, [low, high], moveWidth,
      1 / place.perChannel));
  }
  return made;
}

function onKey(event, kind, stage, index, value, range, move) {
  const unit = kind === "width" ? snapOf(state.subject, value) : 1;
  const to = {
    ArrowUp: value + unit, ArrowRight: value + unit, ArrowDown: value - unit, ArrowLeft: value - unit,
    PageUp: value + 4 * unit, PageDown: value - 4 * unit, Home: range[0],
    End: Number.isFinite(range[1]) && kind === "width" ? range[1] : value,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  move(stage, index, to);
}

// The scale stays that of the start while the pointer is down, though the drawing changes below it.
function onDrag(event, kind, value, perPixel, move) {
  event.preventDefault();
  event.currentTarget.focus();
  const follow = (moved) => move(value + perPixel * (kind === "width" ? event.clientY - moved.clientY : moved.clientX - event.clientX));
  const stop = () => {
    removeEventListener("pointermove", follow);
    removeEventListener("pointerup", stop);
    removeEventListener("pointercancel", stop);
  };
  addEventListener("pointermove", follow);
  addEventListener("pointerup", stop);
  addEventListener("pointercancel", stop);
}

// Tables and texts

function renderStages() {
  const whole = costOf(state.subject, state.plan, state.tokens), focused = document.activeElement?.id;
  $("stages").replaceChildren(...state.plan.map((stage, s) => html("fieldset", {},
    html("legend", {}, state.plan.length > 1 ? `Stage ${s + 1}` : "Steps"),
    ...stage.map((step, i) => {
      const without = copyPlan(state.plan);
      without[s][i].depth = 0;
      const rest = costOf(state.subject, without, state.tokens);
      const share = (metric) => Math.round(100 - (100 * Number(rest[metric])) / Number(whole[metric]));
      const [low, high] = widthRange(s, i);
      const field = (key, label, min, max) => html("label", {}, label, html("input", {
        type: "number", id: `${key}-input-${s}-${i}`, value: step[key], min, max: Number.isFinite(max) ? max : null,
        readonly: min === max ? "" : null,
        onchange: (event) => setStep(s, i, key, Math.max(0, Math.round(Number(event.target.value)))),
      }));
      const remove = () => apply(state.plan.map((each, at) => (at === s ? each.toSpliced(i, 1) : each)));
      return html("div", { class: "step" },
        field("width", `Step ${i + 1}: width`, low, high), field("depth", "blocks", 0, 1000),
        html("span", { class: "share" }, `${share("params")} % of parameters, ${share("macs")} % of MACs`),
        ...(i < stage.length - 1
          ? [html("button", { type: "button", class: "plain", "aria-label": `Remove step ${i + 1}`, onclick: remove }, "Remove")]
          : []));
    }),
    html("button", { type: "button", class: "plain", id: `add-${s}`, onclick: () => {
      const next = addStep(state.subject, state.plan, s);
      if (next) apply(next);
      else $("problem").textContent = "Not possible: the first step is too narrow for another one before it.";
    } }, "Add a narrower step"))));
  if (focused) $(focused)?.focus();
}

function renderCosts() {
  const { subject, plan, tokens } = state, twin = sameDepthTwin(subject, plan, tokens);
  const columns = [["this plan", plan], ["residual", subject.plain]];
  if (twin) columns.push(["as deep", twin]);
  const costs = columns.map(([, each]) => costOf(subject, each, tokens));
  const head = columns.map(([title, each], i) => html("th", { scope: "col" }, title, ...(i ? [html("br", {}), formatPlan(each)] : [])));
  const body = METRICS.filter((metric) => metric !== "kv_cache" || subject.tokens !== null).map((metric) =>
    html("tr", { "data-metric": metric }, html("th", { scope: "row" }, TITLES[metric]),
      ...costs.map((cost) => html("td", { title: cost[metric] === undefined ? "not counted" : exact(cost[metric]),
        "data-exact": cost[metric] ?? "" }, shown(metric, cost[metric])))));
  $("costs").replaceChildren(html("thead", {}, html("tr", {}, html("td", {}), ...head)), html("tbody", {}, ...body));
  say(`${costs[0].blocks} blocks, ${shown("params", costs[0].params)} parameters, ${shown("macs", costs[0].macs)} MACs`);
  $("locked").textContent = state.lock
    ? `The other steps keep ${TITLES[state.lock]} near ${short(state.budget)}: now ` +
      `${(100 * (Number(costs[0][state.lock]) / Number(state.budget) - 1)).toFixed(2)} % away.`
    : "";
  return costs[0];
}

let speaking = 0;
function say(words) {  // to screen readers, once the changes have stopped
  clearTimeout(speaking);
  speaking = setTimeout(() => { $("said").textContent = words; }, 500);
}

function renderCopies(cost) {
  const { subject, plan, tokens } = state, text = formatPlan(plan), foreign = subject.config !== undefined;
  const length = subject.tokens !== null && tokens !== subject.tokens && !foreign ? `, seq_len=${tokens}` : "";
  $("as-python").textContent = foreign
    ? `model = stepsnet.stepify(model, plan="${text}")`
    : `model = stepsnet.create_model("${subject.name}", plan="${text}"${length})`;
  $("as-command").textContent = foreign
    ? `stepsnet stepify hf:FOLDER --plan "${text}" --out stepped`
    : `stepsnet info ${subject.name} --plan "${text}"`;
  const counts = Object.fromEntries(Object.entries(cost).map(([metric, count]) => [metric, Number(count)]));
  $("as-json").textContent = JSON.stringify({ model: subject.name, plan: text, ...(tokens ? { tokens } : {}), ...counts }, null, 2);
}

function render() {
  const both = [state.plan, state.subject.plain];
  const scale = {
    widest: Math.max(...both.flat(2).map((step) => step.width)), longest: Math.max(...both.map(lengthOf)),
  };
  draw($("drawing"), state.plan, scale, true);
  draw($("twin"), state.subject.plain, scale, false);
  renderStages();
  renderCopies(renderCosts());
  history.replaceState(null, "", hashOf());
}

// The state in the address

function hashOf() {
  const { subject, plan, tokens, lock } = state, words = new URLSearchParams();
  if (subject.config) words.set("config", JSON.stringify(subject.config));
  else words.set("model", subject.name);
  words.set("plan", formatPlan(plan).replaceAll(" ", ""));
  if (tokens) words.set("tokens", tokens);
  if (lock) words.set("lock", lock);
  return `#${words}`;
}

function readHash() {
  const words = new URLSearchParams(location.hash.slice(1));
  const subject = words.has("config")
    ? configSubject(DATA, JSON.parse(words.get("config")))
    : modelSubject(DATA, words.get("model") ?? "steps_deit_small");
  const plan = words.has("plan") ? parsePlan(words.get("plan")) : subject.plan, problem = problemOf(subject, plan);
  if (problem) throw new Error(problem);
  choose(subject, plan, subject.tokens && (Number(words.get("tokens")) || subject.tokens), words.get("lock") ?? "");
}

function guarded(action) {
  try { action(); } catch (error) { $("problem").textContent = `Not possible: ${error.message}.`; }
}

function start() {
  const families = Map.groupBy(Object.keys(DATA.models), (name) => DATA.models[name].family);
  $("model").append(html("option", { value: "", disabled: "" }, "config.json"),
    ...[...families].map(([family, names]) => html("optgroup", { label: family }, ...names.map((name) => html("option", { value: name }, name)))));
  $("model").onchange = (event) => choose(modelSubject(DATA, event.target.value));
  $("lock").onchange = (event) => { setLock(event.target.value); render(); };
  $("tokens").onchange = (event) => {
    state.tokens = Math.max(1, Math.round(Number(event.target.value)) || state.subject.tokens);
    event.target.value = state.tokens;
    setLock(state.lock);
    render();
  };
  $("use-config").onclick = () => guarded(() => choose(configSubject(DATA, JSON.parse($("config").value))));
  $("controls").onsubmit = (event) => event.preventDefault();
  addEventListener("resize", () => render());
  addEventListener("hashchange", () => guarded(readHash));
  try { readHash(); } catch (error) {
    choose(modelSubject(DATA, "steps_deit_small"));
    $("problem").textContent = `The address of the page could not be read: ${error.message}.`;
  }
}

start();
