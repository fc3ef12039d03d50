// A field above the sections of a page that hides those whose text has not all the words written in it.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const mark = document.getElementById("cards");
  if (!mark) return;
  const cards = [...mark.closest("section").querySelectorAll(":scope > section")];
  const label = document.createElement("label"), field = document.createElement("input"), said = document.createElement("output");
  label.textContent = "Search: words of a statement, as Dekker, refuted or bf16 ";
  field.type = "search";
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const card of cards) card.hidden = !words.every((word) => card.textContent.toLowerCase().includes(word));
    said.textContent = ` ${cards.filter((card) => !card.hidden).length} of ${cards.length}`;
  });
  label.append(field, said);
  mark.append(label);
  for (const card of cards) card.classList.add("card");
});
