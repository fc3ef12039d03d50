// The tables: of strategies, and of tensors, which is sorted by a click on a heading.

/** Columns of the list of tensors: what it is sorted by, and what it shows. */
const COLUMNS = [
  { name: "tensor", text: true, key: (i) => data.tensors[i].name, shown: (i) => data.tensors[i].name },
  { name: "shape", key: (i) => data.tensors[i].parameters, shown: (i) => data.tensors[i].shape.join(" x ") || "scalar" },
  { name: "rms", key: (i) => data.tensors[i].rms, shown: (i) => String(data.tensors[i].rms) },
  { name: "lost", key: (i) => found(i).lost, shown: (i) => share(found(i).lost) },
  { name: "EDQ", key: (i) => found(i).edq, shown: (i) => share(found(i).edq) },
  { name: "stops at", key: (i) => found(i).beyond ?? found(i).stops, shown: (i) => end(found(i)) },
  { name: "decay idle", key: (i) => found(i).idle, shown: (i) => share(found(i).idle) },
  { name: "bytes", key: (i) => found(i).bytes, shown: (i) => bytes(found(i).bytes) },
];

/** Rows of the list that are drawn at first, and again whenever its end comes in sight. */
const ROWS = 200;

/** The tensors in the order of the list; of its rows the first ones are drawn. */
let listed = [];

/** Return the tensors in the list's order; those without a number come last either way. */
function ordered() {
  const { key } = COLUMNS.find(({ name }) => name === chosen.column);
  const compared = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    const sign = x < y ? -1 : x > y ? 1 : 0;
    return chosen.descending ? -sign : sign;
  };
  return data.tensors.map((_, i) => i).sort(compared);
}

/** Make the headings of the list; a click sorts by one, another turns it round. */
function makeHeadings() {
  const headings = COLUMNS.map(({ name, text }) => {
    const button = element("button", { type: "button" }, name);
    button.onclick = () => choose({ column: name, descending: chosen.column === name && !chosen.descending });
    return element("th", { scope: "col", ...(text ? { class: "text" } : {}) }, button);
  });
  part("tensors").replaceChildren(element("thead", {}, element("tr", {}, ...headings)), element("tbody"));
}

/** Begin the list in an order: a model may have more tensors than a browser draws in a moment. */
function fillTensors(order) {
  COLUMNS.forEach(({ name }, i) => {
    const heading = part("tensors").tHead.rows[0].cells[i];
    if (name === chosen.column) heading.setAttribute("aria-sort", chosen.descending ? "descending" : "ascending");
    else heading.removeAttribute("aria-sort");
  });
  listed = order;
  const frame = part("tensors").parentElement;
  frame.classList.toggle("many", order.length > ROWS);
  frame.scrollTop = 0;
  part("tensors").tBodies[0].replaceChildren();
  drawRows(ROWS);
}

/** Draw so many more rows of the list. */
function drawRows(most) {
  const body = part("tensors").tBodies[0];
  const drawn = body.rows.length;
  body.append(...listed.slice(drawn, drawn + most).map(tensorRow));
  const left = listed.length - body.rows.length;
  part("more").hidden = left === 0;
  part("more").textContent = `${count(left)} more are drawn as you scroll.`;
  markTensor();
}

/** Draw rows before they come in sight, and all for a printer. */
function watchRows() {
  const seen = ([{ isIntersecting }]) => isIntersecting && drawRows(ROWS);
  new IntersectionObserver(seen, { root: part("tensors").parentElement, rootMargin: "800px" }).observe(part("more"));
  window.addEventListener("beforeprint", () => drawRows(listed.length));
}

function tensorRow(i) {
  const cells = COLUMNS.map(({ shown, text }) => element("td", text ? { class: "text name" } : {}, shown(i)));
  const button = element("button", { type: "button" }, ...breakable(data.tensors[i].name));
  cells[0].replaceChildren(button);
  if (end(found(i)) !== NONE) cells[COLUMNS.findIndex(({ name }) => name === "stops at")].className = "bad";
  const row = element("tr", { "data-tensor": i }, ...cells);
  row.onclick = () => choose({ tensor: i }, true);
  return row;
}

/** Mark the row of the chosen tensor. */
function markTensor() {
  for (const row of part("tensors").tBodies[0].rows) {
    const here = Number(row.dataset.tensor) === chosen.tensor;
    row.classList.toggle("chosen", here);
    if (here) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
}

/** Fill the table of strategies. */
function fillTotals() {
  const run = data.runs[chosen.run];
  const names = ["strategy", "bytes / parameter", "in all", "lost", "EDQ", "least EDQ", "of tensor", "stop", "v frozen", "enough"];
  const text = new Set(["strategy", "of tensor", "enough"]);
  const kind = (name) => (text.has(name) ? { class: name === "of tensor" ? "text name" : "text" } : {});
  const rows = run.totals.map((total, i) => {
    const enough = i === run.recommended ? "recommended" : total.sufficient ? "yes" : "no";
    const { name, bytes_per_parameter: each } = data.strategies[i];
    const shown = [
      ...[name, String(each), bytes(total.bytes), share(total.lost), share(total.edq), share(total.least), total.worst],
      ...[`${count(total.stopped)} of ${count(data.tensors.length)}`, total.frozen, enough],
    ];
    const cells = shown.map((cell, k) => element("td", kind(names[k]), ...(names[k] === "of tensor" ? breakable(cell) : [cell])));
    return element("tr", i === chosen.strategy ? { class: "chosen" } : {}, ...cells);
  });
  const headings = names.map((name) => element("th", { scope: "col", ...kind(name) }, name));
  part("totals").replaceChildren(
    element("thead", {}, element("tr", {}, ...headings)),
    element("tbody", {}, ...rows),
  );
}

/** Fill the table of products of linear layers, if there are some. */
function fillProducts() {
  part("products-section").hidden = data.products.length === 0;
  if (data.products.length === 0) return;
  const names = Object.keys(data.products[0]);
  const text = new Set(["layer", "recipe", "product", "operand"]);
  const kind = (name) => (text.has(name) ? { class: name === "layer" ? "text name" : "text" } : {});
  const rows = data.products.map((row) => {
    const cells = names.map((name) => element("td", kind(name), ...(name === "layer" ? breakable(row[name]) : [row[name]])));
    return element("tr", {}, ...cells);
  });
  const headings = names.map((name) => element("th", { scope: "col", ...kind(name) }, name));
  part("products").replaceChildren(
    element("thead", {}, element("tr", {}, ...headings)),
    element("tbody", {}, ...rows),
  );
}
