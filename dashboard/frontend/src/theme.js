// Before anything is painted: the theme that was chosen, or the system's. Classic script, in the head.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = localStorage.getItem("theme") || "system";
    document.documentElement.classList.toggle("dark", chosen === "dark" || (chosen === "system" && system.matches));
    document.documentElement.dataset.theme = chosen;
  };
  apply();
  system.addEventListener("change", apply);
  window.headwayTheme = (chosen) => {
    localStorage.setItem("theme", chosen);
    apply();
  };
})();
