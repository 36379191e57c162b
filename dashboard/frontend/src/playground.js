// The playground: one socket to the gateway for each run, opened with a ticket of the site, never with a key.
// challenge -> nonce -> ticket for it from the site -> ticket and request -> events -> [DONE]; Stop sends a cancel.
import { costOf } from "./cost.js";
import { snippets } from "./snippets.js";

const root = document.getElementById("playground");
const form = document.getElementById("parameters");
const transcript = document.getElementById("transcript");
const prompt = document.getElementById("prompt");
const runButton = document.getElementById("run");
const stopButton = document.getElementById("stop");
const announcer = document.getElementById("announcer");
const problem = document.getElementById("problem");

/** @type {{role: string, content: string, facts?: object}[]} */
let messages = [];
let run = null;

// The request as it stands

function parameters() {
  const request = { model: form.elements.model.value };
  for (const name of ["temperature", "top_p"]) if (form.elements[name].value !== "") request[name] = Number(form.elements[name].value);
  for (const name of ["max_tokens", "seed"]) if (form.elements[name].value !== "") request[name] = parseInt(form.elements[name].value, 10);
  const stops = form.elements.stop.value.split("\n").filter((line) => line !== "");
  if (stops.length) request.stop = stops;
  const schema = form.elements.schema.value.trim();
  if (schema) request.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema), strict: true } };
  return request;
}

function conversation() {
  const system = form.elements.system.value.trim();
  const said = messages.map(({ role, content }) => ({ role, content }));
  return system ? [{ role: "system", content: system }, ...said] : said;
}

function body() {
  return { ...parameters(), messages: conversation() };
}

// What is seen

function element(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function button(label, name, at) {
  const made = element("button", "btn", label);
  made.dataset.variant = "ghost";
  made.dataset.size = "sm";
  made.type = "button";
  made.dataset.act = name;
  made.dataset.at = at;
  return made;
}

function turn(message, at) {
  const item = element("article", `turn turn-${message.role}`);
  const head = element("header", "turn-head");
  head.append(element("h3", "turn-who", message.role === "user" ? "You" : "Assistant"));
  const actions = element("div", "turn-actions");
  if (message.role === "user") actions.append(button("Edit", "edit", at));
  else if (at === messages.length - 1) actions.append(button("Regenerate", "again", at));
  actions.append(button("Copy", "copy", at));
  head.append(actions);
  item.append(head, element("div", "turn-text", message.content));
  if (message.facts) item.append(facts(message.facts));
  return item;
}

function facts(of) {
  const list = element("dl", "turn-facts");
  const add = (name, value) => {
    const pair = element("div", "");
    pair.append(element("dt", "", name), element("dd", "tabular-nums", value));
    list.append(pair);
  };
  if (of.ttftMs != null) add("TTFT", `${Math.round(of.ttftMs)} ms`);
  if (of.tokensPerS != null) add("Tokens/s", of.tokensPerS.toFixed(1));
  if (of.usage) {
    add("Input", String(of.usage.prompt_tokens));
    const cached = of.usage.prompt_tokens_details?.cached_tokens;
    if (cached) add("Cached", String(cached));
    add("Output", String(of.usage.completion_tokens));
  }
  add("Ended", of.ended);
  if (of.requestId) {
    const cost = element("div", "");
    cost.append(element("dt", "", "Cost"), costOf(`${root.dataset.receipt.replace("REQUEST", of.requestId)}cost/`));
    list.append(cost);
    const pair = element("div", "");
    const link = element("a", "underline underline-offset-4", "receipt");
    link.href = root.dataset.receipt.replace("REQUEST", of.requestId);
    pair.append(element("dt", "", "Request"), element("dd", "", ""));
    pair.lastChild.append(link);
    list.append(pair);
  }
  return list;
}

function draw() {
  document.getElementById("nothing-yet").hidden = messages.length > 0;
  transcript.replaceChildren(...messages.map(turn));
}

function showRunning(isRunning) {
  runButton.hidden = isRunning;
  stopButton.hidden = !isRunning;
  root.dataset.running = isRunning;
}

function showProblem(text) {
  problem.hidden = !text;
  problem.querySelector("[data-text]").textContent = text;
}

// A run

class Run {
  constructor(request) {
    this.request = request;
    this.answer = "";
    this.finish = "";
    this.usage = null;
    this.requestId = "";
    this.chunks = 0;
    this.isStopped = false;
    this.done = new Promise((resolve) => (this.resolve = resolve));
  }

  start() {
    this.socket = new WebSocket(root.dataset.socket);
    this.socket.onopen = () => this.socket.send(JSON.stringify({ type: "challenge" }));
    this.socket.onmessage = (event) => this.hear(event.data);
    this.socket.onclose = () => this.end("The connection to the service was lost.");
    return this.done;
  }

  async hear(text) {
    if (text === "[DONE]") return this.end();
    const said = JSON.parse(text);
    if (said.type === "challenge") return this.show(said.nonce);
    if (said.type === "accepted") this.requestId = said.request_id;
    else if (said.type === "queued") this.place(said);
    else if (said.type === "cancelled") this.end();
    else if (said.error) this.end(said.error.message);
    else this.take(said);
  }

  async show(nonce) {
    const answer = await fetch(root.dataset.ticket, {
      method: "POST",
      headers: { "content-type": "application/json", "x-csrftoken": root.dataset.csrf },
      body: JSON.stringify({ nonce }),
    }).catch(() => null);
    if (!answer?.ok) return this.end("The site gave no ticket for this run. Load the page again.");
    const { ticket } = await answer.json();
    if (this.isStopped) return this.end();
    this.startedMs = performance.now();
    this.socket.send(JSON.stringify({ ticket, request: this.request }));
  }

  place(said) {
    this.view.textContent = `Waiting in the queue: position ${said.position}, about ${said.estimated_wait_s} s`;
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const piece = choice.delta?.content ?? "";
    if (piece) {
      const nowMs = performance.now();
      this.firstMs ??= nowMs;
      this.lastMs = nowMs;
      this.chunks += 1;
      this.answer += piece;
      this.view.textContent = this.answer;
      transcript.parentElement.scrollTop = transcript.parentElement.scrollHeight;
    }
    if (choice.finish_reason) this.finish = choice.finish_reason;
  }

  stop() {
    this.isStopped = true;
    if (this.startedMs != null && this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "cancel" }));
    else this.end();
  }

  end(error = "") {
    if (this.isOver) return;
    this.isOver = true;
    this.socket.onclose = null;
    this.socket.close();
    this.resolve(error);
  }

  facts() {
    const tokens = this.usage?.completion_tokens ?? this.chunks;
    const seconds = (this.lastMs - this.firstMs) / 1000;
    return {
      ttftMs: this.firstMs == null ? null : this.firstMs - this.startedMs,
      tokensPerS: tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null,
      usage: this.usage ?? (this.isStopped ? null : undefined),
      ended: this.isStopped ? "stopped by you" : this.finish || "with an error",
      requestId: this.requestId,
    };
  }
}

async function answer() {
  showProblem("");
  let request;
  try {
    request = { ...body(), stream_options: { include_usage: true } };
  } catch {
    showProblem("The JSON schema cannot be read: it is not JSON.");
    return false;
  }
  run = new Run(request);
  showRunning(true);
  announcer.textContent = "";
  const place = element("article", "turn turn-assistant");
  const head = element("header", "turn-head");
  head.append(element("h3", "turn-who", "Assistant"));
  run.view = element("div", "turn-text turn-running", "");
  place.append(head, run.view);
  transcript.append(place);
  document.getElementById("nothing-yet").hidden = true;
  const error = await run.start();
  if (run.answer || !error) messages.push({ role: "assistant", content: run.answer, facts: run.facts() });
  const done = run;
  run = null;
  showRunning(false);
  draw();
  showProblem(error);
  announcer.textContent = error ? `The run ended with an error: ${error}` : `Answer complete: ${done.answer}`;
  return !error;
}

async function submit() {
  if (run) return;
  const text = prompt.value.trim();
  if (!text && messages.at(-1)?.role !== "user") {
    prompt.focus();
    return;
  }
  if (text) messages.push({ role: "user", content: text });
  prompt.value = "";
  draw();
  const isDone = await answer();
  if (!isDone && messages.at(-1)?.role === "user") {
    // What was written is not lost with the error.
    prompt.value = messages.pop().content;
    draw();
  }
  prompt.focus();
}

runButton.addEventListener("click", submit);
stopButton.addEventListener("click", () => run?.stop());
document.getElementById("clear").addEventListener("click", () => {
  run?.stop();
  messages = [];
  draw();
  showProblem("");
  prompt.focus();
});
transcript.addEventListener("click", async (event) => {
  const act = event.target.closest("[data-act]");
  if (!act || run) return;
  const at = Number(act.dataset.at);
  if (act.dataset.act === "copy") {
    await navigator.clipboard.writeText(messages[at].content);
    window.headwayToast("Copied to the clipboard");
  } else if (act.dataset.act === "edit") {
    prompt.value = messages[at].content;
    messages = messages.slice(0, at);
    draw();
    prompt.focus();
  } else {
    messages = messages.slice(0, at);
    draw();
    await answer();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    submit();
  } else if (event.key === "Escape" && run) {
    run.stop();
  }
});

// View code

document.getElementById("view-code").addEventListener("click", () => {
  let request;
  try {
    request = body();
  } catch {
    showProblem("The JSON schema cannot be read: it is not JSON.");
    return;
  }
  if (!messages.length) request.messages = [...request.messages, { role: "user", content: prompt.value.trim() || "Hello!" }];
  for (const [name, text] of Object.entries(snippets(root.dataset.api, request))) document.getElementById(`code-${name}`).textContent = text;
  document.getElementById("code").showModal();
});

draw();
