// Presets: a model, a system prompt and parameters under a name. Saved without loading the page, so no conversation is lost.
const root = document.getElementById("playground");

function post(url, body) {
  return fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json", "x-csrftoken": root.dataset.csrf },
    body: JSON.stringify(body),
  }).catch(() => null);
}

async function problemOf(answer) {
  if (!answer) return "The site did not answer. Nothing was saved.";
  return answer.ok ? "" : ((await answer.json().catch(() => ({}))).error ?? "This was refused.");
}

async function refreshed(url) {
  history.replaceState(null, "", url);
  const answer = await fetch(url).catch(() => null);
  if (!answer?.ok) return;
  const drawn = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.getElementById("preset-list").replaceWith(drawn.getElementById("preset-list"));
}

/** `fill`: puts values into the page's form. `read`: what the form says, as a preset; raises for a schema that is no JSON. */
export function presets({ fill, read }) {
  const form = document.getElementById("preset-form");
  const error = document.getElementById("preset-error");
  const say = (text) => {
    error.hidden = !text;
    error.querySelector("[data-text]").textContent = text;
  };
  fill(JSON.parse(document.getElementById("preset-values").textContent));

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let wanted;
    try {
      wanted = read();
    } catch {
      say("The JSON schema cannot be read: it is not JSON.");
      return;
    }
    const submit = form.querySelector("button:not([type=button])");
    submit.disabled = true;
    const { name, visibility } = form.elements;
    const answer = await post(form.action, { ...wanted, name: name.value, visibility: visibility.value });
    submit.disabled = false;
    const problem = await problemOf(answer);
    say(problem);
    if (problem) return;
    const saved = await answer.json();
    await refreshed(saved.url);
    window.headwayToast(`The preset ${saved.name} is saved`, "success");
    name.value = "";
    form.closest("dialog").close();
  });

  document.getElementById("presets").addEventListener("click", async (event) => {
    const act = event.target.closest("[data-preset-act]");
    if (!act) return;
    if (act.dataset.presetAct === "link") {
      await navigator.clipboard.writeText(new URL(act.dataset.url, location.href).href);
      window.headwayToast("Copied to the clipboard");
      return;
    }
    const problem = await problemOf(await post(act.dataset.url, {}));
    say(problem);
    if (problem) return;
    await refreshed(location.pathname);
    window.headwayToast("The preset is deleted", "success");
  });
}
