// The playground: one prompt for one model, or for two beside each other, each with a run, a socket and a ticket of its own.
import { Column } from "./play_column.js";
import { presets } from "./play_presets.js";
import { snippets } from "./snippets.js";

const root = document.getElementById("playground");
const form = document.getElementById("parameters");
const prompt = document.getElementById("prompt");
const runButton = document.getElementById("run");
const stopButton = document.getElementById("stop");
const compareButton = document.getElementById("compare");
const announcer = document.getElementById("announcer");
const problem = document.getElementById("problem");

const columns = [...document.querySelectorAll("[data-column]")].map((box) => new Column(box, { changed: showRunning, requestFor }));
const [first, second] = columns;
const isComparing = () => root.dataset.compare === "on";
const used = () => (isComparing() ? columns : [first]);
const isRunning = () => columns.some((column) => column.run);

// The request as it stands

function numbers() {
  const found = {};
  for (const name of ["temperature", "top_p"]) if (form.elements[name].value !== "") found[name] = Number(form.elements[name].value);
  for (const name of ["max_tokens", "seed"]) if (form.elements[name].value !== "") found[name] = parseInt(form.elements[name].value, 10);
  const stops = form.elements.stop.value.split("\n").filter((line) => line !== "");
  if (stops.length) found.stop = stops;
  return found;
}

/** Raises where it is no JSON. */
function schema() {
  const text = form.elements.schema.value.trim();
  return text ? JSON.parse(text) : null;
}

function modelOf(column) {
  return form.elements[column === second ? "model_b" : "model"].value;
}

/** Raises for a schema that is no JSON. */
function body(said, column) {
  const system = form.elements.system.value.trim();
  const wanted = schema();
  const request = { model: modelOf(column), ...numbers() };
  if (wanted) request.response_format = { type: "json_schema", json_schema: { name: "answer", schema: wanted, strict: true } };
  return { ...request, messages: system ? [{ role: "system", content: system }, ...said] : said };
}

function requestFor(said, column) {
  return { ...body(said, column), stream_options: { include_usage: true } };
}

// What is seen

function draw() {
  document.getElementById("nothing-yet").hidden = isRunning() || columns.some((column) => column.messages.length);
}

function showRunning() {
  runButton.hidden = isRunning();
  stopButton.hidden = !isRunning();
  root.dataset.running = isRunning();
  for (const column of columns) column.stopButton.hidden = !column.run || !isComparing();
  draw();
}

function showProblem(text) {
  problem.hidden = !text;
  problem.querySelector("[data-text]").textContent = text;
}

function showModels() {
  for (const column of columns) column.box.querySelector("[data-model]").textContent = modelOf(column);
}

// Runs

function canAsk() {
  showProblem("");
  try {
    schema();
    return true;
  } catch {
    showProblem("The JSON schema cannot be read: it is not JSON.");
    return false;
  }
}

// Read aloud when all is there, not while it comes: the transcripts themselves are aria-live off.
function announce(asked, results) {
  const texts = results.map(({ error, text }, at) => {
    const who = asked.length > 1 ? `${modelOf(asked[at])}: ` : "";
    return error ? `${who}The run ended with an error: ${error}` : `${who}Answer complete: ${text}`;
  });
  announcer.textContent = texts.join(". ");
}

async function answers(asked) {
  announcer.textContent = "";
  const results = await Promise.all(asked.map((column) => column.answer()));
  announce(asked, results);
  return results;
}

async function submit() {
  if (isRunning()) return;
  const text = prompt.value.trim();
  if (!text && !used().every((column) => column.wantsAnswer)) {
    prompt.focus();
    return;
  }
  if (!canAsk()) return;
  const asked = used();
  if (text) for (const column of asked) column.messages.push({ role: "user", content: text });
  prompt.value = "";
  for (const column of asked) column.draw();
  const results = await answers(asked);
  if (results.every(({ error, text: came }) => error && !came) && asked.every((column) => column.wantsAnswer)) {
    // What was written is not lost with the error.
    prompt.value = asked[0].messages.at(-1).content;
    for (const column of asked) column.cut(-1);
  }
  draw();
  prompt.focus();
}

function stopAll() {
  for (const column of columns) column.run?.stop();
}

runButton.addEventListener("click", submit);
stopButton.addEventListener("click", stopAll);
document.getElementById("clear").addEventListener("click", () => {
  for (const column of columns) column.clear();
  showProblem("");
  draw();
  prompt.focus();
});

/** Where the same prompt of another column begins: users' turns are counted, as an answer may be missing. */
function sameTurn(column, of, at) {
  const number = of.messages.slice(0, at).filter(({ role }) => role === "user").length;
  const places = column.messages.flatMap(({ role }, place) => (role === "user" ? [place] : []));
  return places[number] ?? column.messages.length;
}

root.addEventListener("click", async (event) => {
  const act = event.target.closest("[data-act]");
  if (!act || isRunning()) return;
  const column = columns.find(({ box }) => box.contains(act));
  const at = Number(act.dataset.at);
  if (act.dataset.act === "copy") {
    await navigator.clipboard.writeText(column.messages[at].content);
    window.headwayToast("Copied to the clipboard");
  } else if (act.dataset.act === "edit") {
    prompt.value = column.messages[at].content;
    for (const [each, place] of used().map((each) => [each, sameTurn(each, column, at)])) each.cut(place);
    draw();
    prompt.focus();
  } else if (canAsk()) {
    column.cut(at);
    await answers([column]);
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !document.querySelector("dialog[open]")) {
    event.preventDefault();
    submit();
  } else if (event.key === "Escape" && isRunning() && !document.querySelector("dialog[open]")) {
    stopAll();
  }
});

// Two models

compareButton.addEventListener("click", () => {
  if (isRunning()) return;
  const isOn = !isComparing();
  root.dataset.compare = isOn ? "on" : "off";
  compareButton.setAttribute("aria-pressed", isOn);
  second.box.hidden = !isOn;
  for (const only of document.querySelectorAll("[data-comparing]")) only.hidden = !isOn;
  second.clear();
  if (isOn) second.messages = first.said;
  second.draw();
  showModels();
  draw();
});
for (const name of ["model", "model_b"]) form.elements[name].addEventListener("change", showModels);

// View code

document.getElementById("view-code").addEventListener("click", () => {
  if (!canAsk()) return;
  const said = first.messages.length ? first.said : [{ role: "user", content: prompt.value.trim() || "Hello!" }];
  for (const [name, text] of Object.entries(snippets(root.dataset.api, body(said, first)))) {
    document.getElementById(`code-${name}`).textContent = text;
  }
  document.getElementById("code").showModal();
});

// Presets

presets({
  fill(values) {
    for (const [name, value] of Object.entries(values)) {
      const text = name === "schema" ? JSON.stringify(value, null, 2) : Array.isArray(value) ? value.join("\n") : value;
      form.elements[name].value = text;
    }
    if (Object.keys(values).length && !("max_tokens" in values)) form.elements.max_tokens.value = "";
  },
  read() {
    const wanted = schema();
    const parameters = wanted ? { ...numbers(), schema: wanted } : numbers();
    return { model: form.elements.model.value, system: form.elements.system.value.trim(), parameters };
  },
});

showModels();
showRunning();
if (root.dataset.problem) showProblem(root.dataset.problem);
runButton.disabled = false;
