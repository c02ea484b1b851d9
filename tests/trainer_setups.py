"""Twelve trainings by Hugging Face's Trainer, as people set them up: tiny, for the tests.

`python tests/trainer_setups.py FOLDER [NAME ...]` runs them on the GPU, each with and without the
callback, and writes a line of JSON for each to FOLDER/peaks.jsonl.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

import vrambudget

SIZES = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 32}
FALCON = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 64,
    "pad_token_id": 0,
    "eos_token_id": 0,
    "bos_token_id": 0,
}


def gpt2(dtype=torch.float32, **options):
    config = transformers.GPT2Config(**SIZES, bos_token_id=0, eos_token_id=0, **options)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


def rows(lengths=(16,) * 12):
    return [{"input_ids": [1] * n, "labels": [1] * n} for n in lengths]


def with_lora():
    import peft  # noqa: PLC0415 - an extra

    adapter = peft.LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM")
    return peft.get_peft_model(gpt2(torch.bfloat16), adapter)


class Wrapped(torch.nn.Module):
    """A model inside another, as people add a head or a second loss."""

    def __init__(self):
        super().__init__()
        self.inner = gpt2()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, input_ids, labels, **_):
        return {"loss": self.inner(input_ids=input_ids, labels=labels).loss * self.scale}


class Weighted(transformers.Trainer):
    """A Trainer with a loss of its own."""

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(**inputs)
        loss = 2 * outputs.loss
        return (loss, outputs) if return_outputs else loss


def padded(features):
    """Pad on the right, with the tokenizer's mask, as DataCollatorForSeq2Seq does."""
    longest = max(len(row["input_ids"]) for row in features)

    def column(key, fill):
        return torch.tensor([row[key] + [fill] * (longest - len(row[key])) for row in features])

    ids, labels = column("input_ids", 0), column("labels", -100)
    return {"input_ids": ids, "labels": labels, "attention_mask": (labels != -100).long()}


SETUPS = {
    "plain": dict,
    "bf16 weights with bf16": lambda: {"model": gpt2(torch.bfloat16), "bf16": True},
    "ragged rows": lambda: {"data": rows(range(5, 17)), "collator": padded},
    "peft": lambda: {"model": with_lora(), "bf16": True},
    "an unknown family": lambda: {
        "model": transformers.FalconForCausalLM(transformers.FalconConfig(**FALCON))
    },
    "adafactor": lambda: {"optim": "adafactor"},
    "a wrapped module": lambda: {"model": Wrapped()},
    "evaluation": lambda: {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "eval_data": rows(),
        "compute_metrics": lambda _: {},
    },
    "compiled": lambda: {"torch_compile": True, "torch_compile_backend": "eager"},
    "label smoothing": lambda: {"label_smoothing_factor": 0.1},
    "checkpointing and accumulation": lambda: {
        "gradient_checkpointing": True,
        "gradient_accumulation_steps": 2,
    },
    "a loss of its own": lambda: {"kind": Weighted},
}


def train(name, callback, folder, *, use_cpu):
    """Train three steps; return the Trainer."""
    transformers.set_seed(0)
    given = {"kind": transformers.Trainer, "data": rows(), **SETUPS[name]()}
    kind, data, model = given.pop("kind"), given.pop("data"), given.pop("model", None) or gpt2()
    objects = {
        "eval_dataset": given.pop("eval_data", None),
        "data_collator": given.pop("collator", None),
        "compute_metrics": given.pop("compute_metrics", None),
    }
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        max_steps=3,
        report_to=[],
        save_strategy="no",
        logging_strategy="steps",
        logging_steps=1,
        disable_tqdm=True,
        use_cpu=use_cpu,
        **{"optim": "adamw_torch", **given},
    )
    trainer = kind(
        model=model,
        args=args,
        train_dataset=data,
        callbacks=[callback] if callback else [],
        **objects,
    )
    trainer.train()
    return trainer


def main(folder, *names):
    """Write for each set-up the peaks with and without the callback."""
    for name in names or SETUPS:
        peaks = []
        for callback in (None, vrambudget.VramBudgetCallback()):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            trainer = train(name, callback, folder, use_cpu=False)
            peaks.append(torch.cuda.max_memory_allocated())
            assert trainer.state.global_step == 3, name
            del trainer
            torch._dynamo.reset()  # noqa: SLF001 - a compiled model keeps its parameters
        budget = callback.budget
        predicted = budget and budget.peak.allocated_bytes
        line = json.dumps({"name": name, "peaks": peaks, "predicted": predicted})
        with Path(folder, "peaks.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
