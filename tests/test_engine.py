"""The engine by itself: when storages are born and die, on graphs that one can follow by hand."""

from typing import Any

import pytest

from vrambudget.dtypes import bfloat16, float16, float32, int64, promote
from vrambudget.engine.autocast import autocast, lower_precision, to
from vrambudget.engine.autograd import keep, record, run_backward
from vrambudget.engine.checkpoint import checkpoint
from vrambudget.engine.context import Platform, context, no_grad, recording
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, ShapeError, Tensor, empty, empty_like
from vrambudget.models.parts.layers import Dropout
from vrambudget.ops.elementwise import add, gelu, mul, tanh
from vrambudget.ops.linear import linear
from vrambudget.ops.shape import contiguous, expand, reshape, split, transpose, unsqueeze, view
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.repeats import TapePlace, place_of, repeats

KIB = 1024


def allocated(tape: Tape) -> list[int]:
    return [tape.sizes[event] for event in tape.events if event >= 0]


def alive(tape: Tape) -> int:
    return sum(tape.sizes[e] if e >= 0 else -tape.sizes[~e] for e in tape.events)


def weight(*shape: int, dtype: Any = float32) -> Parameter:
    return Parameter(shape, dtype)


def test_a_storage_dies_with_its_last_reference() -> None:
    with recording(Platform()) as tape:
        x = empty((256,), float32)
        y = view(x, 16, 16)
        del x
        assert alive(tape) == KIB
        del y
        assert alive(tape) == 0


def test_what_dies_after_the_recording_is_no_event_of_it() -> None:
    with recording(Platform()) as tape:
        x = empty((256,), float32)
        tape.close()
        del x
    assert tape.events == [0]


def test_an_output_that_nobody_saved_dies_when_it_is_dropped() -> None:
    with recording(Platform()) as tape:
        a = weight(256)
        b = tanh(a)  # keeps its own output
        c = add(b, b)  # keeps nothing
        del b, c
        assert alive(tape) == KIB  # a; the graph died with c


def test_saved_tensors_die_as_their_node_has_run() -> None:
    with recording(Platform()) as tape:
        a = weight(256)
        b = gelu(a)
        loss = gelu(b)
        del b
        assert alive(tape) == 3 * KIB  # a, b (saved), loss
        run_backward(loss)
        assert alive(tape) == 3 * KIB  # a, loss, a.grad
        assert a.grad is not None
        assert a.grad.storage.purpose is Purpose.GRADIENTS


def test_a_second_gradient_is_added_in_place() -> None:
    with recording(Platform()) as tape:
        a = weight(256)
        run_backward(add(gelu(a), tanh(a)))
        # a, gelu, tanh, sum; the seed, tanh's gradient, gelu's gradient: no allocation for the sum
        assert allocated(tape) == [KIB] * 7


def test_a_gradient_that_is_a_view_is_not_added_to_in_place() -> None:
    with recording(Platform()) as tape:
        a = weight(16, 16)
        run_backward(add(gelu(a), transpose(gelu(transpose(a, 0, 1)), 0, 1)))
        # the gradient that comes through the transposes is first: a view, so the sum is new
        assert allocated(tape) == [KIB] * 8


def test_a_gradient_that_two_inputs_share_is_copied_by_a_leaf() -> None:
    with recording(Platform()) as tape:
        a, b = weight(256), weight(256)
        run_backward(add(a, b))
        assert a.grad is not None
        assert b.grad is not None
        assert a.grad.storage is not b.grad.storage
        assert allocated(tape)[4:] == [KIB, KIB]  # each copies the seed, which the caller holds


def test_gradients_accumulate_over_two_backward_passes() -> None:
    with recording(Platform()) as tape:
        a = weight(256)
        run_backward(gelu(a))
        first = a.grad
        before = alive(tape)
        run_backward(gelu(a))
        assert a.grad is first
        assert alive(tape) == before


def test_what_gets_no_gradient_still_lets_its_inputs_go_on() -> None:
    """A function of one's own may return None for an input that wants a gradient (engine.cpp)."""
    with recording(Platform()) as tape:
        a = weight(256)
        x = tanh(a)
        gates = gelu(x)  # keeps x
        output = empty((256,), float32)
        record("multiplier", output, inputs=[x, gates], backward=lambda g: (empty_like(g), None))
        del x, gates
        run_backward(output)
        assert a.grad is not None
        del output
        assert alive(tape) == 2 * KIB  # a and its gradient


def test_no_grad_records_nothing() -> None:
    with recording(Platform()):
        a = weight(256)
        with no_grad():
            b = gelu(a)
        assert b.node is None
        assert not b.requires_grad


def test_backward_needs_something_that_wants_a_gradient() -> None:
    with recording(Platform()):
        a = empty((1,), float32)
        with pytest.raises(ValueError, match="does not depend on anything"):
            run_backward(gelu(a))


def test_a_graph_runs_backward_once() -> None:
    with recording(Platform()):
        loss = gelu(weight(256))
        run_backward(loss)
        with pytest.raises(ValueError, match="ran backward already"):
            run_backward(loss)


class TestAutocast:
    def test_a_weight_is_cast_once_and_kept_to_the_end_of_the_region(self) -> None:
        with recording(Platform()) as tape:
            w = weight(16, 16)
            with autocast(bfloat16):
                first, second = lower_precision(w), lower_precision(w)
                assert first is second
                del first, second
                assert alive(tape) == KIB + KIB // 2
            assert alive(tape) == KIB

    def test_a_frozen_weight_is_cast_at_every_use(self) -> None:
        with recording(Platform()) as tape:
            w = weight(16, 16)
            w.requires_grad = False
            with autocast(bfloat16):
                lower_precision(w)
                lower_precision(w)
            assert allocated(tape) == [KIB, KIB // 2, KIB // 2]

    def test_an_activation_is_cast_at_every_use(self) -> None:
        with recording(Platform()) as tape:
            x = gelu(weight(16, 16))
            with autocast(float16):
                lower_precision(x)
                lower_precision(x)
            assert allocated(tape)[2:] == [KIB // 2, KIB // 2]

    def test_integers_stay(self) -> None:
        with recording(Platform()), autocast(bfloat16):
            ids = empty((4,), int64)
            assert lower_precision(ids) is ids

    def test_a_weights_gradient_comes_back_in_float32(self) -> None:
        with recording(Platform()):
            w, x = weight(8, 16), empty((4, 16), float32)
            with autocast(bfloat16):
                y = linear(x, w)
            assert y.dtype is bfloat16
            run_backward(y)
            assert w.grad is not None
            assert w.grad.dtype is float32


class TestCheckpoint:
    def test_forward_keeps_the_inputs_alone(self) -> None:
        with recording(Platform()) as tape:
            a = weight(256)
            y = checkpoint(lambda x: gelu(gelu(gelu(x))), a)
            assert alive(tape) == 2 * KIB  # a and y
            run_backward(y)
            assert a.grad is not None
            assert alive(tape) == 3 * KIB

    def test_recomputation_stops_before_the_last_operation_runs(self) -> None:
        with recording(Platform()) as tape:
            a = weight(256)
            y = checkpoint(lambda x: gelu(gelu(x)), a)
            del y
            forward = len(allocated(tape))
            assert forward == 3
            y = checkpoint(lambda x: gelu(gelu(x)), a)
            run_backward(y)
            # the seed, then of forward's two gelu only the first, then two gradients
            assert allocated(tape)[forward + 2 :] == [KIB] * 4

    def test_the_recomputed_tensors_die_one_after_another(self) -> None:
        with recording(Platform()) as tape:
            a = weight(256)
            y = checkpoint(lambda x: gelu(gelu(gelu(gelu(x)))), a)
            run_backward(y)
            live, most = 0, 0
            for event in tape.events:
                live += tape.sizes[event] if event >= 0 else -tape.sizes[~event]
                most = max(most, live)
            # a, y, the seed, three recomputed, one gradient
            assert most == 7 * KIB

    def test_a_selective_one_makes_what_it_saves_in_forward_alone(self) -> None:
        def run(w: Tensor, x: Tensor) -> Tensor:
            return gelu(linear(gelu(linear(x, w)), w))

        made: dict[bool, tuple[int, int]] = {}
        for saves in (False, True):
            with recording(Platform()) as tape:
                y = checkpoint(
                    run, weight(16, 16), weight(16, 16), policy=lambda s=saves: lambda _: s
                )
                held, forward = alive(tape), len(allocated(tape))
                run_backward(y)
            made[saves] = held, len(allocated(tape)) - forward
        # two products of 1 KiB are kept besides the weights and y, and not made again
        assert made[True] == (made[False][0] + 2 * KIB, made[False][1] - 2)

    def test_without_gradients_it_is_a_plain_call(self) -> None:
        with recording(Platform()), no_grad():
            assert checkpoint(gelu, weight(256)).node is None


class TestRepeats:
    @staticmethod
    def places(tape: Tape, sizes: list[int]) -> list[TapePlace]:
        """Hold a tensor of each size until the next is there; return where each begins."""
        held, places = None, []
        for size in sizes:
            places.append(place_of(tape))
            held = empty((size,), float32)
        places.append(place_of(tape))
        tape.close()
        del held
        return places

    def test_a_part_repeats_the_one_before_if_it_frees_what_that_left(self) -> None:
        with recording(Platform()) as tape:
            places = self.places(tape, [256, 256, 256])
            assert repeats(tape, *places[1:])
            assert not repeats(tape, *places[:3])  # the first frees nothing

    def test_a_part_of_other_sizes_is_another(self) -> None:
        with recording(Platform()) as tape:
            assert not repeats(tape, *self.places(tape, [256, 256, 512])[1:])

    def test_a_part_that_frees_what_is_older_is_another(self) -> None:
        with recording(Platform()) as tape:
            old, places = [empty((256,), float32) for _ in range(2)], []
            for _ in range(2):
                places.append(place_of(tape))
                held = empty((256,), float32)
                old.pop()
            assert not repeats(tape, *places, place_of(tape))
            del held

    def test_the_order_of_frees_does_not_matter(self) -> None:
        with recording(Platform()) as tape:
            places = []
            for order in ((0, 1), (1, 0)):
                places.append(place_of(tape))
                pair = [empty((256,), float32), empty((512,), float32)]
                for index in order:
                    pair[index] = None  # type: ignore[call-overload]
            assert repeats(tape, *places, place_of(tape))


class TestLayout:
    def test_a_transposed_tensor_is_dense_and_not_contiguous(self) -> None:
        with recording(Platform()):
            x = transpose(empty((2, 3, 4), float32), 1, 2)
            assert (x.shape, x.strides) == ((2, 4, 3), (12, 1, 4))
            assert x.is_dense
            assert not x.is_contiguous
            assert empty_like(x).strides == x.strides

    def test_a_dimension_of_size_one_never_breaks_contiguity(self) -> None:
        with recording(Platform()):
            x = transpose(empty((2, 1, 4), float32), 0, 1)
            assert x.is_contiguous
            assert contiguous(x) is x

    def test_parts_of_a_split_are_views_with_gaps(self) -> None:
        with recording(Platform()) as tape:
            parts = split(empty((2, 3, 12), float32), 4, dim=2)
            assert [p.shape for p in parts] == [(2, 3, 4)] * 3
            assert not any(p.is_dense for p in parts)
            assert len(allocated(tape)) == 1

    def test_reshape_copies_where_a_view_cannot_be(self) -> None:
        with recording(Platform()) as tape:
            x = transpose(empty((2, 3, 4), float32), 1, 2)
            reshape(x, 2, 12)
            assert len(allocated(tape)) == 2
            with pytest.raises(ShapeError):
                view(x, 2, 12)

    def test_repeated_heads_are_a_view_until_they_are_reshaped(self) -> None:
        with recording(Platform()) as tape:
            x = empty((2, 3, 5, 4), float32)
            repeated = expand(unsqueeze(x, 2), 2, 3, 7, 5, 4)
            assert len(allocated(tape)) == 1
            assert reshape(repeated, 2, 21, 5, 4).storage is not x.storage

    def test_a_view_has_as_many_elements(self) -> None:
        with recording(Platform()), pytest.raises(ShapeError, match="24 elements"):
            view(empty((2, 3, 4), float32), 5, 5)


def test_types_widen_as_pytorch_widens_them() -> None:
    assert promote(bfloat16, float32) is float32
    assert promote(bfloat16, float16) is float32
    assert promote(bfloat16, int64) is bfloat16
    assert promote(int64, int64) is int64


def test_to_is_free_where_the_type_is_right() -> None:
    with recording(Platform()) as tape:
        x = empty((4,), float32)
        assert to(x, float32) is x
        assert len(allocated(tape)) == 1


def test_a_product_keeps_only_what_is_needed() -> None:
    with recording(Platform()):
        a, b = weight(256), empty((256,), float32)
        y = mul(a, b)
        assert y.node is not None
        kept = [saved for saved in y.node.saved if saved is not None]
        assert kept == [b.storage]


class TwoDropouts(Module):
    def __init__(self) -> None:
        self.inner = [Dropout(0.5)]
        self.last = Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.inner:
            x = layer(x)
        dropped: Tensor = self.last(x)
        return dropped


def test_a_module_trains_until_it_is_told_to_evaluate_and_each_keeps_its_own_mode() -> None:
    model = TwoDropouts()

    def dropouts() -> int:
        with recording(Platform()) as tape:
            model(weight(256))
            return tape.operations.count("dropout") // 2  # a mask and an output each

    assert dropouts() == 2
    model.eval()
    assert dropouts() == 0
    model.last.train()
    assert dropouts() == 1
    model.train()
    assert dropouts() == 2


def test_an_operation_of_ones_own_is_ten_lines() -> None:
    def double(x: Tensor) -> Tensor:
        kept = keep(x)
        context.operation = "double"
        y = empty_like(x)
        return record("double", y, inputs=(x,), saved=(kept,), backward=empty_like)

    with recording(Platform()) as tape:
        a = weight(256)
        run_backward(double(a))
        assert tape.operations == ["parameter", "double", "ones_like", "double_backward"]
