"""Files of other tools that say how several GPUs share a job."""

import json

import pytest

from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.scenario import resolve

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 2000,
}
ZERO = {
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": 5e7,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": 1000,
        "zero_quantized_weights": True,
    },
}
ARGUMENTS = {"output_dir": "out", "per_device_train_batch_size": 2, "bf16": True}
ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE",
    "fsdp_config": {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": False,
        "fsdp_activation_checkpointing": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    },
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "num_processes": 4,
}
TITAN = """
[model]
name = "llama3"
flavor = "debugmodel"
[training]
local_batch_size = 2
seq_len = 128
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""


@pytest.fixture
def job(tmp_path):
    """Return the job that files say, on GPUs of a kind."""

    def resolved(*files, model=LLAMA, gpu="8xh100", **fields):
        paths = []
        for number, content in enumerate(files):
            is_text = isinstance(content, str)
            paths.append(tmp_path / f"{number}{'.toml' if is_text else '.json'}")
            paths[-1].write_text(content if is_text else json.dumps(content), encoding="utf-8")
        return resolve(model, gpu=gpu, config=paths, block=64, **fields)

    return resolved


def test_deepspeeds_file_is_counted_on_several_gpus(job):
    found = job(ZERO)
    fields = found.job
    assert (fields.parallel, fields.ranks, fields.precision) == ("deepspeed3", 8, "bf16")
    assert (fields.reduce_bucket_size, fields.overlap_comm) == (50_000_000, False)
    assert fields.param_persistence_threshold == 1000
    assert fields.prefetch_bucket_size == int(0.9 * 256 * 256)  # "auto": of the hidden size
    assert "quantised weights (ZeRO++ qwZ)" in found.run.uncounted


def test_one_gpu_leaves_deepspeeds_stage_out_and_says_so(job):
    found = job(ZERO, gpu="h100")
    assert (found.job.parallel, found.job.ranks) == (None, None)
    assert any(
        "without meaning for one: zero_optimization.stage" in note for note in found.run.notes
    )


def test_another_layout_goes_before_a_files_own(job):
    fields = job(ZERO, parallel="ddp").job
    assert (fields.parallel, fields.batch) == ("ddp", 2)


def test_accelerates_file_says_how_many_gpus_there_are(job):
    fields = job(ARGUMENTS, ACCELERATE, gpu="h100").job
    assert (fields.parallel, fields.ranks, fields.loop) == ("fsdp2", 4, "trainer")
    assert (fields.reshard_after_forward, fields.checkpointing) == (False, "full")


@pytest.mark.parametrize(
    ("fsdp", "reshard", "offload"),
    [
        ({"fsdp": True}, True, False),
        ({"fsdp": "full_shard auto_wrap"}, True, False),
        ({"fsdp": "shard_grad_op"}, False, False),
        ({"fsdp": True, "fsdp_config": {"cpu_offload": True}}, True, True),
        ({"fsdp": True, "fsdp_config": {"fsdp_reshard_after_forward": False}}, False, False),
    ],
)
def test_trainers_fsdp_is_the_second(job, fsdp, reshard, offload):
    fields = job({**ARGUMENTS, **fsdp}).job
    assert (fields.parallel, fields.reshard_after_forward) == ("fsdp2", reshard)
    assert fields.cpu_offload is offload


def test_trainer_reads_deepspeeds_own_file(job, tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(ZERO), encoding="utf-8")
    assert job({**ARGUMENTS, "deepspeed": "ds.json"}).job.parallel == "deepspeed3"
    with pytest.raises(VramBudgetError, match="No such file"):
        job({**ARGUMENTS, "deepspeed": "none.json"})


def test_torchtitans_file_is_its_model_and_its_layout(job):
    found = job(TITAN, model=None)
    fields = found.job
    assert (found.config.model_type, found.config.dim) == ("titan", 256)
    assert (fields.parallel, fields.fsdp_wrap) == ("fsdp2+tp=2", "torchtitan")
    assert (fields.param_dtype, fields.reduce_dtype, fields.precision) == ("bf16", "fp32", "fp32")
    assert (fields.sequence_parallel, fields.loss_parallel) == (True, True)
    assert (fields.optimizer_impl, fields.clip, fields.checkpointing) == ("fused", 1.0, "full")


def test_torchtitan_on_one_gpu_has_autocast(job):
    fields = job(TITAN, model=None, gpu="h100").job
    assert (fields.precision, fields.parallel) == ("amp-bf16", None)


def test_torchtitans_copies_are_ddp_or_hsdp(job):
    copies = "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = "
    alone = TITAN.replace("data_parallel_shard_degree = -1\ntensor", f"{copies}1\nx").replace(
        "x_parallel_degree = 2", "tensor_parallel_degree = 1"
    )
    fields = job(alone, model=None, gpu="2xh100").job
    assert (fields.parallel, fields.precision) == ("ddp", "amp-bf16")
    fields = job(alone.replace(f"{copies}1", f"{copies}4"), model=None, gpu="h100").job
    assert (fields.parallel, fields.replicate, fields.ranks) == ("fsdp2", 2, 8)


def test_torchtitans_ranks_of_one_sequence_share_parameters(job):
    told = 'context_parallel_degree = 2\ncontext_parallel_rotate_method = "alltoall"'
    fields = job(TITAN.replace("tensor_parallel_degree = 2", told), model=None).job
    assert (fields.parallel, fields.rotate_method) == ("fsdp2+cp=2", "alltoall")
    assert fields.mesh.shards == fields.ranks


def test_torchtitans_op_saves_the_outputs_of_some_operations(job):
    keys = 'mode = "selective"\nselective_ac_option = "op"'
    assert job(TITAN.replace('mode = "full"', keys), model=None).job.checkpointing == "selective-op"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('flavor = "debugmodel"', 'flavor = "9B"', "flavor '9B' is not modelled"),
        ('name = "llama3"', 'name = "deepseek_v3"', "model 'deepseek_v3' is not modelled"),
        ('mode = "full"', 'selective_ac_option = "3"', "selective_ac_option '3' is not modelled"),
        ("tensor_parallel_degree = 2", "tensor_parallel_degree = 0", "tensor_parallel_degree is 0"),
    ],
)
def test_what_of_torchtitan_is_not_modelled_is_named(job, old, new, words):
    with pytest.raises((NotModelledError, VramBudgetError), match=words):
        job(TITAN.replace(old, new), model=None)


def test_trainers_bf16_is_deepspeeds_own_where_it_has_an_engine(tmp_path):
    zero = {"stage": 2, "reduce_bucket_size": "auto", "offload_optimizer": {"device": "cpu"}}
    file = tmp_path / "args.json"
    file.write_text(
        json.dumps(
            {
                "per_device_train_batch_size": 1,
                "bf16": True,
                "deepspeed": {"zero_optimization": zero},
            }
        )
    )
    job = resolve("gpt2", config=file, gpu="2xa100-80gb").job
    assert (job.loop, job.precision, job.offload_optimizer) == ("trainer", "bf16", True)
    assert job.reduce_bucket_size == 768 * 768
