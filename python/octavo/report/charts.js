// Charts as SVG that is drawn anew where the width changes: axes, lines, marks, and the point nearest to the pointer.
const svg = (tag, attributes = {}, text) => { const it = document.createElementNS("http://www.w3.org/2000/svg", tag); for (const key in attributes) it.setAttribute(key, attributes[key]); if (text !== undefined) it.textContent = text; return it; };
const MARKS = {
  circle: r => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`, square: r => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`, up: r => `M0 ${-1.2 * r}L${1.15 * r} ${.9 * r}H${-1.15 * r}z`,
  diamond: r => `M0 ${-1.3 * r}L${1.3 * r} 0L0 ${1.3 * r}L${-1.3 * r} 0z`, down: r => `M0 ${1.2 * r}L${1.15 * r} ${-.9 * r}H${-1.15 * r}z`, plus: r => `M${-r} ${-r / 3}h${2 * r / 3}v${-2 * r / 3}h${2 * r / 3}v${2 * r / 3}h${2 * r / 3}v${2 * r / 3}h${-2 * r / 3}v${2 * r / 3}h${-2 * r / 3}v${-2 * r / 3}h${-2 * r / 3}z`,
};
const SHAPES = Object.keys(MARKS);

// Marks of an axis: multiples of 1, 2 or 5; of a logarithmic one powers of ten, with 2 and 5 between where there is room.
const linearTicks = (low, high, count) => {
  const rough = (high - low) / count, ten = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find(it => it * ten >= rough * .999) * ten, ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) ticks.push(+(at * step).toPrecision(12));
  return ticks;
};
const logTicks = (low, high, count) => {
  const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high)), decades = to - from, ticks = [], inside = decades <= 1 ? [1, 1.5, 2, 3, 4, 5, 7] : decades <= count / 2 ? [1, 2, 5] : [1], every = Math.max(1, Math.ceil(decades / count));
  for (let at = from; at <= to; at += every) for (const times of inside) { const tick = times * 10 ** at; if (tick >= low * .999 && tick <= high * 1.001) ticks.push(tick); }
  return ticks.length > 1 ? ticks : linearTicks(low, high, count);
};
const axis = (values, log, count, from, to) => {
  let low = Math.min(...values), high = Math.max(...values);
  if (log) { const pad = low === high ? 1.5 : (high / low) ** .05; low /= pad; high *= pad; } else { const pad = low === high ? Math.abs(low) * .05 || 1 : (high - low) * .06; low -= pad; high += pad; }
  const place = log ? value => from + (to - from) * Math.log(value / low) / Math.log(high / low) : value => from + (to - from) * (value - low) / (high - low);
  return { low, high, place, ticks: log ? logTicks(low, high, count) : linearTicks(low, high, count) };
};

const marked = (tick, unit) => unit === "share" ? `${few(100 * tick)}\u00a0%` : shown(tick, unit);

const tip = make("div", "tip"); tip.setAttribute("role", "status"); document.body.append(tip);
const tell = (text, x, y) => {
  tip.textContent = text; tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - box.width - 6))}px`; tip.style.top = `${y - box.height - 12 < 4 ? y + 16 : y - box.height - 12}px`;
};
const hush = () => { tip.style.display = "none"; };
addEventListener("scroll", hush, { passive: true });

// what: label, height, x and y (label, unit, log, from: a value that the axis reaches), series (name, marker, colour,
// line, points), guides (value, text) across at y, diagonal, above (where texts go). A point: x, y, low, high, ring, text (beside it), told.
const chart = (place, what) => {
  const frame = make("div", "chart"); place.append(frame);
  const points = what.series.flatMap((series, at) => series.points.map(point => ({ ...point, series, at })));
  if (!points.length) { frame.append(make("p", "soft", "No points.")); return; }
  let placed = [], chosen = -1, halo;
  const show = (number, pointer) => {
    chosen = number; const point = placed[number], box = frame.firstChild.getBoundingClientRect(), scale = box.width / frame.drawn;
    halo.setAttribute("transform", `translate(${point.px} ${point.py})`); halo.style.display = "";
    tell(point.told, pointer ? pointer.clientX : box.left + point.px * scale, pointer ? pointer.clientY : box.top + point.py * scale);
  };
  const leave = () => { hush(); chosen = -1; if (halo) halo.style.display = "none"; };
  const draw = () => {
    const width = Math.max(260, frame.clientWidth || 520), height = what.height || 300, left = 70, right = 16, top = 14, bottom = 46;
    frame.drawn = width; frame.replaceChildren(); leave();
    const it = svg("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", tabindex: 0, "aria-label": `${what.label}. Arrow keys go from point to point.` });
    const x = axis(points.map(p => p.x), what.x.log, width < 420 ? 4 : 7, left, width - right);
    const seen = points.flatMap(p => [p.y, p.low, p.high]).concat((what.guides || []).map(g => g.value), what.y.from === undefined ? [] : [what.y.from]).filter(v => v !== undefined && v !== null && (!what.y.log || v > 0));
    const y = axis(what.diagonal ? seen.concat(points.map(p => p.x)) : seen, what.y.log, 6, height - bottom, top);
    if (what.diagonal) Object.assign(x, axis(seen.concat(points.map(p => p.x)), what.x.log, width < 420 ? 4 : 7, left, width - right));
    for (const tick of y.ticks) { const py = y.place(tick); it.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: py, y2: py }), svg("text", { class: "tick", x: left - 7, y: py + 4, "text-anchor": "end" }, marked(tick, what.y.unit))); }
    let taken = -99;
    for (const tick of x.ticks) { const px = x.place(tick), text = marked(tick, what.x.unit), half = text.length * 3.3; it.append(svg("line", { class: "grid", x1: px, x2: px, y1: top, y2: height - bottom })); if (px - half > taken + 6) { it.append(svg("text", { class: "tick", x: px, y: height - bottom + 17, "text-anchor": "middle" }, text)); taken = px + half; } }
    it.append(svg("text", { class: "name", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, what.x.label), svg("text", { class: "name", transform: `translate(13 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, what.y.label));
    for (const guide of what.guides || []) { const py = y.place(guide.value); it.append(svg("line", { class: "guide", x1: left, x2: width - right, y1: py, y2: py }), svg("text", { class: "told", x: left + 6, y: py - 5 }, guide.text)); }
    if (what.diagonal) { const low = Math.max(x.low, y.low), high = Math.min(x.high, y.high); it.append(svg("line", { class: "guide", x1: x.place(low), y1: y.place(low), x2: x.place(high), y2: y.place(high) })); }
    placed = points.map(point => ({ ...point, px: x.place(point.x), py: y.place(point.y) }));
    for (const series of what.series) if (series.line) it.append(svg("polyline", { class: "line", style: `stroke: var(--c${series.colour})`, points: placed.filter(p => p.series === series).sort((a, b) => a.x - b.x).map(p => `${p.px},${p.py}`).join(" ") }));
    halo = svg("circle", { class: "halo", r: 9 }); halo.style.display = "none"; it.append(halo);
    for (const point of placed) {
      const style = `--own: var(--c${point.series.colour})`, move = `translate(${point.px} ${point.py})`;
      if (point.low !== undefined && point.low !== null && point.high !== undefined && point.high !== null) it.append(svg("line", { class: "bar", style, x1: point.px, x2: point.px, y1: y.place(point.low), y2: y.place(point.high) }));
      if (point.ring) it.append(svg("circle", { class: "ring", style, r: 9, transform: move }));
      if (!point.small) it.append(svg("path", { class: point.hollow ? "mark hollow" : "mark", style, d: MARKS[point.series.marker](point.ring ? 5 : 4), transform: move }));
      if (point.text) { const end = point.px > width * .78, above = what.above ? point.py > top + 24 : point.py > height - bottom - 24; it.append(svg("text", { class: point.ring ? "said" : "weak", x: point.px + (end ? -11 : 11), y: point.py + (above ? -9 : 18), "text-anchor": end ? "end" : "start" }, point.text)); }
    }
    it.onpointermove = event => {
      const box = it.getBoundingClientRect(), scale = width / box.width, px = (event.clientX - box.left) * scale, py = (event.clientY - box.top) * scale;
      let best = -1, least = 40 ** 2;
      placed.forEach((p, at) => { const far = (p.px - px) ** 2 + (p.py - py) ** 2; if (far < least) { least = far; best = at; } });
      if (best < 0) leave(); else show(best, event);
    };
    it.onpointerleave = it.onblur = leave;
    it.onkeydown = event => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (event.key === "Escape") leave();
      if (!step) return;
      event.preventDefault();
      const order = placed.map((p, at) => at).sort((a, b) => placed[a].px - placed[b].px), now = order.indexOf(chosen);
      show(order[(now + step + order.length) % order.length]);
    };
    frame.append(it);
  };
  draw();
  let before = frame.clientWidth;
  new ResizeObserver(() => { if (frame.clientWidth && Math.abs(frame.clientWidth - before) > 1) { before = frame.clientWidth; requestAnimationFrame(draw); } }).observe(frame);
};

// The series of a chart, named with their marks.
const key = (place, series) => {
  const it = make("div", "key");
  for (const one of series) { const span = make("span"), mark = svg("svg", { viewBox: "-7 -7 14 14", width: 14, height: 14, "aria-hidden": "true" }); mark.append(svg("path", { class: one.hollow ? "mark hollow" : "mark", style: `--own: var(--c${one.colour})`, d: MARKS[one.marker](4.4) })); span.append(mark, one.name); it.append(span); }
  place.append(it);
};

// Counts by value, with lines where a format has values: a strip of ticks below where they are too many for lines.
const histogram = (place, what) => {
  const frame = make("div", "chart"), width = 340, height = 184, left = 14, right = 14, top = 8, floor = 130; place.append(frame);
  const low = what.edges[0], high = what.edges[what.edges.length - 1], most = Math.max(...what.counts, 1), x = value => left + (width - left - right) * (value - low) / (high - low);
  const it = svg("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": `Histogram of ${what.path}, ${what.counts.length} bins, with ${what.grid.length} values of ${what.format}` });
  const inside = what.grid.filter(value => value >= low && value <= high), many = inside.length > 48;
  it.append(svg("path", { class: "area", d: what.counts.map((count, at) => { const from = x(what.edges[at]), to = x(what.edges[at + 1]), y = floor - (floor - top) * count / most; return `M${from} ${floor}V${y}H${to}V${floor}z`; }).join("") }));
  it.append(svg("path", { class: many ? "values thin" : "values", d: inside.map(value => `M${x(value).toFixed(2)} ${many ? floor + 3 : top}V${floor + 11}`).join("") }), svg("line", { class: "base", x1: left, x2: width - right, y1: floor, y2: floor }));
  const ticks = linearTicks(low, high, 5);
  for (const tick of ticks) it.append(svg("text", { class: "tick", x: x(tick), y: floor + 27, "text-anchor": "middle" }, few(tick)));
  it.append(svg("text", { class: "name", x: width / 2, y: height - 6, "text-anchor": "middle" }, "value of a weight"));
  frame.append(it);
};
