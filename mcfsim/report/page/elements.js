"use strict";
// What all parts share: the data, what is chosen, elements, and numbers as text. Strings from the data enter
// the page as text nodes alone, so that markup in the name of a tensor is shown and not obeyed.

let data;

/** Unpack the data: JSON, deflated, in base64. */
async function unpack() {
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (byte) => byte.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  data = JSON.parse(await new Response(unpacked).text());
}

/** What is shown: places in data.strategies, data.runs and data.tensors, and the table's order. */
const chosen = { strategy: 0, run: 0, tensor: 0, column: "EDQ", descending: false };

const found = (tensor, strategy = chosen.strategy) => data.runs[chosen.run].tensors[tensor].found[strategy];

const part = (id) => document.getElementById(id);

/** Return an element; text among its children becomes text. */
function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Return an element of a drawing. */
function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Return a name that may go on in the next line after a dot or the like, as long ones do. */
const breakable = (name) => name.split(/(?<=[._/])/).flatMap((piece) => [piece, element("wbr")]);

/** Put a list of terms and their texts into a <dl>. */
function list(id, pairs) {
  part(id).replaceChildren(...pairs.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]));
}

const NONE = "-";
const share = (x) => (x === null ? NONE : x.toFixed(4));
const percent = (x, places = 1) => `${(100 * x).toFixed(places)} %`;
const count = (x) => x.toLocaleString("en");
const tensors = (x) => `${count(x)} ${x === 1 ? "tensor" : "tensors"}`;
const end = ({ stops, beyond }) => (beyond !== null ? `beyond at ${count(beyond)}` : stops === null ? NONE : count(stops));

/** Return bytes in the largest unit of which there is one. */
function bytes(x) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; x >= 1024 && unit < units.length - 1; unit++) x /= 1024;
  return `${Number(x.toPrecision(4))} ${units[unit]}`;
}

/** Where an EDQ would stand if the weights were not out of the format's range. */
const BEYOND = Symbol("beyond");

/** Return the colour of an EDQ: between the two of the scale beside it. */
function colour(edq) {
  if (edq === BEYOND) return data.beyond;
  if (edq === null) return data.unasked;
  const place = Math.min(Math.max(edq, 0), 1) * (data.colours.length - 1);
  const low = Math.min(Math.floor(place), data.colours.length - 2);
  const [from, to] = [data.colours[low], data.colours[low + 1]].map(channels);
  return `rgb(${from.map((x, i) => Math.round(x + (place - low) * (to[i] - x))).join(", ")})`;
}

const channels = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));

/** Return the edges of steps that were tried: halfway to their neighbours. */
function stepEdges() {
  const steps = data.steps;
  const between = steps.slice(1).map((x, i) => (x + steps[i]) / 2);
  return [steps[0] - 0.5, ...between, steps[steps.length - 1] + 0.5];
}

/** Return round numbers in a range, about so many. */
function ticks(from, to, about) {
  const rough = (to - from) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const width = Math.max(1, power * [1, 2, 5, 10].find((times) => times * power >= rough));
  const first = Math.ceil(from / width);
  return Array.from({ length: Math.floor(to / width) - first + 1 }, (_, i) => (first + i) * width);
}
