"use strict";
const report = JSON.parse(document.getElementById("data").textContent);
// Okabe and Ito's colours, safe for colour-blind readers, then lighter shades.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f", "#b2df8a",
  "#a6761d", "#1b9e77", "#e7298a"];
const BAND_SHADES = {head: 1, torso: 0.6, tail: 0.3};

const names = [...new Set(report.groups.map(group => group.name))];
const columns = [...new Set(report.groups.map(group => group.column))];
const colour = name => names.includes(name) ? COLOURS[names.indexOf(name) % COLOURS.length] : "currentColor";
// What the charts show unless the reader chooses; the table shows all of them then.
const headline = {metric: report.verdict.metric || report.metrics[0], search: report.verdict.search, column: columns[0] || ""};
const only = {metric: "", search: "", column: "", name: ""};
const state = {...headline, against: "", sort: null, descending: true, clock: "epoch"};

// Small helpers

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

function shape(tag, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function tipped(node, text) {
  const tip = document.getElementById("tip");
  node.addEventListener("pointermove", event => {
    tip.textContent = text;
    tip.hidden = false;
    const width = tip.offsetWidth;
    tip.style.left = Math.min(event.clientX + 14, innerWidth - width - 8) + "px";
    tip.style.top = event.clientY + 14 + "px";
  });
  node.addEventListener("pointerleave", () => { tip.hidden = true; });
  return node;
}

function number(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  const text = value.toFixed(Math.abs(value) >= 100 ? Math.min(digits, 1) : digits);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

const chance = p => p < 0.001 ? "p < 0.001" : `p = ${p.toFixed(3)}`;
const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;
const groupOf = row => report.groups.find(group => group.name === row.name && group.column === row.column);
const measured = (row, measure) => row.baseline ? null : measure === "target" ? row.target : groupOf(row).measures[measure];
const verdictShown = () => report.verdicts.find(verdict =>
  verdict.metric === state.metric && verdict.search === state.search && verdict.column === state.column);
const rowsShown = () => report.rows.filter(row => row.column === state.column && row.search === state.search);
const groupsShown = () => report.groups.filter(group => group.column === state.column);

function ticks(low, high, count = 5) {
  const span = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(size => span / size <= count) || 10 * power;
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(+value.toPrecision(12));
  return found;
}

// Charts

// Names are cut in the middle: rows of a grid begin alike.
const LONGEST = 44;
const shortened = name => name.length > LONGEST ? `${name.slice(0, LONGEST / 2)}…${name.slice(1 - LONGEST / 2)}` : name;
const nameRoom = rows => Math.max(120, 24 + 6.8 * Math.max(...rows.map(row => shortened(row.name).length)));
const WIDTH = 540, HEIGHT = 300, LEFT = 58, RIGHT = 16, TOP = 12, BOTTOM = 44;

function frame(points, xLabel, yLabel, {zeroY = false} = {}) {
  const xs = points.map(point => point[0]), ys = points.map(point => point[1]);
  const spread = values => {
    const low = Math.min(...values), high = Math.max(...values);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - room, high + room];
  };
  let [x0, x1] = spread(xs), [y0, y1] = spread(ys);
  if (Math.min(...xs) >= 0) x0 = Math.max(x0, 0);
  if (zeroY || (Math.min(...ys) >= 0 && y0 < 0)) y0 = Math.min(0, y0 < 0 ? 0 : zeroY ? 0 : y0);
  const x = value => LEFT + (value - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
  const y = value => HEIGHT - BOTTOM - (value - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
  const svg = shape("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${yLabel} against ${xLabel}`});
  for (const tick of ticks(y0, y1)) {
    svg.append(shape("line", {class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick)}));
    svg.append(shape("text", {x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end"}, label(tick)));
  }
  for (const tick of ticks(x0, x1, 6).filter(tick => !["epoch", "trials"].includes(xLabel) || Number.isInteger(tick))) {
    svg.append(shape("line", {class: "axis", x1: x(tick), x2: x(tick), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4}));
    svg.append(shape("text", {x: x(tick), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle"}, label(tick)));
  }
  svg.append(shape("line", {class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM}));
  svg.append(shape("text", {class: "label", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle"}, xLabel));
  svg.append(shape("text", {class: "label", x: 14, y: (TOP + HEIGHT - BOTTOM) / 2, "text-anchor": "middle",
    transform: `rotate(-90 14 ${(TOP + HEIGHT - BOTTOM) / 2})`}, yLabel));
  return {svg, x, y};
}

const label = tick => Math.abs(tick) >= 1000 ? tick.toLocaleString("en") : String(tick);

function lineChart(series, xLabel, yLabel, frameOf = series) {
  const ends = frameOf.flatMap(line => (line.band || []).flatMap(([at, low, high]) => [[at, low], [at, high]]));
  const all = [...frameOf.flatMap(line => line.points), ...ends.filter(end => end[1] !== null)];
  if (!all.length) return null;
  const {svg, x, y} = frame(all, xLabel, yLabel);
  const highest = Math.max(...all.map(point => point[1])), lowest = Math.min(...all.map(point => point[1]));
  for (const line of series.filter(line => line.band)) {
    const upper = line.band.map(([at, , high]) => [at, high ?? highest]);
    const lower = line.band.map(([at, low]) => [at, low ?? lowest]).reverse();
    const points = [...upper, ...lower].map(point => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
    svg.append(shape("polygon", {points: points.join(" "), fill: colour(line.name), "fill-opacity": 0.12}));
  }
  for (const line of series) {
    const path = line.points.map((point, at) => `${at ? "L" : "M"}${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
    svg.append(shape("path", {d: path.join(""), fill: "none", stroke: colour(line.name), "stroke-width": 2}));
    for (const point of line.points) {
      const dot = shape("circle", {cx: x(point[0]), cy: y(point[1]), r: 3.2, fill: colour(line.name)});
      svg.append(tipped(dot, `${line.name}\n${xLabel}: ${number(point[0])}\n${yLabel}: ${number(point[1])}`));
    }
  }
  return svg;
}

function scatter(dots, xLabel, yLabel) {
  if (!dots.length) return null;
  const {svg, x, y} = frame(dots.map(dot => [dot.x, dot.y]), xLabel, yLabel);
  for (const dot of dots) {
    const mark = shape("circle", {cx: x(dot.x), cy: y(dot.y), r: 6, fill: colour(dot.name), "fill-opacity": 0.85});
    svg.append(tipped(mark, `${dot.text || dot.name}\n${xLabel}: ${number(dot.x)}\n${yLabel}: ${number(dot.y)}`));
  }
  return svg;
}

function figure(caption, chart) {
  return chart ? element("figure", {}, element("figcaption", {}, caption), chart) : null;
}

function legend(shown = names) {
  return element("div", {class: "legend"}, ...shown.map(name => element("span", {}, swatch(name), name)));
}

function swatch(name) {
  return element("span", {class: "swatch", style: `background:${colour(name)}`});
}

function fill(id, ...children) {
  const present = children.filter(Boolean);
  document.getElementById(id).hidden = !present.length;
  document.querySelector(`#${id} .body`).replaceChildren(...present);
}

function charts(...figures) {
  const present = figures.filter(Boolean);
  return present.length ? element("div", {class: "charts"}, ...present) : null;
}

// Controls

function choice(title, key, values, selected = state[key], choose = value => { state[key] = value; drawCharts(); }) {
  const select = element("select", {"data-key": key, onchange: event => choose(event.target.value)},
    ...values.map(value => {
      const option = element("option", {value}, value || "all");
      option.selected = selected === value;
      return option;
    }));
  return element("label", {}, title, select);
}

function filter(title, key, values) {
  return choice(title, key, ["", ...values], "", value => {
    only[key] = value;
    state[key] = value || headline[key];
    drawTable();
    drawCharts();
  });
}

function drawControls() {
  const controls = [filter("metric", "metric", report.metrics), filter("search", "search", report.searches)];
  if (columns.length > 1) controls.push(filter(report.columns || "column", "column", columns));
  const typed = event => { only.name = event.target.value.toLowerCase(); drawTable(); };
  controls.push(element("label", {}, "rows", element("input", {type: "search", "data-key": "name", placeholder: "part of a name", oninput: typed})));
  document.getElementById("controls").replaceChildren(...controls);
}

// The table

function drawTable() {
  const withColumns = columns.length > 1;
  const headings = [
    {key: "name", title: "row", of: row => row.name},
    ...(withColumns ? [{key: "column", title: report.columns || "column", of: row => row.column}] : []),
    {key: "search", title: "search", of: row => row.search},
    ...report.metrics.filter(metric => !only.metric || metric === only.metric).map(metric => ({key: metric, title: metric, number: true, of: row => row.metrics[metric]})),
    ...report.measures.map(measure => ({key: measure, title: report.axes[measure], number: true, digits: 1,
      of: row => measured(row, measure)})),
  ];
  const baselines = report.baselines.map(row => ({...row, column: "", search: "", baseline: true}));
  const chosen = row => !only.search || row.search === only.search;
  const rows = [...baselines, ...report.rows.filter(row => chosen(row) && (!only.column || row.column === only.column))]
    .filter(row => row.name.toLowerCase().includes(only.name));
  const sorted = headings.find(heading => heading.key === state.sort);
  if (sorted) {
    const {of, number: numeric} = sorted;
    const value = row => numeric ? (of(row) ? of(row).mean : -Infinity) : of(row);
    rows.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (state.descending ? -1 : 1));
  }
  const head = element("tr", {}, ...headings.map(heading => element("th", {
    class: heading.number ? "number" : undefined, scope: "col", "data-key": heading.key,
    "aria-sort": state.sort === heading.key ? (state.descending ? "descending" : "ascending") : "none",
  }, element("button", {type: "button", onclick: () => sortBy(heading)}, heading.title))));
  const body = rows.map(row => element("tr", {class: row.baseline ? "baseline" : undefined}, ...headings.map(heading => cell(row, heading))));
  document.getElementById("table").replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}

function sortBy(heading) {
  state.descending = state.sort === heading.key ? !state.descending : Boolean(heading.number);
  state.sort = heading.key;
  drawTable();
}

function cell(row, heading) {
  const value = heading.of(row);
  if (!heading.number) return element("td", {}, heading.key === "name" && !row.baseline ? swatch(row.name) : null, value);
  if (!value) return element("td", {class: "number"}, "–");
  const digits = heading.digits ?? 2;
  const spread = value.sd === null ? null : element("span", {class: "sd"}, ` ± ${number(value.sd, digits)}`);
  const made = element("td", {class: value.best ? "number best" : "number"}, number(value.mean, digits), spread);
  return tipped(made, row.baseline ? row.told : `${value.values.length > 1 ? "seeds" : "one seed"}: ${value.values.map(v => number(v)).join(", ")}`);
}

// Sections

function drawDifferences() {
  const tests = report.tests.filter(test =>
    test.metric === state.metric && test.search === state.search && test.column === state.column);
  if (!tests.length) return fill("differences");
  const candidates = [...new Set(tests.flatMap(test => [test.a, test.b]))];
  const against = [state.against, report.reference, verdictShown().leader, candidates[0]].find(name => candidates.includes(name));
  const found = tests.filter(test => [test.a, test.b].includes(against)).map(test => test.b === against
    ? {name: test.a, value: test.value, low: test.low, high: test.high, p: test.p}
    : {name: test.b, value: -test.value, low: -test.high, high: -test.low, p: test.p});
  found.sort((a, b) => b.value - a.value);
  const height = 34 * found.length + 52, left = nameRoom(found), right = 120;
  const low = Math.min(0, ...found.map(row => row.low)), high = Math.max(0, ...found.map(row => row.high));
  const room = (high - low || 1) * 0.05;
  const x = value => left + (value - low + room) / (high - low + 2 * room) * (900 - left - right);
  const svg = shape("svg", {viewBox: `0 0 900 ${height}`, role: "img", "aria-label": `Differences to ${against}`});
  for (const tick of ticks(low - room, high + room, 8)) {
    svg.append(shape("line", {class: "grid", x1: x(tick), x2: x(tick), y1: 4, y2: height - 44}));
    svg.append(shape("text", {x: x(tick), y: height - 28, "text-anchor": "middle"}, label(tick)));
  }
  svg.append(shape("line", {class: "zero", x1: x(0), x2: x(0), y1: 4, y2: height - 44}));
  found.forEach((row, at) => {
    const y = 22 + 34 * at;
    svg.append(shape("text", {class: "label", x: left - 12, y: y + 4, "text-anchor": "end"}, shortened(row.name)));
    svg.append(shape("line", {x1: x(row.low), x2: x(row.high), y1: y, y2: y, stroke: colour(row.name), "stroke-width": 3}));
    const dot = shape("circle", {cx: x(row.value), cy: y, r: 6, fill: colour(row.name)});
    svg.append(tipped(dot, `${row.name} less ${against}\n${number(row.value)} (${number(row.low)} to ${number(row.high)})`));
    svg.append(shape("text", {x: 900 - right + 12, y: y + 4}, chance(row.p)));
  });
  const axis = `${state.metric} of ${state.search}, percentage points above ${against}`;
  svg.append(shape("text", {class: "label", x: (left + 900 - right) / 2, y: height - 6, "text-anchor": "middle"}, axis));
  fill("differences", choice("against", "against", candidates, against),
    element("p", {class: "note", id: "verdict"}, verdictShown().sentences.join(" ")),
    element("p", {class: "note"}, "Bars: 95 % intervals of a paired bootstrap over test queries and seeds; p: the larger of the bootstrap and sign-flip p-values, uncorrected. The verdict and bold numbers are corrected for multiple comparisons."), svg);
}

function drawTuning() {
  const settings = report.settings.length ? element("ul", {}, ...report.settings.map(text => element("li", {}, text))) : null;
  if (!report.tuning) return settings ? fill("tuning", settings) : fill("tuning");
  const rows = report.tuning.rows.filter(row => row.column === state.column);
  const line = row => ({name: row.name, points: row.curve.map(point => [point.n, point.median]),
    band: row.curve.map(point => [point.n, point.low, point.high])});
  const told = `${report.tuning.metric} on the validation queries that the best of n random trials reaches, as a median, with `
    + "its 95 % band. A band that is open, which only more trials could close, is drawn up to the frame.";
  const lines = rows.map(line);
  fill("tuning", element("p", {class: "note"}, told), legend(rows.map(row => row.name)),
    charts(...lines.map(each => figure(each.name, lineChart([each], "trials", report.tuning.metric, lines))),
      figure("All rows, without bands", lineChart(lines.map(each => ({...each, band: undefined})), "trials", report.tuning.metric))),
    settings);
}

function drawHeads() {
  const tests = report.heads.filter(test => test.metric === state.metric && test.column === state.column);
  if (!tests.length) return fill("heads");
  const pairs = [...new Set(tests.map(test => `${test.b} less ${test.a}`))];
  const told = new Map(tests.map(test => [`${test.name}\n${test.b} less ${test.a}`, test]));
  const cells = (name, pair) => {
    const test = told.get(`${name}\n${pair}`);
    if (!test) return element("td", {class: "number"}, "–");
    const interval = element("span", {class: "sd"}, ` (${number(-test.high)} to ${number(-test.low)}; ${chance(test.p)})`);
    return element("td", {class: "number"}, number(-test.value), interval);
  };
  const head = element("tr", {}, element("th", {scope: "col"}, "row"), ...pairs.map(pair => element("th", {scope: "col"}, pair)));
  const body = [...new Set(tests.map(test => test.name))].map(name => element("tr", {},
    element("td", {}, swatch(name), name), ...pairs.map(pair => cells(name, pair))));
  fill("heads", element("p", {class: "note"}, `${state.metric}, percentage points, with the same intervals and tests.`),
    element("div", {class: "wide"}, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body))));
}

function drawCurves() {
  const ofClock = record => state.clock === "epoch" ? record.epoch : record.seconds;
  const series = groupsShown().map(group => {
    const byEpoch = new Map();
    for (const record of group.curves.flat()) {
      const value = (record.metrics[state.search] || {})[state.metric];
      if (value === undefined || ofClock(record) === null) continue;
      if (!byEpoch.has(record.epoch)) byEpoch.set(record.epoch, []);
      byEpoch.get(record.epoch).push([ofClock(record), value]);
    }
    const points = [...byEpoch.values()].map(some => [mean(some.map(p => p[0])), mean(some.map(p => p[1]))]);
    return {name: group.name, points: points.sort((a, b) => a[0] - b[0])};
  }).filter(line => line.points.length);
  const splits = new Set(groupsShown().flatMap(group => group.curves.flat()).map(record => record.split || "test"));
  const losses = groupsShown().map(group => ({name: group.name, points: group.pool.map(epoch => [epoch.epoch, epoch.loss])}));
  const clock = state.clock === "epoch" ? "epoch" : "seconds of training";
  const chart = series.some(line => line.points.length > 1) ? lineChart(series, clock, `${state.metric} of ${state.search}`) : null;
  const loss = losses.some(line => line.points.length > 1) ? lineChart(losses, "epoch", "training loss") : null;
  if (!chart && !loss) return fill("curves");
  fill("curves", chart && choice("over", "clock", ["epoch", "seconds"]), legend(),
    charts(figure(`Mean over the seeds, on the ${[...splits].sort().join(" or ")} queries`, chart), figure("Losses of different rows are not comparable", loss)));
}

function drawCosts() {
  const against = measure => {
    const dots = rowsShown().map(row => {
      const cost = measured(row, measure);
      const value = row.metrics[state.metric];
      return cost && value ? {name: row.name, x: cost.mean, y: value.mean} : null;
    }).filter(Boolean);
    return figure(`${state.metric} against ${report.axes[measure]}`, dots.length > 1 ? scatter(dots, report.axes[measure], state.metric) : null);
  };
  const made = charts(...["train", "memory", "target"].filter(measure => report.measures.includes(measure)).map(against));
  made ? fill("costs", legend(), made) : fill("costs");
}

function drawTradeoff() {
  const k = state.metric.split("@")[1];
  const pair = [`P@${k}`, `PSP@${k}`].every(metric => report.metrics.includes(metric)) ? [`P@${k}`, `PSP@${k}`] : null;
  if (!pair) return fill("tradeoff");
  const of = search => {
    const dots = report.rows.filter(row => row.column === state.column && row.search === search && pair.every(m => row.metrics[m]))
      .map(row => ({name: row.name, text: `${row.name}, ${search}`, x: row.metrics[pair[1]].mean, y: row.metrics[pair[0]].mean}));
    return figure(`${search}: up is more precise, right is better on rare labels`, dots.length ? scatter(dots, pair[1], pair[0]) : null);
  };
  const made = charts(...report.searches.map(of));
  made ? fill("tradeoff", legend(), made) : fill("tradeoff");
}

function drawBands() {
  const rows = rowsShown().filter(row => Object.keys(row.bands).length);
  if (!rows.length) return fill("bands");
  const total = row => Object.values(row.bands).reduce((sum, band) => sum + (band[state.metric] || 0), 0);
  const highest = Math.max(...rows.map(total)) || 1;
  const left = nameRoom(rows), right = 70, height = 32 * rows.length + 44;
  const x = value => left + value / highest * (900 - left - right);
  const svg = shape("svg", {viewBox: `0 0 900 ${height}`, role: "img", "aria-label": `${state.metric} by label frequency`});
  for (const tick of ticks(0, highest, 8)) {
    svg.append(shape("line", {class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height - 40}));
    svg.append(shape("text", {x: x(tick), y: height - 24, "text-anchor": "middle"}, label(tick)));
  }
  rows.forEach((row, at) => {
    const y = 4 + 32 * at;
    svg.append(shape("text", {class: "label", x: left - 12, y: y + 16, "text-anchor": "end"}, shortened(row.name)));
    let start = 0;
    for (const [band, values] of Object.entries(row.bands)) {
      const value = values[state.metric] || 0;
      const bar = shape("rect", {x: x(start), y, width: Math.max(0, x(start + value) - x(start)), height: 22,
        fill: colour(row.name), "fill-opacity": BAND_SHADES[band] ?? 0.5});
      svg.append(tipped(bar, `${row.name}\n${band}: ${number(value)} of ${number(total(row))}`));
      start += value;
    }
    svg.append(shape("text", {x: x(start) + 8, y: y + 16}, number(start)));
  });
  svg.append(shape("text", {class: "label", x: (left + 900 - right) / 2, y: height - 4, "text-anchor": "middle"}, `${state.metric} of ${state.search}`));
  fill("bands", element("p", {class: "note"},
    "What labels with more than 100 (dark), 11 to 100 and up to 10 (light) training queries contribute to the metric; the parts sum to the whole."), svg);
}

function drawPools() {
  const groups = groupsShown().filter(group => group.pool.length);
  if (!groups.length) return fill("pools");
  const overall = name => group => mean(group.pool.map(epoch => epoch[name]));
  const dots = groups.map(group => ({name: group.name, x: overall("pool")(group), y: overall("positives")(group)}));
  const line = name => groups.map(group => ({name: group.name, points: group.pool.map(epoch => [epoch.epoch, epoch[name]])}));
  const several = groups.some(group => group.pool.length > 1);
  fill("pools", legend(), charts(
    figure("Positives per query in the pool against pool size, means over a run",
      scatter(dots, "labels per pool", "positives per query")),
    several ? figure("Positives per query in the pool", lineChart(line("positives"), "epoch", "positives per query")) : null));
}

function drawConfig() {
  const keys = [...new Set(report.groups.flatMap(group => Object.keys(group.differs)))];
  if (!keys.length) return fill("config");
  const head = element("tr", {}, element("th", {scope: "col"}, "row"), ...keys.map(key => element("th", {scope: "col"}, key)));
  const body = report.groups.map(group => element("tr", {},
    element("td", {}, swatch(group.name), [group.name, group.column].filter(Boolean).join(", ")),
    ...keys.map(key => element("td", {}, key in group.differs ? String(group.differs[key]) : ""))));
  fill("config", element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

function drawEnvironment() {
  const lines = [];
  const walk = (value, prefix) => {
    for (const [key, inner] of Object.entries(value)) {
      if (inner !== null && typeof inner === "object") walk(inner, `${prefix}${key} `);
      else lines.push([prefix + key, String(inner)]);
    }
  };
  for (const data of report.data) walk({data}, "");
  walk({...report.environment, budget: report.budget}, "");
  fill("environment", element("table", {}, element("tbody", {}, ...lines.map(([key, value]) =>
    element("tr", {}, element("td", {}, key), element("td", {}, value))))));
}

function drawMissing() {
  fill("missing", report.remarks.length
    ? element("ul", {}, ...report.remarks.map(text => element("li", {}, text))) : null);
}

function drawCharts() {
  drawDifferences();
  drawTuning();
  drawHeads();
  drawCurves();
  drawCosts();
  drawTradeoff();
  drawBands();
  drawPools();
}

document.getElementById("footnote").textContent = report.footnote;
const unfinished = report.groups.filter(group => group.state !== "finished").length;
document.getElementById("hint").textContent = "Click a heading to sort; hover over a number to see its seeds. The selectors filter the table and the charts; a chart shows one metric and search at a time."
  + (unfinished ? ` ${unfinished} of ${report.groups.length} rows are unfinished: they show their latest evaluation.` : "");
drawControls();
drawTable();
drawCharts();
drawConfig();
drawMissing();
drawEnvironment();
