"""A sweep's records are what `estimate` says of each point, however they are computed."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

import pytest
from test_laws import KINDS, tiny

import vrambudget
from vrambudget.cli import main
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.planning import processes
from vrambudget.planning.sweep_plan import make_plan
from vrambudget.planning.variants import variant
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay

np = pytest.importorskip("numpy")

from vrambudget.planning import sweep_points  # noqa: E402 - it imports NumPy
from vrambudget.planning.shared_tape import shared_tapes  # noqa: E402 - as does this

SMALL = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 1000}


def points(count, longest, seed):
    """Return batches and blocks, small and large."""
    rng = random.Random(seed)  # noqa: S311 - the same points every time
    batches = [rng.randint(1, rng.choice((4, 40, 400))) for _ in range(count)]
    blocks = [rng.randint(1, rng.choice((8, 64, longest))) for _ in range(count)]
    return np.array(batches), np.array([min(block, longest) for block in blocks])


SETTINGS = [
    {},
    {"precision": "amp-bf16", "attention": "eager", "dropout": 0.1},
    {"precision": "bf16", "checkpointing": "full", "clip": 1.0},
    {"precision": "amp-fp16", "mode": "eval"},
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda n: "-".join(KINDS[n]))
def test_a_shared_tape_is_at_every_point_the_tape_of_that_point(number):
    try:
        scenario = tiny(*KINDS[number], **SETTINGS[number % len(SETTINGS)])
    except NotModelledError:
        scenario = tiny(*KINDS[number])
    config = scenario.config
    longest = (
        16 if getattr(config, "image_shape", None) else min(config.learned_positions or 300, 300)
    )
    batches, blocks = points(30, longest, number)
    seen = []
    for shared in shared_tapes(scenario, batches, blocks):
        for (index, tape), peak in zip(shared.at_points(), shared.requested_peaks(), strict=True):
            alone = variant(scenario, batch=int(batches[index]), block=int(blocks[index]))
            expected = simulate(alone.config, alone.job, alone.platform).tape
            assert tape.sizes == expected.sizes
            assert (tape.events, tape.marks) == (expected.events, expected.marks)
            assert peak == replay(expected).peak.requested_bytes
            seen.append(index)
    assert sorted(seen) == list(range(30))


@pytest.mark.parametrize("model", ["gpt2", "nanogpt"])
def test_requested_bytes_of_real_models_are_those_of_their_replay(model):
    batches, blocks = points(12, 1024, seed=model)
    for batch, block in zip(batches.tolist(), blocks.tolist(), strict=True):
        (fast,) = vrambudget.sweep(model, batch=batch, block=block, by="requested", gpu="12GB")
        budget = vrambudget.estimate(model, batch=batch, block=block, gpu="12GB")
        assert fast["peak_requested_bytes"] == budget.peak.requested_bytes
    grid = {"batch": [1, 2, 5, 31], "block": [1, 7, 64, 1000, 1024], "gpu": "12GB"}
    fast = vrambudget.sweep(model, by="requested", **grid)
    exact = vrambudget.sweep(model, **grid)
    assert [r["peak_requested_bytes"] for r in fast] == [r["peak_requested_bytes"] for r in exact]


def test_records_are_what_estimate_says():
    cards = ["RTX 3060", "RTX 4090", "T4"]
    grid = {
        "precision": ["fp32", "amp-bf16"],
        "checkpointing": ["none", "full"],
        "batch": [1, 16, 300],
        "block": [8, 1024],
    }
    records = vrambudget.sweep("gpt2", gpu=cards, **grid)
    assert len(records) == 2 * 2 * 3 * 2 * 3
    assert len({tuple(record) for record in records}) == 1
    for record in random.Random(3).sample(records, 14):  # noqa: S311 - the same every time
        fields = {name: record[name] for name in grid}
        budget = vrambudget.estimate("gpt2", gpu=record["gpu"], **fields)
        peak = budget.peak
        assert record == record | {
            "peak_requested_bytes": peak.requested_bytes,
            "peak_allocated_bytes": peak.allocated_bytes,
            "peak_reserved_bytes": peak.reserved_bytes,
            "peak_step": peak.step,
            "peak_phase": peak.phase,
            "peak_operation": peak.operation,
            "capacity_bytes": budget.device.capacity_bytes,
            "headroom_bytes": budget.device.headroom_bytes,
            "fits": budget.fits,
        }


@pytest.mark.parametrize("by", ["replay", "requested"])
def test_an_executor_of_the_callers_spreads_the_work_and_changes_no_record(by):
    grid = {"gpu": ["T4", "V100"], "precision": ["fp32", "bf16"], "batch": [1, 2, 3], "by": by}
    context = multiprocessing.get_context("spawn")  # workers that share nothing with this process
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        submitted = []

        class Counting:
            def submit(self, function, piece):
                submitted.append(piece)
                return pool.submit(function, piece)

        assert vrambudget.sweep(SMALL, executor=Counting(), **grid) == vrambudget.sweep(
            SMALL, **grid
        )
    assert submitted


def test_a_cluster_of_dask_spreads_a_sweep():
    distributed = pytest.importorskip("distributed")
    with distributed.Client(processes=False, dashboard_address=None) as client:
        spread = vrambudget.sweep(SMALL, executor=client.get_executor(), batch=[1, 2], block=[4, 8])
    assert spread == vrambudget.sweep(SMALL, batch=[1, 2], block=[4, 8])


def test_records_come_in_the_order_of_nested_loops():
    records = vrambudget.sweep(
        SMALL, gpu=["T4", "V100"], precision=["fp32", "bf16"], batch=[2, 1], block=(8, 4)
    )
    order = [(r["precision"], r["batch"], r["block"], r["gpu"][:8]) for r in records[:6]]
    assert order == [
        ("fp32", 2, 8, "Tesla T4"),
        ("fp32", 2, 8, "Tesla V1"),
        ("fp32", 2, 4, "Tesla T4"),
        ("fp32", 2, 4, "Tesla V1"),
        ("fp32", 1, 8, "Tesla T4"),
        ("fp32", 1, 8, "Tesla V1"),
    ]
    assert records == json.loads(json.dumps(records))


def test_one_value_makes_one_record():
    (record,) = vrambudget.sweep(SMALL, batch=np.int64(2), block=8, lora_targets=("c_attn",))
    assert (record["batch"], record["lora_targets"]) == (2, "c_attn")
    assert (record["gpu"], record["fits"], record["headroom_bytes"]) == (None, None, None)


def test_requests_alone_rule_a_card_out_but_never_in():
    records = vrambudget.sweep("gpt2", batch=[1, 500], block=1024, gpu="12GB", by="requested")
    assert [record["fits"] for record in records] == [None, False]


def test_cards_with_the_same_kernels_share_the_work():
    cards = ["a100-40gb", "a100-80gb", "rtx-3060"]
    plan = make_plan(SMALL, cards, {"batch": [1, 2], "block": 8})
    assert [[gpu.key for gpu in setting.gpus] for setting in plan.settings] == [
        ["a100-40gb", "a100-80gb"],
        ["rtx-3060"],
    ]
    assert [place.gpu.key for place in plan.combinations[0]] == cards


def test_cards_of_other_sizes_share_nothing_where_segments_expand_over_their_memory():
    fields = {"batch": [1], "block": 8, "expandable_segments": True}
    plan = make_plan(SMALL, ["a100-40gb", "a100-80gb"], fields)
    assert [len(setting.gpus) for setting in plan.settings] == [1, 1]


def test_processes_change_nothing(monkeypatch):
    grid = {"batch": range(1, 41), "block": [8, 9, 300], "gpu": ["T4", "12GB"]}
    monkeypatch.setattr(sweep_points, "cpu_count", lambda: 2)
    monkeypatch.setattr(processes, "cpu_count", lambda: 2)
    result = vrambudget.sweep(SMALL, **grid)
    monkeypatch.setattr(processes, "cpu_count", lambda: 1)
    assert vrambudget.sweep(SMALL, **grid) == result


def test_a_mistake_in_a_process_reaches_the_caller_whole(monkeypatch):
    monkeypatch.setattr(sweep_points, "_REQUESTS_AT_LEAST", 1)
    for module in (sweep_points, processes):
        monkeypatch.setattr(module, "cpu_count", lambda: 2)
    with pytest.raises(VramBudgetError, match=r"beyond 2\*\*52") as error:
        vrambudget.sweep(SMALL, batch=[2**31 - 1, 2**31], block=[1023, 1024], by="requested")
    assert "smaller batches" in error.value.hint


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batchsize": [1]}, "a job has no 'batchsize'"),
        ({"batch": []}, "batch has no values"),
        ({"batch": [1], "batch_size": [2]}, "batch is given twice"),
        ({"batch": [1, 0]}, "batch is 0"),
        ({"batch": [1, 2.5]}, "batch is 2.5"),
        ({"block": [8, 2000]}, "positions for 1024"),
        ({"precision": ["fp32", "fp8"]}, "precision is 'fp8'"),
        ({"gpu": ["T4", "T5"]}, "'T5' is not a known GPU"),
        ({"by": "guess"}, "by is 'guess'"),
    ],
)
def test_a_value_that_makes_no_sense_is_named_before_anything_is_computed(fields, words):
    with pytest.raises(VramBudgetError, match=words):
        vrambudget.sweep(SMALL, **fields)


def test_progress_goes_to_stderr_if_that_is_a_terminal(monkeypatch):
    bars = []

    class Bar:
        def __init__(self, **settings):
            self.settings, self.done = settings, 0
            bars.append(self)

        def update(self, n):
            self.done += n

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda *_: None  # noqa: E731

    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=Bar))
    vrambudget.sweep(SMALL, batch=[1, 2], block=[8, 9])
    (bar,) = bars
    assert (bar.settings["total"], bar.done) == (4, 4)
    assert bar.settings["file"] is sys.stderr
    assert bar.settings["disable"] is None  # tqdm's word for: unless it is a terminal


@pytest.fixture
def run(capsys):
    def call(*words):
        code = main(["sweep", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_command_s_json_is_the_api_s_records(run):
    code, out, _ = run(
        "gpt2", "--batch", "1:4:x2", "--block", "64,128", "--precision", "fp32,amp-bf16",
        "--gpu", "RTX 3060", "T4", "--format", "json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out) == vrambudget.sweep(
        "gpt2",
        batch=[1, 2, 4],
        block=[64, 128],
        precision=["fp32", "amp-bf16"],
        gpu=["RTX 3060", "T4"],
    )


def test_a_table_shows_what_varies(run):
    _, out, _ = run("gpt2", "--batch", "1,2", "--block", "8", "--optimizer", "sgd,adamw")
    heading, _, *rows = out.splitlines()
    assert heading.split() == [
        "batch", "block", "optimizer", "requested", "allocated", "reserved", "fits",
    ]  # fmt: skip
    assert [row.split()[:3] for row in rows] == [
        ["1", "8", "sgd"],
        ["2", "8", "sgd"],
        ["1", "8", "adamw"],
        ["2", "8", "adamw"],
    ]


@pytest.mark.parametrize(
    ("text", "batches"),
    [
        ("3", [3]),
        ("3,1", [3, 1]),
        ("2:5", [2, 3, 4, 5]),
        ("8:24:8", [8, 16, 24]),
        ("8:23:8", [8, 16]),
        ("1:64:x4", [1, 4, 16, 64]),
        ("1:50:x4,7", [1, 4, 16, 7]),
    ],
)
def test_ranges(run, text, batches):
    _, out, _ = run(
        "gpt2", "--batch", text, "--block", "4", "--by", "requested", "--format", "json"
    )
    assert [record["batch"] for record in json.loads(out)] == batches


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "5:2"], "is not a rising range"),
        (["--batch", "1:8:x1"], "is not a rising range"),
        (["--batch", "0:8:x2"], "is not a rising range"),
        (["--batch", "1:9999999"], "more than 1,000,000 values"),
        (["--batch", "some"], "neither a value nor a range"),
        (["--clip", "1,x"], "'x' is not a valid float"),
        (["--mode", "train,play"], "mode is 'play'"),
        (["--batch", "1", "-o", "x.parquet"], "Parquet needs pyarrow"),
    ],
)
def test_mistakes_of_the_command_line_end_with_2(run, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, out, err = run("gpt2", "--block", "4", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_parquet_is_written_from_the_records(run, monkeypatch, tmp_path):
    table = SimpleNamespace(from_pylist=lambda records: records)
    parquet = SimpleNamespace(
        write_table=lambda records, to: to.write(json.dumps(records).encode())
    )
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(Table=table, parquet=parquet))
    path = tmp_path / "s.parquet"
    code, out, _ = run("gpt2", "--batch", "1,2", "--block", "4", "-o", str(path))
    assert (code, out) == (0, "")
    assert json.loads(path.read_bytes()) == vrambudget.sweep("gpt2", batch=[1, 2], block=4)


def _ends_itself(piece):
    if piece:
        os.kill(os.getpid(), signal.SIGKILL)
    return piece


@pytest.mark.skipif(not hasattr(os, "fork"), reason="pieces run side by side where fork is")
def test_a_worker_that_is_killed_is_said(monkeypatch):
    monkeypatch.setattr(processes, "cpu_count", lambda: 2)
    with pytest.raises(VramBudgetError, match="ended from outside"):
        list(processes.side_by_side(_ends_itself, [0, 1]))


def _sleeps(piece):
    time.sleep(60 * piece)
    return piece


@pytest.mark.skipif(not hasattr(os, "fork"), reason="pieces run side by side where fork is")
def test_an_interrupt_ends_the_workers_at_once(monkeypatch):
    monkeypatch.setattr(processes, "cpu_count", lambda: 2)
    started, before = time.monotonic(), set(multiprocessing.active_children())
    running = processes.side_by_side(_sleeps, [0, 1, 1, 1])
    assert next(running) == (0, 0)
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt)
    assert time.monotonic() - started < 30
    assert set(multiprocessing.active_children()) <= before


def test_generations_are_swept_one_by_one_and_say_what_an_estimate_says():
    lengths = {"prompt": [8, 16], "new": [4, 12], "batch": [1, 2]}
    rows = vrambudget.sweep("gpt2", mode="generate", gpu=["a100-80gb", "24GB"], **lengths)
    assert len(rows) == 16
    row = rows[-2]
    assert (row["prompt"], row["new"], row["batch"]) == (16, 12, 2)
    own = vrambudget.estimate("gpt2", mode="generate", prompt=16, new=12, batch=2, gpu="a100-80gb")
    assert row["peak_reserved_bytes"] == own.peak.reserved_bytes
    assert row["fits"] is True
    requested = vrambudget.sweep("gpt2", mode="generate", by="requested", **lengths)
    assert requested[-1]["peak_requested_bytes"] == own.peak.requested_bytes


def test_a_sweep_is_not_of_generations_and_trainings():
    with pytest.raises(VramBudgetError, match="of generations or of other jobs"):
        vrambudget.sweep("gpt2", mode=["generate", "train"], prompt=8, new=4)


def test_an_open_block_is_the_models_own():
    open_block, named = (
        vrambudget.sweep({"model_type": "gpt2", "n_layer": 1, "n_positions": 8}, batch=[1], **block)
        for block in ({"block": [None]}, {"block": [8]})
    )
    assert open_block == named


def test_a_sweep_prints_and_shows_what_the_command_prints(capsys):
    swept = vrambudget.sweep("gpt2", batch=[1, 2], block=64, gpu="12GB")
    main(["sweep", "gpt2", "--batch", "1,2", "--block", "64", "--gpu", "12GB"])
    assert capsys.readouterr().out == f"{swept}\n"
    assert swept._repr_html_().count("<tr>") == 3
    assert "<td>yes</td>" in swept._repr_html_()
