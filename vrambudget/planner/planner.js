
// The planner: asks Python in a worker as the controls move, and shows the answers. Two workers: one
// for the estimate, one for what takes longer. Only the newest question of each kind waits.
class Asker {
  constructor(settings) {
    this.worker = new Worker("worker.js", { type: "module" });
    this.waiting = new Map(); // the newest question of each kind
    this.busy = null;
    this.number = 0;
    this.ready = new Promise((resolve, reject) => {
      this.worker.onmessage = ({ data }) => {
        if (data.ready) resolve();
        else if (data.id === undefined) reject(new Error(data.failed));
        else this.answered(data);
      };
    });
    this.worker.postMessage({ settings });
  }

  // Resolves to the answer, or to null where a newer question of its kind took its place.
  async ask(kind, question) {
    await this.ready;
    return new Promise((resolve) => {
      this.waiting.get(kind)?.resolve(null);
      this.waiting.set(kind, { text: JSON.stringify({ ask: kind, ...question }), resolve });
      this.next();
    });
  }

  next() {
    const [first] = this.waiting;
    if (this.busy || !first) return;
    const [kind, { text, resolve }] = first;
    this.waiting.delete(kind);
    this.busy = resolve;
    this.worker.postMessage({ id: ++this.number, text });
  }

  answered({ text, failed }) {
    const resolve = this.busy;
    this.busy = null;
    this.next();
    resolve(failed ? { error: failed, hint: null } : JSON.parse(text));
  }
}

const settings = JSON.parse(document.getElementById("settings").textContent);
const at = (id) => document.getElementById(id);
const quick = new Asker(settings);
let slow = null; // made once the first answer is there
const state = { model: "gpt2", gpu: "NVIDIA GeForce RTX 3060", fields: {} };
const controls = new Map(); // by field: sets what a control shows
const FIRST = ["precision", "optimizer", "checkpointing", "attention", "quant", "mode"];
const octaves = (first, last) => { // four steps from each power of two to the next
  const values = [];
  for (let low = first; low < last; low *= 2) {
    for (let i = 0; i < 4; i++) values.push(low + (low * i) / 4);
  }
  return [...new Set([...values, last].map(Math.round))];
};
const SLIDERS = {
  batch: octaves(1, 2048),
  block: octaves(64, 131072),
  grad_accum: [1, 2, 4, 8, 16, 32, 64, 128, 256],
  lora_rank: [0, 1, 2, 4, 8, 16, 32, 64, 128, 256],
};

function make(kind, properties = {}, ...children) {
  const element = Object.assign(document.createElement(kind), properties);
  element.append(...children);
  return element;
}

function set(field, value) {
  if (value === null || value === "" || Number.isNaN(value)) delete state.fields[field.name];
  else state.fields[field.name] = value;
  controls.get(field.name).forEach((show) => show(state.fields[field.name]));
  changed();
}

function slider(field) {
  const values = SLIDERS[field.name];
  const nearest = (value) => values.findLastIndex((v) => v <= value);
  const range = make("input", { type: "range", min: 0, max: values.length - 1, value: 0 });
  const number = make("input", { type: "number", min: 0, placeholder: field.default ?? "default" });
  range.setAttribute("aria-label", field.name);
  number.setAttribute("aria-label", `${field.name}, exactly`);
  range.oninput = () => set(field, values[range.value] || null);
  number.oninput = () => set(field, number.value === "" ? null : Number(number.value) || null);
  show(field, (value) => {
    range.value = Math.max(nearest(value ?? field.default ?? 0), 0);
    if (document.activeElement !== number) number.value = value ?? "";
  });
  const label = make("label", { textContent: field.name.replaceAll("_", " "), title: field.help });
  const box = make("div", { className: "slider" }, label, range, number);
  if (field.name === "batch") {
    const button = make("button", { type: "button", textContent: "largest that fits" });
    button.onclick = largest;
    box.append(button);
  }
  return box;
}

async function largest() {
  at("state").textContent = "searching the largest batch ...";
  const found = await thinker().ask("largest", { ...state });
  if (!found) return;
  at("state").textContent = found.error ?? (found.batch ? "" : "not even one sequence fits");
  if (found.batch) set({ name: "batch" }, found.batch);
}

function control(field) {
  if (field.kind === "switch") {
    const box = make("input", { type: "checkbox" });
    box.onchange = () => set(field, box.checked ? !field.default : null);
    show(field, (value) => { box.checked = value !== undefined && value !== field.default; });
    return make("label", { title: field.name }, box, ` ${field.help}`);
  }
  const label = make("label", { title: field.help }, field.name.replaceAll("_", " "));
  const open = field.default === null ? "default" : `${field.default}`;
  if (field.kind === "choice") {
    const choices = field.choices.filter((choice) => choice !== field.default);
    const select = make("select", {}, make("option", { value: "", textContent: open }),
      ...choices.map((choice) => make("option", { value: choice, textContent: choice })));
    select.onchange = () => set(field, select.value || null);
    show(field, (value) => { select.value = value ?? ""; });
    label.append(select);
  } else {
    const input = make("input", { type: field.kind === "text" ? "text" : "number", placeholder: open });
    if (field.kind === "number") input.step = "any";
    input.oninput = () => set(field, field.kind === "text" || input.value === "" ? input.value
      : Number(input.value));
    show(field, (value) => { if (document.activeElement !== input) input.value = value ?? ""; });
    label.append(input);
  }
  return label;
}

function show(field, how) {
  controls.set(field.name, [...(controls.get(field.name) ?? []), how]);
}

function build({ models, gpus, groups }) {
  at("models").append(...models.map(({ name, title }) => make("option", { value: name }, title)));
  at("gpus").append(...gpus.map((name) => make("option", { value: name })));
  const fields = new Map(groups.flatMap((group) => group.fields).map((field) => [field.name, field]));
  at("sliders").append(...Object.keys(SLIDERS).map((name) => slider(fields.get(name))));
  at("choices").append(...FIRST.map((name) => control(fields.get(name))));
  for (const group of groups) {
    const rest = group.fields.filter(({ name }) => !(name in SLIDERS) && !FIRST.includes(name));
    if (rest.length) at("more").append(make("h3", { textContent: group.title }), ...rest.map(control));
  }
  at("model").oninput = () => { state.model = at("model").value; changed(); };
  at("gpu").oninput = () => { state.gpu = at("gpu").value; changed(); };
  at("config").oninput = () => {
    try {
      state.model = at("config").value.trim() ? JSON.parse(at("config").value) : at("model").value;
    } catch (error) {
      at("state").textContent = `config.json: ${error.message}`;
      return;
    }
    changed();
  };
  at("log").oninput = explain;
  at("plan").ontoggle = () => plan(structuredClone(state));
}

// The address keeps the state: #model=gpt2&gpu=12GB&batch=8
function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (!given.size) return;
  Object.assign(state, { gpu: given.get("gpu") ?? "", fields: {} });
  const model = given.get("model") ?? "gpt2";
  state.model = model.startsWith("{") ? JSON.parse(model) : model;
  for (const [name, text] of given) {
    if (["model", "gpu"].includes(name)) continue;
    const isText = isNaN(text) && !["true", "false"].includes(text);
    state.fields[name] = isText || ["torch", "transformers"].includes(name) ? text : JSON.parse(text);
  }
}

function write() {
  const model = typeof state.model === "string" ? state.model : JSON.stringify(state.model);
  history.replaceState(null, "", `#${new URLSearchParams({ model, gpu: state.gpu, ...state.fields })}`);
}

function fill() {
  const pasted = typeof state.model !== "string";
  at("model").value = pasted ? "" : state.model;
  at("config").value = pasted ? JSON.stringify(state.model, null, 2) : "";
  at("gpu").value = state.gpu;
  for (const [name, all] of controls) all.forEach((how) => how(state.fields[name]));
}

function thinker() {
  slow ??= new Asker(settings);
  return slow;
}

function mistake({ error, hint }) {
  const parts = [make("p", { className: "mistake", textContent: error })];
  if (hint) parts.push(make("p", { className: "waiting", textContent: hint }));
  return parts;
}

let later = 0; // a timer: what takes longer is asked for once the controls rest
async function changed() {
  write();
  clearTimeout(later);
  const question = structuredClone(state);
  const begun = performance.now();
  try {
    const found = await quick.ask("first", question);
    if (!found) return;
    display(found);
    at("headline").dataset.milliseconds = Math.round(performance.now() - begun);
    if (found.error || !isNewest(question)) return;
    if (found.is_steady) await draw(question, begun);
    else later = setTimeout(() => settle(question, begun), 100);
  } catch (error) {
    display({ error: `Python did not start: ${error.message}`,
      hint: "The page needs WebAssembly and, the first time, its runtime's address." });
  }
}

// Near the GPU's limit the first steps are not enough: more are run until the steady state.
async function settle(question, begun) {
  const found = await quick.ask("estimate", question);
  if (!found || !isNewest(question)) return;
  display(found);
  await draw(question, begun);
}

async function draw(question, begun) {
  const drawing = await quick.ask("drawing", question);
  if (!drawing || !isNewest(question)) return;
  const plotted = at("answer").querySelector(".plotted");
  plotted.innerHTML = drawing.plotted;
  plotted.classList.remove("stale");
  timeline(drawing.curve);
  dragged(drawing.curve);
  at("answer").dataset.drawn = Math.round(performance.now() - begun);
  later = setTimeout(() => { advise(question); plan(question); }, 400);
}

const KINDS = { FITS: "fits", "FITS ONLY IF NOTHING ELSE USES THE GPU": "fits", "DOES NOT FIT": "fails", PEAK: "peak" };
const isNewest = (question) => JSON.stringify(question) === JSON.stringify(state);

function display(found) {
  const kind = found.is_steady === false ? "peak" : KINDS[found.word] ?? "fails";
  for (const id of ["headline", "verdict"]) at(id).className = kind;
  at("headline").textContent = found.error ? "NO ANSWER" : found.word;
  at("sentence").textContent = found.error ?? found.sentence;
  at("hint").textContent = found.hint ?? "";
  at("verdict").textContent = found.error ?? `${found.word}: ${found.sentence}`;
  at("elsewhere").hidden = Boolean(found.error);
  at("advice").replaceChildren();
  if (found.error) {
    at("answer").replaceChildren();
  } else {
    const before = at("answer").querySelector(".plotted"); // shown until the new one is drawn
    before?.classList.add("stale");
    at("answer").innerHTML = found.body;
    if (before) at("answer").querySelector(".plotted").replaceWith(before);
    commands(found.commands);
  }
  const { requested_bytes, allocated_bytes, reserved_bytes } = found.peak ?? {};
  at("headline").dataset.peak = [requested_bytes, allocated_bytes, reserved_bytes].join(" ");
}

async function advise(question) {
  const found = await thinker().ask("advice", question);
  if (found && isNewest(question) && !found.error) at("advice").innerHTML = found.body;
}

async function explain() {
  const found = at("log").value.trim() ? await thinker().ask("explain", { log: at("log").value }) : {};
  if (found?.error) at("explained").replaceChildren(...mistake(found));
  else if (found) at("explained").innerHTML = found.body ?? "";
}

function commands(texts) {
  at("commands").replaceChildren(...Object.entries(texts).map(([name, text]) => {
    const button = make("button", { type: "button", textContent: "copy" });
    button.onclick = async () => {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    };
    const heading = make("h3", { textContent: name });
    return make("div", { className: "command" }, heading, make("pre", { textContent: text }), button);
  }));
}

async function start() {
  build(await (await fetch("choices.json")).json());
  read();
  fill();
  changed();
}
addEventListener("hashchange", () => { read(); fill(); changed(); });
start();
