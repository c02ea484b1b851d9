"""A model's configuration: which keys it takes, ignores, lists and refuses, and in which words."""

import math
from typing import Literal

import pytest

from vrambudget.config import Job, ModelConfig, load_config, unknown_model_type
from vrambudget.config.model_config import divides
from vrambudget.config.settings import Names, Probability, Size
from vrambudget.errors import NotModelledError, VramBudgetError

WHERE = "toy/config.json"


class ToyConfig(ModelConfig):
    """A family as a family's file declares it."""

    model_type: Literal["toy"] = "toy"
    vocab_size: Size = 100
    hidden_size: Size = 64
    num_attention_heads: Size = 4
    num_key_value_heads: Size = 2
    max_position_embeddings: Size = 128
    head_dim: Size | None = None
    dropout: Probability = 0.1
    layer_types: Names = ()
    tie_word_embeddings: bool = True

    aliases = {"n_embd": "hidden_size", "n_head": "num_attention_heads"}  # noqa: RUF012
    ignored_keys = frozenset({"summary_type"})

    def problems(self):
        yield from divides(self, "num_attention_heads", into="hidden_size")
        yield from divides(self, "num_key_value_heads", into="num_attention_heads")


def toy_family(model_type):
    if model_type != "toy":
        raise unknown_model_type(model_type, ["toy", "llama"])
    return ToyConfig


def refused(values):
    with pytest.raises(VramBudgetError) as error:
        load_config({"model_type": "toy", **values}, toy_family, where=WHERE)
    assert error.value.where == WHERE
    return error.value


def test_a_file_that_names_its_family_alone_has_the_familys_defaults():
    assert load_config({"model_type": "toy"}, toy_family, where=WHERE) == ToyConfig()


@pytest.mark.parametrize("key", ["hidden_size", "n_embd"])
def test_every_spelling_of_a_key_is_read(key):
    assert ToyConfig.parse({key: 128}).hidden_size == 128


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        pytest.param("vocab_size", 0, "vocab_size is 0; it should be greater", id="zero"),
        pytest.param("vocab_size", -1, "vocab_size is -1; it should be greater", id="negative"),
        pytest.param("vocab_size", 10**12, "it should be less than or equal to 2147", id="huge"),
        pytest.param("vocab_size", "100", "'100'; it should be a valid integer", id="text"),
        pytest.param("vocab_size", True, "True; it should be a valid integer", id="true"),
        pytest.param("vocab_size", 99.5, "99.5; it should be a valid integer", id="float"),
        pytest.param("vocab_size", None, "None; it should be a valid integer", id="null"),
        pytest.param("vocab_size", math.nan, "nan; it should be a", id="NaN"),
        pytest.param("vocab_size", [100], "[100]; it should be a valid integer", id="list"),
        pytest.param("n_embd", {}, "n_embd is {}; it should be a valid integer", id="as written"),
        pytest.param("head_dim", 0, "head_dim is 0; it should be greater", id="optional"),
        pytest.param("dropout", 1, "dropout is 1; it should be less than 1", id="drop all"),
        pytest.param("dropout", math.inf, "inf; it should be a finite number", id="infinity"),
        pytest.param("layer_types", "full", "'full'; it should be a valid tuple", id="no list"),
        pytest.param("layer_types", [1], "layer_types.0 is 1; it should be", id="list of numbers"),
        pytest.param("tie_word_embeddings", "no", "'no'; it should be a valid bool", id="no bool"),
        pytest.param("model_type", 7, "model_type is 7; it should be text", id="numbered family"),
    ],
)
def test_an_impossible_value_is_named_with_file_key_and_what_was_expected(key, value, words):
    assert words in refused({key: value}).message


def test_a_rule_between_keys_says_both_values():
    assert refused({"hidden_size": 66}).message == (
        "num_attention_heads is 4, which does not divide hidden_size = 66"
    )


def test_all_broken_rules_are_reported_together():
    error = refused({"hidden_size": 66, "num_key_value_heads": 3})

    assert error.message.splitlines() == [
        "2 mistakes:",
        "  num_attention_heads is 4, which does not divide hidden_size = 66",
        "  num_key_value_heads is 3, which does not divide num_attention_heads = 4",
    ]


def test_all_impossible_values_are_reported_together_without_a_word_of_the_validator():
    error = refused({"vocab_size": 0, "dropout": "some", "n_head": -1})

    assert error.message.startswith("3 mistakes:")
    assert "n_head is -1" in error.message


def test_two_spellings_that_disagree_are_refused_and_two_that_agree_are_not():
    assert ToyConfig.parse({"n_embd": 128, "hidden_size": 128}).hidden_size == 128
    assert "hidden_size is given twice" in refused({"n_embd": 128, "hidden_size": 64}).message


@pytest.mark.parametrize(
    ("slip", "meant"),
    [("hiden_size", "hidden_size"), ("vocab_sizes", "vocab_size"), ("n_heads", "n_head")],
)
def test_a_slip_in_a_key_is_an_error_that_names_the_key_meant(slip, meant):
    error = refused({slip: 1})

    assert error.message == f"{slip} is not known"
    assert repr(meant) in error.hint


def test_keys_that_decide_no_memory_are_passed_over():
    config = ToyConfig.parse(
        {"architectures": ["Toy"], "torch_dtype": "bfloat16", "eos_token_id": 2}
        | {"layer_norm_epsilon": 1e-5, "summary_type": "mean", "is_decoder": False}
    )

    assert config == ToyConfig()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_experts", 8),
        ("quantization_config", {"bits": 4}),
        ("is_decoder", True),  # harmless only when false
        ("pruned_heads", {"0": [1]}),
        ("problem_type", "multi_label_classification"),
        ("unknown_keys", ["vocab_size"]),
    ],
)
def test_a_key_without_a_rule_is_listed(key, value):
    assert ToyConfig.parse({key: value}).unknown_keys == (key,)


def test_labels_are_counted():
    labels = {"0": "cat", "1": "dog", "2": "bird"}

    assert ToyConfig().num_labels == 2
    assert ToyConfig.parse({"id2label": labels}).num_labels == 3
    assert ToyConfig.parse({"id2label": labels, "num_labels": 5}).num_labels == 5


def test_a_missing_model_type_is_said_with_what_to_write():
    with pytest.raises(VramBudgetError, match="model_type is missing") as error:
        load_config({"hidden_size": 64}, toy_family, where=WHERE)

    assert '"model_type": "gpt2"' in error.value.hint


def test_an_unknown_family_names_the_near_ones_and_all_there_are():
    error = refused({"model_type": "lama"})

    assert isinstance(error, NotModelledError)
    assert error.message == "model_type 'lama' is not modelled"
    assert error.hint == "did you mean 'llama'? modelled are llama, toy"


def test_a_family_like_no_other_gets_the_list_alone():
    assert refused({"model_type": "xyz"}).hint == "modelled are llama, toy"


def test_the_models_own_limit_is_the_default_block_and_positions_may_be_computed():
    assert ToyConfig().default_block == 128
    assert ToyConfig().learned_positions is None


def test_a_jobs_dropout_takes_the_place_of_the_configs():
    assert ToyConfig().for_job(Job()).dropout == 0.1
    assert ToyConfig().for_job(Job(dropout=0.0)).dropout == 0.0
