"""Train a small convolutional network on scikit-learn's handwritten digits."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.cuda.amp import GradScaler
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--amp", action="store_true", help="mixed precision")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--save", help="write a checkpoint here at the end")
    parser.add_argument("--resume", help="start from this checkpoint")
    args = parser.parse_args()

    use_cuda = args.device.startswith("cuda")
    torch.manual_seed(0)
    if use_cuda:
        torch.cuda.set_device(args.device)
        torch.cuda.manual_seed(0)
        torch.backends.cudnn.deterministic = True
        torch.cuda.reset_peak_memory_stats()

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(images))
    images, labels = images[order], labels[order]
    train, held_out = TensorDataset(images[:1500], labels[:1500]), (images[1500:], labels[1500:])
    loader = DataLoader(train, batch_size=100, num_workers=args.workers, pin_memory=use_cuda)

    model = Net()
    if use_cuda:
        model.cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scaler = GradScaler(enabled=args.amp and use_cuda)
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=args.device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    step = torch.compile(model) if args.compile else model

    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for image, label in loader:
            if use_cuda:
                image, label = image.cuda(non_blocking=True), label.cuda(non_blocking=True)
            optimizer.zero_grad()
            with torch.cuda.amp.autocast(enabled=args.amp and use_cuda):
                loss = F.cross_entropy(step(image), label)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")

    if use_cuda:
        torch.cuda.synchronize()
        print(f"peak memory: {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
    if args.save:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.save)

    model.eval()
    image, label = held_out
    with torch.no_grad():
        predicted = model(image.to(next(model.parameters()).device)).argmax(1).cpu()
    print(f"accuracy {(predicted == label).float().mean().item():.4f}")


if __name__ == "__main__":
    main()
