"""Train a character-level transformer on this directory's own source text, and let it write a line."""

import argparse
import contextlib
import math
from pathlib import Path

import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

BLOCK, WIDTH, HEADS, LAYERS = 32, 64, 4, 2


class Text(Dataset):
    def __init__(self, codes: torch.Tensor, samples: int) -> None:
        self.codes = codes
        self.starts = torch.randint(len(codes) - BLOCK - 1, (samples,), generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = int(self.starts[index])
        return self.codes[at : at + BLOCK], self.codes[at + 1 : at + BLOCK + 1]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(characters, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        x = self.token(codes) + self.position(torch.arange(codes.shape[1], device=codes.device))
        return self.head(self.norm(self.blocks(x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cpu, cuda, cuda:0, ...")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint", help="saved here at the end, and gone on from if it exists")
    args = parser.parse_args()

    device = args.device
    device_type = "cuda" if "cuda" in device else "cpu"
    torch.manual_seed(1337)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    dtype = getattr(torch, args.dtype)
    context = contextlib.nullcontext() if device_type == "cpu" else torch.amp.autocast(device_type, dtype)

    text = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py")))
    characters = sorted(set(text))
    codes = torch.tensor([characters.index(c) for c in text])
    model = Transformer(len(characters)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), fused=device_type == "cuda")
    scaler = torch.cuda.amp.GradScaler(enabled=args.dtype == "float16" and device_type == "cuda")
    if args.checkpoint and Path(args.checkpoint).exists():
        state = torch.load(args.checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    trained = torch.compile(model) if args.compile else model

    loader = DataLoader(
        Text(codes, args.steps * 32), batch_size=32, num_workers=args.workers, pin_memory=device_type == "cuda"
    )
    for step, (x, y) in enumerate(loader):
        if device_type == "cuda":
            x, y = x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
        rate = 3e-3 * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        with context:
            logits = trained(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.reshape(-1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    if device_type == "cuda":
        torch.cuda.synchronize()
    print(f"final loss {loss.item():.4f}")
    if args.checkpoint:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.checkpoint)

    model.eval()
    with torch.no_grad(), context:
        written = codes[:8].unsqueeze(0).to(device)
        for _ in range(16):
            chosen = model(written[:, -BLOCK:])[:, -1].argmax(-1, keepdim=True)
            written = torch.cat((written, chosen), dim=1)
    print("wrote", repr("".join(characters[i] for i in written[0].tolist())))


if __name__ == "__main__":
    main()
