// The page: what is chosen, what is shown. All arithmetic is in arithmetic.js.
"use strict";

const FORMATS = {
  bfloat16: [8, -126, 127, "ieee"], float16: [11, -14, 15, "ieee"], tf32: [11, -126, 127, "ieee"],
  float32: [24, -126, 127, "ieee"], float8_e4m3fn: [4, -6, 8, "fn"], float8_e5m2: [3, -14, 15, "ieee"],
  float8_e4m3: [4, -6, 7, "ieee"], float8_e3m4: [5, -2, 3, "ieee"], float8_e4m3fnuz: [4, -7, 7, "fnuz"],
  float8_e5m2fnuz: [3, -15, 15, "fnuz"], float8_e4m3b11fnuz: [4, -10, 4, "fnuz"],
  float6_e3m2fn: [3, -2, 4, "none"], float6_e2m3fn: [4, 0, 2, "none"], float4_e2m1fn: [2, 0, 2, "none"],
};
const at = (id) => document.getElementById(id);
let format = null;

/** An element of the page or of a picture, with attributes and a text. */
function element(name, attributes = {}, text = "") {
  const space = ["line", "circle", "text", "title"].includes(name) ? "http://www.w3.org/2000/svg" : null;
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

function fill(id, rows) {
  at(id).tBodies[0].replaceChildren(...rows.map(([head, ...cells]) => {
    const row = element("tr");
    row.append(element("th", { scope: "row" }, head), ...cells.map((cell) => element("td", {}, cell)));
    return row;
  }));
}

/** Say what is wrong with a field, or that nothing is. */
function tell(field, place, text) {
  at(field).setAttribute("aria-invalid", text ? "true" : "false");
  at(place).textContent = text;
}

function code(x) {
  const found = encode(x, format);
  return found === null ? "none" : `0x${found.toString(16).padStart(Math.ceil(format.bits / 4), "0")}`;
}

function fields(x) {
  const found = encode(x, format);
  if (found === null) return "";
  const bits = found.toString(2).padStart(format.bits, "0");
  return `${bits[0]} | ${bits.slice(1, 1 + format.exponentBits)} | ${bits.slice(1 + format.exponentBits) || "-"}`;
}

// -- pictures -----------------------------------------------------------------------------------------------
/** Draw marks on a line from one number to another; each mark is [number, class, label, whether a dot]. */
function draw(id, from, to, marks, says) {
  const wide = Math.max(320, at(id).clientWidth), place = (x) => 20 + ((wide - 40) * (x - from)) / (to - from);
  at(id).setAttribute("viewBox", `0 0 ${wide} 76`);
  const nodes = [element("title", {}, says), element("line", { x1: 10, x2: wide - 10, y1: 40, y2: 40, class: "axis" })];
  const taken = { true: [], false: [] }; // where labels stand, above the line and below it
  for (const [x, kind, label, dot] of marks.toSorted((one, two) => (two[1] === "here") - (one[1] === "here"))) {
    const spot = place(x);
    if (!(spot >= 0 && spot <= wide)) continue;
    nodes.push(dot
      ? element("circle", { cx: spot, cy: 40, r: 5, class: kind })
      : element("line", { x1: spot, x2: spot, y1: 31, y2: 49, class: kind }));
    const anchor = spot < 90 ? "start" : spot > wide - 90 ? "end" : "middle";
    const half = 3.6 * (label?.length ?? 0), row = taken[Boolean(dot)];
    const free = row.every(([other, width]) => Math.abs(other - spot) > width + half + 4);
    if (label && free) row.push([spot, half]);
    if (label && free) nodes.push(element("text", { x: spot, y: dot ? 22 : 66, "text-anchor": anchor }, label));
  }
  at(id).replaceChildren(...nodes);
}

function drawValues() {
  const least = Math.log2(toNumber(ulp(finite(false, 0n), format))), most = Math.log2(toNumber(format.max));
  const marks = [], all = format.bits <= 8;
  if (all) {
    for (let n = 1n; n < power(format.bits - 1); n += 1n) {
      const x = decode(n, format);
      if (x.kind === "finite") marks.push([Math.log2(toNumber(x)), "tick", ""]);
    }
  } else {
    const step = Math.ceil((most - least) / 120);
    for (let e = Math.ceil(least); e <= most; e += step) marks.push([e, "tick", ""]);
  }
  marks.push([least, "here", show(ulp(finite(false, 0n), format))], [most, "here", show(format.max)]);
  const says = all ? "all positive values" : "powers of two from the smallest to the largest positive value";
  draw("values", least, most, marks, `On a logarithmic line: ${says}`);
}

// -- what is chosen -----------------------------------------------------------------------------------------
function chooseName() {
  const [p, emin, emax, specials] = FORMATS[at("name").value] ?? [];
  if (p) Object.entries({ p, emin, emax, specials }).forEach(([id, value]) => (at(id).value = value));
  chooseFormat();
}

function chooseFormat() {
  const [p, emin, emax] = ["p", "emin", "emax"].map((id) => Number(at(id).value));
  const specials = at("specials").value;
  const known = Object.entries(FORMATS).find(([, fields]) => String(fields) === String([p, emin, emax, specials]));
  at("name").value = known ? known[0] : "custom";
  let wrong = "";
  if (![p, emin, emax].every(Number.isInteger)) wrong = "p, emin and emax must be whole numbers";
  else if (p < 2 || p > 53) wrong = "p must be between 2 and 53";
  else if (emin > emax) wrong = "emin must not exceed emax";
  else if (emin - p < -1074 || emax > 1023) wrong = "emin must be at least p - 1074, and emax at most 1023";
  tell("p", "format-wrong", wrong);
  if (wrong) return;
  format = makeFormat({ p, emin, emax, specials });
  const smallest = ulp(finite(false, 0n), format), normal = finite(false, ...scaled(1n, 1n, emin));
  fill("facts", [
    ["bits", `${format.bits}: 1 sign, ${format.exponentBits} exponent, ${p - 1} fraction`],
    ["largest number", show(format.max)], ["smallest normal number", show(normal)],
    ["smallest number", show(smallest)], ["unit roundoff u", `2^-${p} = ${show(finite(false, 1n, power(p)))}`],
    ["special values", [format.hasInfinity && "infinities", format.hasNan && "NaN",
      format.hasNegativeZero && "-0"].filter(Boolean).join(", ") || "none"],
  ]);
  drawValues();
  chooseNumber();
  chooseSum();
}

function chooseNumber() {
  const given = parse(at("number").value);
  tell("number", "number-wrong", given ? "" : "this is no number; write 0.1, 1e-3, 0x1.8p3, 2^-9, 1/3, inf or nan");
  if (!given || !format) return;
  const x = round(given, format);
  fill("modes", MODES.map((mode) => {
    const found = round(given, format, mode);
    return [mode.replace("_", " "), show(found), code(found), fields(found)];
  }));
  const below = neighbour(x, format, false), above = neighbour(x, format, true);
  at("below").disabled = below.kind === "nan";
  at("above").disabled = above.kind === "nan";
  if (x.kind !== "finite") {
    at("number-says").textContent = `It becomes ${show(x)}.`;
    at("neighbours").replaceChildren();
    return;
  }
  const unit = ulp(x, format), error = exactSum(x, negated(given));
  at("number-says").textContent =
    `To nearest even it becomes ${show(x)}; the neighbours are ${show(below)} and ${show(above)}, an ulp is ` +
    `${show(unit)}, and the error is ${isZero(error) ? "0" : `${show(error)}, ${ratio(error, unit)} ulp`}.`;
  const [low, middle, high] = [below, x, above].map(toNumber), span = toNumber(unit);
  const [from, to] = [middle - 2.2 * span, middle + 2.2 * span];
  const ticks = [], seen = (y) => y.kind === "finite" && toNumber(y) > from && toNumber(y) < to;
  for (const up of [false, true])
    for (let y = neighbour(x, format, up), n = 0; seen(y) && n < 9; y = neighbour(y, format, up), n += 1)
      ticks.push([toNumber(y), "tick", n ? "" : show(y)]);
  draw("neighbours", from, to, [...ticks, [middle, "here", show(x)], [toNumber(given), "off", "the number", true]],
    `The number beside ${show(x)} and its neighbours, ${low} and ${high}`);
}

/** A quotient with three digits. */
const ratio = (a, b) => Number((toNumber(a) / toNumber(b)).toPrecision(3)).toString();

function step(up) {
  const x = round(parse(at("number").value) ?? NAN, format), next = neighbour(x, format, up);
  if (next.kind === "nan") return;
  at("number").value = next.kind === "finite" ? exactText(next) : show(next);
  chooseNumber();
}

/** A value as text that is read back exactly. */
function exactText(x) {
  const shown = show(x);
  if (!shown.endsWith("...")) return shown;
  const twos = Number(bitLength(x.den)) - 1;
  return `${x.negative ? "-" : ""}0x${x.num.toString(16)}p${-twos}`;
}

function chooseSum() {
  const [one, two] = ["a", "b"].map((id) => parse(at(id).value));
  tell("a", "sum-wrong", one ? "" : "a is no number");
  if (one) tell("b", "sum-wrong", two ? "" : "b is no number");
  if (!one || !two || !format) return;
  const [a, b] = [one, two].map((x) => round(x, format));
  const fast = at("algorithm").value === "fastTwoSum";
  const { s, e, steps } = (fast ? fastTwoSum : twoSum)(a, b, format, "nearest_even");
  fill("steps", [["a", show(a), code(a)], ["b", show(b), code(b)],
    ...steps.map(([name, x]) => [name, show(x), code(x)])]);
  const exact = exactSum(a, b), kept = exactSum(s, e);
  const finiteAll = [s, e, exact].every((x) => x.kind === "finite");
  const right = finiteAll && same({ ...kept, negative: kept.negative && kept.num > 0n },
    { ...exact, negative: exact.negative && exact.num > 0n });
  at("sum-says").textContent = finiteAll
    ? `a + b is ${show(exact)}. It is rounded to s = ${show(s)}, and e = ${show(e)} ` +
      (right ? "is what that lost, exactly." : `is not what that lost, ${show(exactSum(exact, negated(s)))}.`)
    : `The result is ${show(s)}, with e = ${show(e)}.`;
  if (!finiteAll) return at("sum").replaceChildren();
  const span = toNumber(ulp(s, format)), middle = toNumber(s);
  const [from, to] = [middle - 1.6 * span, middle + 1.6 * span];
  const marks = [neighbour(s, format, false), neighbour(s, format, true)]
    .filter((x) => x.kind === "finite").map((x) => [toNumber(x), "tick", show(x)]);
  draw("sum", from, to, [...marks, [middle, "here", `s = ${show(s)}`], [toNumber(exact), "off", "a + b", true],
    [toNumber(kept), right ? "here" : "off", right ? "" : "s + e", true]],
  `The exact sum beside s; s + e ${right ? "is" : "is not"} the exact sum`);
}

for (const name of [...Object.keys(FORMATS), "custom"]) at("name").append(element("option", { value: name }, name));
at("name").addEventListener("change", chooseName);
for (const id of ["p", "emin", "emax", "specials"]) at(id).addEventListener("input", chooseFormat);
at("number").addEventListener("input", chooseNumber);
at("below").addEventListener("click", () => step(false));
at("above").addEventListener("click", () => step(true));
for (const id of ["a", "b", "algorithm"]) at(id).addEventListener("input", chooseSum);
window.addEventListener("resize", chooseFormat);
chooseName();
