"""Train ResNet-50 on handwritten digits.

A plain PyTorch script: it needs torch and scikit-learn (and draws a progress bar if rich is there). The device is an
argument; nothing else depends on it.

    python examples/resnet50_digits.py --device cpu
    torchfl run --chip npu_v3 examples/resnet50_digits.py --device npu_v3:0

The data are scikit-learn's 1797 digits, 8x8 pixels each, so the network starts with a 3x3 convolution instead of a 7x7
one with pooling, which ResNet-50 has for photographs. Every fifth image is kept for the test.
"""

import argparse
import json
import random
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Bottleneck(nn.Module):
    """1x1 convolution to fewer channels, 3x3, 1x1 to four times as many, added to the input."""

    expansion = 4

    def __init__(self, inputs, width, stride=1):
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        return self.relu(x + shortcut)


class ResNet(nn.Module):
    """Residual network for small images: `images` are (N, channels, H, W), the result (N, classes)."""

    def __init__(self, blocks=(3, 4, 6, 3), channels=1, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        stages, inputs = [], 64
        for i, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True)):
            for j in range(count):
                stages.append(Bottleneck(inputs, width, stride=2 if i > 0 and j == 0 else 1))
                inputs = width * Bottleneck.expansion
        self.layers = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for module in self.modules():
            if isinstance(module, Bottleneck):  # each block begins as the identity, which makes short trainings stable
                nn.init.zeros_(module.bn3.weight)

    def forward(self, images):
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.pool(self.layers(x))
        return self.fc(torch.flatten(x, 1))


def digits(seed, limit=None):
    """(training set, test set) of (1, 8, 8) images in [0, 1] and their labels; `limit` takes fewer training images."""
    data = load_digits()
    images = torch.tensor(data.images / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(data.target, dtype=torch.int64)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=seed, stratify=data.target)
    train = train[:limit]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train_step(model, images, labels, optimizer, scheduler, scaler, amp_dtype):
    """One step of training; returns the loss, still on the device."""
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(images.device.type, dtype=amp_dtype, enabled=amp_dtype is not None):
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return loss.detach()


@torch.no_grad()
def evaluate(model, loader, device, amp_dtype):
    """Share of right answers."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    count = 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        with torch.autocast(device.type, dtype=amp_dtype, enabled=amp_dtype is not None):
            logits = model(images)
        right += (logits.argmax(1) == labels).sum()
        count += len(labels)
    return right.item() / count


@contextmanager
def progress(steps, epochs):
    """Yields report(step, epoch, loss, images_per_second): a bar on a terminal, lines elsewhere."""
    try:
        from rich import progress as bars
    except ImportError:
        bars = None
    if bars is None or not sys.stdout.isatty():

        def report(step, epoch, loss, rate):
            print(f"epoch {epoch}/{epochs}  step {step}/{steps}  loss {loss:.4f}  {rate:.0f} images/s", flush=True)

        yield report
        return
    columns = (
        bars.TextColumn("[bold]epoch {task.fields[epoch]}/" + str(epochs)),
        bars.BarColumn(bar_width=None),
        bars.MofNCompleteColumn(),
        bars.TextColumn("loss [cyan]{task.fields[loss]:.4f}[/]  {task.fields[rate]:.0f} images/s"),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns) as bar:
        task = bar.add_task("training", total=steps, epoch=1, loss=float("nan"), rate=0.0)
        yield lambda step, epoch, loss, rate: bar.update(task, completed=step, epoch=epoch, loss=loss, rate=rate)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description="Train ResNet-50 on scikit-learn's handwritten digits.")
    parser.add_argument("--device", default="cpu", help="where to train: cpu, npu_v3:0, ... (default: cpu)")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3, help="peak of the one-cycle learning rate (default: 0.002)")
    parser.add_argument("--noise", type=float, default=0.1, help="deviation of noise added to images (default: 0.1)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--amp",
        choices=("float16", "bfloat16", "off"),
        help="precision of autocast (default: float16; off on the CPU, whose half precision is slow)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="train on the first N images only")
    parser.add_argument(
        "--log-every", type=int, default=11, metavar="N", help="read the loss every N steps (default: 11)"
    )
    parser.add_argument("--history", type=Path, metavar="FILE", help="write losses and accuracy to this JSON file")
    return parser.parse_args(arguments)


def main(arguments=None):
    args = parse_arguments(arguments)
    device = torch.device(args.device)
    amp = args.amp or ("off" if device.type == "cpu" else "float16")
    amp_dtype = None if amp == "off" else getattr(torch, amp)

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    train_set, test_set = digits(args.seed, args.limit)
    # Whole batches only: batch normalisation has no statistics of a single image.
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_set, 180)
    steps = args.epochs * len(train_loader)
    if steps == 0:
        sys.exit(f"{len(train_set)} training images do not fill a batch of {args.batch_size}")

    model = ResNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=steps)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=amp == "float16")

    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"ResNet-50, {parameters / 1e6:.1f} M parameters, on {device}, autocast {amp}")
    print(
        f"{len(train_set)} images to train on, {len(test_set)} to test; {steps} steps of {args.batch_size}", flush=True
    )

    history = {"steps": [], "losses": []}
    step, started = 0, time.perf_counter()
    with progress(steps, args.epochs) as report:
        for epoch in range(1, args.epochs + 1):
            model.train()
            for images, labels in train_loader:
                images = images + args.noise * torch.randn_like(images)  # never the same image twice
                images, labels = images.to(device), labels.to(device)
                loss = train_step(model, images, labels, optimizer, scheduler, scaler, amp_dtype)
                step += 1
                if step % args.log_every == 0 or step in (1, steps):  # reading a number waits for the device: seldom
                    value = loss.item()
                    history["steps"].append(step)
                    history["losses"].append(value)
                    report(step, epoch, value, step * args.batch_size / (time.perf_counter() - started))
    seconds = time.perf_counter() - started

    accuracy = evaluate(model, test_loader, device, amp_dtype)
    rate = steps * args.batch_size / seconds
    print(f"test accuracy {accuracy:.2%} after {steps} steps in {seconds:.1f} s ({rate:.0f} images/s)", flush=True)

    if args.history:
        history |= {
            "device": str(device),
            "amp": amp,
            "epochs": args.epochs,
            "batch_size": args.batch_size,
            "seed": args.seed,
            "train_images": len(train_set),
            "test_images": len(test_set),
            "parameters": parameters,
            "train_seconds": seconds,
            "images_per_second": rate,
            "test_accuracy": accuracy,
        }
        args.history.parent.mkdir(parents=True, exist_ok=True)
        args.history.write_text(json.dumps(history, indent=2))


if __name__ == "__main__":
    main()
