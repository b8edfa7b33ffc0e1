"""Plain torch models, as other libraries write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def tiny_gpt2(**overrides: Any) -> Any:
    """A small random GPT-2 of transformers, its weights scaled so that predictions vary."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config: dict[str, Any] = {
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 16,
        "vocab_size": 50,
        "n_positions": 32,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        **overrides,
    }
    model: Any = GPT2LMHeadModel(GPT2Config(**config))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6)
    return model.eval()


class Bottleneck(nn.Module):
    """A residual block as image classifiers have them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(x + self.bn2(self.conv2(y)))


class ImageClassifier(nn.Module):
    """A convolutional network with the layers and names of torchvision's ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.layer1 = nn.Sequential(Bottleneck(8), Bottleneck(8))
        self.layer2 = nn.Sequential(nn.Conv2d(8, 16, 1), Bottleneck(16))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.avgpool(self.layer2(self.layer1(self.conv1(x))))
        return self.fc(torch.flatten(y, 1))
