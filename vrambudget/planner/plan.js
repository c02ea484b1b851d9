// The plan: while it is open, it follows the model, the GPU and what is not searched.
async function plan(question) {
  if (!at("plan").open) return;
  const shown = at("recipes"); // the last plan, or that one is on its way
  if (shown.childElementCount) shown.classList.add("stale");
  else shown.append(make("p", { className: "waiting", textContent: "looking for recipes ..." }));
  const found = await thinker().ask("plan", question);
  if (!found || !isNewest(question)) return;
  shown.replaceChildren(...(found.error ? mistake(found) : recipes(found)));
  shown.classList.remove("stale");
}

function recipes({ sentence, recipes: found, notes }) {
  const answer = make("p", { className: "waiting", textContent: sentence });
  if (!found.length) return [answer];
  const head = ["recipe: press one to take it", "tokens", "batch", "memory used", "left", "gives up"];
  const rows = found.map(({ words, block, batch, peak, left, costs, fields }) => {
    const button = make("button", { type: "button", textContent: words });
    button.onclick = () => {
      state.fields = fields;
      fill();
      changed();
    };
    const cells = [button, block, batch, peak, left, costs];
    const made = cells.map((cell) => make("td", {}, cell));
    made.slice(1).forEach((cell, i) => (cell.dataset.head = head[i + 1])); // said there on a phone
    return make("tr", {}, ...made);
  });
  const heading = make("tr", {}, ...head.map((name) => make("th", { textContent: name })));
  const table = make("table", {}, make("thead", {}, heading), make("tbody", {}, ...rows));
  const shown = notes.map((text) => make("p", { className: "waiting", textContent: text }));
  return [answer, make("div", { className: "wide" }, table), ...shown];
}

