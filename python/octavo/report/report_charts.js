// The charts of a compression: bytes against quality and predicted loss, prediction against measurement, histograms.
const SERIES = ["front", "uniform"];
const pointText = (point, front) => {
  const lines = [`${point.run ? point.run + ": " : ""}${point.label}${point.series === "front" ? "" : ` (${point.series})`}`, `${shown(point.bytes, "B")}, ${few(point.bits)} bits`], told = value => `${shown(value, (front.loss || {}).unit || "")} ${(front.loss || {}).unit || ""}`.trim();
  if (point.predicted !== undefined && point.predicted !== null) lines.push(`predicted ${(front.loss || {}).label || "loss"}: ${told(point.predicted)}`);
  if (point.measured_loss !== undefined && point.measured_loss !== null) lines.push(`measured ${(front.loss || {}).label || "loss"}: ${told(point.measured_loss)}`);
  if (point.measured && front.metric) { const unit = front.metric.unit, it = point.measured; lines.push(`${front.metric.label}: ${shown(it.value, unit)}${it.low !== undefined && it.low !== null ? ` (${shown(it.low, unit)} – ${shown(it.high, unit)})` : ""}`); }
  const marks = [point.chosen && "chosen", point.knee && "knee", point.trained && "after training"].filter(Boolean);
  if (marks.length) lines.push(marks.join(", "));
  if (point.told) lines.push(point.told);
  return lines.join("\n");
};
// Series of the points of a front, each with its mark and colour; the runs of a comparison are series, too.
const seriesOf = (points, names) => names.map((name, at) => ({ name, marker: SHAPES[at % SHAPES.length], colour: at % 6, points: points.filter(point => (point.run || point.series) === name) })).filter(series => series.points.length);

const frontCharts = (place, front) => {
  const points = front.points, names = front.runs || [...new Set([...SERIES, ...points.map(point => point.series)])].filter(name => points.some(point => point.series === name));
  const sizes = points.map(point => point.bytes), wide = Math.min(...sizes) > 0 && Math.max(...sizes) / Math.min(...sizes) > 6, x = { label: "weights (bytes, scales included)", unit: "B", log: wide };
  const series = seriesOf(points, names), box = make("div", "pair"); key(place, series); place.append(box);
  const drawn = (one, y, low, high, small) => ({ ...one, points: one.points.filter(point => y(point) !== undefined && y(point) !== null && !(small && y(point) <= 0)).map(point => ({ x: point.bytes, y: y(point), low: low && low(point), high: high && high(point), ring: point.chosen, hollow: point.trained, small: small && one.points.length > 80 && !point.chosen && !point.knee && !point.measured, text: front.runs ? "" : point.chosen ? "chosen" : point.knee && one.points.length < 200 ? "knee" : "", told: pointText(point, front) })) });
  if (front.metric && points.some(point => point.measured)) {
    const { label, unit, before } = front.metric, panel = make("div"); box.append(panel); panel.append(make("h3", "", `Measured ${label}`));
    chart(panel, { label: `${label} against bytes`, x, y: { label: `${label}, ${front.metric.better || "higher"} is better`, unit }, series: series.map(one => ({ ...drawn(one, point => point.measured && point.measured.value, point => point.measured.low, point => point.measured.high), line: false })), guides: before === undefined || before === null ? [] : [{ value: before, text: `original, ${shown(before, unit)}` }] });
  }
  if (points.some(point => point.predicted > 0)) {
    const { label, unit } = front.loss || { label: "loss", unit: "" }, panel = make("div"); box.append(panel); panel.append(make("h3", "", `Predicted ${label}`));
    chart(panel, { label: `Predicted ${label} against bytes`, above: true, x, y: { label: `${label}${unit && unit !== "share" ? ` (${unit})` : ""}, lower is better`, unit, log: true }, series: series.map(one => ({ ...drawn(one, point => point.predicted, null, null, true), line: one.name === "front" || Boolean(front.runs) })) });
  }
};

const predictionChart = (place, found) => {
  const told = [`${found.pairs.length} ${found.pairs.length === 1 ? "point" : "points"}`], other = found.measured, measured = other || { label: found.label, unit: found.unit };
  if (found.rank_correlation !== undefined && found.rank_correlation !== null) told.unshift(`rank correlation ${found.rank_correlation.toFixed(3).replace("-", "−")}`);
  if (found.method) told.push(`${found.method} prediction`);
  if (found.told) told.push(found.told);
  const box = make("div", "pair"), panel = make("div"), side = make("div"), named = it => it.label + (it.unit && it.unit !== "share" ? ` (${it.unit})` : ""); place.append(box); box.append(panel, side);
  panel.append(make("h3", "", told.join(" · ")));
  if (found.chosen) panel.append(make("p", "soft small", `The chosen model: predicted ${found.label} ${shown(found.chosen.predicted, found.unit)}, measured ${shown(found.chosen.measured, measured.unit)}.`));
  if (found.quality) panel.append(make("p", "soft small", `Rank correlation of the prediction with ${found.quality.label}: ${found.quality.rank_correlation.toFixed(3).replace("-", "−")}.`));
  const log = found.pairs.every(pair => pair.predicted > 0 && pair.measured > 0);
  chart(panel, { label: "Prediction against measurement", height: 340, diagonal: !other, x: { label: `predicted ${named(found)}`, unit: found.unit, log }, y: { label: `measured ${named(measured)}`, unit: measured.unit, log }, series: [{ name: "points", marker: "circle", colour: 0, points: found.pairs.map(pair => ({ x: pair.predicted, y: pair.measured, told: `${pair.label}\npredicted ${found.label}: ${shown(pair.predicted, found.unit)}\nmeasured ${measured.label}: ${shown(pair.measured, measured.unit)}` })) }] });
  const body = table(side, [{ label: "point" }, { label: "predicted", number: true }, { label: "measured", number: true }], "Prediction and measurement"); body.closest(".wide").classList.add("tall");
  for (const pair of found.pairs) { const tr = make("tr"); tr.append(cell("td", pair.label), cell("td", shown(pair.predicted, found.unit), "number"), cell("td", shown(pair.measured, measured.unit), "number")); body.append(tr); }
};

const histograms = (place, found) => {
  const box = make("div", "cards"); place.append(box);
  for (const one of found) {
    const card = make("div", "card"); box.append(card); card.append(path(make("h3", "path"), one.path));
    card.append(make("p", "soft", [one.format, one.why || (one.sqnr_db !== undefined && one.sqnr_db !== null ? `SQNR ${shown(one.sqnr_db, "dB")}` : "")].filter(Boolean).join(" · ")));
    histogram(card, one);
    if (one.grid_told) card.append(make("p", "soft small", `Lines: ${one.grid_told}.`));
  }
};
