"""Record YOLO of ultralytics: `PYTHONPATH=. python tests/yolo_programs.py yolo11n yolo11x ...`.

Its own model and its own loss are written down; ultralytics, torch and torchvision are needed.

    images [B, 3, H, W] float32, and of N objects in each: classes, boxes, whose picture it is

The trainer keeps an average of the weights (ModelEMA) beside them, enumerate() keeps the batch
before, and cuBLAS is given :4096:8 for its workspace (deterministic=True). How many anchors lie in
an object decides the loss's indices and is nobody's value: assumed are a sixteenth of all of them
for each object, of which the loss takes ten.

Source: ultralytics/engine/trainer.py (BaseTrainer._setup_train, which has the model in channels
last, _do_train); utils/torch_utils.py (ModelEMA, init_seeds); utils/loss.py (v8DetectionLoss);
utils/tal.py (TaskAlignedAssigner.get_box_metrics); CPython Objects/enumobject.c (enum_next).
Not modelled: validation between epochs, multi_scale, other tasks than detection.
"""

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from vrambudget.config.versions import installed_version
from vrambudget.engine.tensor import numel
from vrambudget.program.catalog import RECORDED, SUFFIX
from vrambudget.program.writing import written
from vrambudget.recording.configurations import Recorded
from vrambudget.recording.modules import record_factory
from vrambudget.traced import rules
from vrambudget.traced.rules.fills import Places

_COVERS, _ANCHORS = 16, 10  # of the anchors, the share in an object; anchors that its loss takes
_OBJECTS = 16  # in a picture: a mosaic of four with COCO's seven in each has more


class Average(torch.nn.Module):
    """The weights' moving average: a copy of all floats and counters of the model's state."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        for name, x in model.state_dict().items():
            self.register_buffer(name.replace(".", "_"), torch.empty_like(x))


class Detector(torch.nn.Module):
    """A model with its loss and its average, as the trainer has them."""

    objects = 0

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.average = model, Average(model)

    def forward(
        self, images: torch.Tensor, before: torch.Tensor, **objects: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the loss of a batch; the one before is still held."""
        del before
        type(self).objects = int(objects["cls"].shape[1])
        rows = {name: x.flatten(0, 1) for name, x in objects.items()}
        loss, items = self.model({"img": images, **rows})
        return {"loss": loss.sum(), **items}


def record_detector(name: str, pixels: int) -> Recorded:
    """Return the program of a YOLO by its name. Raises VramBudgetError where it has none."""

    def unique(x: Any, **_: Any) -> Any:  # of the pictures that objects are in: how many in each
        return x, torch.tensor([Detector.objects])

    def count(shape: tuple[int, ...]) -> int:
        covered = len(shape) == 3  # [B, N, anchors], or what the loss takes of them
        return numel(shape) // _COVERS if covered else shape[0] * Detector.objects * _ANCHORS

    sizes = {"batch": 2, "height": pixels, "width": pixels, "objects": _OBJECTS}
    values = patch.dict(rules.RULES, {torch.Tensor.unique: unique})
    with values, patch.object(Places, "count", count):
        found = record_factory(factory(name), sizes, name=name, precision="amp-bf16")
    program = found.program
    program.source |= {
        "ultralytics": installed_version("ultralytics"),
        "cublas_bytes": 4096 * 8 * 2**10,
        "assumes": f"{_OBJECTS} objects in each picture, each over a sixteenth of it",
    }
    rounds = True, "ultralytics rounds imgsz up to its stride"
    program.guards += [[side, "%", "32", *rounds] for side in ("height", "width")]
    program.when = {"inputs": ["own"], "attention": ["sdpa"], "channels_last": [False]}
    return found


def factory(name: str) -> Callable[..., Any]:
    """Return a factory of a YOLO by name, for recording.modules."""
    from ultralytics.cfg import get_cfg  # noqa: PLC0415 - an extra
    from ultralytics.nn.tasks import DetectionModel  # noqa: PLC0415

    model = DetectionModel(f"{name}.yaml", verbose=False)
    model.args, strides = get_cfg(), model.stride.clone()
    model = model.to("meta", memory_format=torch.channels_last)  # as the trainer of a GPU has it
    model.stride = model.model[-1].stride = strides  # the host reads them back

    def made(batch: int, height: int, width: int, objects: int) -> Any:
        model.criterion = None
        inputs = {
            "images": torch.empty((batch, 3, height, width), device="meta"),
            "before": torch.empty((batch, 3, height, width), device="meta"),
            "cls": torch.empty((batch, objects, 1), device="meta"),
            "bboxes": torch.empty((batch, objects, 4), device="meta"),
            "batch_idx": torch.empty((batch, objects), device="meta"),
        }
        return Detector(model), inputs, lambda out, _: out["loss"]

    return made


if __name__ == "__main__":
    for word in sys.argv[1:]:
        (RECORDED / f"{word}{SUFFIX}").write_text(written(record_detector(word, 128).program))
