"""The parameters of one `fully_shard` call: gathered, computed with, reduced together.

    forward    gather on the copy-in stream; the flat output of the group before lives until this
               group's copy-out is over, and the last one until the root's forward ends
    backward   gather, unless it was prefetched; copy out, free the flat output at once; prefetch
               the group that ran before this one in forward. Once the gradient of the module's
               input is there: free the whole parameters, then reduce

Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (FSDPParamGroup, FSDPCommContext,
RegisterPostBackwardFunction).
Not modelled: explicit prefetching (set_modules_to_forward_prefetch), asynchronous unshard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from vrambudget.engine.autograd import record_many
from vrambudget.engine.context import context, made_for
from vrambudget.engine.tensor import Tensor
from vrambudget.engine.versions import torch_since
from vrambudget.parallel.fsdp2.collectives import (
    COPY_IN,
    all_gather_inputs,
    foreach_all_gather,
    foreach_all_gather_copy_out,
    foreach_reduce,
)
from vrambudget.parallel.fsdp2.parameter import ShardedParameter, ShardedState
from vrambudget.parallel.group import Group
from vrambudget.tape.events import Purpose, Storage


class TrainingState(Enum):
    """What a group, or a module's state, is doing."""

    IDLE = auto()
    FORWARD = auto()
    PRE_BACKWARD = auto()
    POST_BACKWARD = auto()


@dataclass(slots=True)
class CommContext:
    """What all groups of a model share (FSDPCommContext)."""

    all_gather_output: Storage | None = None  # of all_gather_state
    reduce_scatter_input: Tensor | None = None
    post_forward_order: list[ParamGroup] = field(default_factory=list)


class ParamGroup:
    """FSDPParamGroup."""

    def __init__(
        self,
        parameters: Sequence[ShardedParameter],
        group: Group,
        *,
        post_forward: Group | None,
        replicate: Group | None,
    ) -> None:
        self.parameters, self.group, self.replicate = parameters, group, replicate
        self.post_forward_group = post_forward  # None: not resharded after forward
        self.comm = CommContext()  # the root's, once all are wrapped
        self.training_state = TrainingState.IDLE
        self.sharded_state = ShardedState.SHARDED
        self.reduce_grads = True
        self.flat_output: Storage | None = None  # the flat output of _all_gather_result
        self._post_forward_indices: list[int] = []
        self.partial_output: Tensor | None = None
        self.all_reduce_input: Tensor | None = None

    @property
    def is_unsharded(self) -> bool:
        """Whether the parameters are whole."""
        return self.sharded_state is ShardedState.UNSHARDED

    @property
    def gather_group(self) -> Group:
        """The ranks that an all-gather is among."""
        if self.sharded_state is ShardedState.SHARDED_POST_FORWARD and self.post_forward_group:
            return self.post_forward_group
        return self.group

    def unshard(self) -> None:
        """Begin to gather, if that was not done."""
        if self.flat_output is not None or self.is_unsharded:
            return
        if self.gather_group.size == 1:
            return
        forward_or_back = self.training_state in {TrainingState.FORWARD, TrainingState.PRE_BACKWARD}
        stream = COPY_IN if forward_or_back else context.stream
        self.flat_output = foreach_all_gather(self.parameters, self.gather_group, stream)

    def wait_for_unshard(self) -> None:
        """Copy the gathered parameters out."""
        if self.gather_group.size == 1 and not self.is_unsharded:
            self._copy_alone()
            return
        if self.flat_output is None:
            return
        # Until 2.14 a variable of this function holds what is set to None here until it returns.
        previous = None
        if self.training_state is TrainingState.FORWARD:
            previous, self.comm.all_gather_output = self.comm.all_gather_output, None
        if torch_since(2, 15):
            previous = None
        foreach_all_gather_copy_out(self.parameters, self.gather_group)
        self._to_unsharded()
        if self.training_state is TrainingState.FORWARD:
            self.comm.all_gather_output = self.flat_output
        self.flat_output = None
        del previous

    def _copy_alone(self) -> None:
        """Copy each parameter by itself: a group of one rank has nothing to gather.

        What is cast, or comes from main memory, lives until the next one is; the last to the end.
        """
        for parameter in self.parameters:
            with made_for(Purpose.GATHERED):
                all_gather_input = all_gather_inputs([parameter])
            parameter.alloc_all_gather_outputs()
        self._to_unsharded()
        del all_gather_input  # held until here

    def reshard(self) -> None:
        """Give the whole parameters back, in forward if the group is set to."""
        if self.training_state is TrainingState.FORWARD:
            if self.post_forward_group is None:
                return
            if self.post_forward_group != self.group:
                self._to_sharded_post_forward()
                return
        self._to_sharded()

    def pre_forward(self) -> None:
        """Gather the parameters for the module's forward."""
        self.training_state = TrainingState.FORWARD
        self.unshard()
        self.wait_for_unshard()
        if torch_since(2, 15):  # in its pre_backward, when nothing of this has changed
            for parameter in self.parameters:
                parameter.set_grad_dtype(reduces=self.reduce_grads)

    def post_forward(self, *, in_backward: bool) -> None:
        """Reshard; a checkpoint that runs forward again in backward does not."""
        if not in_backward:
            self.reshard()
            self.note_post_forward()
        self.training_state = TrainingState.IDLE

    def pre_backward(self) -> None:
        """Gather again, and begin with the group that comes next in backward."""
        if self.training_state is TrainingState.PRE_BACKWARD:
            return
        self.training_state = TrainingState.PRE_BACKWARD
        self.unshard()
        self.wait_for_unshard()
        self._backward_prefetch()

    def note_post_forward(self) -> None:
        """Note when this group's forward was over: backward goes the other way."""
        self._post_forward_indices.append(len(self.comm.post_forward_order))
        self.comm.post_forward_order.append(self)

    def prefetched(self) -> ParamGroup | None:
        """Return the group that was before this one in forward, and comes next in backward."""
        if not self._post_forward_indices:
            return None
        index = self._post_forward_indices.pop() - 1
        return None if index < 0 else self.comm.post_forward_order[index]

    def _backward_prefetch(self) -> None:
        target = self.prefetched()
        if target is None:
            return
        before, target.training_state = target.training_state, TrainingState.PRE_BACKWARD
        target.unshard()
        target.training_state = before

    def post_backward(self) -> None:
        """Take the gradients, reshard, and reduce."""
        self.training_state = TrainingState.POST_BACKWARD
        before = () if torch_since(2, 15) else self.parameters
        for parameter in before:
            if parameter.accumulated_grad is not None:  # a new gradient is added to it
                parameter.unsharded.grad = None
        if not self.reduce_grads:
            self.reshard()
            for parameter in before:
                parameter.to_accumulated_grad_if_needed()
            return
        with_grad: list[ShardedParameter] = []
        grads: list[Tensor] = []
        for parameter in self.parameters:
            gradient = parameter.take_gradient()
            if gradient is not None:
                with_grad.append(parameter)
                grads.append(gradient)
            del gradient
        self.reshard()
        if not with_grad:
            return
        self.comm.reduce_scatter_input = None
        self.all_reduce_input = None
        reduced = foreach_reduce(
            with_grad,
            grads,
            self.group,
            with_grad[0].reduce_dtype,
            self.replicate,
            all_reduce_grads=self.reduce_grads,
            partial_output=self.partial_output,
        )
        self.comm.reduce_scatter_input = reduced.input
        self.all_reduce_input = reduced.all_reduce_input
        self.partial_output = reduced.partial_output

    def finalize_backward(self) -> None:
        """Let go what only backward needed."""
        self.all_reduce_input = None
        self.flat_output = None
        self._post_forward_indices.clear()

    def register_post_backward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs with a node whose backward is this group's post_backward."""
        outputs = [x.viewed(x.shape, x.strides) for x in inputs]

        def backward(*grads: Tensor | None) -> tuple[Tensor | None, ...]:
            self.post_backward()
            return grads

        record_many("RegisterPostBackward", outputs, inputs=inputs, backward=backward)
        return outputs

    def _to_unsharded(self) -> None:
        for parameter in self.parameters:
            parameter.init_unsharded_param()
        if not self.is_unsharded:
            for parameter in self.parameters:
                parameter.to_unsharded()
            self.sharded_state = ShardedState.UNSHARDED

    def _to_sharded(self) -> None:
        if self.sharded_state is not ShardedState.SHARDED:
            for parameter in self.parameters:
                parameter.to_sharded()
            self.sharded_state = ShardedState.SHARDED

    def resume(self, state: ShardedState) -> None:
        """Take on `state`; the parameters hold what they did then."""
        if state is not self.sharded_state:
            for parameter in self.parameters:
                parameter.resume(state)
            self.sharded_state = state

    def _to_sharded_post_forward(self) -> None:
        for parameter in self.parameters:
            parameter.to_sharded_post_forward()
        self.sharded_state = ShardedState.SHARDED_POST_FORWARD
