// What is shown of one tensor: its updates in units of its weights' ulp, its EDQ by step, and its numbers.

const CHART = { width: 400, height: 190, left: 48, right: 16, top: 18, bottom: 32 };

/** Return a drawing's frame and its scales, from shares of the width and the height. */
function chart(label) {
  const { width, height, left, right, top, bottom } = CHART;
  const frame = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const x = (part) => left + part * (width - left - right);
  const y = (part) => height - bottom - part * (height - top - bottom);
  return { frame, x, y };
}

const line = (kind, x1, y1, x2, y2) => drawn("line", { class: kind, x1, y1, x2, y2 });
const label = (text, x, y, anchor = "middle") => drawn("text", { x, y, "text-anchor": anchor }, text);

/** Draw the histogram of |update| / ulp(weight). */
function drawHistogram() {
  const { histogram: shares, below_half: below } = data.runs[chosen.run].tensors[chosen.tensor];
  const edges = data.edges;
  const half = edges.indexOf(-1);
  const said = `${percent(below, 2)} of the updates lie below 1/2 ulp of their weight`;
  const { frame, x, y } = chart(said);
  const most = Math.max(...shares) || 1;
  const place = (edge) => (edge - edges[0]) / (edges[edges.length - 1] - edges[0]);
  for (const part of [0.5, 1]) {
    frame.append(line("grid", x(0), y(part), x(1), y(part)), label(percent(part * most), x(0) - 4, y(part) + 4, "end"));
  }
  shares.forEach((part, bin) => {
    const [from, to] = [x(place(edges[bin])), x(place(edges[bin + 1]))];
    const top = y(part / most);
    const kind = bin < half ? "lost" : "kept";
    const bar = drawn("rect", { class: kind, x: from + 0.5, y: top, width: to - from - 1, height: y(0) - top });
    bar.append(drawn("title", {}, `${binName(bin)}: ${share(part)}`));
    frame.append(bar);
  });
  frame.append(line("axis", x(0), y(0), x(1), y(0)));
  for (const edge of edges.filter((edge) => edge % 4 === 0)) {
    frame.append(label(String(edge), x(place(edge)), y(0) + 14));
  }
  const mark = x(place(-1));
  frame.append(line("half", mark, y(1) - 6, mark, y(0)), label("1/2 ulp", mark, y(1) - 9));
  frame.append(label("log2 of |update| / ulp(weight)", x(0.5), y(0) + 28));
  part("histogram").replaceChildren(frame);
  part("histogram-title").textContent =
    `|update| / ulp(weight) in ${data.low}, at the peak rate ${data.runs[chosen.run].peak}`;
  part("below-half").textContent =
    `${said}: added plainly, to nearest, they are lost. Of a weight that is a power of two and becomes smaller ` +
    "those below 1/4 ulp are. The first and the last bar hold what lies beyond, zeros too.";
}

/** Return which ratios a bar holds. */
function binName(bin) {
  const [from, to] = [data.edges[bin], data.edges[bin + 1]];
  if (bin === 0) return `below 2^${to}`;
  return bin === data.edges.length - 2 ? `2^${from} and above` : `2^${from} to 2^${to}`;
}

/** Draw the tensor's EDQ over the steps, and behind it the learning rate. */
function drawCourse() {
  const { course, stops } = found(chosen.tensor);
  const { rates } = data.runs[chosen.run];
  const steps = data.steps;
  const [first, last] = [steps[0], steps[steps.length - 1]];
  const place = (at) => (last > first ? (at - first) / (last - first) : 0.5);
  const asked = course.filter((edq) => edq !== null);
  const [least, most] = [Math.min(0, ...asked), Math.max(1, ...asked)];
  const level = (edq) => (edq - least) / (most - least);
  const { frame, x, y } = chart(`EDQ by step: from ${share(course[0])} to ${share(course[course.length - 1])}`);
  const fastest = Math.max(...rates);
  const area = rates.map((rate, i) => `${x(place(steps[i]))},${y(fastest > 0 ? rate / fastest : 0)}`);
  frame.append(drawn("polygon", { class: "rate", points: [`${x(place(first))},${y(0)}`, ...area, `${x(place(last))},${y(0)}`].join(" ") }));
  for (const edq of [0, data.stopped, 1]) {
    frame.append(line("grid", x(0), y(level(edq)), x(1), y(level(edq))));
    frame.append(label(String(edq), x(0) - 4, y(level(edq)) + 4, "end"));
  }
  for (const points of runsOf(course)) {
    const path = points.map((i) => `${x(place(steps[i]))},${y(level(course[i]))}`).join(" ");
    frame.append(drawn("polyline", { class: "edq", points: path }));
  }
  if (stops !== null) {
    const at = x(place(stops));
    frame.append(line("stop", at, y(1) - 4, at, y(0)));
    frame.append(label(`stops at ${count(stops)}`, at, y(1) - 7, place(stops) > 0.8 ? "end" : place(stops) < 0.2 ? "start" : "middle"));
  }
  frame.append(line("axis", x(0), y(0), x(1), y(0)));
  for (const at of ticks(first, last, 5)) {
    frame.append(label(count(at), x(place(at)), y(0) + 14, place(at) > 0.97 ? "end" : "middle"));
  }
  frame.append(label("step", x(0.5), y(0) + 28));
  part("course").replaceChildren(frame);
  part("course-title").textContent =
    `EDQ by step under ${data.strategies[chosen.strategy].name}; grey: the learning rate`;
}

/** Return the runs of places where something is asked. */
function runsOf(course) {
  const runs = [[]];
  course.forEach((edq, i) => {
    if (edq !== null) runs[runs.length - 1].push(i);
    else runs.push([]);
  });
  return runs.filter((run) => run.length > 0);
}

/** Show all that is known of the chosen tensor. */
function drawTensor() {
  const tensor = data.tensors[chosen.tensor];
  const here = found(chosen.tensor);
  part("tensor-name").replaceChildren(...breakable(tensor.name));
  drawHistogram();
  drawCourse();
  list("tensor-numbers", [
    ["shape", `${tensor.shape.join(" x ") || "scalar"}, ${count(tensor.parameters)} weights in ${tensor.format}`],
    ["rms of weights", String(tensor.rms)],
    ["zeros", share(tensor.zeros)],
    ["rms of directions", `${tensor.direction_rms} learning rates`],
    ["weight decay", tensor.decayed ? "applies" : "does not apply"],
    ...data.strategies.map(({ name }, i) => [`EDQ, ${name}`, share(found(chosen.tensor, i).edq)]),
    ["lost", share(here.lost)],
    ["stops at", end(here)],
    ["decay idle", share(here.idle)],
    ["bytes", bytes(here.bytes)],
  ]);
}
