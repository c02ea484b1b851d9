"""A job: its defaults, what it refuses and how it says so, and the job of a measured record."""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from vrambudget.config import Job
from vrambudget.config.record import job_of_record, with_loop_defaults
from vrambudget.errors import NotModelledError, VramBudgetError

RECORDS = Path(__file__).parent / "records" / "reference.jsonl"


@dataclass(frozen=True)
class Limits:
    """The four things that a job asks of a model."""

    default_block: int | None = 1024
    learned_positions: int | None = 1024
    tasks: tuple[str, ...] = ("causal-lm", "seq2seq-lm")
    attentions: tuple[str, ...] = ("sdpa", "eager")


def record(**fields):
    return {"id": "made-up", "model": {"model_type": "gpt2"}, "batch": 2, "block": 64, **fields}


def test_the_defaults_are_those_of_a_plain_training_run():
    job = Job()

    assert (job.batch, job.block, job.mode, job.steps, job.grad_accum) == (1, None, "train", 3, 1)
    assert (job.precision, job.optimizer, job.optimizer_impl) == ("amp-bf16", "adamw", None)
    assert (job.attention, job.checkpointing, job.dropout, job.clip) == ("sdpa", "none", None, None)
    assert job.keep_outputs is True
    assert (job.torch, job.transformers) == ("2.11", "5.17")


def test_every_field_has_one_line_of_help():
    for name, field in Job.model_fields.items():
        assert field.description, name
        assert "\n" not in field.description, name


@pytest.mark.parametrize("spelling", ["batch", "batch_size"])
def test_a_batch_may_be_spelled_as_trainers_spell_it(spelling):
    assert Job.parse({spelling: 64}).batch == 64


@pytest.mark.parametrize("spelling", ["block", "seq_len", "sequence_length"])
def test_a_block_may_be_spelled_as_trainers_spell_it(spelling):
    assert Job.parse({spelling: 512}).block == 512


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"eval_batch": 8}, "without eval_batches", id="batches"),
        pytest.param({"eval_batches": 2, "steps": 2}, "needs 3 steps", id="steps"),
        pytest.param({"eval_batches": 2, "mode": "eval"}, "mode is 'eval'", id="mode"),
        pytest.param({"zero_grad": "late", "grad_accum": 2}, "earlier micro-batches", id="late"),
        pytest.param({"zero_grad": "zeros", "optimizer": "none"}, "nothing zeroes", id="nothing"),
        pytest.param({"weights": "bf16", "precision": "fp32"}, "need autocast", id="no autocast"),
        pytest.param({"weights": "bf16", "precision": "amp-fp16"}, "GradScaler", id="scaler"),
        pytest.param({"weights": "bf16", "quant": "nf4", "lora_rank": 4}, "quant says", id="4 bit"),
        pytest.param({"loop": "lightning", "label_smoothing": 0.1}, "'trainer'", id="smoothing"),
        pytest.param({"loop": "trainer", "keep_losses": "list"}, "library decides", id="kept"),
        pytest.param(
            {"keep_losses": "graphs", "checkpointing": "full"}, "checkpoints recompute", id="graphs"
        ),
        pytest.param({"loop": "trainer", "zero_grad": "late"}, "library decides", id="library"),
        pytest.param({"loop": "accelerate", "zero_grad": "late"}, "library decides", id="also"),
        pytest.param(
            {"loop": "lightning", "eval_batches": 2, "eval_gather": True},
            "keeps no outputs",
            id="validation",
        ),
        pytest.param({"loop": "trainer", "optimizer": "muon"}, "is none that", id="optimizer"),
        pytest.param({"loop": "trainer"}, "norm in any case", id="no clipping"),
        pytest.param({"loop": "dpo", "rows": "packed"}, "no way to do", id="packed pairs"),
        pytest.param({"rows": "packed", "attention_mask": "ones"}, "have none", id="packed mask"),
        pytest.param({"rows": "packed", "task": "seq-cls"}, "for causal-lm", id="packed task"),
        pytest.param({"block": "1024:128"}, "is more than the block", id="falling lengths"),
        pytest.param({"shortest": 8}, "no block says", id="shortest alone"),
        pytest.param({"draw": 1}, "all batches have one length", id="draw of one length"),
        pytest.param({"block": "8:16", "mode": "generate"}, "mode 'generate'", id="generated"),
        pytest.param({"block": "8:16", "compile": True}, "compiles anew", id="compiled lengths"),
        pytest.param({"block": "8:16", "parallel": "ddp", "ranks": 2}, "several ranks", id="ranks"),
        pytest.param(
            {"block": "8:16", "eval_batches": 2, "eval_gather": True}, "padded", id="gathered"
        ),
        pytest.param({"completion_len": 8}, "for loops 'sft' and 'dpo'", id="completion"),
        pytest.param({"precompute_ref_log_probs": True}, "for loop 'dpo'", id="reference"),
        pytest.param({"loop": "sft", "task": "seq-cls"}, "causal language models", id="task"),
        pytest.param({"loop": "dpo", "attention_mask": "none"}, "always has one", id="mask"),
        pytest.param({"loop": "sft", "rows": "padded"}, "no padding", id="a row"),
        pytest.param({"loop": "dpo", "block": 8, "completion_len": 9}, "than the block", id="long"),
        pytest.param({"loop": "sft", "use_cache": True}, "is off in loop", id="cache"),
    ],
)
def test_a_loop_that_no_script_can_have_is_refused(fields, words):
    with pytest.raises(VramBudgetError, match=words):
        Job.parse(fields)


def test_a_library_s_defaults_stand_where_the_job_says_nothing():
    trainer = Job.with_defaults({"loop": "trainer", "eval_batches": 3}, {"clip": 0.5})
    assert (trainer.clip, trainer.optimizer_impl, trainer.eval_batch) == (1.0, "fused", 8)
    given = {"loop": "trainer", "clip": 0.3, "optimizer_impl": "foreach", "eval_batch": 2}
    chosen = Job.with_defaults({**given, "eval_batches": 3}, {})
    assert (chosen.clip, chosen.optimizer_impl, chosen.eval_batch) == (0.3, "foreach", 2)
    assert Job.with_defaults({"loop": "trainer", "torch": "2.6"}, {}).optimizer_impl is None
    assert job_of_record(record(loop="trainer")).clip == 1.0
    rehearsed = with_loop_defaults({"loop": "trainer", "clip": 0.5})
    assert (rehearsed["clip"], rehearsed["optimizer_impl"]) == (0.5, "fused")
    assert with_loop_defaults({"batch": 2}) == {"batch": 2}
    called = with_loop_defaults({"mode": "forward", "precision": "fp16"})
    assert (called["use_cache"], called["precision"]) == (True, "fp16")
    lightning = Job.with_defaults({"loop": "lightning", "eval_batches": 2}, {})
    assert lightning.eval_first  # the sanity check
    assert Job.with_defaults({"loop": "lightning"}, {}).model_mode == "eval"
    sft = Job.with_defaults({"loop": "sft"}, {"checkpointing": "none"})
    assert (sft.checkpointing, sft.clip) == ("full", 1.0)


def test_adapters_of_16_bit_weights_are_trained_under_amp_fp16():
    assert Job.parse({"weights": "fp16", "precision": "amp-fp16", "lora_rank": 4}).weights == "fp16"


def test_an_older_record_without_outputs_had_none_in_backward():
    assert job_of_record(record(keep_outputs=False)).forward_returns == "loss"
    kept = record(keep_outputs=False, forward_returns="outputs")
    assert job_of_record(kept).forward_returns == "outputs"


def test_a_job_cannot_be_changed_and_can_be_a_key():
    job = Job(batch=4)

    with pytest.raises(AttributeError, match="frozen"):
        job.batch = 5
    assert {job: "seen"}[Job(batch=4)] == "seen"


def test_a_numpy_integer_is_an_integer():
    numpy = pytest.importorskip("numpy")

    batch = Job.parse({"batch": numpy.int64(8)}).batch

    assert (batch, type(batch)) == (8, int)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        pytest.param("batch", 0, "batch is 0; it should be greater than or equal to 1", id="zero"),
        pytest.param("batch", -3, "batch is -3; it should be greater", id="negative"),
        pytest.param("batch", True, "batch is True; it should be a valid integer", id="true"),
        pytest.param("batch", "8", "batch is '8'; it should be a valid integer", id="text"),
        pytest.param("batch", 2.5, "batch is 2.5; it should be a valid integer", id="half"),
        pytest.param("batch", None, "batch is None; it should be a valid integer", id="none"),
        pytest.param("batch", 2**31 + 1, "less than or equal to 2147483648", id="absurd"),
        pytest.param(
            "batch",
            10 ** (sys.get_int_max_str_digits() + 1),
            "batch is a number of thousands of digits; it should be less than",
            id="beyond printing",
        ),
        pytest.param("block", 0, "block is 0; it should be greater", id="no tokens"),
        pytest.param("steps", 101, "steps is 101; it should be less", id="endless"),
        pytest.param(
            "mode",
            "infer",
            "mode is 'infer'; it should be 'train', 'eval', 'generate' or 'forward'",
            id="mode",
        ),
        pytest.param(
            "precision", "fp8", "it should be 'fp32', 'bf16', 'fp16', 'amp-bf16'", id="precision"
        ),
        pytest.param("dropout", 1.0, "dropout is 1.0; it should be less than 1", id="drop all"),
        pytest.param("dropout", -0.1, "dropout is -0.1; it should be greater", id="below 0"),
        pytest.param("dropout", math.nan, "dropout is nan; it should be a finite", id="NaN"),
        pytest.param("clip", math.inf, "clip is inf; it should be a finite number", id="infinite"),
        pytest.param("clip", 0.0, "clip is 0.0; it should be greater than 0", id="clip to 0"),
        pytest.param("keep_outputs", 1, "keep_outputs is 1; it should be a valid bool", id="1"),
        pytest.param("lora_rank", 0, "lora_rank is 0; it should be greater", id="rank 0"),
        pytest.param("lora_targets", "q.*", "lora_targets is 'q.*'; it should be", id="regex"),
        pytest.param("lora_targets", [], "lora_targets is []; it should be", id="no targets"),
        pytest.param("lora_targets", [1], "lora_targets is [1]; it should be", id="numbers"),
        pytest.param("torch", "new", "torch is 'new'; it should be a version", id="version"),
        pytest.param("torch", 2.11, "torch is 2.11; it should be a version as text", id="float"),
        pytest.param("optimizer", "x" * 99, "'xxxxx", id="long text"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(field, value, words):
    with pytest.raises(VramBudgetError) as error:
        Job.parse({field: value})

    assert words in error.value.message
    assert len(error.value.message) < 250


def test_an_unknown_option_is_named_with_the_nearest_known_one():
    with pytest.raises(VramBudgetError) as error:
        Job.parse({"bacth": 4}, where="job.json")

    assert error.value.render() == (
        "error: bacth is not known\n  in   job.json\n  tip: did you mean 'batch' or 'cache'?"
    )


def test_several_mistakes_are_reported_together():
    with pytest.raises(VramBudgetError) as error:
        Job.parse({"seq_len": 0, "clip": "tight", "colour": "blue"})

    assert error.value.message.splitlines() == [
        "3 mistakes:",
        "  seq_len is 0; it should be greater than or equal to 1",  # as it was written
        "  clip is 'tight'; it should be a valid number",
        "  colour is not known",
    ]


def test_two_spellings_that_disagree_are_an_error_and_two_that_agree_are_not():
    assert Job.parse({"batch": 2, "batch_size": 2}).batch == 2
    with pytest.raises(VramBudgetError, match="batch is given twice"):
        Job.parse({"batch": 2, "batch_size": 4})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"optimizer": "adafactor", "optimizer_impl": "fused"}, "Adafactor does not have"),
        ({"optimizer": "none", "precision": "amp-fp16", "clip": 1.0}, "clip needs an optimizer"),
        ({"optimizer": "lion", "optimizer_impl": "fused"}, "bitsandbytes has one implementation"),
        ({"optimizer": "muon", "torch": "2.8"}, "torch.optim.Muon came with 2.9"),
        ({"optimizer": "muon", "precision": "amp-fp16"}, "two optimizers would share a GradScaler"),
        ({"quant": "nf4"}, "such weights cannot be trained"),
    ],
)
def test_what_torch_does_not_have_is_refused(fields, words):
    with pytest.raises(VramBudgetError, match=words):
        Job.parse(fields)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("all-linear", "all-linear"),
        ("q_proj,v_proj", ("q_proj", "v_proj")),
        (["q_proj"], ("q_proj",)),
    ],
)
def test_lora_targets_are_all_linear_or_names(given, kept):
    assert Job.parse({"lora_targets": given}).lora_targets == kept


@pytest.mark.parametrize("version", ["2.11", "2.11.0", "2.11.0+cu130", "2.11.1a0"])
def test_a_version_is_known_by_its_first_two_numbers(version):
    job = Job.parse({"torch": version})

    assert job.torch == "2.11"


@pytest.mark.parametrize(
    ("precision", "weights", "autocast"),
    [
        ("fp32", "fp32", None),
        ("bf16", "bf16", None),
        ("fp16", "fp16", None),
        ("amp-bf16", "fp32", "bf16"),
        ("amp-fp16", "fp32", "fp16"),
    ],
)
def test_a_precision_is_a_dtype_of_weights_and_one_of_autocast(precision, weights, autocast):
    job = Job(precision=precision)

    assert (job.weight_dtype, job.autocast_dtype) == (weights, autocast)


def test_what_is_given_wins_over_a_cards_defaults_in_any_spelling():
    card = {"batch": 64, "clip": 1.0}

    assert Job.with_defaults({}, card).batch == 64
    assert Job.with_defaults({"batch_size": 2}, card) == Job(batch=2, clip=1.0)
    assert Job.with_defaults({"clip": None}, card) == Job(batch=64)


def test_an_open_block_becomes_the_models_own_limit():
    assert Job().resolve(Limits()).block == 1024
    assert Job(block=7).resolve(Limits()).block == 7


def test_an_attention_that_the_model_lacks_becomes_its_own():
    assert Job(attention="sdpa").resolve(Limits(attentions=("eager",))).attention == "eager"
    assert Job(attention="eager").resolve(Limits()).attention == "eager"


def test_a_block_longer_than_the_models_positions_is_refused():
    with pytest.raises(VramBudgetError, match="block is 1025; the model has positions for 1024"):
        Job(block=1025).resolve(Limits())


def test_computed_positions_have_no_end():
    assert Job(block=1025).resolve(Limits(learned_positions=None)).block == 1025


def test_a_model_without_a_limit_needs_a_block():
    with pytest.raises(VramBudgetError, match="has no default sequence length"):
        Job().resolve(Limits(default_block=None, learned_positions=None))


def test_a_target_is_as_long_as_the_block_unless_said():
    job = Job(task="seq2seq-lm", block=512)

    assert job.resolve(Limits()).target_len == 512
    assert job.model_copy(update={"target_len": 64}).resolve(Limits()).target_len == 64
    assert Job(block=512).resolve(Limits()).target_len is None


def test_an_open_task_becomes_the_familys_own():
    assert Job().resolve(Limits(tasks=("masked-lm", "seq-cls"))).task == "masked-lm"
    assert Job(task="seq-cls").resolve(Limits(tasks=("masked-lm", "seq-cls"))).task == "seq-cls"


def test_a_task_without_a_head_is_refused_and_the_others_are_named():
    with pytest.raises(NotModelledError, match="'image-cls' is not modelled") as caught:
        Job(task="image-cls").resolve(Limits())

    assert caught.value.hint == "it has causal-lm, seq2seq-lm"


def test_every_reference_record_is_a_job():
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        job = job_of_record(values)

        assert (job.batch, job.block) == (values["batch"], values["block"])
        assert job.precision == values.get("precision", "fp32")
        assert job.target_len == values.get("target")
        assert job.torch == "2.11"


def test_a_record_that_leaves_precision_open_ran_in_float32():
    assert job_of_record(record()).precision == "fp32"


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"mode": "inference"}, "mode", "eval"),
        ({"clip": 0}, "clip", None),
        ({"lora_rank": 0}, "lora_rank", None),
        ({"lora_targets": None}, "lora_targets", "all-linear"),
        ({"target": 16}, "target_len", 16),
        ({"versions": {"torch": "2.13.0+cu130"}}, "torch", "2.13"),
        ({"versions": {"transformers": "5.20.1"}}, "transformers", "5.20"),
        ({"model": "nanogpt"}, "dropout", 0.0),  # it builds nanoGPT without, unless told
        ({"model": {"model_type": "nanogpt"}, "dropout": 0.2}, "dropout", 0.2),
        ({}, "dropout", None),
    ],
)
def test_a_records_words_are_read_as_its_loop_reads_them(fields, name, value):
    assert getattr(job_of_record(record(**fields)), name) == value


def test_a_record_that_is_no_job_is_named_by_its_id():
    with pytest.raises(VramBudgetError) as error:
        job_of_record(record(batch=-1))

    assert error.value.where == "record 'made-up'"


@pytest.mark.parametrize(
    ("precision", "loaded"), [("amp-bf16", "bf16"), ("amp-fp16", "fp16"), ("fp32", "fp32")]
)
def test_4_bit_weights_are_loaded_in_the_jobs_16_bit_type(precision, loaded):
    assert Job(precision=precision, quant="nf4", lora_rank=8).weight_dtype == loaded
