// Costs of plans. Python counted them: this file only evaluates the polynomials of costs.json (see polynomials.py).
"use strict";

const METRICS = ["blocks", "layers", "params", "macs", "activations", "kv_cache"];

// A plan is a list of stages, a stage a list of steps {width, depth}.
function parsePlan(text) {
  return text.split(";").map((stage) => stage.split(",").map((part) => {
    const found = /^\s*(\d+)\s*[x×]\s*(\d+)\s*$/.exec(part);
    if (!found) throw new Error(`'${part.trim()}' is not WIDTHxBLOCKS; a plan looks like 192x12, 272x6, 384x6`);
    return { width: Number(found[1]), depth: Number(found[2]) };
  }));
}

const formatPlan = (plan) =>
  plan.map((stage) => stage.map((step) => `${step.width}x${step.depth}`).join(", ")).join("; ");

// {"ww": 12, "w": 13} is 12w² + 13w. Whole numbers of any size.
function evaluate(polynomial, variables) {
  let sum = 0n;
  for (const [letters, coefficient] of Object.entries(polynomial)) {
    let product = BigInt(coefficient);
    for (const letter of letters) product *= BigInt(variables[letter]);
    sum += product;
  }
  return sum;
}

// A subject is a model of which plans are made: its polynomials, its plain plan, the variables of a step and outside.
function modelSubject(data, name) {
  const model = data.models[name];
  if (!model) throw new Error(`there is no model '${name}'`);
  const table = data.tables[model.family] ?? {};
  const widest = Math.max(...Object.values(table).map((entries) => entries.length - 1), 1);
  return {
    name, kind: data.kinds[model.kind], plain: parsePlan(model.plain), plan: parsePlan(model.plan), free: model.free,
    tokens: model.tokens, unit: model.family === "transformer" ? 2 : 1, widest: model.free ? widest : Infinity,
    stepVariables(width) {
      return Object.fromEntries(
        [["w", width], ...Object.entries(table).map(([letter, entries]) => [letter, entries[width]])]);
    },
    outside: {},
  };
}

// A model of transformers, from its config.json. Widths scale it as `stepsnet stepify` does.
function configSubject(data, config) {
  const kind = data.types[config.model_type];
  if (!kind) {
    const known = Object.keys(data.types).join(", ");
    throw new Error(`model_type is '${config.model_type ?? "missing"}'; known here are ${known}`);
  }
  const get = (letter) => config[kind.names[letter]] ?? kind.defaults[kind.names[letter]] ?? null;
  const width = get("width"), heads = get("heads"), keyHeads = get("key_heads") ?? heads;
  const dim = get("head_dim") ?? width / heads;
  const inner = get("m"), patch = get("patch");
  for (const [what, number] of Object.entries({ width, heads, depth: get("depth"), "head dimension": dim })) {
    if (!Number.isInteger(number) || number < 1) throw new Error(`the ${what} of this configuration is ${number}`);
  }
  const group = keyHeads > 1 ? heads / keyHeads : 1;
  const labels = config.id2label ? Object.keys(config.id2label).length : 2;
  const plain = [[{ width, depth: get("depth") }]];
  return {
    name: config.model_type, config, kind, plain, plan: plain, free: false, widest: Infinity,
    unit: kind.rotary ? (width / heads) * group : 1,
    tokens: patch ? null : 128,
    stepVariables(w) {
      const scaled = (heads * w) / width;
      const keys = keyHeads > 1 || heads === 1 ? scaled / group : 1;
      return {
        w, d: dim, q: kind.rotary ? scaled * dim : w, k: kind.rotary ? keys * dim : w,
        m: inner ? scaledInner(inner, w, width) : 4 * w,
        T: patch ? (get("image") / patch) ** 2 + 1 : 0, A: Number(get("A") ?? 0), B: Number(get("B") ?? 0),
      };
    },
    outside: {
      T: patch ? (get("image") / patch) ** 2 + 1 : 0, V: get("V") ?? 0, P: get("P") ?? 0, L: patch ? labels : 0,
      u: Number(get("untied") === false), x: patch ? get("channels") * patch ** 2 : 0,
    },
  };
}

// The hidden width of an MLP in proportion, a multiple of 8 where the whole one is; halves round to even, as in Python.
function scaledInner(size, width, full) {
  const unit = size % 8 === 0 && size >= 64 ? 8 : 1;
  const exact = (size * width) / full / unit;
  const down = Math.floor(exact), rest = exact - down;
  return Math.max(unit, unit * (rest > 0.5 || (rest === 0.5 && down % 2) ? down + 1 : down));
}

// All metrics of a plan as BigInt. Families without layers (transformers) have no "layers".
function costOf(subject, plan, tokens) {
  const text = subject.tokens === null ? {} : { T: tokens };
  const ends = Object.fromEntries(plan.map((stage, index) => [String(index + 1), stage.at(-1).width]));
  const outside = { ...subject.outside, ...ends, ...text };
  const found = {};
  for (const metric of METRICS) {
    if (!subject.kind.outside[metric]) continue;
    found[metric] = evaluate(subject.kind.outside[metric], outside);
    plan.forEach((stage, index) => stage.forEach((step) => {
      if (step.depth === 0) return;
      const variables = { ...subject.stepVariables(step.width), ...text };
      found[metric] += BigInt(step.depth) * evaluate(subject.kind.stages[index][metric], variables);
    }));
  }
  return found;
}

// What is wrong with a plan in one sentence, or "".
function problemOf(subject, plan) {
  if (plan.length !== subject.plain.length) {
    return `this model has ${subject.plain.length} stages, the plan ${plan.length}; write one plan per stage`;
  }
  for (const [index, stage] of plan.entries()) {
    const end = subject.plain[index].at(-1).width, where = plan.length > 1 ? `stage ${index + 1}` : "the plan";
    for (const [number, step] of stage.entries()) {
      if (step.width < 1 || step.width > subject.widest) return `${where}: width ${step.width} is out of range`;
      if (step.width % subject.unit) return `${where}: width ${step.width} is no multiple of ${subject.unit}`;
      if (number && step.width <= stage[number - 1].width) {
        return `${where}: every step must be wider than the one before, not ${stage[number - 1].width} and ${step.width}`;
      }
    }
    if (!subject.free && stage.at(-1).width !== end) return `${where} must end at width ${end}`;
  }
  return "";
}

const copyPlan = (plan) => plan.map((stage) => stage.map((step) => ({ ...step })));

// Widths go in multiples of 8 where they are large, since kernels like that.
const snapOf = (subject, width) => (width >= 64 && 8 % subject.unit === 0 ? 8 : subject.unit);

// Change depths of the other steps of the stage until the metric is as near to the budget as they can bring it. Each time
// one block is added to, or taken from, the step that has moved least in proportion among those that bring it nearer.
function compensate(subject, plan, changed, metric, budget, tokens) {
  let best = copyPlan(plan);
  const gap = (candidate) => Math.abs(Number(costOf(subject, candidate, tokens)[metric] - budget));
  let left = gap(best);
  const inside = plan[changed.stage].length > 1;  // the only step of a stage is compensated by the other stages
  for (let round = 0; round < 1000; round++) {
    let chosen = null;
    best.forEach((stage, s) => stage.forEach((step, i) => {
      if ((s === changed.stage) !== inside || (inside && i === changed.step)) return;
      for (const move of [-1, 1]) {
        if (step.depth + move < 1) continue;
        const candidate = copyPlan(best);
        candidate[s][i].depth += move;
        const distance = gap(candidate), before = plan[s][i].depth;
        const moved = Math.abs(candidate[s][i].depth - before) / Math.max(before, 1);
        if (distance < left && (!chosen || moved < chosen.moved || (moved === chosen.moved && distance < chosen.distance))) {
          chosen = { candidate, distance, moved };
        }
      }
    }));
    if (!chosen) return best;
    best = chosen.candidate;
    left = chosen.distance;
  }
  return best;
}

// The widest residual network of as many blocks that needs no more MACs; for networks of one stage. null: there is none.
function sameDepthTwin(subject, plan, tokens) {
  if (plan.length > 1) return null;
  const depth = plan[0].reduce((sum, step) => sum + step.depth, 0), limit = costOf(subject, plan, tokens).macs;
  const snap = snapOf(subject, subject.plain[0][0].width);
  for (let width = Math.floor(plan[0].at(-1).width / snap) * snap; width > 0; width -= snap) {
    const twin = [[{ width, depth }]];
    if (costOf(subject, twin, tokens).macs <= limit) return twin;
  }
  return null;
}

// The paper's rule: half of a stage's first step becomes twice as many blocks, √2 narrower.
function addStep(subject, plan, index) {
  const next = copyPlan(plan), [first] = next[index];
  const snap = snapOf(subject, first.width / Math.SQRT2);
  const width = Math.round(first.width / Math.SQRT2 / snap) * snap;
  if (width < snap || width >= first.width) return null;
  const kept = Math.floor(first.depth / 2);
  next[index].unshift({ width, depth: 2 * (first.depth - kept) });
  next[index][1].depth = kept;
  return next;
}

if (typeof module !== "undefined") {  // tests in Node.js
  module.exports = {
    addStep, compensate, configSubject, costOf, formatPlan, modelSubject, parsePlan, problemOf, sameDepthTwin,
  };
}
