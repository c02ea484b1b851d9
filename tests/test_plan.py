"""Recipes for one GPU, and how many GPUs a job needs: by hand arithmetic and by estimates."""

import json
import shlex

import pytest

import vrambudget
from vrambudget.cli import main
from vrambudget.config.gpus import find_gpu, nodes_of_gpus
from vrambudget.config.job import Job
from vrambudget.errors import VramBudgetError
from vrambudget.planning.layouts import (
    Sizes,
    Traffic,
    global_batch,
    layouts,
    seconds_per_sequence,
    traffic,
)
from vrambudget.planning.multi_gpu import fewest
from vrambudget.planning.plan import Wish, plan, plan_for
from vrambudget.scenario import resolve

LAYERS = {"model_type": "gpt2", "n_layer": 2, "n_embd": 512, "n_head": 8, "vocab_size": 8000}
FIXED = ["--optimizer", "adamw", "--precision", "fp32"]
CONTEXT = find_gpu("1GiB").context_bytes
LARGER = {**LAYERS, "n_layer": 8, "n_embd": 1024}
WIDE = {**LAYERS, "n_embd": 1024, "vocab_size": 4000}


def job(**fields):
    return Job.parse({"precision": "fp32", **fields})


@pytest.mark.parametrize(
    ("fields", "moved"),
    [
        ({}, Traffic(0)),
        # 800 fp32 gradients, there and back: 2 * 3200 * 3 / 4
        ({"parallel": "ddp", "ranks": 4}, Traffic(4800)),
        # and the parameters once
        ({"parallel": "zero1", "ranks": 4}, Traffic(7200)),
        # two gathers and a reduction: 3 * 3200 * 3 / 4
        ({"parallel": "fsdp2", "ranks": 4}, Traffic(7200)),
        ({"parallel": "fsdp2", "ranks": 4, "reshard_after_forward": False}, Traffic(4800)),
        # gathered as bf16, reduced as fp32: (2 * 1600 + 3200) * 3 / 4
        (
            {"parallel": "fsdp2", "ranks": 4, "param_dtype": "bf16", "reduce_dtype": "fp32"},
            Traffic(4800),
        ),
        # gradients there and back, parameters once; two gathers and a reduction
        ({"parallel": "zero2", "ranks": 4, "precision": "bf16"}, Traffic(3600)),
        ({"parallel": "zero3", "ranks": 4, "precision": "bf16"}, Traffic(3600)),
        # shards of 2, copied twice: 3 * 3200 / 2, and an all-reduce of 1600 between two
        ({"parallel": "fsdp2", "ranks": 4, "replicate": 2}, Traffic(6400)),
        # besides, two gathers and the gradients of a fourth between main memory and the GPU
        ({"parallel": "fsdp2", "ranks": 4, "cpu_offload": True}, Traffic(7200, 2400)),
    ],
)
def test_a_step_sends_what_its_collectives_send(fields, moved):
    assert traffic(job(**fields), Sizes(800, 800)) == moved


def test_tensor_parallelism_sends_hidden_states_and_logits():
    # 2 layers of 7 products and the head's gradient, of 32 * 8 fp32 elements, there and back on 2
    # ranks: 15 * 1024; logits of 32 * 100, gathered: 6400
    sizes = Sizes(800, 800, layers=2, hidden_size=8, vocab_size=100)
    assert traffic(job(parallel="tp=2", block=32), sizes) == Traffic(15 * 1024 + 6400)


def test_a_stage_sends_hidden_states_and_their_gradients():
    # 4 sequences of 32 tokens, 8 wide, fp32, there and back
    sizes = Sizes(800, 800, layers=4, hidden_size=8)
    pipeline = job(parallel="pp=2", block=32, batch=4, microbatches=2)
    assert traffic(pipeline, sizes) == Traffic(2 * 4 * 32 * 8 * 4)


def test_checkpointing_is_not_listed_where_it_alone_takes_longer_than_all_that_is_sent():
    found = vrambudget.plan("gpt2", gpu="2xa100-40gb", block=64, batch=1, goal="lora")
    listed = {choice.layout for choice in found.choices}
    # DDP reduces 0.3 million gradients; FSDP2 gathers 124 million weights twice.
    assert "DDP, lora" in listed
    assert "DDP, lora, checkpointing" not in listed
    assert {"FSDP2, lora", "FSDP2, lora, checkpointing"} <= listed


def test_a_pipeline_has_the_sequences_of_all_ranks_in_one_step():
    titan = {"model_type": "titan", "dim": 512, "n_layers": 40, "n_heads": 8, "vocab_size": 2000}
    titan |= {"n_kv_heads": 8, "hidden": 2048}
    named = {"precision": "fp32", "optimizer": "adam", "block": 64, "batch": 1}
    found = vrambudget.plan(titan, gpu="2800MiB", goal="full", **named)
    (choice,) = (each for each in found.choices if each.layout == f"PP {found.gpus}")
    assert choice.fields["batch"] == choice.fields["microbatches"] == found.gpus > 1
    again = vrambudget.estimate(titan, gpu=f"{found.gpus}x2800MiB", **choice.fields)
    assert again.device.peak_bytes == choice.peak_bytes


def test_layouts_of_a_recorded_model_are_found_with_their_largest_batch():
    sizes = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3}
    model = {"model_type": "vit", "intermediate_size": 768, "image_size": 224, **sizes}
    found = vrambudget.plan(model, gpu="2xrtx-3090", goal="lora")
    first = found.choices[0]
    assert first.fields["batch"] > 1000
    for batch, fits in ((0, True), (1, False)):
        fields = {**first.fields, "batch": first.fields["batch"] + batch}
        budget = vrambudget.estimate(model, gpu="2xrtx-3090", **fields)
        assert (budget.device.headroom_bytes >= first.nccl_bytes) is fits


def test_accumulation_without_reducing_reduces_once():
    often = job(parallel="ddp", ranks=2, grad_accum=4)
    once = job(parallel="ddp", ranks=2, grad_accum=4, no_sync=True)
    sizes = Sizes(800, 800)
    assert traffic(often, sizes).network_bytes == 4 * traffic(once, sizes).network_bytes


@pytest.mark.parametrize(
    ("needed", "most", "found"),
    [
        (2, 1, 0),
        (2, 8, 2),
        (3, 8, 4),
        (5, 6, 6),
        (17, 64, 24),
        (40, 1024, 40),
        (65, 64, 0),
        (120, 128, 120),
    ],
)
def test_the_fewest_gpus_are_found_by_whole_machines(needed, most, found):
    class Planner:
        wish = Wish(per_node=8)

        def can(self, gpus):
            return gpus >= needed

    assert fewest(Planner(), most) == found


def test_tensor_parallelism_stays_within_a_machine():
    ways = [*layouts(job(), 16, "full", has_bfloat16=True, per_node=4)]
    degrees = {way.fields["parallel"].partition("tp=")[2] for way in ways}
    assert degrees == {"", "2", "4"}
    assert {way.fields.get("replicate", 1) for way in ways} == {1, 4}
    assert nodes_of_gpus("2x8xh100") == (2, 8, "h100")


def test_a_plan_names_machines_as_they_were_asked_for():
    found = plan("gpt2", gpu="2x2xt4", block=64, batch=1, goal="qlora")
    assert "trains on 2 x 2 x Tesla T4" in str(found)
    assert all(" --gpu 2x2xt4 " in choice.command for choice in found.choices)


def test_several_gpus_without_bfloat16_are_planned_in_float16():
    found = plan("gpt2", gpu="2xt4", block=64, batch=1)
    assert {c.fields["precision"] for c in found.choices} == {"amp-fp16"}


def test_a_layout_costs_what_a_token_takes_and_not_what_a_step_takes():
    # The same step of 1 GiB, of 2 sequences or of 100: 0.5 GiB each, or 10 MiB.
    few, many = (Traffic(2**30).per(n) for n in (2, 100))
    slow, fast = (seconds_per_sequence("h100-80gb", moved, 0) for moved in (few, many))
    assert slow == pytest.approx(50 * fast, rel=1e-3)
    assert seconds_per_sequence("rtx-4090", few, 0) > slow
    assert global_batch(job(parallel="fsdp2+tp=2", ranks=8, batch=3, grad_accum=2)) == 24


def test_a_plan_is_the_fewest_gpus_that_do():
    job = {"gpu": "1800MiB", "block": 64, "optimizer": "adam", "goal": "full", "precision": "fp32"}
    job["margin"] = 0
    found = vrambudget.plan(LARGER, **job)
    assert found.gpus > 1
    assert all(choice.gpus == found.gpus and choice.left_bytes >= 0 for choice in found.choices)
    assert not vrambudget.plan(LARGER, most=found.gpus // 2, **job).choices


def test_counted_gpus_have_the_layouts_that_fit_them_each_with_the_largest_batch():
    job = {"block": 64, "precision": "fp32", "goal": "full"}
    found = vrambudget.plan(LARGER, gpu="2x2600MiB", margin=0, **job)
    assert (found.gpus, found.is_named, found.alternatives) == (2, True, ())
    assert str(found).startswith("gpt2 trains on 2 x a GPU with 2600MiB: ")
    assert len({choice.fields.get("batch", 1) for choice in found.choices}) > 1
    for choice in found.choices:
        batch = choice.fields.get("batch", 1)
        layout = {"gpu": "2x2600MiB", **job, **choice.fields}
        del layout["goal"]
        budget = vrambudget.estimate(LARGER, **layout)
        assert budget.device.peak_bytes == choice.peak_bytes
        more = vrambudget.estimate(LARGER, **{**layout, "batch": batch + 1})
        nccl = more.distributed.nccl_bytes[1]
        assert not more.fits or more.device.headroom_bytes < nccl
    less = vrambudget.plan(LARGER, gpu="2x2600MiB", margin="64MiB", **job)
    assert all(choice.left_bytes >= 64 * 2**20 for choice in less.choices)


def test_counted_gpus_share_a_step():
    job = {"block": 64, "precision": "fp32", "goal": "full", "gpu": "2x2600MiB"}
    job["margin"] = 0
    found = vrambudget.plan(LARGER, per_step=12, **job)
    assert found.choices
    for choice in found.choices:
        sizes = [choice.fields.get(name, 1) for name in ("batch", "grad_accum")]
        assert sizes[0] * sizes[1] == 6
    with pytest.raises(VramBudgetError, match="no multiple of 2 GPUs"):
        vrambudget.plan(LARGER, per_step=13, **job)
    with pytest.raises(VramBudgetError, match="per_step divides the step of a known number"):
        vrambudget.plan(LARGER, per_step=12, optimizer="adam", **{**job, "gpu": "1800MiB"})


def test_counted_gpus_that_do_not_do_are_told(capsys):
    assert main(["plan", "gpt2", "--gpu", "2x600MiB", "--block", "64", "--goal", "full"]) == 1
    said = "does not fit on 2 x a GPU with 600MiB: gpt2 at 64 tokens a sequence"
    assert said in capsys.readouterr().out
    line = ["plan", "gpt2", "--gpu", "2x600MiB", "--block", "64", "--goal", "full", "--as", "trl"]
    assert main(line) == 2
    assert "no recipe that trl has words for fits 2 x a GPU with 600MiB" in capsys.readouterr().err


def test_a_job_that_fits_needs_one_gpu_and_all_kinds_of_training_are_shown():
    found = vrambudget.plan(LAYERS, gpu="12GB", block=64)
    assert found.gpus == 1
    trained = [choice.trains for choice in found.choices]
    assert trained == ["full", "full", "lora", "lora", "qlora", "qlora"]
    assert found.choices[0].costs == ("nothing",)


@pytest.mark.parametrize(
    ("room", "layout"),
    [  # the less there is, the more is given up
        (560, "full, adamw, amp-bf16"),
        (540, "full, adamw, amp-bf16, checkpointing"),
        (390, "full, adamw-8bit, amp-bf16"),
        (320, "full, adamw, bf16"),
        (250, "full, adamw-8bit, bf16"),
        (214, "full, lion-8bit, bf16"),
        (193, "full, lion-8bit, bf16, checkpointing, expandable segments"),
        (125, "lora, adamw, bf16"),
        (92, "qlora, adamw, bf16"),
    ],
)
def test_the_best_recipe_gives_up_the_least_that_it_must(room, layout):
    bytes_needed = room * 2**20 + CONTEXT
    assert (
        vrambudget.plan(WIDE, gpu=f"{bytes_needed}B", block=64, batch=1, margin=0).choices[0].layout
        == layout
    )


def test_four_bit_weights_are_trained_under_autocast_where_float32_attention_does_not_fit():
    for block, precision in ((4352, "bf16"), (4608, "amp-bf16")):
        job = {"block": block, "batch": 1, "goal": "qlora"}
        (choice,) = vrambudget.plan("qwen2.5-0.5b", gpu="rtx-3060", **job).choices
        assert f"qlora, adamw, {precision}, checkpointing" in choice.layout


def test_every_recipe_has_the_largest_batch():
    found = vrambudget.plan(WIDE, gpu="1GiB", block=64, margin=0)
    for choice in found.choices:
        batch = choice.fields["batch"]
        fits = [
            vrambudget.estimate(WIDE, gpu="1GiB", **{**choice.fields, "batch": n}).fits
            for n in (batch, batch + 1)
        ]
        assert fits == [True, False]


def test_a_step_is_divided_into_the_largest_batches_that_fit():
    found = vrambudget.plan(WIDE, gpu="1GiB", block=64, per_step=60)
    sizes = [(c.fields["batch"], c.fields.get("grad_accum", 1)) for c in found.choices]
    assert all(batch * times == 60 for batch, times in sizes)
    assert len(set(sizes)) > 1


def test_what_is_named_stays():
    named = {"precision": "fp32", "checkpointing": "none", "batch": 3, "optimizer": "adam"}
    found = vrambudget.plan(WIDE, gpu="12GB", block=64, **named)
    assert found.choices
    for choice in found.choices:
        job = vrambudget.estimate(WIDE, **choice.fields).job
        assert {name: job[name] for name in named} == named


def test_what_no_recipe_may_be_is_none():
    def suits(job):
        return job.checkpointing == "none"

    scenario = resolve(LAYERS, gpu="12GB", block=64)
    found = plan_for(scenario, Wish(suits=suits))
    assert [choice.recomputes for choice in found.choices] == [False] * 3


def test_a_gpu_without_bfloat16_gets_float16():
    found = vrambudget.plan(LAYERS, gpu="t4", block=64)
    assert {choice.fields["precision"] for choice in found.choices} == {"amp-fp16"}


def test_adapters_that_take_several_gpus_are_planned_for_one_with_4_bit_weights():
    found = vrambudget.plan("phi-4", gpu="24GB", goal="lora", block=2048)
    (in_4_bits,) = found.alternatives
    assert (in_4_bits.choice.gpus, in_4_bits.choice.trains) == (1, "qlora")
    assert (found.gpus, found.choices) == (0, ())
    text = str(found)
    assert text.startswith("phi-4 trains on one NVIDIA GeForce RTX 4090")
    left = "2,048 tokens with lora do not fit one such GPU with 258.00 MiB left free: name several"
    assert f"{left} (--gpu 2xGPU)\n" in text


@pytest.mark.nightly
def test_gpus_that_were_counted_are_all_used_where_less_fits_them():
    found = vrambudget.plan("gpt2-xl", gpu="2x3.5GiB", goal="lora")
    trl, shorter = found.alternatives
    assert (found.choices, trl.choice.gpus, shorter.choice.gpus) == ((), 2, 2)
    assert trl.choice.fields["loop"] == "sft"
    assert 1024 > trl.choice.fields["block"] > shorter.choice.fields["block"]
    assert str(found).startswith("gpt2-xl trains on 2 x a GPU with 3.5GiB")


@pytest.mark.parametrize("model", ["gpt2", "nanogpt"])
def test_a_recipe_is_printed_with_a_command_and_fields_that_lead_to_it(model, capsys):
    words = ["plan", model, "--gpu", "1200MiB", "--margin", "0B", "--block", "64"]
    assert main([*words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for choice in found["choices"]:
        name, *words = shlex.split(choice["command"])
        assert name == "vrambudget"
        assert main([*words, "--format", "json"]) == 0
        device = json.loads(capsys.readouterr().out)["device"]
        assert device["peak_bytes"] == choice["peak_bytes"]
        again = vrambudget.estimate(model, gpu="1200MiB", **choice["fields"])
        assert again.device.peak_bytes == choice["peak_bytes"]


def test_a_named_optimizer_has_its_own_implementation():
    """nanoGPT's card says that AdamW is fused: that is no word about another optimizer."""
    job = vrambudget.estimate("nanogpt", block=64, optimizer="adamw-8bit").job
    assert job["optimizer_impl"] is None


def test_a_recipe_whose_cache_outgrows_the_gpu_is_told(capsys):
    assert (
        main(
            ["plan", "gpt2", "--gpu", "16GB", "--margin", "0B", "--block", "1024", "--goal", "full"]
        )
        == 0
    )
    told = capsys.readouterr().out
    assert "gpt2 trains on one NVIDIA GeForce RTX 4060 Ti (15.57 GiB): full, " in told
    assert "15.57 GiB         0 B  nothing" in told
    assert "fills the GPU with its cache" in told


def test_a_model_given_as_a_dict_is_a_file_in_commands():
    tiny = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 1000}
    (choice, *_) = vrambudget.plan(tiny, gpu="24GB", block=64, batch=2, goal="full").choices
    assert choice.command.startswith("vrambudget config.json --gpu ")
    (choice, *_) = vrambudget.plan("gpt2", gpu="24GB", block=64, batch=2, goal="full").choices
    assert choice.command.startswith("vrambudget gpt2 --gpu ")


@pytest.mark.parametrize("name", ["my model.json", "tiny/config.json", "tiny"])
def test_a_model_given_as_a_file_is_that_file_in_commands(name, tmp_path, capsys):
    folder = tmp_path / "tiny"
    folder.mkdir()
    for file in (tmp_path / "my model.json", folder / "config.json"):
        file.write_text(json.dumps(LAYERS))
    given = str(tmp_path / name)
    assert main(["plan", given, "--gpu", "12GB", "--block", "64", "--format", "json"]) == 0
    choice = json.loads(capsys.readouterr().out)["choices"][0]
    words = shlex.split(choice["command"])[1:]
    assert words[0] == given
    assert main([*words, "--format", "json"]) == 0


def test_more_than_the_most_is_said(capsys):
    words = ["plan", "gpt2-xl", "--gpu", "1GiB", "--block", "64", "--goal", "full"]
    assert main([*words, "--most", "2"]) == 1
    assert "nor on up to 2: " in capsys.readouterr().out


def test_a_plan_for_several_gpus_is_printed_with_commands_that_run(capsys):
    words = ["plan", "gpt2", "--gpu", "2400MiB", "--block", "64", "--goal", "full"]
    assert main([*words, *FIXED, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gpus"] > 1
    for choice in found["choices"]:
        assert main([*shlex.split(choice["command"])[1:], "--format", "json"]) == 0
        device = json.loads(capsys.readouterr().out)["device"]
        assert device["peak_bytes"] == choice["peak_bytes"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"goal": "all"}, "goal is 'all'"),
        ({"most": 0}, "most is 0"),
        ({"per_step": 0}, "per_step is 0"),
        ({"per_step": 8, "batch": 2}, "per_step divides"),
        ({"margin": -1}, "margin is -1"),
        ({"ranks": 2, "parallel": "ddp"}, "looks for the layout; ranks and parallel were given"),
        ({"mode": "eval"}, "a plan is for training"),
    ],
)
def test_what_no_plan_is_for_is_an_error(fields, words):
    with pytest.raises(VramBudgetError, match=words):
        vrambudget.plan(LAYERS, gpu="12GB", block=64, **fields)


def test_a_plan_shows_itself_as_text_as_html_and_as_records(capsys):
    found = vrambudget.plan("gpt2", gpu="1500MiB", block=64, goal="lora")
    assert main(["plan", "gpt2", "--gpu", "1500MiB", "--block", "64", "--goal", "lora"]) == 0
    assert str(found) == capsys.readouterr().out.rstrip()
    html = found._repr_html_()
    assert all(choice.layout in html for choice in found.choices)
    records = found.records()
    assert [record["layout"] for record in records] == [each.layout for each in found.choices]
    plain = (str, int, bool)
    assert all(isinstance(value, plain) for record in records for value in record.values())


WORDY = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 50_000}
WORDY |= {"n_positions": 4096}


@pytest.mark.parametrize(
    ("model", "fields", "ways"),
    [
        (
            WORDY,
            {"block": 4096},
            ["--goal lora --block 4096 --loop sft", "--goal lora --block 512"],
        ),
        (WORDY, {"block": 4096, "loop": "trainer"}, ["--goal lora --block 512 --loop trainer"]),
        ("gpt2-xl", {"block": 64}, []),  # its weights alone are too much
    ],
    ids=["a loop and a length", "a length", "neither"],
)
def test_what_one_gpu_does_with_is_told_as_commands_that_find_recipes(model, fields, ways):
    found = vrambudget.plan(model, gpu="800MiB", goal="lora", most=1, margin=0, **fields)
    assert found.gpus == 0
    told = [way.command.partition(" --gpu ")[2].partition(" ")[2] for way in found.alternatives]
    assert told == ways
    for way in ways:
        again = dict(zip(*[iter(way.replace("--", "").split())] * 2, strict=True))
        again["block"] = int(again["block"])
        assert vrambudget.plan(model, gpu="800MiB", margin=0, **again).gpus == 1
    text = str(found)
    one = f"{found.model} trains on a GPU with 800MiB (800.00 MiB): lora, "
    assert text.startswith(one if ways else "does not fit on a GPU with 800MiB: gpt2-xl at 64")
    assert all(way.choice.command in text for way in found.alternatives)
