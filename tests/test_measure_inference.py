"""Inference in torch: the arguments of `generate`, and peaks on a virtual GPU."""

import json

import pytest
from virtual import VIRTUAL_GPU

from vrambudget.measure.record import record_of
from vrambudget.rehearse.events import rehearse_job
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay

TINY = {"model_type": "gpt2", "n_layer": 6, "n_head": 4, "n_embd": 64, "vocab_size": 500}
JOBS = [
    pytest.param({"mode": "generate", "prompt": 40, "new": 12}, id="greedy"),
    pytest.param({"mode": "generate", "prompt": 40, "new": 12, "cache": "static"}, id="static"),
    pytest.param({"mode": "generate", "prompt": 40, "new": 8, "padding": "left"}, id="padded"),
    pytest.param({"mode": "generate", "prompt": 40, "new": 4, "load": "device-map"}, id="mapped"),
    pytest.param({"mode": "generate", "prompt": 40, "new": 4, "cache": "quantized"}, id="codes"),
    pytest.param({"mode": "forward", "task": "embed", "block": 64, "pool": "last"}, id="embed"),
    pytest.param({"mode": "forward", "model": "vit-base-patch16-224"}, id="pictures"),
]


def test_a_job_says_what_generate_is_called_with():
    options_of = pytest.importorskip(
        "vrambudget.measure.inference", exc_type=ImportError
    ).options_of
    job = record_of(resolve("gpt2", mode="generate", prompt=8, new=3, sample=True, top_p=0.9))
    options = options_of(job)
    assert (options["max_new_tokens"], options["do_sample"], options["top_p"]) == (3, True, 0.9)
    assert "cache_implementation" not in options
    static = options_of({**job, "cache": "static", "return_scores": True})
    assert static["cache_implementation"] == "static"
    assert static["return_dict_in_generate"] is static["output_scores"] is True
    assert options_of({**job, "cache": "none"})["use_cache"] is False


@pytest.mark.parametrize("fields", JOBS)
class TestOnAVirtualGpu:
    pytestmark = VIRTUAL_GPU

    def test_a_counted_generation_peaks_where_the_real_one_does(self, fields):
        model, fields = fields.get("model", TINY), {n: fields[n] for n in fields if n != "model"}
        record = json.loads(json.dumps(record_of(resolve(model, gpu="t4", batch=2, **fields))))
        found = rehearse_job(record, gpu="t4")
        versions = {name: found.versions[name] for name in ("torch", "transformers")}
        scenario = resolve(model, gpu="t4", batch=2, **fields, **versions)
        peak = replay(simulate(scenario.config, scenario.job, scenario.platform).tape).peak
        assert peak.requested_bytes == found.measured["peak_requested"]
        assert peak.allocated_bytes == found.measured["peak_allocated"]
        assert peak.reserved_bytes == found.measured["peak_reserved"]
