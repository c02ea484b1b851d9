"""ResNet-50 (He et al., 2016; the 3 x 3 convolution has the stride), as torchvision computes it.

Bottlenecks of three convolutions, each with batch norm, ReLU in place, and a shortcut that is
projected where the shape changes: 25,557,032 parameters.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride
EXPANSION = 4


def convolved(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> list[nn.Module]:
    """Return a convolution and its norm."""
    padding = kernel // 2
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    """Adds what three convolutions make of an image to it."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.body = nn.Sequential(
            *convolved(inputs, width),
            nn.ReLU(inplace=True),
            *convolved(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *convolved(width, outputs),
        )
        changes = stride > 1 or inputs != outputs
        self.shortcut = nn.Sequential(*convolved(inputs, outputs, 1, stride)) if changes else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of 4 x width channels; the shortcut is computed last."""
        y = self.body(x)
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


def resnet50() -> nn.Sequential:
    """Return the classifier of 1,000 classes."""
    layers: list[nn.Module] = [
        *convolved(3, 64, 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    inputs = 64
    for width, blocks, stride in STAGES:
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = EXPANSION * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(inputs, 1000))


class Training:
    """A step of the classifier: AdamW, bfloat16 under autocast, gradients dropped first."""

    def __init__(self, batch: int, size: int) -> None:
        self.model = resnet50()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.images = torch.randn(batch, 3, size, size)
        self.classes = torch.randint(0, 1000, (batch,))

    def __call__(self) -> None:
        """Run it once."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = cross_entropy(self.model(self.images), self.classes)
        loss.backward()
        self.optimizer.step()
