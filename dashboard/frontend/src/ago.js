// The same words as dashboard/templatetags/dashboard.py.
const STEPS = [
  [60, 1, "s"],
  [3600, 60, "min"],
  [86400, 3600, "h"],
  [86400 * 60, 86400, "d"],
  [86400 * 730, 86400 * 30, "months"],
  [Infinity, 86400 * 365, "years"],
];

export function ago(then, now) {
  const seconds = Math.round((now - then) / 1000);
  const distance = Math.abs(seconds);
  if (distance < 5) return "just now";
  const [, size, unit] = STEPS.find(([below]) => distance < below);
  const text = `${Math.floor(distance / size)} ${unit}`;
  return seconds < 0 ? `in ${text}` : `${text} ago`;
}
