"use strict";
// Smoothing and zoom of the charts. A chart states its axes: data-x and data-y hold "start end low high log", pixels then values.
const charts = [...document.querySelectorAll("svg[data-x]")].map(svg => {
  const [x, y] = [svg.dataset.x, svg.dataset.y].map(text => text.split(" ").map(Number));
  return { svg, x, y, plot: svg.querySelector("svg"), frame: svg.querySelector(".frame") };
});
const [controls] = document.querySelectorAll(".controls");
const { smoothing, first, last } = Object.fromEntries([...controls.querySelectorAll("input")].map(i => [i.name, i]));
const parse = text => text.split(" ").map(pair => pair.split(",").map(Number));
const points = line => parse(line.getAttribute("points"));
const place = ([start, end, low, high, log], value) => start + ((log ? Math.log10(value) : value) - low) / (high - low) * (end - start);
const value = ([start, end, low, high, log], at) => (at = low + (at - start) / (end - start) * (high - low), log ? 10 ** at : at);
const steps = [Math.min(...charts.map(c => c.x[2])), Math.max(...charts.map(c => c.x[3]))];
const stepOf = slider => steps[0] + slider.value / slider.max * (steps[1] - steps[0]);

function smooth(line, weight, axis) { // exponential moving average without bias
  let mean = 0, total = 0;
  return parse(line.dataset.points).map(([x, y]) => {
    [mean, total] = [weight * mean + (1 - weight) * value(axis, y), weight * total + 1 - weight];
    return `${x},${place(axis, mean / total).toFixed(1)}`;
  }).join(" ");
}

function ticks(low, high, log) {
  if (log && high > 3 * low) {
    const decades = Array.from({ length: Math.ceil(Math.log10(high / low)) + 2 }, (_, n) => 10 ** (Math.floor(Math.log10(low)) + n));
    const factors = high < 300 * low ? [1, 2, 5] : [1];
    return decades.flatMap(decade => factors.map(factor => factor * decade)).filter(tick => tick >= low && tick <= high);
  }
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const size = power * [1, 2, 2.5, 5, 10].find(factor => factor * power >= rough * 0.999);
  const count = Math.floor(high / size) - Math.ceil(low / size) + 1;
  return Array.from({ length: count }, (_, n) => +(size * (Math.ceil(low / size) + n)).toPrecision(12));
}

function draw({ svg, plot, frame, x, y }) {
  for (const line of svg.querySelectorAll(".smooth")) line.setAttribute("points", smooth(line, smoothing.value, y));
  const range = [first, last].map(slider => Math.min(Math.max(place(x, stepOf(slider)), x[0]), x[1])).sort((a, b) => a - b);
  const whole = (first.value === first.min && last.value === last.max) || range[1] - range[0] < 1; // none of its steps
  const inside = [...svg.querySelectorAll("polyline")].flatMap(points).filter(([at]) => at >= range[0] && at <= range[1]);
  svg.classList.toggle("zoomed", !whole);
  svg.classList.toggle("smoothed", smoothing.value > 0);
  let [top, bottom] = [y[1], y[0]];
  if (!whole && inside.length > 1) {
    [top, bottom] = [Math.min(...inside.map(p => p[1])) - 1, Math.max(...inside.map(p => p[1])) + 1];
  }
  const [left, right] = whole ? x : range;
  plot.setAttribute("viewBox", `${left} ${top} ${right - left} ${bottom - top}`);
  svg.querySelector(".zoomed-frame")?.remove();
  if (whole) return;
  const group = frame.cloneNode();
  group.setAttribute("class", "zoomed-frame");
  const add = (name, attributes, text = "") => {
    const node = group.appendChild(document.createElementNS(svg.namespaceURI, name));
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    node.textContent = text;
  };
  for (const tick of ticks(value(y, bottom), value(y, top), y[4])) {
    const at = y[1] + (place(y, tick) - top) / (bottom - top) * (y[0] - y[1]);
    add("line", { class: "grid", x1: x[0], x2: x[1], y1: at, y2: at });
    add("text", { class: "y", x: x[0] - 6, y: at + 3.5 }, tick.toLocaleString("en", { maximumSignificantDigits: 10 }));
  }
  for (const tick of ticks(value(x, left), value(x, right)).filter(Number.isInteger)) {
    add("text", { class: "x", x: x[0] + (place(x, tick) - left) / (right - left) * (x[1] - x[0]), y: y[0] + 16 }, tick.toLocaleString("en"));
  }
  frame.after(group);
}

const update = () => charts.forEach(draw);
controls.hidden = false;
controls.addEventListener("input", update);
controls.querySelector("button").addEventListener("click", () => {
  for (const slider of [smoothing, first, last]) slider.value = slider.defaultValue;
  update();
});
for (const { svg, x, plot } of charts) { // drag over steps
  const at = event => new DOMPoint(event.clientX, 0).matrixTransform(plot.getScreenCTM().inverse()).x;
  let from = null, dragged = false;
  svg.addEventListener("pointerdown", event => { from = event.clientX; dragged = false; });
  svg.addEventListener("click", event => dragged && event.preventDefault()); // a click enlarges the chart
  addEventListener("pointerup", event => {
    dragged = from !== null && Math.abs(event.clientX - from) > 8;
    if (dragged) {
      const ends = [at({ clientX: from }), at(event)].sort((a, b) => a - b);
      [first.value, last.value] = ends.map(end => (value(x, end) - steps[0]) / (steps[1] - steps[0]) * first.max);
      update();
    }
    from = null;
  });
}
