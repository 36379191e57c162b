// Build the dashboard's assets into ../static/dashboard: one stylesheet, one script for every page, one each for charts,
// playground and live pages, a sprite of icons; each with its .gz and .br beside it, which WhiteNoise serves.
// Run by hand after a change (npm ci && npm run build) and commit what it makes: nobody else needs Node.
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { brotliCompressSync, gzipSync } from "node:zlib";
import { createHash } from "node:crypto";
import { build } from "esbuild";

const OUT = "../static/dashboard";
const ICONS = readFileSync("icons.txt", "utf8").split("\n").map((line) => line.trim()).filter(Boolean);

rmSync(OUT, { recursive: true, force: true });
mkdirSync(OUT, { recursive: true });

await build({
  entryPoints: { theme: "src/theme.js", app: "src/app.js", charts: "src/charts.js", playground: "src/playground.js", live: "src/live.js" },
  outdir: OUT,
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none",
  logLevel: "warning",
});
execFileSync("npx", ["@tailwindcss/cli", "-i", "src/app.css", "-o", `${OUT}/app.css`, "--minify"], { stdio: "inherit" });

const symbols = ICONS.map((name) => {
  const svg = readFileSync(`node_modules/lucide-static/icons/${name}.svg`, "utf8");
  const inner = svg.slice(svg.indexOf(">", svg.indexOf("<svg")) + 1, svg.lastIndexOf("</svg>")).replace(/\s+/g, " ").trim();
  return `<symbol id="${name}" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round">${inner}</symbol>`;
});
writeFileSync(`${OUT}/icons.svg`, `<svg xmlns="http://www.w3.org/2000/svg">${symbols.join("")}</svg>\n`);
copyFileSync("src/favicon.svg", `${OUT}/favicon.svg`);

const versions = {};
for (const name of readdirSync(OUT).sort()) {
  const content = readFileSync(`${OUT}/${name}`);
  versions[name] = createHash("sha256").update(content).digest("hex").slice(0, 12);
  writeFileSync(`${OUT}/${name}.gz`, gzipSync(content, { level: 9 }));
  writeFileSync(`${OUT}/${name}.br`, brotliCompressSync(content));
}
writeFileSync("../assets.json", JSON.stringify(versions, null, 2) + "\n");

const licences = ["htmx.org", "@alpinejs/csp", "uplot", "basecoat-css", "tailwindcss", "lucide-static"].map((name) => {
  const described = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  return `| ${name} | ${described.version} | ${described.license} |`;
});
const page = `# What the built files in this folder contain

Written by dashboard/frontend/build.mjs. Our own sources are in dashboard/frontend/src.

| package | version | licence |
| --- | --- | --- |
${licences.join("\n")}
`;
writeFileSync(`${OUT}/LICENCES.md`, page);
