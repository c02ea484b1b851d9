"""Model cards: each one whole, sourced, and with the parameter count of the real class."""

import json
import tomllib
from collections import Counter
from functools import cache
from importlib.util import find_spec

import pytest

from vrambudget.auto_classes import class_for
from vrambudget.config import Job, ModelCard, card_names, load_card
from vrambudget.config.cards import cards_folder, near_names, read_card
from vrambudget.config.source import find_model
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.estimator import estimate
from vrambudget.models import model_types
from vrambudget.program.catalog import recorded_types
from vrambudget.scenario import config_of

CARDS = {name: load_card(name) for name in card_names()}
OF_MODELLED_FAMILIES = [
    n
    for n, card in CARDS.items()
    if card.config["model_type"] in {*model_types(), *recorded_types()}
]
CLASSIFIERS = {
    *("resnet18", "resnet34", "resnet50", "resnet101", "convnext_tiny", "convnext_base"),
    *("efficientnet_b0", "mobilenetv3_large_100", "torchvision-resnet50"),
    *("torchvision-convnext_tiny", "torchvision-efficientnet_b0", "torchvision-swin_t"),
    *("vit_small_patch16_224", "vit_base_patch16_224", "vit_large_patch16_224"),
    *("swin_tiny_patch4_window7_224", "swin_base_patch4_window7_224", "torchvision-vit_b_16"),
}
DETECTORS = {name for name in CARDS if name.startswith("yolo")}
OF_OTHERS = {"nanogpt", *CLASSIFIERS, *DETECTORS}
OF_TRANSFORMERS = [n for n, card in CARDS.items() if card.config["model_type"] not in OF_OTHERS]
SHAPES_NOTHING = {"sliding_window", "use_sliding_window"}
LEARNED_POSITIONS = {"gpt2", "opt", "bert", "roberta", "distilbert", "xlm-roberta", "camembert"}
LEARNED_POSITIONS |= {"albert", "bart", "electra", "deberta-v2", "mpnet", "whisper"}

WHOLE = """
name = "toy"
title = "Toy"
source = "https://example.org/toy"
parameters = 1

[config]
model_type = "toy"
sliding_window = "null"

[job]
clip = 1.0
"""


def test_there_are_cards_of_what_people_download_most():
    assert len(CARDS) >= 120
    assert find_model("Qwen/Qwen2.5-7B-Instruct").values["max_position_embeddings"] == 32768
    assert find_model("Qwen/Qwen2.5-7B").values["max_position_embeddings"] == 131_072


def test_there_are_cards_of_every_size_of_gpt2_and_of_nanogpt():
    assert {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2"} <= CARDS.keys()
    assert {"nanogpt", "nanogpt-shakespeare-char"} <= CARDS.keys()


@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_called_like_its_file(name):
    assert CARDS[name].name == name == name.lower()


def test_a_repository_belongs_to_one_card():
    counts = Counter(each.lower() for card in CARDS.values() for each in card.repositories)

    assert [repository for repository, cards in counts.items() if cards > 1] == []


@pytest.mark.parametrize("name", OF_MODELLED_FAMILIES)
def test_every_key_of_a_card_has_a_rule(name):
    try:
        config = config_of(find_model(name))
    except NotModelledError:
        if find_spec("torch"):
            raise
        pytest.skip("its own code is traced, which needs torch")

    assert config.unknown_keys == ()
    assert Job.with_defaults({}, CARDS[name].job).resolve(config.for_job(Job())).block


@pytest.mark.parametrize("name", ["swin-tiny-patch4-window7-224", "swin-base-patch4-window7-224"])
def test_swin_of_each_recorded_depth_answers_without_torch(name, monkeypatch):
    monkeypatch.setattr("vrambudget.traced.config.NEEDED", ("torch_that_is_not_here",))
    assert estimate(name).peak.reserved_bytes > 4 * 4 * CARDS[name].parameters


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_the_parameter_count_is_that_of_the_real_class(name):
    pytest.importorskip("transformers")
    card = CARDS[name]
    task = card.job.get("task", "causal-lm")
    alike = {key: value for key, value in card.config.items() if key not in SHAPES_NOTHING}
    if card.config["model_type"] not in LEARNED_POSITIONS:
        alike.pop("max_position_embeddings", None)

    assert parameters_of(task, json.dumps(alike)) == card.parameters


@cache
def parameters_of(task, config):
    """Count them once for a base model and its instruct model."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    values = json.loads(config)
    with torch.device("meta"):
        made = transformers.AutoConfig.for_model(**values)
        model = class_for(transformers, task, made).from_config(made)
    own = model.get_output_embeddings().weight.numel() if values.get("head_of_its_own") else 0
    return own + sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["nanogpt", "nanogpt-shakespeare-char"])
def test_the_parameter_count_of_nanogpt_is_the_sum_of_its_weights(name):
    config = CARDS[name].config
    C, T, V = config["n_embd"], config["block_size"], config["vocab_size"]

    # [V, C] shared with the head, [T, C]; a layer: [3C, C], [C, C], [4C, C], [C, 4C], 2 norms [C]
    layer = 3 * C * C + C * C + 4 * C * C + 4 * C * C + 2 * C
    assert CARDS[name].parameters == V * C + T * C + config["n_layer"] * layer + C


def test_a_card_reads_null_as_none(tmp_path):
    file = tmp_path / "toy.toml"
    file.write_text(WHOLE, encoding="utf-8")

    assert read_card(file).config == {"model_type": "toy", "sliding_window": None}


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ('title = "Toy"', "", "title is missing"),
        ("https://", "somewhere/", "source is 'somewhere/example.org/toy'"),
        ("parameters = 1", "parameters = 0", "parameters is 0; it should be greater"),
        ("parameters = 1", "parametres = 1", "parametres is not known"),
        ('model_type = "toy"', "", "config.model_type is missing"),
        ("clip = 1.0", "clip = -1.0", "[job]: clip is -1.0; it should be greater than 0"),
        ("clip = 1.0", "clip 1.0", "this is not TOML"),
    ],
)
def test_a_broken_card_is_named_with_its_mistake(tmp_path, right, wrong, words):
    file = tmp_path / "toy.toml"
    file.write_text(WHOLE.replace(right, wrong), encoding="utf-8")

    with pytest.raises(VramBudgetError) as error:
        read_card(file)

    assert words in error.value.message
    assert error.value.where == str(file)


def test_a_card_that_is_not_there_names_the_nearest():
    with pytest.raises(VramBudgetError, match="there is no model card 'gtp2'") as error:
        load_card("gtp2")

    assert "'gpt2'" in error.value.hint


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("lama-3-8b", "'llama-3-8b'"),
        ("mistrall-7b-v0.1", "'mistral-7b-v0.1'"),
        ("bert-bse-uncased", "'bert-base-uncased'"),
        ("granite-3.9-8b", "'granite-3.3-8b'"),
        ("gpt-ossified-20b", None),
        ("blip-image-captioning-base", None),
        ("llama-9-scout", None),
        ("gpt3", None),
    ],
)
def test_a_tip_names_no_other_family_and_no_other_version(name, near):
    hint = near_names(name)
    assert (hint is None) if near is None else near in (hint or "")


def test_the_parts_of_every_card_come_in_the_same_order():
    for file in cards_folder().glob("*.toml"):
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        assert list(tables) == [field for field in ModelCard.model_fields if field in tables], (
            file.name
        )


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("llama3.1-8b", "llama-3.1-8b"),
        ("Llama_3.1_8B_Instruct", "llama-3.1-8b"),
        ("mistral-7b", "mistral-7b-v0.1"),
        ("mistral-7b-instruct", "mistral-7b-v0.1"),
        ("gemma2-9b-it", "gemma-2-9b"),
        ("Qwen2.5_0.5B", "qwen2.5-0.5b"),
        ("BERT-base-uncased", "bert-base-uncased"),
        ("llama3_1_8b", "llama-3.1-8b"),
        ("qwen2.5-7b-instruct", "qwen2.5-7b-instruct"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b-instruct"),
        ("qwen2.5-3b-instruct", "qwen2.5-3b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b-v0.2"),
        ("opt-1.3b", "opt-1.3b"),
        ("OPT_1.3B", "opt-1.3b"),
        ("qwq", "qwq-32b"),
        ("mistral-nemo", "mistral-nemo-12b"),
        ("tinyllama", "tinyllama-1.1b"),
        ("phi-3-mini", "phi-3-mini-4k"),
        ("smollm3", "smollm3-3b"),
        ("qwen3-30b", "qwen3-30b-a3b"),
        ("google/flan-t5-base", "flan-t5-base"),
        ("Qwen/Qwen3-30B-A3B-Base", "qwen3-30b-a3b-base"),
        ("opt_13b", "opt-13b"),
        ("phi-4-mini-instruct", "phi-4-mini"),
        ("microsoft/Phi-4-mini-instruct", "phi-4-mini"),
        ("granite-3.3-8b-instruct", "granite-3.3-8b"),
        ("Qwen3_Embedding_0.6B", "qwen3-embedding-0.6b"),
        ("deit-base", "deit-base-patch16-224"),
        ("bigscience/bloomz-7b1", "bloom-7b1"),
        ("BLOOMZ-7b1", "bloom-7b1"),
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("EleutherAI/gpt-neo-1.3B", "gpt-neo-1.3b"),
    ],
)
def test_a_name_in_another_spelling_finds_its_card(name, card):
    assert find_model(name).name == card


def test_a_name_of_timm_and_of_transformers_is_told_both():
    with pytest.raises(VramBudgetError, match="there is no model 'swin-base'") as caught:
        find_model("swin-base")
    both = "there are swin-base-patch4-window7-224, swin_base_patch4_window7_224;"
    assert caught.value.hint.startswith(both)


def test_a_name_of_several_sizes_is_told_which_there_are():
    with pytest.raises(VramBudgetError, match="there is no model 'vit-base'") as caught:
        find_model("vit-base")
    assert caught.value.hint.startswith("there are vit-base-patch16-224, vit-base-patch16-384,")


@pytest.mark.parametrize("name", ["llama", "instruct", "it", "v", "-", "llama-3.1-9b"])
def test_a_name_that_is_no_models_finds_no_card(name):
    with pytest.raises(VramBudgetError, match="there is no model"):
        find_model(name)
