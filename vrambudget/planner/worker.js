// Python in a thread of its own: loads Pyodide and the packages, then answers one question after
// another. A question and its answer are JSON (vrambudget.planner.answers).
let answer = null;

async function start({ pyodide: place, packages }) {
  const base = new URL(place, location.href).href;
  const { loadPyodide } = await import(new URL("pyodide.mjs", base).href);
  const fetched = fetch(packages).then((response) => response.arrayBuffer());
  const python = await loadPyodide({ indexURL: base });
  const folder = python.runPython("import site; site.getsitepackages()[0]");
  python.unpackArchive(await fetched, "zip", { extractDir: folder });
  answer = python.pyimport("vrambudget.planner.answers").answer;
}

onmessage = async ({ data }) => {
  try {
    if (data.settings) {
      await start(data.settings);
      postMessage({ ready: true });
    } else {
      postMessage({ id: data.id, text: answer(data.text) });
    }
  } catch (error) {
    postMessage({ id: data.id, failed: String(error) });
  }
};
