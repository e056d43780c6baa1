// Tables of reports: cells, rows that sort by a column and filter by a text, values with their intervals, changes.
const cell = (tag, text, cls) => make(tag, cls, text);
const path = (it, text) => { String(text).split(/(?<=[.:/ ])/).forEach((part, at) => it.append(...(at ? [make("wbr"), part] : [part]))); return it; };  // breaks after dots
const table = (place, heads, caption) => {
  const box = make("div", "wide"), it = make("table"), head = make("tr"), body = make("tbody"), top = make("thead");
  box.tabIndex = 0; box.setAttribute("role", "region"); box.setAttribute("aria-label", caption);
  it.append(make("caption", "hidden", caption));
  for (const one of heads) { const th = cell("th", one.label, one.number ? "number" : ""); th.scope = "col"; head.append(th); }
  top.append(head); it.append(top, body); box.append(it); place.append(box);
  scrolls(box);
  return body;
};
// A box that does not show all fades out on the side where more is, and a line below says how it scrolls.
const scrolls = box => {
  const told = make("p", "soft small more"); box.after(told); told.setAttribute("aria-hidden", "true");
  const look = () => {
    const wide = box.scrollWidth - box.clientWidth > 2, high = box.scrollHeight - box.clientHeight > 2;
    box.classList.toggle("right", wide && box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
    box.classList.toggle("below", high && box.scrollTop + box.clientHeight < box.scrollHeight - 2);
    told.textContent = wide && high ? "↔ ↕ scrolls both ways" : wide ? "↔ scrolls sideways: more columns" : high ? "↕ scrolls: more rows" : "";
  };
  box.addEventListener("scroll", look, { passive: true });
  const watch = new ResizeObserver(look); watch.observe(box); watch.observe(box.firstChild);
};

// columns: label, number, value (of a row, to sort by), text or node (of a row, to show), wide (a long text).
const sortable = (place, columns, rows, caption) => {
  const bar = make("div", "tools"), input = make("input"), told = make("span", "soft"), body = table(place, columns, caption), heads = body.parentElement.querySelectorAll("th");
  body.closest(".wide").classList.add("tall", "sorted");
  input.type = "search"; input.placeholder = "Filter rows"; input.setAttribute("aria-label", "Filter rows by a text");
  bar.append(input, told); place.insertBefore(bar, body.closest(".wide"));
  const lines = rows.map((row, at) => ({ row, at, values: columns.map(column => column.value(row)), text: columns.map(column => column.number ? "" : String(column.value(row) ?? "")).join(" ").toLowerCase() }));
  let by = -1, down = false;
  const build = line => {
    const tr = make("tr");
    columns.forEach((column, at) => { const td = make("td", column.number ? "number" : column.wide ? "path" : ""), made = column.text ? column.text(line.row) : line.values[at]; if (column.wide) path(td, made ?? ""); else td.append(made ?? ""); tr.append(td); });
    return tr;
  };
  const fill = () => {
    const wanted = input.value.trim().toLowerCase(), found = wanted ? lines.filter(line => line.text.includes(wanted)) : lines.slice();
    if (by >= 0) found.sort((a, b) => {
      const x = a.values[by], y = b.values[by], none = (x === undefined || x === null) - (y === undefined || y === null);  // rows without a value come last either way
      return none || (x === y ? a.at - b.at : (x > y ? 1 : -1) * (down ? -1 : 1));
    });
    body.replaceChildren(...found.map(line => line.element ||= build(line)));
    told.textContent = found.length === lines.length ? `${lines.length.toLocaleString("en")} rows` : `${found.length.toLocaleString("en")} of ${lines.length.toLocaleString("en")} rows`;
  };
  heads.forEach((th, at) => {
    const button = make("button", "sort", th.textContent); th.replaceChildren(button); th.setAttribute("aria-sort", "none");
    button.onclick = () => {
      if (by === at) down = !down; else { by = at; down = Boolean(columns[at].number); }
      heads.forEach((other, number) => other.setAttribute("aria-sort", number === by ? (down ? "descending" : "ascending") : "none"));
      fill();
    };
  });
  input.oninput = fill; fill();
};

const minus = text => text.replace("-", "−");
const signed = (value, unit) => unit === "share" ? `${value < 0 ? "−" : "+"}${Math.abs(100 * value).toFixed(2)}` : `${value < 0 ? "−" : "+"}${shown(Math.abs(value), unit)}`;
const factor = (from, to, less, more) => { const ratio = from / to; return ratio > .995 && ratio < 1.005 ? "the same" : ratio >= 1 ? `${+ratio.toPrecision(3)}× ${less}` : `${+(1 / ratio).toPrecision(3)}× ${more}`; };
// A value: the number, under it its interval, how many it is of, and how many seeds.
const valued = (value, row) => {
  const it = make("div", "valued");
  if (!value) { it.append(make("span", "soft", "—")); return it; }
  it.append(make("b", "", row.key === "parameters" ? full(value.value) : shown(value.value, row.unit)));
  const small = [];
  if (value.low !== undefined && value.low !== null && value.high !== undefined && value.high !== null) small.push(row.unit === "share" ? `${(100 * value.low).toFixed(2)} – ${shown(value.high, "share")}` : `${shown(value.low, row.unit)} – ${shown(value.high, row.unit)}`);
  if (value.seeds) small.push(`${value.seeds} ${value.seeds === 1 ? "seed" : "seeds"}`);
  if (small.length) it.append(make("small", "", small.join(", ")));
  return it;
};
// The change of a row: a difference with its interval, or a factor; blue where it is better, vermilion where worse.
const changed = (row, before, after, difference) => {
  const it = make("div", "valued");
  if (!before || !after) { it.append(make("span", "soft", row.missing || "")); return it; }
  const value = difference ? difference.value : after.value - before.value, better = row.better === "higher" ? value > 0 : value < 0;
  const scaled = ["B", "s", "bits"].includes(row.unit) && before.value > 0 && after.value > 0;
  const words = row.unit === "s" ? ["faster", "slower"] : row.unit === "bits" ? ["fewer", "more"] : ["smaller", "larger"];
  const known = difference && difference.low !== undefined && difference.low !== null && difference.high !== undefined && difference.high !== null, clear = known ? difference.low > 0 || difference.high < 0 : Math.abs(value) > 0;
  it.append(make("b", !clear ? "" : better ? "good" : "bad", scaled ? factor(before.value, after.value, ...words) : signed(value, row.unit) + (row.unit === "share" ? " points" : "")));
  if (known) it.append(make("small", "", `${signed(difference.low, row.unit)} to ${signed(difference.high, row.unit)}`));
  return it;
};

const beforeAfter = (place, rows) => {
  const others = [...new Set(rows.flatMap(row => Object.keys(row.others || {})))];
  const heads = [{ label: "" }, { label: "original", number: true }, { label: "compressed", number: true }, { label: "change", number: true }, ...others.map(label => ({ label, number: true }))];
  const body = table(place, heads, "Before and after");
  body.parentElement.classList.add("stacked");
  for (const row of rows) {
    const tr = make("tr"), th = make("th", "", row.label), told = [], count = (row.after || row.before || {}).count; th.scope = "row";
    if (count) told.push(row.unit === "s" ? `${count} runs` : `${count.toLocaleString("en")} examples`);
    if (row.split) told.push(`${row.split} split`);
    if ((row.after || {}).low !== undefined || row.difference) told.push(row.interval === "IQR" ? "median and quartiles" : `${row.interval || "95 %"} intervals`);
    if (row.told) told.push(row.told);
    if (told.length) th.append(make("small", "", told.join(" · ")));
    tr.append(th);
    for (const node of [valued(row.before, row), valued(row.after, row), changed(row, row.before, row.after, row.difference), ...others.map(name => valued((row.others || {})[name], row))]) { const td = make("td", "number"); if (node.textContent === "—") td.classList.add("empty"); td.dataset.label = heads[tr.children.length].label; td.append(node); tr.append(td); }
    body.append(tr);
  }
};

// A section: its heading, a line that says how to read it, and what draws it; a missing part says why.
const section = (id, heading, lead, part, draw) => {
  const it = make("section", "part"); it.id = id; it.append(make("h2", "", heading));
  get("main").insertBefore(it, get("footer"));
  if (part === undefined || part === null || (Array.isArray(part) && !part.length)) { it.append(make("p", "absent", part ? "None." : `Not in this report: ${(data.missing || {})[id] || "it was not measured"}.`)); return; }
  if (lead) it.append(make("p", "lead", lead));
  draw(it, part);
  const link = make("a", "", heading); link.href = `#${id}`; get("nav").append(link);
};
