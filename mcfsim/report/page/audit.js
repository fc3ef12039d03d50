// The page as a whole: what is on it from the start, and what a choice changes.

/** Choose something else, and show it. */
function choose(change, look = false) {
  Object.assign(chosen, change);
  const order = ordered();
  if ("tensor" in change) markTensor();
  else fillTensors(order);
  drawTensor();
  drawMaps(order);
  if ("run" in change || "strategy" in change) {
    fillTotals();
    recommend();
  }
  if (look) part("tensor").scrollIntoView({ block: "nearest" });
}

/** Say what is recommended at the chosen rate, and why. */
function recommend() {
  const { recommended, reason, mix, peak } = data.runs[chosen.run];
  const name = recommended === null ? "none of these strategies" : data.strategies[recommended].name;
  part("recommended").textContent = `Recommended at a peak rate of ${peak}: ${name}`;
  part("reason").textContent = `${reason}.`;
  part("mix").textContent = mix;
  part("recommendation").classList.toggle("none", recommended === null);
}

/** Make a row of choices, of which one is chosen. */
function makeChoices(id, key, texts) {
  const labels = texts.map((text, i) => {
    const input = element("input", { type: "radio", name: key, value: i });
    input.checked = i === chosen[key];
    input.onchange = () => choose({ [key]: i });
    return element("label", {}, input, text);
  });
  part(id).replaceChildren(...labels);
}

/** Fill what no choice changes, and show the worst tensor under the cheapest strategy. */
function start() {
  const middle = Math.floor(data.runs.length / 2);
  chosen.run = data.runs.length % 2 ? middle : 0;
  chosen.tensor = ordered()[0];
  document.title = `Audit of ${data.source}`;
  part("source").textContent = data.source;
  part("size").textContent = `${count(data.parameters)} parameters in ${tensors(data.tensors.length)}`;
  const [[, optimizer], [, schedule]] = data.plan;
  part("plan-in-short").textContent = `${optimizer}; ${schedule}`;
  part("updates").textContent = `Supposed: ${data.updates}`;
  part("also").textContent = data.also.length ? `Also tried, and no better for their bytes: ${data.also.join(", ")}.` : "";
  list("plan", data.plan);
  list("terms", data.terms);
  list("left-out", data.left_out);
  part("left-out-section").hidden = data.left_out.length === 0;
  makeChoices("strategies", "strategy", data.strategies.map(({ name }) => name));
  makeChoices("rates", "run", data.runs.map(({ peak }) => String(peak)));
  makeHeadings();
  fillProducts();
  watchRows();
  drawScale();
  choose({ run: chosen.run });
  // Canvases do not follow the width or the colours of the page by themselves.
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth !== width) drawMaps(ordered());
    width = document.body.clientWidth;
  }).observe(document.body);
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    window.matchMedia(query).addEventListener("change", () => drawMaps(ordered()));
  }
}

unpack().then(start).catch((problem) => {
  part("source").textContent = `This page cannot be shown: ${problem}`;
  throw problem;
});
