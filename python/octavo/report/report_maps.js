// Maps of layers: bits of every weight, block by block, and the sensitivity of groups by format.
const spread = (value, low, high) => high > low ? (value - low) / (high - low) : .5;
const formatOf = layer => layer.format || layer.dtype || "float";
// The ramp of bits is the same in all reports: most of it for 1 to 8.5, the rest for 16 and 32.
const bitHeat = bits => bits <= 8.5 ? Math.max(0, .7 * (bits - 1) / 7.5) : Math.min(1, .7 + .3 * Math.log2(bits / 8.5) / Math.log2(32 / 8.5));
// Where letters turn to the other colour, so that they stay legible on the ramp: at other places in the two themes.
const legible = x => x > .64 ? " deep" : x > .42 ? " half" : "";

// A row of the map is a block: paths that are equal up to their last number, or to their last name where there is none.
const blockOf = path => { const parts = path.replace(/\.weight$/, "").split("."), last = parts.slice(0, -1).reduce((found, part, at) => /^\d+$/.test(part) ? at : found, -1); return last >= 0 ? [parts.slice(0, last + 1).join("."), parts.slice(last + 1).join(".")] : [parts.slice(0, -1).join("."), parts[parts.length - 1]]; };

const bitMap = (place, layers) => {
  const byFormat = new Map();
  for (const layer of layers) { const name = formatOf(layer), found = byFormat.get(name) || { name, parameters: 0, bytes: 0, count: 0 }; found.parameters += layer.parameters; found.bytes += layer.bytes; found.count++; byFormat.set(name, found); }
  const formats = [...byFormat.values()].map(it => ({ ...it, bits: it.parameters ? 8 * it.bytes / it.parameters : 0 })).sort((a, b) => a.bits - b.bits), all = layers.reduce((sum, it) => sum + it.parameters, 0) || 1;
  const bar = make("div", "shares"), list = make("div", "key");
  for (const it of formats) {
    const part = make("i"), span = make("span"); part.style.flexGrow = it.parameters; part.style.background = colour(bitHeat(it.bits)); part.title = `${it.name}: ${shown(it.parameters, "count")} parameters`; bar.append(part);
    const chip = make("i", "chip"); chip.style.background = colour(bitHeat(it.bits));
    span.append(chip, make("b", "", it.name), ` ${few(it.bits)} bits · ${(100 * it.parameters / all).toFixed(1)} % of parameters · ${it.count} ${it.count === 1 ? "tensor" : "tensors"}`); list.append(span);
  }
  bar.setAttribute("aria-hidden", "true"); place.append(bar, list);
  // Biases and norms are many and small: vectors have no cell, unless there is nothing else.
  const blocks = new Map(), matrices = layers.filter(layer => layer.shape.length > 1), drawn = matrices.length ? matrices : layers;
  for (const layer of drawn) { const [name, own] = blockOf(layer.path); if (!blocks.has(name)) blocks.set(name, []); blocks.get(name).push([layer, own]); }
  const map = make("div", "map" + (drawn.length > 240 ? " many" : ""));
  for (const [name, cells] of blocks) {
    const row = make("div", "blockrow"), box = make("div", "cells"); row.append(make("div", "blockname")); row.firstChild.append(make("bdi", "", name || "(model)")); row.firstChild.title = name;
    for (const [layer, own] of cells) {
      const it = make("div", "cell" + legible(bitHeat(layer.bits))); it.style.background = colour(bitHeat(layer.bits));
      it.title = `${layer.path}\n${layer.shape.join(" × ")}, ${formatOf(layer)}, ${few(layer.bits)} bits, ${shown(layer.bytes, "B")}${layer.told ? "\n" + layer.told : ""}`;
      it.append(make("b", "", few(+layer.bits.toPrecision(3))), make("small", "", formatOf(layer)), make("span"));
      it.lastChild.append(make("bdi", "", own || "weight")); box.append(it);
    }
    row.append(box); map.append(row);
  }
  place.append(map);
};

const heatMap = (place, found) => {
  const losses = found.loss.flat().filter(value => value !== null && value > 0), low = Math.log(Math.min(...losses)), high = Math.log(Math.max(...losses)), wide = high - low > Math.log(300);
  const legend = make("div", "legend"); legend.append(make("span", "", losses.length ? shown(Math.exp(low), found.unit) : "0"), make("i"), make("span", "", `${losses.length ? shown(Math.exp(high), found.unit) : "0"} ${found.unit === "share" ? "" : found.unit}`));
  if (found.chosen) { const frame = make("i", "chip framed"); legend.append(frame, make("span", "", "chosen")); }
  place.append(legend);
  const body = table(place, [{ label: "group" }, ...found.formats.map(label => ({ label, number: true }))], `Sensitivity: ${found.measure} by group and format`);
  const box = body.closest(".wide"); box.classList.add("tall", "heat"); if (found.groups.length > 60) box.classList.add("many");
  found.groups.forEach((group, at) => {
    const tr = make("tr"), th = path(make("th", "path"), group.name); th.scope = "row"; if (group.paths) th.title = group.paths.slice(0, 12).join("\n") + (group.paths.length > 12 ? `\n… ${group.paths.length} in all` : ""); tr.append(th);
    found.loss[at].forEach((value, column) => {
      const td = make("td", "number", value === null ? "—" : value === 0 ? "0" : minus(wide ? value.toExponential(1) : String(+value.toPrecision(2)))), x = value === null || value <= 0 ? 0 : spread(Math.log(value), low, high);
      if (value !== null) { td.style.background = colour(x); td.className += legible(x); }
      if (found.chosen && found.chosen[at] === found.formats[column]) { td.classList.add("framed"); td.setAttribute("aria-label", `${td.textContent}, chosen`); }
      td.title = `${group.name}\n${found.formats[column]}: ${value === null ? "not measured" : `${value} ${found.unit}`}`; tr.append(td);
    });
    body.append(tr);
  });
};
