
// The mark of the peak can be dragged: its height is a batch, and the GPU's line the largest one.
const OF_THE_MODEL = ["weights", "autocast copies", "gradients", "optimizer states", "workspaces"];
const NEAR = 8; // pixels
function dragged(curve) {
  const figure = at("timeline");
  const marker = figure.querySelector(".marker.peak");
  const handle = marker.firstChild;
  const [, allocated, , parts] = curve.columns[curve.peak];
  const fixed = OF_THE_MODEL.reduce((sum, name) => sum + parts[curve.parts.indexOf(name)], 0);
  const batch = state.fields.batch ?? 1;
  const before = handle.textContent;
  handle.classList.add("handle");
  handle.title = "drag it to another height: a batch; to the GPU's line: the largest batch";
  const meant = ({ clientY }) => { // a batch, or null for the largest
    const box = figure.getBoundingClientRect();
    const line = figure.querySelector(".room")?.getBoundingClientRect().top ?? box.top;
    if (clientY <= line + NEAR) return null;
    const bytes = allocated * (box.bottom - clientY) / (Number(marker.dataset.height) * box.height);
    return Math.max(Math.round(batch * (bytes - fixed) / Math.max(allocated - fixed, 1)), 1);
  };
  handle.onclick = (event) => event.stopPropagation();
  handle.onpointerdown = (event) => {
    event.stopPropagation();
    event.preventDefault();
    handle.setPointerCapture(event.pointerId);
    handle.onpointermove = (moved) => {
      const box = figure.getBoundingClientRect();
      marker.style.bottom = `${Math.min(Math.max(box.bottom - moved.clientY, 0), box.height)}px`;
      handle.textContent = meant(moved) === null ? "the largest batch" : `batch ${meant(moved)}`;
    };
    handle.onpointerup = (ended) => {
      handle.onpointermove = handle.onpointerup = null;
      const chosen = meant(ended);
      if (handle.textContent === before) return; // not moved
      if (chosen === null) largest();
      else set({ name: "batch" }, chosen);
    };
  };
}
