// Tables of EDQ in colours: a row a tensor, in the order of the list below them.

/** Most rows; their least and largest height, and the height of all that is aimed at; the height of a name. */
const MAP = { rows: 1000, least: 3, most: 20, height: 800, labelled: 11, axis: 38 };

/**
 * Draw a map, and show what is under the pointer.
 *
 * Names of rows stand on the left: of each, or where rows are lower than a name of as many as there is room for.
 * columns: edges of the columns, from 0 to 1. value(tensor, column): an EDQ, null or BEYOND. mark(tensor): a place from 0 to 1, or null. axis: pairs of place and lines of text. written:
 * whether numbers stand in the cells. tip(tensor, column): what is said of a cell.
 */
function heatMap(canvas, rows, map) {
  const style = getComputedStyle(document.documentElement);
  const ink = (name) => style.getPropertyValue(name).trim();
  const height = Math.max(MAP.least, Math.min(MAP.most, Math.floor(MAP.height / rows.length)));
  const width = canvas.parentElement.clientWidth;
  const scale = Math.max(2, window.devicePixelRatio);
  canvas.style.height = `${rows.length * height + MAP.axis}px`;
  [canvas.width, canvas.height] = [width * scale, (rows.length * height + MAP.axis) * scale];
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px system-ui, 'Liberation Sans', Arial, sans-serif";
  pen.textBaseline = "middle";
  const every = Math.ceil(MAP.labelled / height);
  const names = rows.map((row, i) => (i % every ? "" : elided(pen, data.tensors[row].name, 0.36 * width)));
  const left = Math.max(...names.map((name) => pen.measureText(name).width)) + 8;
  canvas.dataset.left = left;
  const x = (place) => left + place * (width - left - 4);
  const gap = height >= MAP.labelled ? 1 : 0;

  rows.forEach((row, place) => {
    const top = place * height;
    for (let column = 0; column < map.columns.length - 1; column++) {
      const edq = map.value(row, column);
      const [from, to] = [x(map.columns[column]), x(map.columns[column + 1])];
      pen.fillStyle = colour(edq);
      pen.fillRect(from, top, to - from + (map.written ? -1 : 0.5), height - gap);
      if (map.written && height >= MAP.labelled && to - from > 26) {
        pen.fillStyle = typeof edq === "number" && edq < 0.5 ? "#ffffff" : "#000000";
        pen.textAlign = "center";
        pen.fillText(written(edq), (from + to) / 2, top + height / 2);
      }
    }
    const mark = map.mark ? map.mark(row) : null;
    if (mark !== null) {
      pen.fillStyle = "#ffffff";
      pen.fillRect(x(mark) - 2.5, top, 5, height - gap);
      pen.fillStyle = ink("--blue");
      pen.fillRect(x(mark) - 1.5, top, 3, height - gap);
    }
    pen.fillStyle = ink(row === chosen.tensor ? "--text" : "--quiet");
    pen.textAlign = "right";
    pen.fillText(names[place], left - 6, top + (every > 1 ? MAP.labelled : height) / 2);
  });
  const shown = rows.indexOf(chosen.tensor);
  if (shown >= 0) {
    pen.strokeStyle = ink("--accent");
    pen.lineWidth = 2;
    pen.strokeRect(x(0) - 2, shown * height + 1 - gap, x(1) - x(0) + 4, height - 2 + gap);
  }
  const bottom = rows.length * height;
  pen.fillStyle = ink("--quiet");
  for (const [place, ...lines] of map.axis) {
    pen.textAlign = place > 0.97 ? "right" : place < 0.03 ? "left" : "center";
    lines.forEach((line, i) => pen.fillText(line, x(place), bottom + 11 + 14 * i));
  }

  const under = (event) => {
    const place = Math.floor(event.offsetY / height);
    const across = (event.offsetX - left) / (width - left - 4);
    const column = map.columns.findLastIndex((edge) => edge <= across);
    const inside = place >= 0 && place < rows.length;
    return { row: inside ? rows[place] : null, column: column < map.columns.length - 1 ? column : -1 };
  };
  canvas.onmousemove = (event) => {
    const { row, column } = under(event);
    tell(event, row === null ? null : [data.tensors[row].name, column < 0 ? "" : map.tip(row, column)].join("\n"));
  };
  canvas.onmouseleave = (event) => tell(event, null);
  canvas.onclick = (event) => {
    const { row } = under(event);
    if (row !== null) choose({ tensor: row }, true);
  };
}

const written = (edq) => (edq === BEYOND ? "beyond" : edq === null ? NONE : edq.toFixed(2));

/** Return a text that is no wider than this; of a longer one the middle is left out. */
function elided(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let [none, all] = [0, text.length];
  const cut = (kept) => `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}`;
  while (all - none > 1) {
    const half = (none + all) >> 1;
    if (pen.measureText(cut(half)).width <= width) none = half;
    else all = half;
  }
  return cut(none);
}

/** Show a text at the pointer, or nothing. */
function tell(event, text) {
  const tip = part("tip");
  tip.hidden = text === null;
  if (text === null) return;
  tip.textContent = text;
  const fits = (at, size, all) => Math.max(0, at + 14 + size > all ? at - 14 - size : at + 14);
  tip.style.left = `${fits(event.clientX, tip.offsetWidth, window.innerWidth)}px`;
  tip.style.top = `${fits(event.clientY, tip.offsetHeight, window.innerHeight)}px`;
}

/** Draw both maps. */
function drawMaps(order) {
  const rows = order.slice(0, MAP.rows);
  const edges = stepEdges();
  const [first, last] = [edges[0], edges[edges.length - 1]];
  const place = (at) => (at - first) / (last - first);
  const name = data.strategies[chosen.strategy].name;
  const stopped = order.filter((row) => found(row).stops !== null).length;
  const title = `EDQ by step under ${name}: ${count(stopped)} of ${count(order.length)} tensors stop`;
  part("by-step-title").textContent = title;
  part("by-step").setAttribute("aria-label", `${title}. The numbers are in the list of tensors.`);
  part("by-strategy").setAttribute("aria-label", "EDQ over the run of each tensor under each strategy");
  heatMap(part("by-step"), rows, {
    columns: edges.map(place),
    value: (row, column) => {
      const { beyond, course } = found(row);
      return beyond !== null && data.steps[column] >= beyond ? BEYOND : course[column];
    },
    mark: (row) => (found(row).stops === null ? null : place(found(row).stops)),
    axis: ticks(first, last, part("by-step").parentElement.clientWidth / 110).map((at) => [place(at), count(at)]).concat([[0.5, "", "step"]]),
    tip: (row, column) => {
      const here = `step ${count(data.steps[column])}: EDQ ${share(found(row).course[column])}`;
      return end(found(row)) === NONE ? here : `${here}; stops at: ${end(found(row))}`;
    },
  });
  const strategies = data.strategies.length;
  heatMap(part("by-strategy"), rows, {
    columns: Array.from({ length: strategies + 1 }, (_, i) => i / strategies),
    value: (row, column) => (found(row, column).beyond === null ? found(row, column).edq : BEYOND),
    written: true,
    axis: data.strategies.map(({ name }, i) => [(i + 0.5) / strategies, ...halves(name)]),
    tip: (row, column) => `${data.strategies[column].name}: EDQ ${share(found(row, column).edq)} over the run`,
  });
  const more = order.length - rows.length;
  part("map-note").textContent = more > 0 ? `${count(more)} more tensors are in the list, in its order.` : "";
}

/** Return a name on two lines, if it has two parts. */
function halves(name) {
  const at = name.indexOf("-");
  return at < 0 ? [name] : [name.slice(0, at + 1), name.slice(at + 1)];
}

/** Draw what the colours mean. */
function drawScale() {
  const bars = Array.from({ length: 50 }, (_, i) =>
    drawn("rect", { x: i, y: 0, width: 1.1, height: 1, fill: colour((i + 0.5) / 50) }),
  );
  const scale = drawn("svg", { viewBox: "0 0 50 1", preserveAspectRatio: "none", "aria-hidden": "true" }, ...bars);
  const stop = `from here to the end EDQ stays below ${data.stopped}: the tensor has stopped`;
  const mark = (kind, text) => element("span", { class: "mark" }, element("i", { class: kind }), text);
  const marks = [mark("stop", stop), mark("unasked", "nothing is asked")];
  const founds = data.runs.flatMap((run) => run.tensors.flatMap((tensor) => tensor.found));
  if (founds.some(({ beyond }) => beyond !== null)) marks.push(mark("beyond", "the weights are out of the format's range"));
  part("scale").replaceChildren("EDQ 0: nothing arrives", scale, "1: all arrives", ...marks);
}
