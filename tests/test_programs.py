"""Recorded programs: each equals its rehearsal, refuses other branches; a bad file is an error."""

import json
import re
from dataclasses import replace

import pytest
from rehearsed import assert_equal, each, records_of

from vrambudget import estimate
from vrambudget.cli import DONE, main
from vrambudget.config import Job
from vrambudget.config.gpus import find_gpu
from vrambudget.config.record import job_of_record
from vrambudget.config.source import find_model
from vrambudget.errors import NotModelledError, TooLargeError, VramBudgetError
from vrambudget.expressions import value
from vrambudget.program.catalog import (
    RECORDED,
    of_programs,
    of_variants,
    program_at,
    program_config,
)
from vrambudget.program.form import Program
from vrambudget.program.reading import read, read_heads
from vrambudget.program.writing import written
from vrambudget.recording.merging import joined
from vrambudget.recording.sized import Size, log2, report_to
from vrambudget.scenario import config_of, platform_of, resolve
from vrambudget.simulate import simulate
from vrambudget.tape.events import Purpose
from vrambudget.tape.replay import replay
from vrambudget.traced.config import traced_config

DEEPER = {"modernbert"}  # their records have two layers
NESTED = {"swin"}  # whose record has checkpoints around checkpoints, which its program refuses
PROGRAMS = {path.stem: path for path in RECORDED.glob("*.program")}
RECORDS = [
    record
    for record in records_of("model_types.jsonl") + records_of("programs.jsonl")
    if record["model"]["model_type"] in PROGRAMS.keys() - DEEPER - NESTED
    and not (record.get("lora_rank") and "moe" in record["id"])  # experts take no LoRA here
]
WINDOW = {
    "model_type": "mistral",
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 320,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 64,
    "max_position_embeddings": 4096,
}


def _peak(config, job):
    platform = platform_of(find_gpu("a100-80gb"), job.torch)
    return replay(simulate(config.for_job(job), job, platform).tape).peak


TRACED = {"segformer-amp-bf16-eval"}


@each(RECORDS, one_in=2)
def test_a_program_equals_its_models_rehearsal(record):
    """Widths, depth, batch, length, precision and options that were not recorded."""
    if record["id"] in TRACED:
        pytest.importorskip("torch", reason="its recording has no evaluation; it is traced")
    config = program_config(find_model(record["model"]), NotModelledError(""))
    job = job_of_record(record).model_copy(update={"torch": "2.11"}).resolve(config)
    assert_equal(_peak(config, job), record)


def test_a_configuration_without_rules_is_answered_without_torch(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("vrambudget.traced.config.NEEDED", ("no_torch_here",))
    values = {"model_type": "nanochat", "hidden_size": 1024, "num_hidden_layers": 7}
    values |= {"num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 1000}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    assert main([str(file), "--batch", "2", "--block", "128", "--gpu", "24GB"]) == DONE
    assert "FITS" in capsys.readouterr().out
    file.write_text(json.dumps({**values, "hidden_act": "gelu"}))
    assert main([str(file), "--gpu", "24GB"]) != DONE
    assert "hidden_act is 'gelu'; it was recorded as 'relu2'" in capsys.readouterr().err


def test_a_key_that_a_program_does_not_know_is_named():
    """A slip would silently mean the default; what the recorded class has besides is harmless."""
    known = {"model_type": "electra", "summary_use_proj": False}
    config = program_config(find_model(known), NotModelledError(""))
    assert config.unknown_keys == ()
    config = program_config(find_model({**known, "novel": 1}), NotModelledError(""))
    assert config.unknown_keys == ("novel",)
    with pytest.raises(VramBudgetError, match="num_hiden_layers is not known") as caught:
        program_config(find_model({**known, "num_hiden_layers": 4}), NotModelledError(""))
    assert "num_hidden_layers" in str(caught.value.hint)


def test_a_key_that_the_recorded_code_asked_for_and_lacked_is_refused():
    """A head's width of its own, where nanochat's class has none; BEiT without dropped paths."""
    program = program_at(PROGRAMS["nanochat"])
    with pytest.raises(NotModelledError, match="head_dim is 64; it was recorded without"):
        of_programs({"model_type": "nanochat", "head_dim": 64}, [program])
    program = program_at(PROGRAMS["beit"])
    with pytest.raises(NotModelledError, match=r"drop_path_rate is 0.0; it was recorded above 0"):
        of_programs({"model_type": "beit", "drop_path_rate": 0.0}, [program])


def test_a_program_for_each_precision_is_chosen_by_the_job():
    """Nemotron's norm casts under autocast alone."""
    program = program_at(PROGRAMS["nemotron"])
    known = [(own.when["weights"], own.when["autocast"]) for own in program.every()]
    assert known == [(["16 bit"], [False]), (["32 bit"], [False]), (["32 bit"], [True])]


WHISPER = {"model_type": "whisper", "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
WHISPER |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 50}
WHISPER |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "num_mel_bins": 8}
WHISPER |= {"max_source_positions": 40, "max_target_positions": 64}


def test_whisper_hears_frames_and_writes_a_transcript_that_fits():
    scenario = resolve(WHISPER, batch=3, target_len=20)
    recording = simulate(scenario.config, scenario.job, scenario.platform)

    assert (3, 8, 80) in {content and content[0] for content in recording.tape.contents}
    with pytest.raises(VramBudgetError, match="has positions for 64 tokens"):
        resolve(WHISPER, target_len=65)
    with pytest.raises(NotModelledError, match="mask"):
        estimate(WHISPER, attention_mask="padding")


def test_a_checkpointed_layer_that_trains_is_called_without_its_cache():
    fields = {"checkpointing": "full", "optimizer": "none", "precision": "bf16", "block": 30}
    config = config_of(find_model({**WHISPER, "encoder_layers": 5, "decoder_layers": 5}))
    cached, plain = (_peak(config, job_of(config, use_cache=x, **fields)) for x in (True, False))
    evaluated = [job_of(config, use_cache=x, mode="eval", block=30) for x in (True, False)]

    assert cached == plain
    assert _peak(config, evaluated[0]) != _peak(config, evaluated[1])


def job_of(config, **fields):
    return Job(batch=3, **fields).resolve(config)


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"attention": "eager"}, "attention"), ({"target_len": 30}, "of another length")],
)
def test_a_job_that_a_program_says_nothing_of_is_refused(fields, words, monkeypatch):
    monkeypatch.setattr("vrambudget.traced.config.NEEDED", ("no_torch_here",))
    model = {"model_type": "plbart", "encoder_layers": 2, "decoder_layers": 2, "d_model": 32}
    model |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}

    with pytest.raises(NotModelledError, match=words):
        estimate(model, batch=2, block=40, **fields)


@pytest.mark.parametrize("name", ["nemotron", "lfm2", "codegen"])
def test_a_loss_is_divided_by_trainers_count_of_labels(name, monkeypatch):
    """Recordings of a plain loop alone have the mean: Trainer's divides by a count."""
    pytest.importorskip("transformers")
    model = next(record["model"] for record in RECORDS if record["model"]["model_type"] == name)
    fields = {"loop": "trainer", "steps": 2, "block": 150, "clip": 1.0, "use_cache": False}
    fields |= {"optimizer_impl": "fused"}
    traced = traced_config(find_model({**model, "vocab_size": 5000}), NotModelledError(""))
    monkeypatch.setattr("vrambudget.traced.config.NEEDED", ("no_torch_here",))
    config = config_of(find_model({**model, "vocab_size": 5000}))
    assert _peak(config, job_of(config, **fields)) == _peak(traced, job_of(traced, **fields))


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("bloom", {"precision": "amp-bf16", "lora_rank": 4}, "bloom in nf4 under amp-bf16"),
        ("nanochat", {"loop": "sft", "lora_rank": 4}, "nanochat with attention_mask True"),
    ],
)
def test_a_quantised_job_that_was_not_recorded_names_what_runs_it(name, fields, words):
    """A cast whose type was some tensor's; a mask of ones."""
    model = next(record["model"] for record in RECORDS if record["model"]["model_type"] == name)
    with pytest.raises(NotModelledError, match=words) as caught:
        estimate(model, batch=2, block=64, quant="nf4", **fields)
    assert "vrambudget rehearse --gpu GPU" in str(caught.value.hint)


def test_shards_that_are_gathered_in_another_type_are_refused():
    """Trainer's FSDP2 under autocast: what reads `~W` would be float32, and is bfloat16."""
    model = next(r["model"] for r in RECORDS if r["model"]["model_type"] == "bloom")
    fields = {"batch": 2, "block": 64, "parallel": "fsdp2", "ranks": 4, "precision": "amp-bf16"}
    assert estimate(model, **fields).peak.allocated_bytes
    with pytest.raises(NotModelledError, match="fsdp2 in mixed precision") as caught:
        estimate(model, loop="trainer", **fields)
    assert "rehearse --gpu GPU --ranks 4 -- python train.py" in str(caught.value.hint)


def test_trainers_count_of_labels_is_traced_where_it_was_not_recorded(monkeypatch):
    """A masked language model's loss is its own, and the recording is of a plain loop."""
    model = {"model_type": "roberta-prelayernorm", "hidden_size": 64, "num_attention_heads": 4}
    model |= {"num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 300}
    with monkeypatch.context() as patched:
        patched.setattr("vrambudget.traced.config.NEEDED", ("no_torch_here",))
        assert "recording" in estimate(model, batch=2, block=40).warnings[0]
        with pytest.raises(NotModelledError, match="with num_items_in_batch was not recorded"):
            estimate(model, batch=2, block=40, loop="trainer")

    ignored = {"model_type": "m2m_100", "d_model": 64, "vocab_size": 300}  # by its own loss
    assert "recording" in estimate(ignored, batch=2, block=40, loop="trainer").warnings[0]

    pytest.importorskip("transformers")
    assert "traced" in estimate(model, batch=2, block=40, loop="trainer").warnings[0]


@pytest.mark.parametrize("name", ["mbart", "plbart", "pegasus", "blenderbot", "biogpt"])
def test_rows_longer_than_a_table_of_positions_are_refused(name):
    """Their tables have other names than BERT's; mBART's, PLBART's and BioGPT's two rows more."""
    model = {"model_type": name, "max_position_embeddings": 64}
    assert resolve(model, block=64).job.block == 64
    with pytest.raises(VramBudgetError, match="block is 65; the model has positions for 64 tokens"):
        resolve(model, block=65)


def test_a_model_of_one_layer_ends_with_its_first(monkeypatch):
    """Two and three differ by a layer, one and two by the same one, and what it saves."""
    monkeypatch.setattr("vrambudget.traced.config.NEEDED", ("no_torch_here",))
    model = {"model_type": "blenderbot", "d_model": 64, "vocab_size": 300, "encoder_layers": 2}
    fields = {"optimizer": "none", "precision": "bf16", "block": 64}
    found = []
    for layers in (1, 2, 3):
        config = config_of(find_model({**model, "decoder_layers": layers}))
        found.append(_peak(config, job_of(config, **fields)).requested_bytes)

    assert found[1] - found[0] == found[2] - found[1] > 0


def test_what_is_generated_is_played_of_a_program_for_each_call():
    """An encoder, a first and a further token; caches grow, or have room for all."""
    calls = {tuple(own.when["call"]) for own in program_at(PROGRAMS["bart"]).every()}
    assert calls == {("whole",), ("encode",), ("first",), ("next",)}
    model = {"model_type": "bart", "d_model": 32, "vocab_size": 40, "decoder_layers": 1}
    scenario = resolve(model, mode="generate", prompt=9, new=3, batch=2, cache="static")
    tape = simulate(scenario.config, scenario.job, scenario.platform).tape
    of_cache = zip(tape.sizes, tape.purposes, strict=True)
    kept = sum(size for size, purpose in of_cache if purpose is Purpose.KV_CACHE)
    assert kept == 2 * (3 + 9) * 2 * 32 * 2 + 2 * 8  # of own and prompt's tokens, and two lengths


def test_checkpoints_of_t5_cache_nothing():
    """Its decoder caches in training, too: 2 x 3 layers' keys and values are new by `cat`."""
    model = {"model_type": "mt5", "d_model": 32, "vocab_size": 40, "num_layers": 3}
    made = []
    for how in ("none", "full"):
        scenario = resolve(model, batch=2, block=9, steps=1, checkpointing=how, optimizer="none")
        tape = simulate(scenario.config, scenario.job, scenario.platform).tape
        made.append(tape.operations.count("cat"))
    assert made == [2 * 2 * 3, 0]


def test_a_cast_that_is_left_out_in_float32_is_recorded():
    """T5's norm casts where its weights have 16 bit; else the cast is the states themselves."""
    torch = pytest.importorskip("torch")
    home = pytest.importorskip("transformers.models.t5.modeling_t5")
    casting = pytest.importorskip("vrambudget.recording.casts").casting
    norm, x = home.T5LayerNorm(4), torch.ones(2, 4)
    own = home.T5LayerNorm.forward
    with casting("t5"):
        assert home.T5LayerNorm.forward is not own
        assert torch.equal(norm(x), own(norm, x))
    assert home.T5LayerNorm.forward is own


def test_tables_that_multiply_require_gradients_for_adapters_with_checkpoints():
    """As PEFT has input embeddings do; of programs they were calls of no module."""
    pytest.importorskip("peft")
    checking = pytest.importorskip("vrambudget.recording.checking")
    model = next(r["model"] for r in RECORDS if r["model"]["model_type"] == "mbart")
    fields = {"lora_rank": 4, "checkpointing": "full", "use_cache": False}
    program = program_at(PROGRAMS["mbart"])
    assert checking.check(program, model, checking.JOBS[:2], task=program.when["task"][0], **fields)


def test_a_window_that_begins_to_matter_is_refused(tmp_path, monkeypatch):
    """Mistral's mask is another one from its window on: what was recorded below says so."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5.17")
    file, program = tmp_path / "config.json", tmp_path / "window.program"
    file.write_text(json.dumps(WINDOW))
    assert main(["record", str(file), "-o", str(program)]) == DONE
    monkeypatch.setattr("vrambudget.traced.config.NEEDED", ("no_torch_here",))
    assert main([str(program), "--batch", "2", "--block", "63", "--gpu", "24GB"]) == DONE
    config = of_programs(WINDOW, [program_at(program)])
    for block in (64, 65, 512):
        job = job_of_record({"model": WINDOW, "batch": 2, "block": block, "use_cache": True})
        with pytest.raises(NotModelledError, match="length >= sliding_window is false"):
            config.model_copy(update={"job": job.resolve(config)}).build("causal-lm")


def test_a_function_of_its_own_is_one_call(tmp_path):
    """torch.autograd.Function: what it saves and its backward are in the file, not its code."""
    pytest.importorskip("torch")
    program = tmp_path / "gated.program"
    command = ["record", "step_cases:gated", "--size", "inner=64", "-o", str(program)]
    assert main(command) == DONE  # equal to its trace at further sizes
    (call,) = [row for row in program_at(program).effects if row[0] == "Gate"]
    assert [name for name, *_ in call[4]] == ["Gate"]
    assert len(call[3]) == 2  # what is saved


TEXT = PROGRAMS["ernie"].read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["ernie", "mpnet", "bert"])
def test_programs_are_read_as_they_were_written(name):
    text = PROGRAMS[name].read_text(encoding="utf-8")
    assert written(read(text, "x")) == text


def test_a_power_of_two_that_code_looks_for_is_a_condition(monkeypatch):
    """ALiBi has as many slopes as the nearest power of two of the heads; no expression says it."""
    found = []
    report_to(found.append)
    try:
        assert log2(Size(8)) == 3
    finally:
        report_to(None)
    assert [comparison[1:] for comparison in found] == [("&", 8, 7, False)]

    monkeypatch.setattr("vrambudget.traced.config.NEEDED", ("no_torch_here",))
    model = {"model_type": "mpt", "d_model": 192, "n_layers": 2, "vocab_size": 300}
    assert estimate({**model, "n_heads": 8}, batch=2, block=40).peak.requested_bytes
    with pytest.raises(NotModelledError, match="n_heads & n_heads-1 is false; here they are 6"):
        estimate({**model, "n_heads": 6}, batch=2, block=40)


def test_programs_of_several_are_joined_whole():
    """Those of each precision are joined before those of each attention are."""

    def of(**when):
        return Program(
            when={key: [value] for key, value in when.items()}, guards=[[*when.values()]]
        )

    precisions = (joined([of(attention=a, fp16=False), of(attention=a, fp16=True)]) for a in "ab")
    whole = joined(precisions)
    assert [each.when for each in whole.every()] == [
        {"attention": [a], "fp16": [f]} for a in "ab" for f in (False, True)
    ]


def test_what_some_programs_have_alone_stands_under_only():
    """BERT's task of eager attention has other lines than sdpa's, and only those."""
    text = PROGRAMS["bert"].read_text(encoding="utf-8")
    first = read(text, "x")
    eager = [own for own in first.every() if own.when["attention"] == ["eager"]]
    for own in eager:
        made = [value[0] for word, value in own.program.code if word == "op"]
        assert "softmax.softmax" in made
        assert "attention.scaled_dot_product_attention" not in made
    with pytest.raises(VramBudgetError, match="'only' is followed by"):
        read(text.replace('only {"attention": ["eager"]}', 'only {"attention": "eager"}', 1), "x")
    with pytest.raises(VramBudgetError, match="which it never is"):
        read(text.replace('only {"attention": ["eager"]}', 'only ""', 1), "x")
    with pytest.raises(VramBudgetError, match="several programs are of the same jobs"):
        written(replace(first, variants=[replace(first, code=first.code[1:]).variant()]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "cut off"),
        (lambda text: text.replace("vrambudget-program 3", "vrambudget-program 7", 1), "form"),
        (lambda text: text.replace('"=batch"', '"=10**30"', 1), "expression"),
        (lambda text: text.replace('"=batch"', "1" + 30 * "0", 1), "larger than any size"),
        (lambda text: text.replace('"=batch"', '"=__import__(1)"', 1), "no expression"),
        (lambda text: text.replace("\nop ", "\ngo ", 1), "no word"),
        (lambda text: text.replace('op ["', 'op ["os.', 1), "no operation"),
        (lambda text: text.replace("\nalias ", "\nnew ", 1), "lines do not fit together"),
        (lambda text: text.replace('"task": ["', '"task": [[], "', 1), "which it never is"),
        (
            lambda text: text.replace("\nwhen {", '\nwhen {"channels_last": 7, ', 1),
            "which it never is",
        ),
        (
            lambda text: text.replace('"=hidden_size"], "~W"', '0.5], "~W"', 1),
            "lines do not fit together",
        ),
        (lambda text: text.replace("key [", "key [[],", 1), "which it never is"),
        (
            lambda text: text.replace(', "num_hidden_layers", 1', ', "num_layers", 1'),
            "any num_hidden_layers, and no line uses it",
        ),
        (
            lambda text: text.replace('key ["num_hidden_layers"', 'key ["num_layers"'),
            "any num_layers, and no line uses it",
        ),
        (lambda text: re.sub(r"\nwhen .*", '\nwhen ""', text, count=1), "which it never is"),
        (
            lambda text: re.sub(
                r"\nwhen (.*)}", r'\nwhen \1, "transformers": ["5"]}', text, count=1
            ),
            "which it never is",
        ),
        (
            lambda text: re.sub(r'("t\d+"), "=batch"', r'\1, "batch"', text, count=1),
            "do not fit together",
        ),
        (
            lambda text: text.replace("key [", 'key [0.5, {"free": true}]\nkey [', 1).replace(
                f"end {text.count(chr(10)) - 1}", f"end {text.count(chr(10))}"
            ),
            "any 0.5, and no line uses it",
        ),
    ],
)
def test_a_program_that_is_wrong_is_an_error(change, message):
    with pytest.raises(VramBudgetError, match=message):
        _play(change(TEXT))


def test_a_file_of_0_3_says_otherwise_how_long_a_cache_is(tmp_path):
    text = PROGRAMS["bart"].read_text(encoding="utf-8")
    assert '"cache_length"' in text
    (tmp_path / "new.program").write_text(text, encoding="utf-8")
    old = text.replace("cache_length", "room")
    (tmp_path / "old.program").write_text(old, encoding="utf-8")
    job = {"mode": "generate", "cache": "static", "prompt": 12, "new": 4}
    new, old = (estimate(tmp_path / f"{n}.program", **job).peak for n in ("new", "old"))
    assert new == old


def test_only_the_program_that_is_played_is_read():
    """T5 has 240 programs in eight files; which one is played is said in their first lines."""
    texts = [p.read_text(encoding="utf-8") for n, p in PROGRAMS.items() if n.split(".")[0] == "t5"]
    files = [read_heads(text, "x") for text in texts]
    config = of_variants(find_model("t5-small").values, files)

    job = job_of_record(
        {"model": {"model_type": "t5"}, "batch": 2, "block": 40, "task": "seq2seq-lm"}
    )
    assert config.for_job(job.resolve(config)).chosen("seq2seq-lm")
    assert [each.found is not None for file in files for each in file].count(True) == 1


def test_a_program_that_changed_is_read_anew(tmp_path):
    file = tmp_path / "own.program"
    file.write_text(TEXT, encoding="utf-8")
    assert program_at(file).keys
    file.write_text(TEXT.replace("vrambudget-program 3", "vrambudget-program 7", 1))
    with pytest.raises(VramBudgetError, match="form"):
        program_at(file)


def test_a_program_of_too_many_instructions_is_an_error(monkeypatch):
    monkeypatch.setattr("vrambudget.program.unfold.MOST_ROWS", 100)
    with pytest.raises(TooLargeError, match="more than 100 instructions"):
        _play(TEXT)


def _play(text):
    config = of_programs({"model_type": "ernie"}, [read(text, "x")])
    job = job_of_record(RECORDS[0]).model_copy(update={"task": "masked-lm"})
    _peak(config, job.resolve(config))


def test_a_size_is_bounded():
    assert value("-(-batch//2)*3+length", {"batch": 5, "length": 1}) == 10
    for text in ("batch**9", "batch**8", "unknown", "batch//0", "9" * 40, "(" * 400):
        with pytest.raises(VramBudgetError):
            value(text, {"batch": 10**4})
