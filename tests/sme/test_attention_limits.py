"""The attention unit is a firewall: beyond it a call raises one sentence, by whatever way it comes, and leaves nothing
broken; a descriptor that says `beyond: compose` has it run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import OwnProcess
from torch import Tensor, nn

import torchfl

refusing = OwnProcess("attention_npu_v2", timeout=300)
composing = OwnProcess("attention_npu_v3", timeout=200)

TWELVE = "MultiheadAttention with num_heads=12 not supported on NPU-V2 (supported: 1, 2, 4, 8)"
PRODUCT = "scaled_dot_product_attention with num_heads=12 not supported on NPU-V2 (supported: 1, 2, 4, 8)"
EMBEDDING = 48
_sdpa_of_an_early_import = F.scaled_dot_product_attention
_mha_of_an_early_import = F.multi_head_attention_forward


def _device(chip: str) -> str:
    torchfl.load(chip)
    return {"npu_v2": "npu:0", "npu_v3": "npu_v3:0"}[chip]


def _refused(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(NotImplementedError) as raised:
        call()
    assert type(raised.value) is NotImplementedError
    assert str(raised.value) == sentence


def _attention(heads: int, device: str, train: bool = True, embedding: int = EMBEDDING, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    return nn.MultiheadAttention(embedding, heads, **kwargs).train(train).to(device)


def _ways() -> Iterator[tuple[bool, bool, bool, bool, bool]]:
    """train, need_weights, batched, batch_first, gradients"""
    return itertools.product((True, False), repeat=5)


def _same_as_cpu(module: nn.Module, x: Tensor, **kwargs: Any) -> None:
    device = next(module.parameters()).device
    y = x.to(device)
    got = module(y, y, y, **kwargs) if isinstance(module, nn.MultiheadAttention) else module(y)
    host = module.cpu()
    want = host(x, x, x, **kwargs) if isinstance(module, nn.MultiheadAttention) else host(x)
    module.to(device)
    for g, w in zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]:
        assert (g is None) == (w is None)
        if g is not None:
            torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-5)


@refusing
def test_a_module_with_too_many_heads_is_refused_and_the_next_call_works() -> None:
    device = _device("npu_v2")
    for train, need_weights, batched, batch_first, gradients in _ways():
        x = torch.randn((2, 5, EMBEDDING) if batched else (5, EMBEDDING))
        with torch.set_grad_enabled(gradients):
            beyond = _attention(12, device, train, batch_first=batch_first)
            y = x.to(device)
            _refused(lambda m=beyond, a=y, w=need_weights: m(a, a, a, need_weights=w), TWELVE)
            within = _attention(8, device, train, batch_first=batch_first)
            _same_as_cpu(within, x, need_weights=need_weights)


@refusing
def test_the_function_itself_is_refused_however_it_was_imported() -> None:
    device = _device("npu_v2")
    x = torch.randn(5, 2, EMBEDDING, device=device)
    weights = [torch.randn(*s, device=device) for s in ((3 * EMBEDDING, EMBEDDING), (3 * EMBEDDING,))]
    out = [torch.randn(*s, device=device) for s in ((EMBEDDING, EMBEDDING), (EMBEDDING,))]

    def call(function: Any, heads: int, need_weights: bool) -> Any:
        return function(x, x, x, EMBEDDING, heads, *weights, None, None, False, 0.0, *out, need_weights=need_weights)

    for function in (F.multi_head_attention_forward, _mha_of_an_early_import):
        for need_weights in (True, False):
            _refused(lambda f=function, w=need_weights: call(f, 12, w), TWELVE)
            assert call(function, 8, need_weights)[0].shape == x.shape


@refusing
def test_an_encoder_layer_is_refused_in_training_and_in_evaluation() -> None:
    device = _device("npu_v2")
    for train in (True, False):
        for heads in (12, 8):
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(EMBEDDING, heads, 32, dropout=0.0, batch_first=True).train(train)
            layer.to(device)
            x = torch.randn(2, 5, EMBEDDING)
            with torch.set_grad_enabled(train):
                if heads == 12:
                    _refused(lambda m=layer, a=x.to(device): m(a), TWELVE)
                else:
                    _same_as_cpu(layer, x)


@refusing
def test_sequence_length_and_batch_size_have_their_own_sentences() -> None:
    device = _device("npu_v2")
    long = torch.zeros(1, 2049, 8, device=device)
    short = torch.zeros(1, 3, 8, device=device)
    many = torch.zeros(257, 2, 8, device=device)
    length = "{} with sequence length 2049 not supported on NPU-V2 (at most 2048)"
    batch = "{} with batch size 257 not supported on NPU-V2 (at most 256)"
    for train in (True, False):
        module = _attention(2, device, train, embedding=8, batch_first=True)
        with torch.set_grad_enabled(train):
            _refused(lambda m=module: m(long, long, long), length.format("MultiheadAttention"))
            _refused(lambda m=module: m(short, long, long, need_weights=False), length.format("MultiheadAttention"))
            _refused(lambda m=module: m(many, many, many), batch.format("MultiheadAttention"))
            assert module(short, short, short)[0].shape == short.shape
    product = F.scaled_dot_product_attention
    for a, b, sentence in ((long, short, length), (short, long, length), (many, many, batch)):
        _refused(
            lambda q=a.unsqueeze(1), k=b.unsqueeze(1): product(q, k, k),
            sentence.format("scaled_dot_product_attention"),
        )
    assert product(*[torch.zeros(256, 1, 2, 4, device=device)] * 3).shape == (256, 1, 2, 4)
    assert product(*[torch.zeros(1, 1, 2048, 4, device=device)] * 3).shape == (1, 1, 2048, 4)


@refusing
def test_a_rank_beyond_the_chip_is_refused() -> None:
    device = _device("npu_v2")
    x = torch.zeros(1, 1, 1, 2, 3, 4, device=device)
    _refused(
        lambda: F.scaled_dot_product_attention(x, x, x),
        "scaled_dot_product_attention with tensors of rank 6 not supported on NPU-V2 (at most 5)",
    )
    assert F.scaled_dot_product_attention(x[0], x[0], x[0]).shape == x.shape[1:]


@refusing
def test_the_product_is_refused_however_it_was_imported() -> None:
    device = _device("npu_v2")
    for gradients in (True, False):
        beyond = torch.randn(2, 12, 5, 4, device=device, requires_grad=gradients)
        within = torch.randn(2, 8, 5, 4, device=device, requires_grad=gradients)
        for function in (F.scaled_dot_product_attention, _sdpa_of_an_early_import):
            _refused(lambda f=function, x=beyond: f(x, x, x, is_causal=True), PRODUCT)
            got = function(within, within, within, is_causal=True)
            host = within.detach().cpu()
            torch.testing.assert_close(got.cpu(), function(host, host, host, is_causal=True), rtol=1e-4, atol=1e-5)
    batch_of_three = torch.randn(3, 5, 4, device=device)  # and one head
    assert F.scaled_dot_product_attention(*[batch_of_three] * 3).shape == (3, 5, 4)
    with torch.inference_mode():
        x = torch.randn(2, 12, 5, 4, device=device)
        _refused(lambda: F.scaled_dot_product_attention(x, x, x), PRODUCT)


@refusing
def test_compiled_code_is_refused_with_the_same_exception() -> None:
    device = _device("npu_v2")
    x = torch.randn(2, 5, EMBEDDING, device=device)
    for backend in ("eager", "aot_eager"):
        for train, need_weights in itertools.product((True, False), repeat=2):
            torch._dynamo.reset()
            beyond = _attention(12, device, train, batch_first=True)
            within = _attention(8, device, train, batch_first=True)

            @torch.compile(backend=backend)
            def run(module: Any, a: Tensor, w: bool) -> Any:
                return module(a * 1.0, a, a, need_weights=w)[0] + 1.0

            with torch.set_grad_enabled(train):
                _refused(lambda f=run, m=beyond, w=need_weights: f(m, x, w), TWELVE)
                torch.testing.assert_close(
                    run(within, x, need_weights).cpu(),
                    (within(x, x, x, need_weights=need_weights)[0] + 1.0).cpu(),
                    rtol=1e-4,
                    atol=1e-5,
                )
                _refused(lambda f=run, m=beyond, w=need_weights: f(m, x, w), TWELVE)


@refusing
def test_a_compiled_product_is_refused_also_for_open_sizes() -> None:
    device = _device("npu_v2")
    for backend, function in itertools.product(
        ("eager", "aot_eager"), (F.scaled_dot_product_attention, _sdpa_of_an_early_import)
    ):
        torch._dynamo.reset()

        @torch.compile(backend=backend)
        def run(q: Tensor, f: Any = function) -> Tensor:
            return f(q * 2.0, q, q) + 1.0

        _refused(lambda f=run: f(torch.randn(2, 12, 5, 4, device=device)), PRODUCT)
        x = torch.randn(2, 8, 5, 4, device=device)
        torch.testing.assert_close(run(x).cpu(), (function(x * 2.0, x, x) + 1.0).cpu(), rtol=1e-4, atol=1e-5)
        for length in (7, 9, 100):  # no more graphs after the second: the length stays open up to the limit
            assert run(torch.randn(2, 8, length, 4, device=device)).shape == (2, 8, length, 4)
        _refused(
            lambda f=run: f(torch.randn(1, 1, 2049, 2, device=device)),
            "scaled_dot_product_attention with sequence length 2049 not supported on NPU-V2 (at most 2048)",
        )


@refusing
def test_a_layer_within_the_unit_compiles_in_one_graph() -> None:
    device = _device("npu_v2")
    torch._dynamo.reset()
    module = _attention(8, device, True, batch_first=True)
    x = torch.randn(2, 5, EMBEDDING, device=device)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, x, x)[0].cpu(), module(x, x, x)[0].cpu(), rtol=1e-4, atol=1e-5)


@refusing
def test_the_function_within_the_unit_compiles_in_one_graph_and_is_refused_beyond_it() -> None:
    device = _device("npu_v2")
    x = torch.randn(5, 2, EMBEDDING, device=device)
    weights = [torch.randn(*s, device=device) / 7 for s in ((3 * EMBEDDING, EMBEDDING), (3 * EMBEDDING,))]
    out = [torch.randn(*s, device=device) / 7 for s in ((EMBEDDING, EMBEDDING), (EMBEDDING,))]
    for backend in ("eager", "aot_eager"):
        for fullgraph in (True, False):
            torch._dynamo.reset()
            run = torch.compile(F.multi_head_attention_forward, backend=backend, fullgraph=fullgraph)
            arguments = (*weights, None, None, False, 0.0, *out)
            want = F.multi_head_attention_forward(x, x, x, EMBEDDING, 8, *arguments)[0]
            torch.testing.assert_close(
                run(x, x, x, EMBEDDING, 8, *arguments)[0].cpu(), want.cpu(), rtol=1e-4, atol=1e-5
            )
            if not fullgraph:
                _refused(lambda f=run, a=arguments: f(x, x, x, EMBEDDING, 12, *a), TWELVE)


@refusing
def test_exported_code_is_refused() -> None:
    device = _device("npu_v2")
    x = torch.randn(2, 5, EMBEDDING, device=device)
    with pytest.raises(NotImplementedError, match="MultiheadAttention with num_heads=12 not supported on NPU-V2"):
        torch.export.export(_attention(12, device, batch_first=True), (x, x, x))


@refusing
def test_explain_tells_of_the_firewall() -> None:
    _device("npu_v2")
    x = torch.empty(2, 12, 5, 4, device="meta")
    answer = torchfl.explain("aten::scaled_dot_product_attention", x, x, x, device="npu:0")
    assert (answer["path"], answer["reason"]) == ("error", PRODUCT)
    assert answer["attempts"][0]["target"] == "attention unit"


@refusing
def test_other_devices_and_scripted_modules_are_let_through() -> None:
    device = _device("npu_v2")
    x = torch.randn(2, 5, EMBEDDING)
    module = _attention(12, "cpu")
    want = module(x, x, x)[0]
    scripted = torch.jit.script(module)
    torch.testing.assert_close(scripted(x, x, x)[0], want)
    other = _device("npu_v3")
    torch.testing.assert_close(module.to(other)(*[x.to(other)] * 3)[0].cpu(), want, rtol=1e-4, atol=1e-5)
    _refused(lambda: module.to(device)(*[x.to(device)] * 3), TWELVE)


@refusing
def test_transforms_and_graphs_of_other_devices_show_no_trace_of_it() -> None:
    module = _attention(12, "cpu")
    x = torch.randn(3, 5, EMBEDDING)
    want = torch.stack([module(a, a, a)[0] for a in x])
    graph = str(torch.export.export(module, (x, x, x)).graph)
    _device("npu_v2")
    assert F._mha_shape_check.__module__ == "torchfl._attention"
    torch.testing.assert_close(torch.func.vmap(lambda a: module(a, a, a)[0])(x), want)
    gradient = torch.func.vmap(torch.func.grad(lambda a: module(a, a, a)[0].sum()))(x)
    assert gradient.shape == x.shape
    exported = torch.export.export(module, (x, x, x))
    assert "torchfl" not in exported.graph_module.code
    assert str(exported.graph) == graph, "the same graph as before"


@refusing
def test_vmap_asks_for_all_samples_at_once() -> None:
    device = _device("npu_v2")
    x = torch.randn(3, 5, EMBEDDING, device=device)

    def over(module: Any, **where: int) -> Callable[[Tensor], Tensor]:
        return torch.func.vmap(lambda a: module(a, a, a)[0], **where)

    def gradients(module: Any) -> Callable[[Tensor], Tensor]:
        return torch.func.vmap(torch.func.grad(lambda a: module(a, a, a)[0].sum()))

    for train in (True, False):
        beyond, within = _attention(12, device, train), _attention(8, device, train)
        want = torch.stack([within(a, a, a)[0] for a in x]).cpu()
        torch.testing.assert_close(over(within)(x).cpu(), want, rtol=1e-4, atol=1e-5)
        last = over(within, in_dims=1, out_dims=1)(x.transpose(0, 1))
        torch.testing.assert_close(last.transpose(0, 1).cpu(), want, rtol=1e-4, atol=1e-5)
        nested = torch.func.vmap(over(within))(x.unsqueeze(0))
        torch.testing.assert_close(nested[0].cpu(), want, rtol=1e-4, atol=1e-5)
        for run, samples in ((over(beyond), x), (torch.func.vmap(over(beyond)), x.unsqueeze(0))):
            _refused(lambda f=run, a=samples: f(a), TWELVE)
        assert gradients(within)(x).shape == x.shape
        _refused(lambda m=beyond: gradients(m)(x), TWELVE)
    small = _attention(2, device, True, embedding=8)
    samples = torch.zeros(129, 2, 2, 8, device=device)  # 129 times a batch of 2
    _refused(
        lambda: over(small)(samples), "MultiheadAttention with batch size 258 not supported on NPU-V2 (at most 256)"
    )
    assert over(small)(samples[:128]).shape == (128, 2, 2, 8)


@refusing
def test_shutdown_leaves_pytorch_as_it_was() -> None:
    device = torch.device(_device("npu_v2"))
    assert F._mha_shape_check.__module__ == "torchfl._attention"
    torchfl.shutdown()  # takes the name back, and leaves the device
    assert F._mha_shape_check.__module__ == "torch.nn.functional"
    x = torch.randn(2, 5, EMBEDDING, device=device)
    assert _attention(12, device)(x, x, x)[0].shape == x.shape


@composing
def test_a_chip_that_composes_runs_twelve_heads() -> None:
    device = _device("npu_v3")
    assert F._mha_shape_check.__module__ == "torch.nn.functional", "nothing is refused, so nothing is asked"
    for train, need_weights, batched, batch_first, gradients in _ways():
        x = torch.randn((2, 5, EMBEDDING) if batched else (5, EMBEDDING))
        with torch.set_grad_enabled(gradients):
            _same_as_cpu(_attention(12, device, train, batch_first=batch_first), x, need_weights=need_weights)
    for train in (True, False):
        layer = nn.TransformerEncoderLayer(EMBEDDING, 12, 32, dropout=0.0, batch_first=True).train(train).to(device)
        with torch.set_grad_enabled(train):
            _same_as_cpu(layer, torch.randn(2, 5, EMBEDDING))


@composing
def test_attention_in_evaluation_stays_on_the_chip_whatever_the_mask() -> None:
    device = _device("npu_v3")
    x, y = torch.randn(3, 5, EMBEDDING), torch.randn(3, 5, EMBEDDING)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [True] * 5])
    causal = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    masks: list[dict[str, Any]] = [
        {},
        {"key_padding_mask": padding},
        {"attn_mask": causal},
        {"key_padding_mask": padding, "attn_mask": causal},
    ]
    with torch.no_grad():
        for mask, need_weights, average in itertools.product(masks, (True, False), (True, False)):
            module = _attention(12, "cpu", False, batch_first=True)
            how = {"need_weights": need_weights, "average_attn_weights": average}
            want = module(x, x, x, **mask, **how)
            module, z = module.to(device), x.to(device)
            torchfl.reset_stats()
            got = module(z, z, z, **{name: m.to(device) for name, m in mask.items()}, **how)
            assert {r["path"] for r in torchfl.stats()} <= {"native", "composed", "composite", "transfer"}
            assert (got[1] is None) == (want[1] is None)
            for g, w in zip(got, want, strict=True):
                if w is not None:
                    torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-5, equal_nan=True)
        for norm_first, activation in itertools.product((True, False), (F.relu, F.gelu)):
            layer = nn.TransformerEncoderLayer(
                EMBEDDING, 12, 32, batch_first=True, norm_first=norm_first, activation=activation
            ).eval()
            want = layer(x)
            layer.to(device)
            torchfl.reset_stats()
            got = layer(x.to(device))
            rows = {r["op"]: r["path"] for r in torchfl.stats()}
            assert rows["aten::_transformer_encoder_layer_fwd"] == "composite"
            assert "cpu" not in rows.values()
            torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
        # The fused operator takes three tensors as well, where PyTorch's CPU takes one.
        module = _attention(12, device, False, batch_first=True)
        weights = (module.in_proj_weight, module.in_proj_bias, module.out_proj.weight, module.out_proj.bias)
        a, b = x.to(device), y.to(device)
        got = torch._native_multi_head_attention(a, b, b, EMBEDDING, 12, *weights, need_weights=False)
        torch.testing.assert_close(got[0].cpu(), module(a, b, b, need_weights=False)[0].cpu(), rtol=1e-4, atol=1e-5)
