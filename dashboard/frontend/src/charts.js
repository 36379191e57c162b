// Draws each [data-chart]: uPlot over the JSON that the page carries. The same numbers stand in a table beside it.
import uPlot from "uplot";

const COLOURS = ["#4f46e5", "#0891b2", "#d97706", "#db2777", "#16a34a", "#7c3aed", "#64748b"];
const DARK_COLOURS = ["#a5b4fc", "#67e8f9", "#fcd34d", "#f9a8d4", "#86efac", "#c4b5fd", "#cbd5e1"];

// Each series on top of those before it; where nothing is, nothing is stacked.
function stacked(series) {
  const totals = new Array(series[0]?.length ?? 0).fill(0);
  return series.map((values) => values.map((value, at) => (totals[at] += value ?? 0)));
}

function format(value, unit) {
  if (value == null) return "–";
  if (unit === "usd") return `$${(value / 1e6).toFixed(value < 1e6 ? 4 : 2)}`;
  if (unit === "ms" && value >= 10000) return `${+(value / 1000).toFixed(1)} s`;
  if (unit === "ms") return `${Math.round(value).toLocaleString("en")} ms`;
  const short = [[1e9, "B"], [1e6, "M"], [1e3, "k"]].find(([size]) => value >= size);
  return short ? `${+(value / short[0]).toFixed(1)}${short[1]}` : `${+value.toFixed(2)}`;
}

const HEIGHT = 260;
const [MINUTE, DAY] = [60, 86400];
// Marks on the axis of time, by how far apart they are: as everywhere on the site, day before month and 24 hours.
const STAMPS = [
  [365 * DAY, "{YYYY}", null, null, null, null, null, null, 1],
  [28 * DAY, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [DAY, "{D} {MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [MINUTE, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
];

// Points with nothing on either side, which no line shows.
function lone(values) {
  const found = [];
  values.forEach((value, at) => {
    if (value != null && values[at - 1] == null && values[at + 1] == null) found.push(at);
  });
  return found.length ? found : null;
}

function draw(box) {
  const { times, series, unit, stack, zone, step_s: stepS, height = HEIGHT } = JSON.parse(
    document.getElementById(box.dataset.chart).textContent,
  );
  const isDark = document.documentElement.classList.contains("dark");
  const colours = isDark ? DARK_COLOURS : COLOURS;
  const ink = isDark ? "#a1a1aa" : "#52525b";
  const grid = { stroke: isDark ? "#27272a" : "#e4e4e7", width: 1 };
  const values = series.map((each) => each.values);
  const shown = stack ? stacked(values) : values;
  const bars = uPlot.paths.bars({ size: [0.7, 48], align: 1, radius: 0.15 });
  // The highest stack is drawn first, so that each lower one stands before it.
  const order = series.map((_, at) => at).reverse();
  const colourOf = (at) => colours[(series[at].colour ?? at) % colours.length];
  // A target is a dashed line without points; of many steps, those that stand alone have one.
  const lookOf = (at) => {
    if (stack) return { fill: colourOf(at), width: 0, paths: bars, points: { show: false } };
    if (series[at].is_target) return { width: 1.5, dash: [6, 4], points: { show: false } };
    const filter = (plot, number, isShown) => (isShown ? null : lone(plot.data[number]));
    return { width: 2, paths: uPlot.paths.spline(), points: { show: times.length <= 48, size: 5, filter } };
  };
  box.replaceChildren();
  const plot = new uPlot(
    {
      width: box.clientWidth,
      height,
      tzDate: (ts) => uPlot.tzDate(new Date(ts * 1000), zone),
      cursor: { drag: { x: false, y: false } },
      legend: { show: false },
      scales: { x: { time: true, range: (_u, min, max) => [min, max + stepS] }, y: { range: (_u, _min, max) => [0, max > 0 ? max * 1.1 : 1] } },
      axes: [
        { stroke: ink, grid: { show: false }, ticks: grid, font: "12px system-ui", values: STAMPS },
        { stroke: ink, grid, ticks: { show: false }, size: 64, font: "12px system-ui", values: (_u, ticks) => ticks.map((t) => format(t, unit)) },
      ],
      series: [{}, ...order.map((at) => ({ label: series[at].name, stroke: colourOf(at), ...lookOf(at) }))],
    },
    [times, ...order.map((at) => shown[at])],
    box,
  );
  new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height })).observe(box);
  drawn.add(box);
}

// What another part of the page brings leaves the charts that stand as they are.
const drawn = new WeakSet();
function drawNew() {
  for (const box of document.querySelectorAll("[data-chart]")) if (!drawn.has(box)) draw(box);
}
function drawAll() {
  for (const box of document.querySelectorAll("[data-chart]")) draw(box);
}
drawAll();
document.addEventListener("htmx:after:swap", drawNew);
new MutationObserver(drawAll).observe(document.documentElement, { attributes: true, attributeFilter: ["class"] });
