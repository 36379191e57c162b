// Every page: menus, dialogs, copying, typed confirmation, toasts, relative times. Lists are htmx's (attributes in templates).
import "htmx.org/dist/htmx.esm.js";
import Alpine from "@alpinejs/csp";

import { ago } from "./ago.js";

Alpine.data("drawer", () => ({
  isOpen: false,
  toggle() {
    this.isOpen = !this.isOpen;
  },
  close() {
    this.isOpen = false;
  },
}));

Alpine.data("theme", () => ({
  chosen: document.documentElement.dataset.theme,
  choose() {
    this.chosen = this.$el.value;
    window.headwayTheme(this.chosen);
  },
}));

Alpine.data("copier", () => ({
  label: "Copy",
  usual: "Copy",
  init() {
    this.label = this.usual = this.$root.textContent.trim();
  },
  async copy() {
    const source = document.getElementById(this.$el.dataset.copies);
    await navigator.clipboard.writeText(source.value ?? source.textContent.trim());
    this.label = "Copied";
    toast("Copied to the clipboard");
    setTimeout(() => {
      this.label = this.usual;
    }, 2000);
  },
}));

Alpine.data("tabs", () => ({
  shown: "",
  init() {
    this.shown = this.$root.dataset.first;
  },
  show() {
    this.shown = this.$el.dataset.tab;
  },
  isShown() {
    return this.shown === this.$el.dataset.tab;
  },
  isHidden() {
    return this.shown !== this.$el.dataset.panel;
  },
}));

// What destroys is confirmed by typing its name.
Alpine.data("typed", () => ({
  text: "",
  isRight() {
    return this.text.trim() === this.$root.dataset.expected;
  },
  isWrong() {
    return this.text.trim() !== this.$root.dataset.expected;
  },
}));

Alpine.start();

function toast(text, kind = "info") {
  const item = document.createElement("div");
  item.className = `toast-item toast-${kind}`;
  item.textContent = text;
  document.getElementById("toasts").append(item);
  setTimeout(() => item.remove(), 6000);
}
window.headwayToast = toast;

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-dialog]");
  if (opener) {
    document.getElementById(opener.dataset.dialog).showModal();
    return;
  }
  const closer = event.target.closest("[data-close]");
  if (closer) closer.closest("dialog").close();
  // A menu closes when something else is clicked.
  for (const menu of document.querySelectorAll("details[data-menu][open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of document.querySelectorAll("details[data-menu][open]")) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});

// Said after the page is there, so that screen readers hear it.
window.addEventListener("load", () => {
  for (const message of document.querySelectorAll("#messages > [data-kind]")) toast(message.textContent, message.dataset.kind);
  for (const dialog of document.querySelectorAll("dialog[data-open]")) dialog.showModal();
});

// A form is sent once: what else is clicked while the answer is on its way does nothing (the server sees to it too). If no
// answer comes the buttons work again after a while.
const SENT_FOR_MS = 15000;
document.addEventListener("submit", (event) => {
  const form = event.target;
  // Lists change the page's address without loading it: what is kept is what the address says now.
  if ("takesQuery" in form.dataset) form.elements.query.value = location.search;
  if (event.defaultPrevented || form.method !== "post") return;
  if (form.dataset.sent) {
    event.preventDefault();
    return;
  }
  form.dataset.sent = "yes";
  form.setAttribute("aria-busy", "true");
  const buttons = [...form.querySelectorAll("button:not([type=button])")].filter((button) => !button.disabled);
  // After the event: a button that is disabled at once does not send its own name and value.
  setTimeout(() => buttons.forEach((button) => (button.disabled = true)));
  setTimeout(() => freed(form, buttons), SENT_FOR_MS);
  window.addEventListener("pageshow", (shown) => shown.persisted && freed(form, buttons), { once: true });
});

function freed(form, buttons) {
  delete form.dataset.sent;
  form.removeAttribute("aria-busy");
  for (const button of buttons) button.disabled = false;
}

function refreshTimes() {
  for (const time of document.querySelectorAll("time[data-ago]")) time.textContent = ago(new Date(time.dateTime), new Date());
}
setInterval(refreshTimes, 20000);

// What was opened stays open when its list is fetched again: of details with an id.
const opened = new Set();
document.addEventListener(
  "toggle",
  ({ target }) => {
    if (target.tagName !== "DETAILS" || !target.id) return;
    if (target.open) opened.add(target.id);
    else opened.delete(target.id);
  },
  true,
);
document.addEventListener("htmx:after:swap", () => {
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
});

// A list that could not be fetched says so where it would have been, with a way to try again.
for (const name of ["htmx:error", "htmx:response:error"]) {
  document.addEventListener(name, (event) => {
    const box = event.target.closest?.("[data-list]") ?? document.querySelector("[data-list]");
    if (!box) return;
    const error = document.getElementById("list-error").content.cloneNode(true);
    error.querySelector("[data-retry]").addEventListener("click", () => location.reload());
    box.querySelector("[data-list-error]")?.remove();
    box.prepend(error);
  });
}
