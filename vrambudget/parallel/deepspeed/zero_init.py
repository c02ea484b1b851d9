"""deepspeed.zero.Init: a model whose parameters are cut among the ranks while it is built.

    a module's parameters   on the GPU as float32, then as 16 bits; once the module is there, the
                            rank's part of each is kept, and the whole goes
    buffers                 on the GPU, floating-point ones of 16 bits, too
    initial values          every parameter is gathered once more, and cut again

transformers' from_pretrained and from_config build so where DeepSpeed's stage 3 was asked for
before (HfDeepSpeedConfig, TrainingArguments, accelerate's plugin).

Source: deepspeed/runtime/zero/partition_parameters.py (InsertPostInitMethodToModuleSubClasses,
zero_wrapper_for_fp_tensor_constructor, Init._post_init_method, GatheredParameters), 0.19.8;
transformers/modeling_utils.py (get_init_context, _init_weights), 5.17.
Not modelled: what a buffer's value is computed by; a head's own weight before it is tied.
"""

from vrambudget.dtypes import float32
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty
from vrambudget.parallel.deepspeed.config import ZeroConfig
from vrambudget.parallel.deepspeed.partition_parameters import ZeroParameter
from vrambudget.parallel.meta import allocated

Converted = dict[int, ZeroParameter]  # by the parameter's id


def zero_init(model: Module, config: ZeroConfig) -> Converted:
    """Build a meta model inside of zero.Init; return its parameters as they were converted."""
    converted: Converted = {}
    for module in model.modules():
        context.tape.module = module.path
        own = [x for x in module.__dict__.values() if isinstance(x, Tensor)]
        parameters = [x for x in own if isinstance(x, Parameter) and id(x) not in converted]
        for x in own:
            if x in parameters or not isinstance(x, Parameter):
                _make(x, config)
        for p in parameters:
            number, on_host = len(converted), config.offload_param
            converted[id(p)] = ZeroParameter(p, number, config.group, on_host=on_host)
    context.tape.module = 0
    for cut in converted.values():
        cut.all_gather()
        cut.partition()
    return converted


def _make(x: Tensor, config: ZeroConfig) -> None:
    if x.dtype.is_floating_point:
        context.operation = "parameter"
        whole = empty(x.shape, float32)
        x.dtype = config.dtype
        x.storage = allocated(x, "to_dtype")
        del whole
    else:
        x.storage = allocated(x, "buffer")
