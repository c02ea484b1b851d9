"""Heads of model types that were drawn last: labels of tokens, answers, classes.

As in `live_cases`: each function returns a model of transformers and what preflight is told of it;
a script's `python head_cases.py NAME FILE` trains it. transformers 5.17.
"""

import torch
import transformers
from live_cases import main

SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 256, "vocab_size": 600}
T5_SIZES = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}


def whole(*shape):
    return torch.zeros(*shape, dtype=torch.long)


def trained(model, **inputs):
    return model, {"inputs": inputs}


def deberta_tokens():
    model = transformers.DebertaForTokenClassification(transformers.DebertaConfig(**SIZES))
    return trained(model, input_ids=whole(3, 60), labels=whole(3, 60))


def fnet_masked():
    sizes = {name: SIZES[name] for name in SIZES if name != "num_attention_heads"}
    model = transformers.FNetForMaskedLM(transformers.FNetConfig(**sizes))
    return trained(model, input_ids=whole(3, 60), labels=whole(3, 60))


def xlnet_classes():
    sizes = {"vocab_size": 600, "d_model": 128, "n_layer": 2, "n_head": 4, "d_inner": 256}
    model = transformers.XLNetForSequenceClassification(transformers.XLNetConfig(**sizes))
    return trained(model, input_ids=whole(3, 64), labels=whole(3))


def splinter_answers():
    config = transformers.SplinterConfig(**SIZES, question_token_id=5)
    model = transformers.SplinterForQuestionAnswering(config)
    ends = {"start_positions": whole(3), "end_positions": whole(3)}
    return trained(model, input_ids=torch.ones(3, 64, dtype=torch.long), **ends)


def markuplm_tokens():
    model = transformers.MarkupLMForTokenClassification(transformers.MarkupLMConfig(**SIZES))
    return trained(model, input_ids=whole(3, 64), labels=whole(3, 64))


def bros_tokens():
    model = transformers.BrosForTokenClassification(transformers.BrosConfig(**SIZES))
    boxes = torch.zeros(3, 64, 8)
    return trained(model, input_ids=whole(3, 64), bbox=boxes, labels=whole(3, 64))


def lilt_tokens():
    config = transformers.LiltConfig(**SIZES | {"hidden_size": 96})
    model = transformers.LiltForTokenClassification(config)
    return trained(model, input_ids=whole(3, 64), bbox=whole(3, 64, 4), labels=whole(3, 64))


def longt5():
    config = transformers.LongT5Config(vocab_size=600, **T5_SIZES, decoder_start_token_id=0)
    model = transformers.LongT5ForConditionalGeneration(config)
    return trained(model, input_ids=whole(2, 64), labels=whole(2, 30))


def mra_masked():
    model = transformers.MraForMaskedLM(transformers.MraConfig(**SIZES))
    return trained(model, input_ids=whole(3, 128), labels=whole(3, 128))


def trocr():
    sizes = {"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 256}
    config = transformers.TrOCRConfig(vocab_size=600, d_model=128, **sizes)
    return trained(
        transformers.TrOCRForCausalLM(config), input_ids=whole(2, 32), labels=whole(2, 32)
    )


CASES = {
    case.__name__: case
    for case in (
        *(deberta_tokens, fnet_masked, xlnet_classes, splinter_answers, markuplm_tokens),
        *(bros_tokens, lilt_tokens, longt5, mra_masked, trocr),
    )
}


if __name__ == "__main__":
    main(CASES)
