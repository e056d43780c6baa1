"use strict";
// Shared by all pages: the data, elements, numbers with their units, the ramp of colours, and the button of the theme.
const data = JSON.parse(document.getElementById("data").textContent);
const get = selector => document.querySelector(selector);
const make = (tag, cls, text) => { const it = document.createElement(tag); if (cls) it.className = cls; if (text !== undefined) it.textContent = text; return it; };
const few = number => (number && Math.abs(number) < 1e-4 ? number.toExponential(1).replace(".0e", "e") : String(+number.toPrecision(4))).replace(/-/g, "−");
const units = (value, names) => { let at = 0; while (Math.abs(value) >= 999.95 && at < names.length - 1) { value /= 1000; at++; } return few(value) + (names[at] ? "\u00a0" + names[at] : ""); };
const seconds = value => { const size = Math.abs(value); return size >= 120 ? few(value / 60) + "\u00a0min" : size >= 1 || !size ? few(value) + "\u00a0s" : size >= 1e-3 ? few(1e3 * value) + "\u00a0ms" : few(1e6 * value) + "\u00a0µs"; };
const shown = (value, unit) => unit === "B" ? units(value, ["B", "kB", "MB", "GB", "TB", "PB"]) : unit === "count" ? units(value, ["", "k", "M", "G", "T", "P"])
  : unit === "share" ? (100 * value).toFixed(2).replace("-", "−") + "\u00a0%" : unit === "s" ? seconds(value) : unit === "dB" ? value.toFixed(1).replace("-", "−") + "\u00a0dB" : few(value);
const full = value => Number.isInteger(value) ? value.toLocaleString("en") : String(value);
const colour = x => x < .5 ? `color-mix(in oklab, var(--mid) ${200 * x}%, var(--low))` : `color-mix(in oklab, var(--high) ${200 * x - 100}%, var(--mid))`;
get("#theme").onclick = () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
};
