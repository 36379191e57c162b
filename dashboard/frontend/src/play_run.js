// One run: a socket to the gateway of its own, opened with a ticket of the site that is good once, never with a key.
// challenge -> nonce -> ticket for it from the site -> ticket and request -> events -> [DONE]; Stop sends a cancel.
const root = document.getElementById("playground");

export class Run {
  /** `view`: shows text as it comes. `scrolled`: is kept at its end. */
  constructor(request, view, scrolled) {
    this.request = request;
    this.view = view;
    this.scrolled = scrolled;
    this.answer = "";
    this.finish = "";
    this.usage = null;
    this.requestId = "";
    this.chunks = 0;
    this.isStopped = false;
    this.done = new Promise((resolve) => (this.resolve = resolve));
  }

  /** Resolves to what went wrong; an empty text: nothing. */
  start() {
    this.socket = new WebSocket(root.dataset.socket);
    this.socket.onopen = () => this.socket.send(JSON.stringify({ type: "challenge" }));
    this.socket.onmessage = (event) => this.hear(event.data);
    this.socket.onclose = () => this.end("The connection to the service was lost. What came is kept; run it again.");
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
      this.scrolled.scrollTop = this.scrolled.scrollHeight;
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
