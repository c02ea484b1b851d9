"""`vrambudget.trace(step)`: a step's own code, held against its rehearsal."""

import contextlib
import math
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from rehearsed import (
    assert_equal,
    assert_rehearsed,
    each,
    each_on_the_virtual_gpu,
    records_of,
)

import vrambudget
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.validate import PEAKS

torch = step_cases = eager_cases = vision_cases = None
with contextlib.suppress(ImportError):
    import eager_cases
    import step_cases
    import torch
    import vision_cases

pytestmark = pytest.mark.skipif(torch is None, reason="torch is not installed")
RECORDS, EAGER = records_of("steps.jsonl"), records_of("eager_steps.jsonl")
VISION = records_of("vision_steps.jsonl")
REAL = records_of("h200_steps.jsonl")
OFF_ON_THE_H200 = {
    "outside": "three steps, which its scaler skips: no states of the optimizer",
    "recurrent": "the workspace of cuDNN's recurrent layers is not known",
    "averaged": "the same",
    "clipped": "5,888 bytes are missing, for which no rule is known",
    "masters": "a segment of 2 MiB less",
}


def traced(name, cases="step_cases", gpu="a100-80gb", **options):
    step, given = sys.modules[cases].CASES[name](None)
    return vrambudget.trace(step, *given, gpu=gpu, torch="2.11", **options)


@each(RECORDS)
def test_a_followed_step_equals_its_rehearsal(record):
    assert_equal(traced(record["id"]).check().peak, record)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@each(EAGER)
def test_a_step_that_leans_on_autograd_equals_its_rehearsal(record):
    if record["id"] == "quantised":
        pytest.importorskip("bitsandbytes")
    assert_equal(traced(record["id"], "eager_cases").peak, record)


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@each(REAL)
def test_a_step_takes_on_a_real_h200_what_is_traced(record):
    found = traced(record["id"], record["cases"], "h200").peak
    equal = [getattr(found, f"{k}_bytes") == record["measured"][f"peak_{k}"] for k in PEAKS]
    assert all(equal) != (record["id"] in OFF_ON_THE_H200)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@each(VISION)
def test_a_step_on_pictures_among_words_equals_its_rehearsal(record):
    if record["id"] in vision_cases.ASK_CUDNN:
        pytest.importorskip("nvidia.cudnn")
    assert_equal(traced(record["id"], "vision_cases").check().peak, record)


@each_on_the_virtual_gpu(VISION)
def test_the_records_of_pictures_among_words_are_what_a_rehearsal_says(record, tmp_path):
    assert_rehearsed("vision_cases.py", record, tmp_path)


@each_on_the_virtual_gpu(EAGER)
def test_the_records_of_eager_steps_are_what_a_rehearsal_says(record, tmp_path):
    assert_rehearsed("eager_cases.py", record, tmp_path)


@each_on_the_virtual_gpu(RECORDS)
def test_the_records_of_steps_are_what_a_rehearsal_says(record, tmp_path):
    assert_rehearsed("step_cases.py", record, tmp_path)


def test_every_step_has_a_record():
    assert [record["id"] for record in RECORDS] == list(step_cases.CASES)
    assert [record["id"] for record in EAGER] == list(eager_cases.CASES)
    assert [record["id"] for record in VISION] == list(vision_cases.CASES)


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(lambda x: x.cuda(), id="cuda"),
        pytest.param(lambda x: x.cuda(torch.device("cuda:0")), id="cuda of a device"),
        pytest.param(lambda x: x.cuda(non_blocking=True), id="cuda without waiting"),
        pytest.param(lambda x: x.to("cuda:0", torch.int32), id="to by name, in a type"),
        pytest.param(lambda x: x.to(device="cuda"), id="to by keyword"),
    ],
)
def test_numbers_of_the_host_stay_known_where_a_step_moves_them(move):
    layer, numbers, read = torch.nn.Linear(2, 2), torch.tensor([3, 4]), []

    def step():
        layer(torch.zeros(1, 2).cuda())
        read.append(move(numbers).tolist())

    vrambudget.trace(step, gpu="a100-80gb", steps=1)
    assert read[-1] == [3, 4]


@pytest.mark.parametrize("rows", [1, 2])
def test_the_grid_of_one_picture_is_as_known_as_that_of_two(rows):
    layer, grids, counts = torch.nn.Linear(2, 2), torch.tensor([[3, 4]] * rows), []

    def step(batch):
        layer(torch.zeros(1, 2).cuda())
        grid = batch["grid"]
        counts.append(len(torch.repeat_interleave(grid[:, 1] * 2, grid[:, 0])))

    vrambudget.trace(step, {"grid": grids}, gpu="a100-80gb", steps=1)
    assert counts[-1] == 3 * rows


def test_what_a_thread_did_before_does_not_change_the_order_of_a_graph_of_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))

    def step(x):
        weights = dict(model.named_parameters())
        for _ in range(2):
            loss = torch.func.functional_call(model, weights, (x,)).square().mean()
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {k: p - g for (k, p), g in zip(weights.items(), gradients, strict=True)}
        torch.func.functional_call(model, weights, (x,)).square().mean().backward()

    def peak(nodes):
        x = torch.ones((), requires_grad=True)
        for _ in range(nodes):
            x.neg()
        return vrambudget.trace(step, torch.ones(32, 64), gpu="a100-80gb").peak

    with ThreadPoolExecutor(1) as thread:  # nodes are numbered by thread
        assert thread.submit(peak, 0).result() == thread.submit(peak, 1000).result()


def test_floats_that_a_step_is_given_are_known_as_far_as_they_are_few():
    layer, said = torch.nn.Linear(4, 4), []

    def step(boxes):
        layer(boxes)
        said.append(bool((boxes[:, 2:] <= boxes[:, :2]).any()))

    vrambudget.trace(step, torch.tensor([[20.0, 30, 100, 120]]), gpu="a100-80gb", steps=1)
    assert said == [False]


def test_cublas_takes_the_workspace_that_the_process_asks_for(monkeypatch):
    layer, x = torch.nn.Linear(64, 64, bias=False), torch.ones(8, 64)
    plain = vrambudget.trace(lambda: layer(x), gpu="a100-80gb", steps=1)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8:16:2")
    asked = vrambudget.trace(lambda: layer(x), gpu="a100-80gb", steps=1)
    assert (
        asked.peak.requested_bytes - plain.peak.requested_bytes == (32 - 8 - 0.125) * 2**20 + 2**15
    )
    assert any("CUBLAS_WORKSPACE_CONFIG" in warning for warning in asked.warnings)


def test_a_convolution_of_one_pixel_follows_the_order_that_its_strides_suggest():
    layer, said = torch.nn.Conv2d(8, 4, 1), []

    def step(x):
        pooled = torch.nn.functional.adaptive_avg_pool2d(x, 1)
        said.append((pooled.stride(), layer(pooled).stride()))

    x = torch.ones(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    vrambudget.trace(step, x, gpu="a100-80gb", steps=1)
    assert said == [((8, 1, 8, 8), (4, 1, 4, 4))]


def test_unfold_copies_what_lies_in_another_order_beside_its_result():
    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 32, 16, 16)

    def peak(x):
        def step(x):
            return layer(torch.zeros(1, 4).cuda()), torch.nn.functional.unfold(x, 3)

        return vrambudget.trace(step, x, gpu="a100-80gb", steps=1).peak.requested_bytes

    turned = x.contiguous(memory_format=torch.channels_last)
    assert peak(turned) - peak(x) == x.nbytes


def test_what_a_step_changes_is_put_back():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = model.weight.clone()

    def step(x):
        model(x).sum().backward()
        optimizer.step()
        schedule.step()
        model.eval()
        model.kept = x

    vrambudget.trace(step, torch.ones(2, 8))
    assert not optimizer.state
    assert schedule.last_epoch == 0
    assert optimizer.param_groups[0]["lr"] == 1e-3
    assert model.training
    assert not hasattr(model, "kept")
    assert model.weight.grad is None
    assert torch.equal(model.weight, before)
    assert type(model.weight) is torch.nn.Parameter


class Trainer:
    def __init__(self):
        self.model, self.mean = torch.nn.Linear(8, 8), torch.zeros(8)

    def step(self, x):
        self.mean = 0.9 * self.mean + 0.1 * self.model(x).mean(0).detach()


def test_tensors_that_a_step_puts_others_in_the_place_of_are_put_back():
    trainer, state, center, log = Trainer(), {"seen": torch.zeros(8)}, torch.zeros(8), []
    before = trainer.mean, state["seen"], center

    def step(x):
        nonlocal center
        trainer.step(x)
        state["seen"] = state["seen"] + trainer.mean
        center = center + state["seen"]
        log.append(center)

    budget = vrambudget.trace(step, torch.ones(2, 8), gpu="a100-80gb", steps=2)
    assert all(x is y for x, y in zip((trainer.mean, state["seen"], center), before, strict=True))
    assert budget == vrambudget.trace(step, torch.ones(2, 8), gpu="a100-80gb", steps=2)


def test_a_report_says_what_was_followed():
    budget = traced("checkpoints", steps=2)
    text = " ".join(str(budget).split())
    assert "2 steps of its own code, bf16, AdamW, torch 2.11" in text
    assert "the step's own code was traced" in text
    assert len(budget.steps) == 2
    assert budget.breakdown["optimizer states"] == 2 * 2 * budget.parameters.total + 4 * len(
        list(step_cases.language_model(None, layers=3).parameters())
    )
    assert vrambudget.Budget.from_json(budget.to_json()) == budget


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_report_of_a_step_says_what_is_not_known_of_its_convolutions(dtype):
    layer = torch.nn.Conv2d(3, 5, 3)

    def step(x):
        layer(x).sum().backward()

    images = torch.randn(7, 3, 20, 20, dtype=getattr(torch, dtype))
    layer.to(images.dtype)
    told = " ".join(vrambudget.trace(step, images, gpu="a100-80gb").warnings)
    assert "cuDNN" in told


def test_a_process_that_trained_before_has_workspaces_before_the_step():
    layer = torch.nn.Linear(64, 64)

    def step(x):
        layer(x).sum().backward()

    x = torch.randn(8, 64)
    fresh, warm = (
        vrambudget.trace(step, x, gpu="t4", torch="2.11", warm_process=warm).breakdown
        for warm in (False, True)
    )
    assert warm["workspaces"] >= fresh["workspaces"] >= 8_519_680


def test_an_operation_that_cannot_be_followed_is_named_with_its_line_and_the_way_out():
    model = torch.nn.Linear(4, 4)

    def step(x):
        return torch.unique(model(x)).sum()

    with pytest.raises(NotModelledError, match="depends on values") as caught:
        vrambudget.trace(step, torch.zeros(2, 4), gpu="12GB")
    assert "test_trace_step.py, line" in caught.value.where
    assert "vrambudget rehearse --gpu 12GB" in caught.value.hint


REFUSED = {
    "a loss that decides a size": (lambda loss: range(loss.item()), "as an integer"),
    "an end of the script": (lambda _loss: sys.exit(), "ended the script"),
    "a slip of one's own": (lambda loss: loss.no_such_thing, "no_such_thing"),
}


@pytest.mark.parametrize(("does", "words"), REFUSED.values(), ids=REFUSED)
def test_what_a_step_may_not_do_is_an_error_that_names_it(does, words):
    model = torch.nn.Linear(4, 4)

    def step(x):
        does(model(x).mean())

    with pytest.raises(NotModelledError, match=words) as caught:
        vrambudget.trace(step, torch.zeros(2, 4))
    assert "test_trace_step.py, line" in caught.value.where


def test_numbers_that_nobody_knows_are_printed_as_such_and_added_up():
    model, told = torch.nn.Linear(4, 4), []

    def step(x):
        total = 0.0
        for _ in range(2):
            total += model(x).mean().item()
        told.append(f"{total / 2:.3f}")

    vrambudget.trace(step, torch.zeros(2, 4), steps=1)
    assert told == ["unknown"]


def stops(_reason):
    raise AssertionError


LEAVES_THE_WAY = {
    "isfinite": lambda loss: not torch.isfinite(loss),
    "isnan().any()": lambda loss: torch.isnan(loss).any(),
    "math.isnan": lambda loss: math.isnan(loss.item()),
    "float": lambda loss: float(loss) > 100,
    "a loss to stop at": lambda loss: loss < 0.01,
    "an accuracy to stop at": lambda loss: (loss > 3).float().mean() > 0.9,
    "a worse loss than the best": lambda loss: loss.item() > BEST[0],
    "numpy": lambda loss: loss.detach().cpu().numpy() > 100,
}
BEST = [math.inf]


@pytest.mark.parametrize("leaves", LEAVES_THE_WAY.values(), ids=LEAVES_THE_WAY)
def test_a_branch_on_a_number_that_nobody_knows_takes_the_ordinary_way_and_is_named(leaves):
    model = torch.nn.Linear(4, 4)

    def step(x):
        loss = model(x).mean()
        if leaves(loss):
            stops(loss)
        loss.backward(retain_graph=True)
        return [f"{loss:.3f}", (loss > 3).tolist(), loss.item()]

    notes = " ".join(vrambudget.trace(step, torch.zeros(2, 4), steps=1).warnings)
    assert ("test_trace_step.py, line" in notes) == (leaves is not LEAVES_THE_WAY["math.isnan"])


def test_tensors_of_the_host_that_meet_the_cards_are_there_too():
    model, data = torch.nn.Linear(4, 4), torch.zeros(64, 4)

    def step():
        model(data[:32]).sum().backward()
        model.zero_grad()

    budget = vrambudget.trace(step)
    assert budget.peak.allocated_bytes >= 32 * 4 * 4


def test_a_step_may_draw_from_generators_of_the_gpu_and_of_the_host():
    layer, drawn = torch.nn.Linear(4, 4), []

    def step(x):
        own = torch.Generator(device="cuda").manual_seed(3)
        noise = torch.randn(x.shape, generator=own, device="cuda")
        host = torch.Generator().manual_seed(1)
        drawn.append(torch.randint(0, 9, (3,), generator=host).tolist())
        return layer(x + noise)

    vrambudget.trace(step, torch.ones(8, 4), gpu="a100-80gb", steps=2)
    assert drawn[0] == drawn[1]


def test_a_step_may_train_parameters_of_no_module():
    weight = torch.nn.Parameter(torch.ones(256, 256))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(x):
        (x @ weight).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    budget = vrambudget.trace(step, torch.ones(8, 256), gpu="a100-80gb")
    assert (budget.parameters.total, budget.model) == (256 * 256, "parameters of no module")


def test_a_step_without_a_module_is_told_to_bring_one():
    with pytest.raises(NotModelledError, match="uses no module") as caught:
        vrambudget.trace(lambda: None)
    assert "vrambudget.trace(step, model, optimizer, batch)" in caught.value.hint


@pytest.mark.parametrize("step", [None, "train", 3])
def test_a_step_that_is_no_function_is_named(step):
    with pytest.raises(VramBudgetError, match="it should be a function"):
        vrambudget.trace(step)


@pytest.mark.parametrize("steps", [0, 101, 2.0, "3"])
def test_a_number_of_steps_that_is_none_is_named(steps):
    with pytest.raises(VramBudgetError, match="steps is"):
        vrambudget.trace(lambda: None, steps=steps)


@pytest.mark.skipif(torch is not None and torch.cuda.is_available(), reason="a GPU is here")
def test_autocast_that_torch_switched_off_for_want_of_a_gpu_is_on():
    with pytest.warns(UserWarning, match="CUDA is not available"):
        region = torch.autocast("cuda", dtype=torch.bfloat16)
    model = torch.nn.Linear(4, 4)

    def step(x):
        with region:
            model(x).sum().backward()

    assert vrambudget.trace(step, torch.zeros(2, 4)).job["precision"] == "amp-bf16"
    assert not region._enabled  # noqa: SLF001 - as it was


def test_the_module_is_a_function_of_the_package():
    assert "trace" in dir(vrambudget)
    assert callable(sys.modules["vrambudget"].trace)
    assert vrambudget.follow is vrambudget.trace  # its name until 0.3


def test_a_parameter_of_no_module_is_on_the_card_too():
    layer, temperature = torch.nn.Linear(8, 8), torch.nn.Parameter(torch.tensor(2.6))
    optimizer = torch.optim.SGD([*layer.parameters(), temperature], lr=0.1)

    def step(x):
        (layer(x) * temperature.exp()).sum().backward()
        optimizer.step()

    budget = vrambudget.trace(step, torch.ones(2, 8), gpu="a100-80gb", torch="2.11")
    assert budget.breakdown["gradients"] == 4 * (8 * 8 + 8 + 1)


def test_a_view_of_what_a_step_reaches_is_on_the_gpu_once():
    model, images = torch.nn.Linear(64, 8), torch.ones(32, 4, 64)

    def step(x=images):
        model(x.reshape(-1, 64)).sum().backward()

    reached, given = (vrambudget.trace(step, *given).peak for given in ((), (images,)))
    assert reached.requested_bytes == given.requested_bytes


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_a_scripted_module_is_refused_by_name():
    model = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))
    with pytest.raises(NotModelledError, match="TorchScript"):
        vrambudget.trace(lambda x: model(x).sum().backward(), torch.ones(2, 8))
