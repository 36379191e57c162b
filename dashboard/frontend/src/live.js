// The page as it lives: one socket to the site, frames counted by the server. After a gap, or a lost connection, the whole
// is asked for again; a frame is never guessed. While nothing is heard the page says so, and of when its numbers are.
const page = document.querySelector("[data-live]");
const status = document.getElementById("live-status");
// The server says something every five seconds at least: who says nothing for so long is gone, whatever the network thinks.
const SILENT_MS = 15000;
let sequence = 0;
let failures = 0;
let heardAt = null;
let socket = null;

function say(text, isGood) {
  page.dataset.fresh = isGood;
  if (!status) return;
  if (status.textContent !== text) status.textContent = text;
  status.dataset.state = isGood ? "good" : "away";
}

function connect() {
  const url = new URL(page.dataset.live, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const mine = (socket = new WebSocket(url));
  mine.startedAt = Date.now();
  mine.onmessage = (event) => mine === socket && hear(JSON.parse(event.data));
  mine.onclose = (event) => mine === socket && lost(event.code);
}

function hear(frame) {
  failures = 0;
  heardAt = new Date();
  const isNext = frame.type === "change" && frame.sequence === sequence + 1;
  if (frame.type === "whole" || isNext) {
    sequence = frame.sequence;
    show(frame.state);
    if (frame.state.is_brain_seen) say("Live", true);
    else say("Limits unknown: no dispatcher answers", false);
  } else if (frame.type !== "beat" || frame.sequence !== sequence) {
    say("Catching up…", false);
    socket.send(JSON.stringify({ type: "resync" }));
  }
}

function lost(code) {
  socket = null;
  if (code === 4403) {
    say("No access", false);
    return;
  }
  failures += 1;
  say(heardAt ? `Reconnecting… numbers are of ${heardAt.toLocaleTimeString("en-GB")}` : "Reconnecting…", false);
  setTimeout(connect, Math.min(15000, 500 * 2 ** failures));
}

// A connection that died without a word (a network that went, a machine that slept) closes late or never by itself.
setInterval(() => {
  if (!socket || Date.now() - Math.max(socket.startedAt, heardAt ?? 0) < SILENT_MS) return;
  const silent = socket;
  lost(0);
  silent.close();
}, 1000);

function show(state) {
  for (const [name, value] of Object.entries(state.texts ?? {})) {
    for (const place of document.querySelectorAll(`[data-live-text="${CSS.escape(name)}"]`)) {
      if (place.textContent !== value) place.textContent = value;
    }
  }
  // Without a dispatcher nothing is known of limits: what was seen last stays.
  for (const meter of state.meters ? document.querySelectorAll("[data-live-meter]") : []) {
    const use = state.meters[meter.dataset.liveMeter] ?? { used: 0, reserved: 0 };
    const limit = Number(meter.dataset.limit);
    const bar = meter.querySelector("progress");
    bar.value = Math.min(limit, use.used + use.reserved);
    const share = limit ? (use.used + use.reserved) / limit : 0;
    meter.dataset.level = share >= 1 ? "full" : share >= 0.8 ? "high" : "low";
    const text = meter.querySelector("[data-live-amount]");
    text.textContent = `${amount(use.used + use.reserved, text.dataset.unit)}`;
  }
  if (state.has_first_request) document.dispatchEvent(new CustomEvent("headway:first-request", { detail: state }));
}

function amount(value, unit) {
  return unit === "usd" ? `$${(value / 1e6).toFixed(value < 1e6 ? 4 : 2)}` : Math.round(value).toLocaleString("en");
}

document.addEventListener("headway:first-request", () => {
  for (const box of document.querySelectorAll("[data-waiting]")) {
    if (box.dataset.waiting === "done") continue;
    box.dataset.waiting = "done";
    box.querySelector("[data-waiting-text]").textContent = "Your first request has arrived.";
    box.querySelector("[data-waiting-next]").hidden = false;
  }
});

if (page) connect();
