// The page as it lives: one socket to the site, frames counted by the server. After a gap, or a lost connection, the whole
// is asked for again; a frame is never guessed.
const page = document.querySelector("[data-live]");
const status = document.getElementById("live-status");
let sequence = 0;
let failures = 0;

function say(text, isGood) {
  if (!status) return;
  status.textContent = text;
  status.dataset.state = isGood ? "good" : "away";
}

function connect() {
  const url = new URL(page.dataset.live, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(url);
  socket.onmessage = (event) => {
    const frame = JSON.parse(event.data);
    failures = 0;
    if (frame.type === "whole") {
      sequence = frame.sequence;
      show(frame.state);
    } else if (frame.sequence === sequence + 1) {
      sequence = frame.sequence;
      show(frame.state);
    } else {
      socket.send(JSON.stringify({ type: "resync" }));
    }
    say(frame.state.is_brain_seen ? "Live" : "Limits unknown: no dispatcher answers", frame.state.is_brain_seen);
  };
  socket.onclose = (event) => {
    if (event.code === 4403) {
      say("No access", false);
      return;
    }
    failures += 1;
    say("Reconnecting…", false);
    setTimeout(connect, Math.min(15000, 500 * 2 ** failures));
  };
}

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
