"""Which values on the card are known, and what is assumed of the others.

What changes a whole process (dispatch keys) runs in one of its own.
"""

import pytest
from hooked import with_torch

# The meta device stands for the card: it has no values of its own either.
FOLLOW = """
import operator, sys, torch
from vrambudget_hook.value_tracer import ValueTracer
assumed = {"numbers": NUMBERS, "routing": ROUTING}
tracer = ValueTracer(torch, lambda *_: None, operator.attrgetter("is_meta"), **assumed)
tracer.start()
values = tracer.values

def known(tensor):
    value = values.of(tensor)
    return None if value is None else values.as_on_cpu(tensor, value.memory).tolist()

def is_true(tensor):
    return values.of(tensor).true

def sent(*numbers):
    return torch.tensor(numbers).to("meta")

def filled(*shape):
    return torch.empty(shape, device="meta").fill_(1)
"""


def run_traced(code, numbers=("zeros", 0), routing=None):
    pytest.importorskip("torch")
    return with_torch(f"NUMBERS, ROUTING = {numbers!r}, {routing!r}\n{FOLLOW}{code}")


VALUES = {
    "sent(1, 2, 3)": [1, 2, 3],
    "sent(1, 2, 3) + 1": [2, 3, 4],
    "2 - sent(1, 2)": [1, 0],
    "sent(5, 6) % 2": [1, 0],
    "sent(1, 0).bool().all()": False,
    "(sent(1, 5) > 2).sum()": 1,
    "sent(3, 1, 2).sort().values": [1, 2, 3],
    "sent(1, 2, 4).diff()": [1, 2],
    "sent(1, 2, 4).cumsum(0)[1:]": [3, 7],
    "torch.cat([sent(1), sent(2)])": [1, 2],
    "torch.where(sent(1, 0) == 1, 7, 8)": [7, 8],
    "sent(1, 2, 3, 4).view(2, 2).t()": [[1, 3], [2, 4]],
    "sent(1, 2, 3)[sent(2, 0)]": [3, 1],
    "sent(0, 1, 0).argmax()": 1,
    "sent(1, 0).to(torch.int32).data": [1, 0],
    "sent(1, 0, 0, 0).float().mean() * 4": 1.0,
    "torch.ones(2).to('meta')": [1.0, 1.0],  # batch indices, lengths, boxes
    "torch.nn.Parameter(torch.ones(2)).to('meta')": None,  # a weight is not traced
    "torch.ones(65_537).to('meta').sum()": None,
    "filled(1, 2)": [[1.0, 1.0]],  # may be a mask
    "(1 - filled(1, 2)).bool().any()": False,
    "torch.nn.Parameter(filled(1, 2))": [[1.0, 1.0]],
    "filled(2)": None,
    "torch.empty((), device='meta').zero_() + 1": 1.0,  # may count something
    "torch.empty(17, device='meta').zero_()": None,
    "filled(1, 65_537)": None,
    "torch.rand(3, device='meta').argmax()": None,
    "sent(1, 2).new_empty(2)": None,
}


@pytest.fixture(scope="module")
def values():
    """Return what all the expressions of VALUES are known to hold: one process is enough."""
    lines = (f"print({expression!r}, known({expression}), sep=': ')" for expression in VALUES)
    return dict(line.rsplit(": ", 1) for line in run_traced("\n".join(lines)).splitlines())


@pytest.mark.parametrize("expression", VALUES)
def test_integers_that_follow_from_the_host_have_their_values(expression, values):
    assert values[expression] == str(VALUES[expression])


def test_writes_are_followed_through_views_and_a_later_unknown_write_is_not_believed():
    out = run_traced("""
t = sent(1, 2, 3, 4)
t[2:] = sent(7, 8)
t[:2].add_(10)
t += 1
print(known(t), is_true(t))
t.data.copy_(torch.tensor([5, 5, 5, 5]))
print(known(t), is_true(t))
t[0] = torch.rand(3, device="meta").argmax()
print(is_true(t))
t.random_(0, 9)
print(known(t))
t.fill_(3)
print(known(t), is_true(t))
""")
    assert out.splitlines() == [
        "[12, 13, 8, 9] True",
        "[5, 5, 5, 5] True",
        "False",
        "None",
        "[3, 3, 3, 3] True",
    ]


def test_gradients_are_no_masks():
    out = run_traced("""
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + x
    @staticmethod
    def backward(ctx, gradient):
        print(known(filled(2, 2)))
        return gradient + gradient

x = torch.rand(2, 2, device="meta", requires_grad=True)
Twice.apply(x).sum().backward()
print(known(x.grad), known(filled(2, 2)))
""")
    assert out.splitlines() == ["None", "None [[1.0, 1.0], [1.0, 1.0]]"]


def test_a_gradient_that_was_looked_at_is_still_added_to_in_place():
    out = run_traced("""
x = torch.rand(3, 4, requires_grad=True)
h = x * 2
other = (h * h.detach()).sum()
part = h[torch.tensor([2, 0])]  # the later node: its gradient comes first
storages = []

def look(made, _):
    gradient, = made
    values.on_gpu = operator.attrgetter("is_cpu")  # the meta device adds nothing in place
    storages.append(values.storages.of(gradient))
    print(values.of(gradient), values.eligible(gradient), values.storages.is_whole(gradient))
    values.on_gpu = operator.attrgetter("is_meta")

part.grad_fn.register_hook(look)
h.register_hook(lambda both: storages.append(values.storages.of(both)))
(part.sum() + other).backward()
print(len(storages), len(set(storages)))
""")
    assert out == "None False True\n2 1\n"


def test_tensors_without_a_storage_are_left_alone():
    out = run_traced("""
sparse = torch.rand(3, 3).to_sparse()
print(values.storages.of(sparse), values.eligible(sparse), values.of(sparse))
""")
    assert out == "0 False None\n"


def test_what_is_mixed_with_unknown_integers_counts_them_as_zero_and_is_not_true():
    out = run_traced("""
unknown = torch.rand(3, 2, device="meta").argmax(0)
mixed = sent(4, 5) + unknown
print(known(mixed), is_true(mixed), known(unknown))
""")
    assert out == "[4, 5] False None\n"


def test_unknown_numbers_are_finite_and_valid_parameters_of_a_distribution():
    out = run_traced("""
unknown = torch.rand(3, device="meta")
print(known(torch.isfinite(unknown)), known(torch.isfinite(unknown).all()))
constraint = torch.distributions.constraints.positive
print(known(constraint.check(unknown)), known(constraint.check(sent(1, 0))))
check = torch.distributions.constraints.independent(constraint, 1).check
print(known(check(unknown[None])), is_true(check(unknown[None])))
""")
    assert out.splitlines() == [
        "[True, True, True] True",
        "[True, True, True] [True, False]",
        "[True] False",
    ]


DECIDED = """
x = torch.rand(3, 4, device="meta")
for made in (x > 0.5, x.argmax(-1), x.max(1).indices, torch.multinomial(x, 2), (4 * x).long()):
    print(known(made), values.of(made) is not None and is_true(made))
print(known(torch.isnan(x).any()), known(torch.isfinite(x).all()), known(x))
print(torch.manual_seed(3).initial_seed(), torch.rand(1).item())
"""


def test_what_unknown_numbers_decide_follows_from_what_they_are_taken_to_be():
    zeros, ones, random = (run_traced(DECIDED, (kind, 0)) for kind in ("zeros", "ones", "random"))
    assert zeros.splitlines()[:5] == ["None False"] * 5
    assert ones.splitlines()[:3] == [f"{[[True] * 4] * 3} False", *["[0, 0, 0] False"] * 2]
    assert ones.splitlines()[4] == f"{[[1] * 4] * 3} False"
    assert all("None" not in line for line in random.splitlines()[:5])
    assert "True" in random.splitlines()[0]
    assert random == run_traced(DECIDED, ("random", 0)) != run_traced(DECIDED, ("random", 1))
    for out in (zeros, ones, random):  # finite, as ever, and the script's own generator is its own
        assert out.splitlines()[5] == "False True None"
        assert out.splitlines()[6] == zeros.splitlines()[6]


def test_a_token_that_zeros_sample_is_not_the_first_which_may_end_a_generation():
    out = run_traced("""
logits = torch.rand(2, 300, device="meta")
for token in (logits.argmax(-1), torch.multinomial(logits, 1), logits[:, :9].argmax(-1)):
    print(known(token), known((token == sent(0)).any()))
""")
    assert out.splitlines() == ["[150, 150] False", "[[150], [150]] False", "None True"]


ROUTER = """
scores = torch.rand(5, 4, device="meta")
print(known(scores.topk(3, dim=-1).indices))  # of beams, for all we know

class TopKRouter(torch.nn.Module):
    def forward(self, scores):
        return scores.topk(3, dim=-1).indices

chosen = TopKRouter()(scores)
mask = (chosen[..., None] == sent(0, 1, 2, 3)).long()
print(known(mask.sum((0, 1))), is_true(chosen), tracer.assuming.router[1] > 0)
print(known(torch.histc(chosen.int(), bins=4, min=0, max=3)), known(mask[0].sum(0).max()))
"""


@pytest.mark.parametrize(
    ("routing", "counts", "true"),
    [
        (None, [4, 4, 4, 3], False),
        ("uniform", [4, 4, 4, 3], True),
        ("collapsed", [5, 5, 5, 0], True),
    ],
)
def test_a_router_spreads_tokens_over_experts_as_it_is_told(routing, counts, true):
    lines = run_traced(ROUTER, routing=routing)
    assert lines.splitlines() == ["None", f"{counts} {true} True", f"{counts} 1"]


@pytest.mark.parametrize(
    ("chosen", "counts"),
    [
        ("scores.argmax(-1)", [2, 1, 1, 1]),
        ("scores.max(dim=-1).indices", [2, 1, 1, 1]),
        ("scores.argmax(0)", [4, 0, 0, 0]),  # along the rows
        ("torch.rand(5, 300, device='meta').argmax(-1)", None),  # a token
    ],
)
def test_a_router_that_sends_a_row_to_the_highest_score_spreads_rows_too(chosen, counts):
    out = run_traced(f"""
class MoE(torch.nn.Module):
    def forward(self, scores):
        return {chosen}

chosen = MoE()(torch.rand(5, 4, device="meta"))
print(known((chosen[:, None] == sent(0, 1, 2, 3)).sum(0)))
print(known(chosen))
""")
    first, last = out.splitlines()
    assert (last == "[150, 150, 150, 150, 150]") if counts is None else first == str(counts)


def test_copies_to_unknown_memory_are_followed_where_that_is_asked_for():
    out = run_traced("""
there = torch.empty(2, dtype=torch.long, device="meta")
there.copy_(torch.tensor([1, 2]))
print(known(there))
with tracer.copying():
    there.copy_(torch.tensor([1, 2]))
print(known(there))
""")
    assert out == "None\n[1, 2]\n"


def test_values_go_with_their_tensors_and_hold_none():
    out = run_traced("""
import gc, weakref
t = sent(1, 2, 3)
gone = weakref.ref(t)
u = t * 2
print(len(values.known))
del t
print(gone(), len(values.known))
del u
print(len(values.known))
""")
    assert out == "2\nNone 1\n0\n"


def test_operators_of_higher_order_run_below_our_keys():
    """A checkpoint that torch.compile recomputes restores random numbers by one of them."""
    out = run_traced("""
from torch._prims.rng_prims import run_with_rng_state
state = torch.get_rng_state()
drawn = torch.rand(2)
again = run_with_rng_state(state, torch.ops.aten.rand.default, [2], device="cpu")
print(torch.equal(drawn, again))
""")
    assert out == "True\n"


def test_threads_inference_mode_devices_vmap_and_compiled_functions_go_on_as_before():
    out = run_traced("""
import threading
thread = threading.Thread(target=lambda: print(known(sent(1))))
thread.start()
thread.join()
with torch.inference_mode():
    t = sent(1, 2)
    t += 1
    print(known(t))
t = sent(1, 2)
with torch.device("meta"):
    print(known(t * 2))
print(torch.vmap(lambda x: x + sent(1)[0])(sent(1, 2)).shape)
compiled = torch.compile(lambda x, n: (x * 2).sum() + (n + 1).sum(), backend="aot_eager")
print(compiled(torch.ones(3), torch.arange(3)))
""")
    assert out == "[1]\n[2, 3]\n[2, 4]\ntorch.Size([2])\ntensor(12.)\n"


def test_what_never_enters_python_is_known_without_it():
    out = run_traced("""
from vrambudget_hook.operations import MADE_OF_OTHERS, VIEWS
def described(name):
    packet, _, overload = name.partition(".")
    return tracer.described(getattr(getattr(torch.ops.aten, packet), overload or "default"))
print([name for name in VIEWS if not described(name).is_view])
print([name for name in MADE_OF_OTHERS if not described(name).passes])
""")
    assert out.split("\n")[:2] == ["[]", "[]"]


@pytest.mark.parametrize("rows", [2, 4])
def test_gradients_are_not_followed_so_that_they_are_added_in_place(rows):
    out = run_traced(
        f"""
rows = {rows}
x = torch.ones(rows, 8, device="meta", requires_grad=True)
y = x * 2
y.register_hook(lambda g: print(known(g)))
dx, = torch.autograd.grad(y[1:] - y[:-1], x, filled(rows - 1, 8))
print(known(filled(rows - 1, 8)) is None, known(dx))
"""
    )
    assert out == "None\nFalse None\n"
