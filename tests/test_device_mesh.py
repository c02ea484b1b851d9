"""How ranks share their work: what is understood, and what is refused with a way out."""

import pytest

from vrambudget import estimate
from vrambudget.config.device_mesh import DeviceMesh, parse_mesh
from vrambudget.config.gpus import count_of_gpus
from vrambudget.config.job import Job
from vrambudget.config.record import job_of_record
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.scenario import resolve


@pytest.mark.parametrize(
    ("text", "ranks", "mesh"),
    [
        (None, None, DeviceMesh(1, None)),
        ("ddp", 8, DeviceMesh(8, "ddp")),
        ("FSDP2", 2, DeviceMesh(2, "fsdp2")),
        ("tp=2", None, DeviceMesh(2, None, tp=2)),
        ("tp", 4, DeviceMesh(4, None, tp=4)),
        ("fsdp2 + tp=2", 8, DeviceMesh(8, "fsdp2", tp=2)),
        ("pp=4", None, DeviceMesh(4, None, pp=4)),
        ("ep=4", None, DeviceMesh(4, None, ep=4)),
        ("zero3", 8, DeviceMesh(8, "deepspeed3")),
        ("cp=2", None, DeviceMesh(2, None, cp=2)),
        ("fsdp2+cp=4", 8, DeviceMesh(8, "fsdp2", cp=4)),
    ],
)
def test_a_mesh_is_read(text, ranks, mesh):
    assert parse_mesh(text, ranks) == mesh


def test_the_ranks_that_share_data_are_those_that_no_cut_takes():
    assert parse_mesh("fsdp2+tp=2", 8).shards == 4
    assert parse_mesh("fsdp2+cp=2", 8).shards == 8


@pytest.mark.parametrize(
    ("text", "ranks", "words"),
    [
        (None, 8, "nothing says how 8 GPUs share the work"),
        ("fsdp", 8, "'fsdp' is not known"),
        ("deepspeed", 8, "'deepspeed' is not known"),
        ("fdsp2", 8, "'fdsp2' is not known"),
        ("ddp+fsdp2", 8, "exclude each other"),
        ("tp=0", 8, "should end in a number of ranks"),
        ("fsdp2+tp=3", 8, "a multiple of 3 ranks"),
        ("tp=2", 8, "takes 2 ranks; ranks is 8"),
        ("fsdp2", None, "fsdp2 alone is not modelled"),
        ("zero3", 1, "deepspeed3 alone is not modelled"),
    ],
)
def test_a_slip_in_a_layout_is_told(text, ranks, words):
    with pytest.raises(VramBudgetError, match=words):
        parse_mesh(text, ranks)


@pytest.mark.parametrize(
    "text",
    [
        *("zero3+cp=2", "fsdp2+pp=2", "ddp+tp=2", "fsdp2+ep=2"),
        *("ep=2+tp=4", "tp=2+cp=4", "ep=2+cp=4"),
    ],
)
def test_a_known_layout_without_rules_is_refused_with_a_way_out(text):
    with pytest.raises(NotModelledError) as error:
        parse_mesh(text, 8)
    assert "rehearse --gpu GPU --ranks" in str(error.value.hint)


def test_settings_of_another_library_are_refused():
    with pytest.raises(VramBudgetError, match="param_dtype is 'bf16', a setting of FSDP;"):
        Job.parse({"ranks": 8, "parallel": "ddp", "param_dtype": "bf16"})


def test_a_rank_beyond_the_last_is_refused():
    with pytest.raises(VramBudgetError, match="numbered from 0 to 7"):
        Job.parse({"ranks": 8, "parallel": "ddp", "rank": 8})


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [("8xh100", 8, "h100"), ("2 x RTX 4090", 2, "RTX 4090"), ("h100", 1, "h100")],
)
def test_a_number_of_gpus_is_read(text, count, name):
    assert count_of_gpus(text) == (count, name)


def test_several_gpus_are_as_many_ranks():
    scenario = resolve("gpt2", gpu="8xh100", parallel="ddp")
    assert scenario.job.ranks == 8
    assert scenario.gpu is not None
    assert scenario.gpu.key == "h100-80gb"


def test_optimizers_that_cannot_step_shards_are_refused():
    with pytest.raises(NotModelledError, match="adafactor of sharded parameters"):
        estimate("gpt2", ranks=2, parallel="fsdp2", optimizer="adafactor", block=32)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"loop": "lightning"}, "the loop of lightning"),
        ({"optimizer": "sgd", "optimizer_impl": "fused"}, "fused SGD of sharded parameters"),
        ({"quant": "int8", "lora_rank": 4, "precision": "bf16"}, "int8 weights in shards"),
        ({"parallel": "zero3", "quant": "nf4", "lora_rank": 4}, "quantised weights in shards"),
    ],
)
def test_what_a_layout_is_not_modelled_with_is_refused(fields, words):
    with pytest.raises(NotModelledError, match=words):
        estimate("gpt2", ranks=2, block=32, **{"parallel": "fsdp2", **fields})


def test_generation_on_ranks_without_rules_is_refused():
    with pytest.raises(NotModelledError, match="generation with tp=2"):
        estimate("llama-3.2-1b", parallel="tp=2", mode="generate", prompt=8, new=2)


def test_a_record_tells_its_layout_in_one_object():
    job = job_of_record(
        {"parallel": {"method": "fsdp2", "world": 8, "param": "bf16", "reshard": 2, "rank": 1}}
    )
    assert (job.mesh, job.param_dtype, job.rank) == (DeviceMesh(8, "fsdp2"), "bf16", 1)
    assert job.reshard_after_forward == 2


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"method": "fsdp2", "world": 8, "shards": 3}, "parallel.shards is not known"),
        ({"method": "fsdp9", "world": 8}, "'fsdp9' is not modelled"),
        ({"method": "ddp"}, "parallel.world is None"),
    ],
)
def test_a_record_of_an_unknown_layout_is_refused(told, words):
    with pytest.raises(VramBudgetError, match=words):
        job_of_record({"parallel": told})
