"""Encoders, T5 and ViT: which heads they have, how long their inputs may be, what decides shapes.

That their memory is right is held against records; here is what records can't say.
"""

import pytest
from rehearsed import assert_equal, records_of

from vrambudget import estimate
from vrambudget.config.gpus import find_gpu
from vrambudget.config.job import Job
from vrambudget.config.record import job_of_record
from vrambudget.config.source import find_model
from vrambudget.engine.context import Platform
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.scenario import config_of, platform_of
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay

TINY = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 16}


def family(model_type, **fields):
    return config_of(find_model({"model_type": model_type, **fields}))


def weights(config, task):
    """The number of parameters that training `task` with `config` has."""
    job = Job(task=task, block=4, precision="fp32", optimizer="none", steps=1)
    return simulate(config, job.resolve(config), Platform()).parameters


@pytest.mark.parametrize(
    ("model_type", "task"),
    [
        ("bert", "masked-lm"),
        ("roberta", "masked-lm"),
        ("distilbert", "masked-lm"),
        ("modernbert", "masked-lm"),
        ("electra", "masked-lm"),
        ("deberta-v2", "masked-lm"),
        ("albert", "masked-lm"),
        ("mpnet", "masked-lm"),
        ("bart", "seq2seq-lm"),
        ("t5", "seq2seq-lm"),
        ("mt5", "seq2seq-lm"),
        ("vit", "image-cls"),
    ],
)
def test_a_family_has_its_own_task(model_type, task):
    config = family(model_type)

    assert Job().resolve(config.for_job(Job())).task == task


@pytest.mark.parametrize("scales", [True, False])
def test_mt5_is_a_t5_whose_output_is_never_scaled(scales):
    """Whatever its files say (tie_word_embeddings), as its rehearsal shows."""
    (record,) = (r for r in records_of("model_types.jsonl") if r["model"]["model_type"] == "mt5")
    config = family(**record["model"], tie_word_embeddings=scales)
    job = job_of_record(record).model_copy(update={"torch": "2.11"}).resolve(config)
    tape = simulate(config.for_job(job), job, platform_of(find_gpu("a100-80gb"), "2.11")).tape
    assert_equal(replay(tape).peak, record)


@pytest.mark.parametrize("model_type", ["bert", "t5", "vit"])
def test_a_family_without_a_head_for_a_task_says_which_it_has(model_type):
    config = family(model_type)

    with pytest.raises(NotModelledError, match="'causal-lm' is not modelled") as caught:
        Job(task="causal-lm").resolve(config)

    assert caught.value.hint is not None
    assert config.tasks[0] in caught.value.hint


def test_roberta_keeps_its_first_positions_for_padding():
    config = family("roberta", max_position_embeddings=514)

    assert Job().resolve(config).block == 512
    with pytest.raises(VramBudgetError, match="block is 513"):
        Job(block=513).resolve(config)


def test_an_image_has_as_many_tokens_as_patches_and_a_class():
    config = family("vit")

    for size, tokens in ((None, 14 * 14 + 1), (384, 24 * 24 + 1)):
        job = Job(image_size=size, block=1)
        assert job.resolve(config.for_job(job)).block == tokens


def test_an_image_may_name_both_its_sides():
    assert family("vit", image_size=[32, 32]).default_block == 2 * 2 + 1


def test_an_oblong_image_is_traced():
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    square, oblong = (
        estimate({"model_type": "vit", **sizes, "image_size": size}, batch=2).parameters.total
        for size in (32, [32, 64])
    )
    assert oblong - square == (2 * 4 - 2 * 2) * 32


@pytest.mark.parametrize(
    "job",
    [
        pytest.param({"loop": "trainer"}, id="a loss that Trainer's count of labels divides"),
        pytest.param(
            {"lora_rank": 4, "lora_targets": ["q_proj"], "checkpointing": "full"},
            id="patches whose gradients PEFT asks for",
        ),
    ],
)
def test_a_played_image_model_has_the_trace_s_peak(job):
    pytest.importorskip("transformers", "5.17")
    checking = pytest.importorskip("vrambudget.recording.checking", exc_type=ImportError)
    runs = pytest.importorskip("vrambudget.recording.runs", exc_type=ImportError)
    values = {"model_type": "vit", "hidden_size": 96, "num_attention_heads": 4, "image_size": 64}
    config, resolved = runs.traced(values, task="image-cls", block=None, steps=2, **job)
    played = family(**values).for_job(resolved)
    assert checking.peaks(played, resolved) == checking.peaks(config, resolved)


def test_a_patch_fits_its_image():
    with pytest.raises(VramBudgetError, match="larger than image_size"):
        family("vit", image_size=8)


def test_t5_knows_its_feed_forward_layers():
    """A gate is a projection [8, 24] more in each of four layers; its checkpoints scale nothing."""
    sizes = {"d_model": 8, "d_ff": 24, "d_kv": 4, "num_heads": 2, "vocab_size": 16, "num_layers": 2}
    plain = weights(family("t5", **sizes), "seq2seq-lm")
    own = {**sizes, "tie_word_embeddings": False}
    for gated in ("gated-gelu", "gated-silu"):
        found = weights(family("t5", **own, feed_forward_proj=gated), "seq2seq-lm")
        assert found == plain + 4 * 8 * 24
    head = family("t5", **own, feed_forward_proj="gated-gelu", head_of_its_own=True)
    assert weights(head, "seq2seq-lm") == plain + 4 * 8 * 24 + 16 * 8
    for wrong in ("gated-geglu", "half-gelu", 3):
        with pytest.raises(VramBudgetError, match=f"feed_forward_proj is {wrong!r}"):
            family("t5", **own, feed_forward_proj=wrong)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
def test_an_untied_head_has_a_weight_of_its_own(model_type):
    pytest.importorskip("transformers")  # one layer was not recorded
    tied = weights(family(model_type, **TINY), "masked-lm")
    untied = weights(family(model_type, **TINY, tie_word_embeddings=False), "masked-lm")

    # the decoder's weight [16, 8], and for BERT and RoBERTa its bias [16] beside the head's own
    assert untied - tied == 16 * 8 + (0 if model_type == "distilbert" else 16)


MODERNBERT = {**TINY, "num_hidden_layers": 4, "model_type": "modernbert"}


@pytest.mark.parametrize(("window", "masks"), [(16, 2), (64, 0)])
def test_modernbert_makes_a_mask_for_windows_that_are_shorter_than_the_block(window, masks):
    config = family(**MODERNBERT, local_attention=window)
    job = Job(block=24, steps=2, optimizer="none").resolve(config)

    assert simulate(config.for_job(job), job, Platform()).tape.operations.count("abs") == masks


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_hidden_layers": 6}, "num_hidden_layers is 6; the program is of"),
        ({"global_attn_every_n_layers": 2}, "global_attn_every_n_layers is 2"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rope_scaling is"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types names other layers"),
    ],
)
def test_a_modernbert_that_was_not_recorded_is_refused_by_its_key(fields, words, monkeypatch):
    monkeypatch.setattr("vrambudget.traced.config.NEEDED", ("no_torch_here",))
    with pytest.raises(VramBudgetError, match=words):
        estimate({**MODERNBERT, **fields}, task="masked-lm", block=8)


@pytest.mark.parametrize(("how", "masks"), [("cls", 0), ("mean", 2)])
def test_modernbert_pools_as_its_file_says(how, masks):
    """What is published says the mean, which reads a mask of ones where nobody gives one."""
    config = family(**MODERNBERT, classifier_pooling=how)
    job = Job(task="seq-cls", block=24, steps=2, optimizer="none").resolve(config)

    assert simulate(config.for_job(job), job, Platform()).tape.operations.count("ones") == masks


def test_electras_embeddings_may_be_narrower_than_its_layers():
    sizes = {**TINY, "num_hidden_layers": 2}
    narrow = weights(family("electra", **sizes, embedding_size=4), "seq-cls")
    wide = weights(family("electra", **sizes, embedding_size=8), "seq-cls")

    tables, norm = 16 + 512 + 2, 2
    assert wide - narrow == 4 * (tables + norm) - (4 * 8 + 8)  # less the projection


DEBERTA_V3 = {"relative_attention": True, "pos_att_type": "p2c|c2p", "position_buckets": 4}
DEBERTA_V3 |= {"norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False}
DEBERTA_V3 |= {**TINY, "num_hidden_layers": 3}


def test_deberta_shares_projections_with_its_positions_or_has_two_more():
    pytest.importorskip("transformers")  # V3 with projections of its own was not recorded
    shared = weights(family("deberta-v2", **DEBERTA_V3), "masked-lm")
    own = weights(family("deberta-v2", **{**DEBERTA_V3, "share_att_key": False}), "masked-lm")

    assert own - shared == 3 * 2 * (8 * 8 + 8)  # of three layers


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size is 3"),
        ({"pooler_hidden_size": 16}, "pooler_hidden_size == hidden_size"),
    ],
)
def test_a_deberta_that_was_not_recorded_is_refused_by_its_key(fields, words, monkeypatch):
    monkeypatch.setattr("vrambudget.traced.config.NEEDED", ("no_torch_here",))
    with pytest.raises(VramBudgetError, match=words):
        estimate({"model_type": "deberta-v2", **DEBERTA_V3, **fields}, task="seq-cls", block=8)


def test_torchscript_fuses_debertas_buckets_from_the_second_step_on():
    config = family("deberta-v2", **DEBERTA_V3)
    job = Job(task="masked-lm", block=8, steps=3, optimizer="none").resolve(config)
    operations = simulate(config.for_job(job), job, Platform()).tape.operations

    assert operations.count("ceil") == 1
    assert operations.count("fused") == 2 * 3


def test_albert_has_one_layer_however_often_it_runs():
    twice, often = (
        weights(family("albert", **{**TINY, "num_hidden_layers": n}), "seq-cls") for n in (2, 9)
    )

    assert twice == often


def test_bart_has_as_many_layers_on_each_side_as_its_file_says():
    sides = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "vocab_size": 16}
    sides |= {"encoder_attention_heads": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 12}
    one, two = (
        weights(family("bart", **{**sides, "decoder_layers": n}), "seq2seq-lm") for n in (1, 2)
    )

    attention, norm = 4 * (8 * 8 + 8), 2 * 8
    assert two - one == 2 * attention + 3 * norm + (12 * 8 + 12) + (8 * 12 + 8)


def test_a_classifier_has_a_row_for_each_label():
    two = weights(family("bert", **TINY), "seq-cls")
    five = weights(family("bert", **TINY, num_labels=5), "seq-cls")

    assert five - two == 3 * (8 + 1)
