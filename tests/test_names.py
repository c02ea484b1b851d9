"""Parameters have transformers' names, in its order: what `--freeze` and a live model go by."""

import pytest
from test_laws import KINDS, TINY

from vrambudget.auto_classes import class_for
from vrambudget.engine.context import Platform, recording
from vrambudget.scenario import resolve

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ELSEWHERE = {"nanogpt", "titan"}  # code that is not transformers'


@pytest.mark.parametrize(("name", "task"), [kind for kind in KINDS if kind[0] not in ELSEWHERE])
def test_parameters_are_named_and_ordered_as_in_transformers(name, task):
    values = {"model_type": name, **TINY[name], "pad_token_id": 0}
    config = resolve(values, task=task, batch=1).config
    with recording(Platform()):
        model = config.build(task)
        ours = [(name, tuple(p.shape)) for name, p in model.named_parameters().items()]
        del model
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(**values)
        theirs = class_for(transformers, task, config).from_config(config)

    assert ours == [(name, tuple(p.shape)) for name, p in theirs.named_parameters()]
