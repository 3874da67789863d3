"""Train a small network on points of two spirals."""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Spirals(Dataset):
    def __init__(self, points: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.label = torch.arange(points) % 2
        radius = torch.rand(points, generator=generator) * 3 + 0.3
        angle = radius * 1.5 + self.label * torch.pi
        noise = torch.randn(points, 2, generator=generator) * 0.08
        self.xy = torch.stack((radius * angle.cos(), radius * angle.sin()), 1) + noise

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.xy[index], self.label[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start", choices=["fork", "spawn"], default="fork", help="how workers are started")
    parser.add_argument("--amp", action="store_true", help="mixed precision")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--save", help="write a checkpoint here after each epoch")
    parser.add_argument("--resume", help="go on from this checkpoint")
    args = parser.parse_args()

    device = torch.device(args.device)
    random.seed(0)
    torch.manual_seed(0)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(0)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = False
        print("device:", torch.cuda.get_device_name(device))

    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp)
    first = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
        first = checkpoint["epoch"] + 1
    run = torch.compile(model) if args.compile else model

    loader = DataLoader(
        Spirals(2048, seed=1),
        batch_size=128,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        pin_memory=device.type == "cuda",
        multiprocessing_context=args.start if args.workers else None,
    )
    for epoch in range(first, args.epochs):
        total = 0.0
        for xy, label in loader:
            xy = xy.to(device, non_blocking=True)
            label = label.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device_type=device.type, dtype=torch.float16, enabled=args.amp):
                loss = nn.functional.cross_entropy(run(xy), label)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")
        if args.save:
            state = {
                "epoch": epoch,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
            }
            torch.save(state, args.save)

    model.eval()
    held_out = Spirals(1024, seed=2)
    with torch.no_grad():
        right = (model(held_out.xy.to(device)).argmax(1).cpu() == held_out.label).float().mean().item()
    print(f"accuracy {right:.4f}")


if __name__ == "__main__":
    main()
