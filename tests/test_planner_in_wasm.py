"""The planner's answers in WebAssembly are the command line's, to the byte, for drawn jobs.

VRAMBUDGET_PYODIDE names the folder of Pyodide's runtime (npm's package); Node runs it.
"""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from vrambudget.planner.answers import answer
from vrambudget.planner.site import write_site

RUNTIME = os.environ.get("VRAMBUDGET_PYODIDE")
pytestmark = pytest.mark.skipif(
    RUNTIME is None or shutil.which("node") is None, reason="no VRAMBUDGET_PYODIDE, or no Node"
)
JOBS = 50
PROGRAM = """
import { readFileSync } from "node:fs";
process.on("uncaughtException", (error) => {
  console.error(String(error));
  process.exit(1);
});
const [site, questions] = process.argv.slice(-2);
const { loadPyodide } = await import(`${site}/pyodide/pyodide.mjs`);
const python = await loadPyodide({ indexURL: `${site}/pyodide/` });
const folder = python.runPython("import site; site.getsitepackages()[0]");
const page = readFileSync(`${site}/index.html`, "utf8");
const settings = JSON.parse(page.match(/id="settings">(.*?)<\\/script>/)[1]);
const read = (name) => new Uint8Array(readFileSync(`${site}/${name}`)).buffer;
python.unpackArchive(read(settings.packages), "zip", { extractDir: folder });
const answer = python.pyimport("vrambudget.planner.answers").answer;
const asked = JSON.parse(readFileSync(questions, "utf8"));
console.log(JSON.stringify(asked.map((question) => JSON.parse(answer(JSON.stringify(question))))));
"""


def drawn():
    rng = random.Random(50)  # noqa: S311 - the same jobs every time
    models = ["gpt2", "distilgpt2", "nanogpt", "bert-base-uncased", "t5-small", "qwen2.5-0.5b"]
    for _ in range(JOBS):
        fields = {"batch": rng.randint(1, 16), "block": rng.choice([64, 128, 500, 512])}
        fields |= {"precision": rng.choice(["fp32", "bf16", "amp-bf16", "amp-fp16"])}
        choices = {"checkpointing": "full", "optimizer": "sgd", "keep_outputs": False, "clip": 1.0}
        fields |= dict(rng.sample(sorted(choices.items()), 2))
        gpu = rng.choice(["12GB", "t4", "h100", ""])
        yield {"ask": "estimate", "model": rng.choice(models), "gpu": gpu, "fields": fields}


def test_drawn_jobs_have_the_same_bytes_in_the_browser(tmp_path):
    site = tmp_path / "site"
    write_site(site, pyodide=Path(RUNTIME))
    questions = list(drawn())
    (tmp_path / "questions.json").write_text(json.dumps(questions))
    (tmp_path / "program.mjs").write_text(PROGRAM)
    line = [shutil.which("node"), "program.mjs", str(site), "questions.json"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = [json.loads(answer(json.dumps(question))) for question in questions]
    told = ("error", "fits", "sentence", "peak")
    assert [[each.get(key) for key in told] for each in theirs] == [
        [each.get(key) for key in told] for each in ours
    ]
    assert sum("peak" in each for each in ours) > JOBS // 2
