"""What a configuration's class is for decides the task: its head, its inputs, its loss."""

import pytest
from rehearsed import assert_equal, each, records_of

from vrambudget import estimate
from vrambudget.config.gpus import find_gpu
from vrambudget.config.unfamiliar import tasks_of
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.scenario import platform_of, resolve
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay

RECORDS = records_of("classes.jsonl")
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 160,
    "vocab_size": 600,
    "max_position_embeddings": 64,
}


def small(model_type, name):
    return {"model_type": model_type, "architectures": [name], **SIZES}


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (small("bert", "BertForTokenClassification"), "token-cls"),
        (small("bert", "BertForQuestionAnswering"), "qa"),
        (small("bert", "BertForSequenceClassification"), "seq-cls"),
        (small("llama", "LlamaForSequenceClassification"), "seq-cls"),
        (small("llama", "LlamaForCausalLM"), "causal-lm"),
    ],
)
def test_the_class_that_a_configuration_names_decides_the_task(values, task):
    """As masked or causal language models they would have logits of the vocabulary."""
    assert resolve(values, batch=2, block=16).job.task == task
    assert resolve(values, batch=2, block=16, task="embed").job.task == "embed"


@pytest.mark.parametrize(
    ("values", "task"),
    [
        ({"architectures": ["CLIPModel"], "text_config": {}, "vision_config": {}}, "contrastive"),
        ({"architectures": ["Wav2Vec2ForCTC"], "conv_kernel": [10, 3]}, "ctc"),
        ({"architectures": ["HubertForSequenceClassification"], "conv_kernel": [3]}, "audio-cls"),
        ({"architectures": ["DINOv3ViTModel"], "image_size": 224}, "embed"),
        ({"architectures": ["T5WithLMHeadModel"], "is_encoder_decoder": True}, "seq2seq-lm"),
        ({"architectures": ["VideoMAEForVideoClassification"]}, "video-cls"),
    ],
)
def test_what_sees_and_hears_has_the_task_of_its_class(values, task):
    assert tasks_of(values)[0] == task


def test_a_class_without_a_task_is_named_in_a_note():
    budget = estimate(small("bert", "BertForPreTraining"), batch=2, block=16)
    assert budget.job["task"] == "masked-lm"
    assert any("'BertForPreTraining': estimated as masked-lm" in note for note in budget.warnings)


def test_a_head_that_a_family_has_no_rules_for_is_traced_or_refused_with_a_way_out(monkeypatch):
    values = small("llama", "LlamaForTokenClassification")
    monkeypatch.setattr("vrambudget.traced.config.NEEDED", ("torch_that_is_not_here",))
    with pytest.raises(NotModelledError, match="no rules for task 'token-cls'") as caught:
        estimate(values, batch=2, block=16)
    assert "pip install" in caught.value.hint


def test_labels_that_are_two_are_neither_smoothed_nor_evaluated():
    values = small("bert", "BertForQuestionAnswering")
    for fields in ({"label_smoothing": 0.1}, {"eval_batches": 2, "steps": 3}):
        with pytest.raises(VramBudgetError, match="label"):
            estimate(values, batch=2, block=16, task="qa", **fields)


@each(RECORDS, one_in=6)
@pytest.mark.filterwarnings("ignore")  # PEFT's own
def test_a_model_of_another_task_equals_its_rehearsal(record):
    """Waveforms, spectrograms, video, pictures with text, masks: each by its own class."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5.17")
    pytest.importorskip("peft")
    names = ("batch", "block", "precision", "loop", "grad_accum", "lora_rank", "lora_targets")
    fields = {name: record[name] for name in names if record.get(name) is not None}
    scenario = resolve(record["model"], torch="2.11", **fields)
    platform = platform_of(find_gpu("a100-80gb"), "2.11")
    assert_equal(replay(simulate(scenario.config, scenario.job, platform).tape).peak, record)
