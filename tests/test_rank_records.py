"""Further jobs of several GPUs, one rank of each on a virtual GPU: equal to the byte.

libraries.jsonl  Trainer's and accelerate's loops over DDP, FSDP2 and DeepSpeed
context.jsonl    context parallelism of torchtitan's Llama, alone, with DDP and with FSDP2
experts.jsonl    transformers' expert parallelism; those named drawn are a seed's, of which none was
                 used to develop what they check
inference.jsonl  forward passes, generation and an evaluation with tensor and expert parallelism
drawn.jsonl      nineteen jobs that a seed drew, none of them used to develop what they check
drawn_again.jsonl  seven more, of models and worlds that no other record has
drawn_later.jsonl  fifteen of 66 that two seeds drew, those that showed rules to be wrong: FSDP 1
                 that prefetches forward, or has a tied head under autocast; buckets made anew
                 beside gradients; run on another virtual GPU than ours
hsdp.jsonl       FSDP2 with as many copies as ranks: a shard group of one
loops_drawn.jsonl  eight of 25 that a seed drew over Trainer's, SFT's and DPO's loops
lora.jsonl       adapters under DeepSpeed's stages, and of 16-bit weights under FSDP2
offload.jsonl    DeepSpeed's offload, which was measured with 0.19.8
pipelines.jsonl  stages that are checkpointed under autocast
qlora.jsonl      4-bit weights in shards: Trainer and SFTTrainer with PEFT and
                 bitsandbytes over FSDP 1 and 2; whole beside shards of gradients: ZeRO 2
reshard.jsonl    FSDP2 that keeps shards of two ranks after forward, OPT and Llama in float16
scaler.jsonl     GradScaler of shards: FSDP 1 and 2, HSDP, CPU offload, ZeRO-1; run on another
                 virtual GPU than ours
selective.jsonl  torchtitan's checkpointing by operation: FSDP2, HSDP, DDP, tensor parallelism,
                 a pipeline; run on another virtual GPU than ours
sft.jsonl        SFTTrainer under DDP, FSDP 1, FSDP2 and ZeRO 3, in full, with LoRA and with QLoRA;
                 float16 under FSDP, QLoRA under ZeRO 1 and 2
trl.jsonl        SFTTrainer under DDP, FSDP2 and ZeRO 2, DPOTrainer under DDP, ZeRO 2 and 3
uneven.jsonl     vocabularies that tensor parallelism cuts unevenly, first and last ranks
plan.jsonl       what a plan recommends for Llama 3.1 70B: adapters, on 4 H100s
"""

from pathlib import Path
from typing import Any

import pytest

from vrambudget.config.record import read_records
from vrambudget.validate import COUNTERS, validate

FILES = sorted((Path(__file__).parent / "records" / "ranks").glob("*.jsonl"))
RECORDS = [pytest.param(record, id=record["id"]) for file in FILES for record in read_records(file)]


@pytest.mark.parametrize("record", RECORDS)
def test_a_rank_takes_what_it_took(record: dict[str, Any]) -> None:
    (found,) = validate([record])
    assert found.problem is None, found.problem
    optional = ("trajectory", "requested")  # where a few bytes of a loader's own differ
    counters = [c for c in COUNTERS if c not in optional or found.error(c) is not None]
    assert {counter: found.error(counter) for counter in counters} == dict.fromkeys(counters, 0.0)
