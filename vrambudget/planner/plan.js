// The plan: while it is open, it follows the model, the GPU and what is not searched.
async function plan(question) {
  if (!at("plan").open) return;
  const found = await thinker().ask("plan", question);
  if (!found || !isNewest(question)) return;
  at("recipes").replaceChildren(...(found.error ? mistake(found) : recipes(found)));
}

function recipes({ gpu, recipes: found, notes }) {
  if (!found.length) {
    const none = `nothing that is known here trains it on one ${gpu}; for several: vrambudget plan`;
    return [make("p", { className: "waiting", textContent: none })];
  }
  const head = ["recipe: press one to take it", "batch", "memory used", "left", "gives up"];
  const rows = found.map(({ words, batch, peak, left, costs, fields }) => {
    const button = make("button", { type: "button", textContent: words });
    button.onclick = () => {
      state.fields = fields;
      fill();
      changed();
    };
    const cells = [button, batch, peak, left, costs];
    return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
  });
  const heading = make("tr", {}, ...head.map((name) => make("th", { textContent: name })));
  const table = make("table", {}, make("thead", {}, heading), make("tbody", {}, ...rows));
  const shown = notes.map((text) => make("p", { className: "waiting", textContent: text }));
  return [make("div", { className: "wide" }, table), ...shown];
}

