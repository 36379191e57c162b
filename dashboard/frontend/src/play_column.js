// One conversation with one model: what was said, drawn, and the run that goes on. The page has one, or two beside each other.
import { costOf } from "./cost.js";
import { Run } from "./play_run.js";

const root = document.getElementById("playground");

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

export class Column {
  /** `box`: its part of the page. `changed`: called when a run begins or ends. `requestFor`: (said, column) -> the request. */
  constructor(box, { changed, requestFor }) {
    this.box = box;
    this.changed = changed;
    this.requestFor = requestFor;
    /** @type {{role: string, content: string, facts?: object}[]} */
    this.messages = [];
    this.run = null;
    this.transcript = box.querySelector("[data-transcript]");
    this.problem = box.querySelector("[data-problem]");
    this.stopButton = box.querySelector("[data-stop]");
    this.stopButton.addEventListener("click", () => this.run?.stop());
  }

  get said() {
    return this.messages.map(({ role, content }) => ({ role, content }));
  }

  get wantsAnswer() {
    return this.messages.at(-1)?.role === "user";
  }

  draw() {
    this.transcript.replaceChildren(...this.messages.map((message, at) => this.turn(message, at)));
  }

  turn(message, at) {
    const item = element("article", `turn turn-${message.role}`);
    const head = element("header", "turn-head");
    head.append(element("h3", "turn-who", message.role === "user" ? "You" : "Assistant"));
    const actions = element("div", "turn-actions");
    const isLast = at === this.messages.length - 1;
    if (message.role === "user") {
      actions.append(button("Edit", "edit", at));
      if (isLast) actions.append(button("Try again", "again", at + 1));
    } else if (isLast) actions.append(button("Regenerate", "again", at));
    actions.append(button("Copy", "copy", at));
    head.append(actions);
    item.append(head, element("div", "turn-text", message.content));
    if (message.facts) item.append(facts(message.facts));
    return item;
  }

  showProblem(text) {
    this.problem.hidden = !text;
    this.problem.querySelector("[data-text]").textContent = text;
  }

  /** Drops what was said from `at` on. */
  cut(at) {
    this.messages = this.messages.slice(0, at);
    this.draw();
  }

  clear() {
    this.run?.stop();
    this.messages = [];
    this.draw();
    this.showProblem("");
  }

  /** Resolves to {error, text}. Raises nothing. */
  async answer() {
    this.showProblem("");
    const place = element("article", "turn turn-assistant");
    const head = element("header", "turn-head");
    head.append(element("h3", "turn-who", "Assistant"));
    const view = element("div", "turn-text turn-running", "");
    place.append(head, view);
    this.transcript.append(place);
    const run = (this.run = new Run(this.requestFor(this.said, this), view, this.box));
    this.changed();
    const error = await run.start();
    const isCleared = !place.isConnected;
    this.run = null;
    this.changed();
    if (isCleared) return { error: "", text: "" };
    if (run.answer || !error) this.messages.push({ role: "assistant", content: run.answer, facts: run.facts() });
    this.draw();
    this.showProblem(error);
    return { error, text: run.answer };
  }
}
