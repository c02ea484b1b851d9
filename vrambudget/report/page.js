"use strict";
// Points at moments of the timeline, zooms into it and shows one step alone. Everything else is in
// the page.
const DRAG = 6; // pixels: less is a click
function timeline(curve) {
  const figure = document.getElementById("timeline");
  const cursor = document.getElementById("cursor");
  const moment = document.getElementById("moment");
  const placed = [...figure.querySelectorAll("[data-from]")];
  const buttons = [...document.querySelectorAll("#zoom button")];
  let view = [0, curve.columns.length];
  let shown = curve.peak;

  const amount = (bytes) =>
    (bytes / curve.unitBytes).toLocaleString("en-US",
      { minimumFractionDigits: 2, maximumFractionDigits: 2 }) + " " + curve.unit;
  const share = (column) => (column - view[0]) / (view[1] - view[0]);

  function element(kind, text, ...children) {
    const made = document.createElement(kind);
    if (text !== null) made.textContent = text;
    made.append(...children);
    return made;
  }

  function row(name, bytes, colour) {
    const label = element("span", null);
    if (colour) {
      const swatch = element("i", null);
      swatch.style.background = `var(--${colour.toLowerCase().replaceAll(" ", "-")})`;
      label.append(swatch);
    }
    label.append(name);
    return element("li", null, label, element("b", amount(bytes)));
  }

  function list(title, rows) {
    return element("div", null, element("h3", title), element("ul", null, ...rows));
  }

  function show(column) {
    shown = column;
    const [operation, allocated, reserved, parts, largest] = curve.columns[column];
    const [step, phase] = curve.spans.find(([, , , stop]) => column < stop);
    const title = column === curve.peak ? "The peak: " : "";
    const first = element("p", title);
    first.append(element("b", `step ${step}, ${phase}, ${operation}`), element("br", null),
      `${amount(allocated)} ${curve.height}, ${amount(reserved)} reserved`);
    const purposes = curve.order.filter((part) => parts[part] > 0)
      .map((part) => row(curve.parts[part], parts[part], curve.parts[part]));
    const tensors = largest.map(([group, count]) => {
      const [purpose, description, module, bytes] = curve.groups[group];
      const name = `${count > 1 ? `${count} x ` : ""}${description}`;
      return row(module ? `${name}, in ${module}` : name, count * bytes, purpose);
    });
    const alive = title ? [] : [list("alive, by purpose", purposes)]; // the peak's are in the table
    const lists = element("div", null, ...alive, list("largest tensors", tensors));
    lists.className = "lists";
    moment.replaceChildren(first, lists);
    cursor.style.display = column === curve.peak ? "none" : "block";
    cursor.style.left = `${100 * share(column + 0.5)}%`;
  }

  function place() {
    figure.querySelector("svg").setAttribute("viewBox", `${view[0]} 0 ${view[1] - view[0]} 4000`);
    for (const label of placed) {
      const [from, to] = [Number(label.dataset.from), Number(label.dataset.to)];
      const [left, right] = [Math.max(share(from), 0), Math.min(share(to), 1)];
      label.style.display = right > left ? "" : "none";
      if (label.dataset.height === undefined) {
        label.style.left = `${100 * left}%`;
        label.style.width = `${100 * (right - left)}%`;
      } else {
        const at = 50 * (left + right);
        label.style.left = `${at}%`;
        label.style.bottom = `${100 * Number(label.dataset.height)}%`;
        label.firstChild.style.transform = `translateX(-${Math.min(Math.max(at, 2), 98)}%)`;
      }
    }
    for (const button of buttons) {
      const same = Number(button.dataset.from) === view[0] && Number(button.dataset.to) === view[1];
      button.setAttribute("aria-pressed", String(same));
    }
    show(shown);
  }

  const point = (event) => show(columnAt(event));
  const columnAt = (event) => {
    const box = figure.getBoundingClientRect();
    const column = view[0] + Math.floor((event.clientX - box.left) / box.width * (view[1] - view[0]));
    return Math.min(Math.max(column, view[0]), view[1] - 1);
  };

  // Dragging along the picture zooms into what was dragged over; a double click, or Escape, leaves.
  const band = element("div", null);
  band.id = "band";
  figure.append(band);
  let start = null; // where a drag began: a column and a pixel
  const isDrag = (event) => start !== null && Math.abs(event.clientX - start.x) > DRAG;
  const whole = () => {
    view = [0, curve.columns.length];
    place();
  };
  figure.addEventListener("pointerdown", (event) => {
    if (event.button === 0) start = { column: columnAt(event), x: event.clientX };
  });
  figure.addEventListener("pointermove", (event) => {
    if (!isDrag(event)) return;
    if (!figure.hasPointerCapture(event.pointerId)) figure.setPointerCapture(event.pointerId);
    const [from, to] = [start.column, columnAt(event)].sort((a, b) => a - b);
    band.style.display = "block";
    band.style.left = `${100 * share(from)}%`;
    band.style.width = `${100 * (share(to + 1) - share(from))}%`;
  });
  let zoomed = false; // the click that ends a drag pins nothing
  figure.addEventListener("pointerup", (event) => {
    zoomed = isDrag(event);
    if (zoomed) {
      const [from, to] = [start.column, columnAt(event)].sort((a, b) => a - b);
      view = [from, to + 1];
      pinned = false;
      place();
    }
    start = null;
    band.style.display = "none";
  });
  figure.addEventListener("pointercancel", () => {
    start = null;
    band.style.display = "none";
  });
  figure.addEventListener("dblclick", whole);

  let pinned = false; // a click or a tap keeps its moment until the next one
  figure.addEventListener("pointermove", (event) => pinned || point(event));
  figure.addEventListener("pointerleave", () => pinned || show(curve.peak));
  figure.addEventListener("click", (event) => {
    if (zoomed) return;
    pinned = !pinned || event.pointerType === "touch";
    point(event);
  });
  figure.tabIndex = 0;
  figure.addEventListener("keydown", (event) => {
    if (event.key === "Escape") whole();
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) {
      show(Math.min(Math.max(shown + move, view[0]), view[1] - 1));
      event.preventDefault();
    }
  });
  for (const button of buttons) {
    button.addEventListener("click", () => {
      view = [Number(button.dataset.from), Number(button.dataset.to)];
      place();
    });
  }
  place();
}
