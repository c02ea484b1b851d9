"""Image models of timm and torchvision as programs, by the names that the libraries know them by.

    images [B, 3, H, W] float32, labels [B]        loss = cross_entropy(model(images), labels)

A name is timm's, or "torchvision-" and torchvision's. In channels last the weights lie so, and the
images are made so before the model is called, as timm's train.py does.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from vrambudget.config.versions import installed_version
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.recording.configurations import Recorded
from vrambudget.recording.modules import record_factory


class Classifier(torch.nn.Module):
    """A model and its loss, as a script has them."""

    def __init__(self, model: torch.nn.Module, *, channels_last: bool) -> None:
        super().__init__()
        self.model, self.channels_last = model, channels_last

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss and what it is made of."""
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        logits = self.model(images)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def record_classifier(name: str, pixels: int, *, channels_last: bool) -> Recorded:
    """Return the program of a model by name. Raises VramBudgetError where it has none.

    Where its code takes no other image (a ViT's positions), height and width are as recorded.
    """
    made, batch = factory(name, channels_last=channels_last), {"batch": 2}
    image, when = {"height": pixels, "width": pixels}, {}
    try:
        found = record_factory(made, batch | image, name=name)
    except VramBudgetError:
        found = record_factory(partial(made, **image), batch, name=name)
        when["image_size"] = [None, pixels]
    library = "timm" if _is_timms(name) else "torchvision"
    found.program.source[library] = installed_version(library)
    found.program.when = {
        "inputs": ["own"],
        "attention": ["sdpa"],
        "channels_last": [channels_last],
        **when,
    }
    return found


def factory(name: str, *, channels_last: bool) -> Callable[..., Any]:
    """Return a factory of a model by name, for recording.modules. Raises NotModelledError."""
    make = maker(name)

    def made(batch: int, height: int, width: int) -> Any:
        with torch.device("meta"):
            model = make()
        if channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        inputs = {
            "images": torch.empty((batch, 3, height, width), device="meta"),
            "labels": torch.empty((batch,), dtype=torch.long, device="meta"),
        }
        return Classifier(model, channels_last=channels_last), inputs, lambda out, _: out["loss"]

    return made


def maker(name: str) -> Callable[[], torch.nn.Module]:
    """Return what makes a model that timm or torchvision knows by this name."""
    import timm  # noqa: PLC0415 - an extra

    library, _, own = name.rpartition("-")
    if not library and _is_timms(name):
        return lambda: timm.create_model(name, pretrained=False)
    import torchvision.models  # noqa: PLC0415 - an extra

    if library == "torchvision" and own in torchvision.models.list_models():
        return lambda: torchvision.models.get_model(own, weights=None)
    raise NotModelledError(f"neither timm nor torchvision has a model {name!r}")


def _is_timms(name: str) -> bool:
    import timm  # noqa: PLC0415 - an extra

    return bool(timm.is_model(name))
