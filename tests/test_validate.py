"""Predictions are held against records; what cannot be compared is listed and hides nothing."""

import json
from pathlib import Path

import pytest

from vrambudget.cli import main
from vrambudget.config.record import read_records
from vrambudget.errors import VramBudgetError
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay
from vrambudget.validate import COUNTERS, Check, relative_error, summarise, validate

MODEL = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 100}
FIELDS = {"batch": 2, "block": 8, "precision": "fp32", "steps": 1}
RECORD = {"id": "tiny", "model": MODEL, **FIELDS, "card": "a100-80gb", "source": "virtual"}


def _measured(**changes):
    scenario = resolve(MODEL, gpu="a100-80gb", use_cache=False, **FIELDS)
    found = replay(simulate(scenario.config, scenario.job, scenario.platform).tape)
    facts = {
        "peak_requested": found.peak.requested_bytes,
        "peak_allocated": found.peak.allocated_bytes,
        "peak_reserved": found.peak.reserved_bytes,
        "weights": found.weights_bytes,
        "after_forward_0": found.steps[0].after_forward_bytes,
    }
    return {key: round(value * changes.get(key, 1)) for key, value in facts.items()}


def _record(**changes):
    return {**RECORD, "measured": _measured(**changes)}


def test_an_exact_prediction_is_exact_in_every_counter():
    (check,) = validate([_record()])
    assert check.problem is None
    assert {check.error(c) for c in ("requested", "allocated", "reserved", "trajectory")} == {0}


def test_errors_are_relative_to_what_was_measured():
    (check,) = validate([_record(peak_allocated=2, after_forward_0=0.5)])
    assert check.error("allocated") == pytest.approx(-0.5, rel=1e-6)
    assert check.error("trajectory") == pytest.approx(1, rel=1e-3)
    assert check.error("requested") == 0


def test_the_course_is_where_it_is_farthest_off():
    (check,) = validate([_record(weights=0.99, after_forward_0=0.9)])
    assert check.error("trajectory") == pytest.approx(1 / 9, rel=1e-2)


def _check(predicted, measured):
    return Check("x", "real", {"allocated": predicted}, {"allocated": measured})


def test_the_summary_tells_median_worst_exact_and_under():
    checks = [_check(100, 100), _check(110, 100), _check(80, 100), _check(101, 100)]
    (summary,) = summarise(checks)
    assert (summary.counter, summary.records) == ("allocated", 4)
    assert summary.median == pytest.approx(0.055)  # of 0, 0.01, 0.1, 0.2
    assert summary.worst == pytest.approx(-0.2)
    assert (summary.exact, summary.under) == (0.25, 0.25)


def test_virtual_published_and_measured_errors_are_never_one_number():
    pair = {"allocated": 110}, {"allocated": 100}
    checks = [_check(100, 100), Check("y", "virtual", *pair), Check("z", "published", *pair)]
    found = {summary.source: summary.worst for summary in summarise(checks)}
    assert found == {"real": 0, "virtual": pytest.approx(0.1), "published": pytest.approx(0.1)}


def test_the_table_names_sources_where_there_are_several(tmp_path, capsys):
    file = tmp_path / "both.jsonl"
    file.write_text(
        "".join(f"{json.dumps({**_record(), 'source': s})}\n" for s in ("real", "virtual"))
    )
    assert main(["validate", str(file)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:2] for row in rows if row.startswith(("real ", "virtual "))] == [
        [source, counter] for source in ("real", "virtual") for counter in COUNTERS
    ]


def test_nothing_compared_is_no_summary():
    assert summarise([Check("x", "real", problem="no")]) == []


@pytest.mark.parametrize(("pair", "error"), [((0, 0), 0), ((5, 0), float("inf")), ((3, 4), -0.25)])
def test_relative_error(pair, error):
    assert relative_error(*pair) == error


def _machine(capability):
    return {"compute_capability": capability, "capacity_bytes": 2**34, "multiprocessors": 40}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"model_type": "rwkv"}}, "rwkv"),
        ({"model": None}, "a model is a name"),
        ({"batch": 0}, "batch is 0"),
        ({"card": "a card of tomorrow"}, "not a known GPU"),
        ({"versions": 3}, "versions is 3; it should be an object"),
        ({"parallel": {"tensor": 2}}, "parallel.world is None"),
        ({"parallel": {"method": ["ddp"]}}, "parallel.method is ['ddp']; it should be a word"),
        ({"parallel": {"method": "zero", "world": 2, "config": 3}}, "config is 3; it should be an"),
        ({"card": "?", "machine": [8]}, "machine is [8]; it should be an object"),
        ({"card": "?", "machine": _machine(8)}, "machine holds 8; it should be a valid tuple"),
        ({"measured": [1]}, "measured is [1]; it should be an object"),
        ({"sharding": "full"}, "no 'sharding'"),
        ({"attention_implementation": "eager"}, "no 'attention_implementation'"),
        ({"measured": {"peak_allocated": "100"}}, "measured.peak_allocated is '100'"),
        ({"measured": {"peak_allocated": 0}}, "measured.peak_allocated is 0"),
        ({"measured": {"peak_allocated": -5}}, "measured.peak_allocated is -5"),
        ({"measured": {"peak_reserved": float("nan")}}, "measured.peak_reserved is nan"),
        ({"measured": {"peak_reserved": True}}, "measured.peak_reserved is True"),
        ({"measured": {"peak_reserved": 10**400}}, "measured.peak_reserved is 1000"),
        ({"measured": {"weights": None}}, "measured.weights is None"),
        ({"measured": {}}, "holds nothing that is compared"),
        ({"measured": {"error": "driver"}}, "measurement itself failed"),
    ],
)
def test_a_record_that_cannot_be_compared_says_why_and_hides_no_other(changes, words):
    bad, good = validate([{**_record(), **changes}, _record()])
    assert words in bad.problem
    assert not bad.predicted
    assert good.error("allocated") == 0


@pytest.mark.parametrize(("card", "foreseen"), [("1MiB", True), ("a100-80gb", False)])
def test_a_measured_out_of_memory_is_foreseen_or_not(card, foreseen):
    (check,) = validate([{**RECORD, "card": card, "measured": {"oom": "CUDA out of memory."}}])
    assert check.ran_out_of_memory
    assert check.foreseen is foreseen
    assert check.problem is None


@pytest.fixture
def records(tmp_path):
    file = tmp_path / "records.jsonl"
    other = {**_record(), "id": "no-such-model", "model": {"model_type": "rwkv"}}
    file.write_text("\n".join(json.dumps(r) for r in (_record(), other)) + "\n\n")
    return file


def test_the_command_shows_records_then_gaps_then_the_summary(records, capsys):
    assert main(["validate", str(records)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:2] == ["tiny", "requested"]
    assert lines[2].endswith("exact")
    assert any(line.startswith("not compared: no-such-model: ") for line in lines)
    assert lines[-1].split() == ["trajectory", "1", "0", "%", "exact", "100", "%", "0", "%"]


def test_the_command_s_json_has_records_and_summary(records, capsys):
    assert main(["validate", str(records), "--format", "json"]) == 0
    saved = json.loads(capsys.readouterr().out)
    assert saved["records"][0]["error"]["allocated"] == 0
    assert saved["records"][1]["problem"]
    assert saved["summary"][1]["exact"] == 1


def test_csv_names_the_record_on_every_line(records, capsys):
    assert main(["validate", str(records), "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "id,counter,predicted,measured,error"
    assert [line.split(",")[0] for line in lines[1:]] == ["tiny"] * 4


def test_estimate_rehearsal_and_measurement_of_a_job_stand_side_by_side(tmp_path, capsys):
    file = tmp_path / "records.jsonl"
    virtual = _record()
    peak = virtual["measured"]["peak_allocated"]
    real = {**_record(peak_allocated=2), "source": "real"}
    other = {**virtual, "card": "t4", "source": "real"}
    file.write_text("\n".join(map(json.dumps, (virtual, real, other))))
    assert main(["validate", str(file), "--by", "job", "--format", "json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["id"], first["estimate"]) == ("tiny", peak)
    assert (first["virtual"], first["real"]) == (peak, 2 * peak)
    assert (second["card"], second["virtual"], second["real"]) == ("Tesla T4", None, peak)
    assert main(["validate", str(file), "--by", "job"]) == 0
    assert capsys.readouterr().out.splitlines()[3].split()[-2] == "-"
    assert main(["validate", str(file), "--by", "job", "--by", "card"]) == 2
    assert "cannot be combined with another --by" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--format", "csv"], ["--by", "card"], ["--by", "job"]])
def test_nothing_to_compare_is_exit_code_two_with_the_reason(tmp_path, capsys, options):
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps({**RECORD, "measured": {"error": "driver"}}))
    assert main(["validate", str(file), *options]) == 2
    out, err = capsys.readouterr()
    assert "not compared: tiny" in (err if options else out)
    assert "error: none of 1 records could be compared" in err
    assert "the first: the measurement itself failed" in err


def test_what_is_not_compared_is_said_beside_a_csv(records, capsys):
    assert main(["validate", str(records), "--format", "csv"]) == 0
    assert "not compared: no-such-model: " in capsys.readouterr().err


def test_ids_and_reasons_reach_no_terminal_as_escape_sequences(tmp_path, capsys):
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps({**_record(), "id": "\x1b[2J", "\x1b[3J": 1}))
    assert main(["validate", str(file)]) == 2
    assert "\x1b" not in "".join(capsys.readouterr())


def test_a_target_s_length_is_read_by_either_name():
    t5 = {"model_type": "t5", "d_model": 16, "d_ff": 16, "d_kv": 8, "num_heads": 2, "num_layers": 3}
    record = {**_record(), "model": t5, "task": "seq2seq-lm"}
    checks = validate([{**record, key: 64} for key in ("target", "target_len")] + [record])
    first, second, block_long = (check.predicted["allocated"] for check in checks)
    assert first == second > block_long


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no records"),
        (b"\n\n", "no records"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "has no `measured`"),
        (b'{"measured": 3}', "has no `measured`"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"measured": {}, "batch": 1, "batch": 2}', "the key 'batch' is there twice"),
    ],
)
def test_a_file_that_holds_no_records_is_refused(tmp_path, data, words):
    file = tmp_path / "records.jsonl"
    file.write_bytes(data)
    with pytest.raises(VramBudgetError, match=words) as caught:
        read_records(file)
    assert str(file) in caught.value.where


def test_a_folder_or_a_missing_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing.jsonl"):
        with pytest.raises(VramBudgetError, match="cannot read the records"):
            read_records(Path(path))
