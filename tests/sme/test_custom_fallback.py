"""Custom fallbacks: what `fallback.ops` and `register_fallback` name runs where no kernel fits, in every form of the
operator, and is told of everywhere; what it does wrong is told, too."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Variant = Callable[..., dict[str, Any]]

_MODULE = """
import torch
calls = []
def erfc(x):
    calls.append(str(x.device.type))
    return torch.special.erfc(x.cpu())
def cumsum(self, dim, *, dtype=None):
    calls.append((dim, dtype))
    return torch.cumsum(self.cpu(), dim, dtype=dtype)
def aminmax(self, *, dim=None, keepdim=False):
    return self.amin(dim, keepdim), self.amax(dim, keepdim)
def foreach_expm1(xs):
    return [x.exp() - 1 for x in xs]
def on_the_chip(x):
    return 1 - torch.erf(x)
def itself(x):
    return torch.special.erfc(x * 1.0)
def identity(x):
    return x
def transposed(x):
    return torch.special.erfc(x.cpu()).t().contiguous().t()
def wrong_dtype(x):
    return x.to(torch.int32)
def wrong_shape(x):
    return x.cpu().flatten()
def nothing(x):
    return None
def text(x):
    return "a result"
def not_this(x):
    return NotImplemented
def raises(x):
    raise KeyError("broken on purpose")
def other_device(x):
    return torch.empty(x.shape, device="meta")
number = 3
"""


@pytest.fixture
def functions(tmp_path: Path, variant: Variant) -> Variant:
    """Like `variant`, with the module `own_fallbacks` in a folder FOLDER that is not on sys.path yet."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "own_fallbacks.py").write_text(_MODULE)

    def run(text: str, code: str, **env: str) -> dict[str, Any]:
        head = f"FOLDER = {str(folder)!r}\n"
        return variant(text, head + textwrap.dedent(code), **env)

    return run


def test_a_kernel_of_the_adapter_goes_before_a_program(variant: Variant) -> None:
    answer = variant(
        """
        fallback: {default: compose, ops: {"aten::erfc": npu_v3_verfc}}
        """,
        """
        x = torch.linspace(-2, 2, 12).reshape(3, 4)
        d = x.to(D)
        want = torch.special.erfc(x)
        got, rows = ran("aten::erfc", lambda: torch.special.erfc(d))
        strided = torch.special.erfc(d.t())
        out = torch.empty(0, device=D)
        torch.special.erfc(d, out=out)
        written, in_place = ran("aten::erfc_", lambda: d.clone().erfc_())
        with torchfl.strict():
            torch.special.erfc(d)
        told = torchfl.explain("aten::erfc", d)
        say(rows=rows, in_place=in_place, told=[told["path"], told["target"], told["reason"]],
            attempts=[[a["path"], a["taken"]] for a in told["attempts"]],
            close=all(torch.allclose(a.cpu(), b, atol=1e-5) for a, b in
                      ((got, want), (strided, want.t()), (out, want), (written, want))))
        """,
        TORCH_FL_DEBUG="1",
    )
    reason = "variant has no kernel for aten::erfc"
    assert answer["rows"] == [["custom", "npu_v3_verfc", reason, 1]]
    assert answer["in_place"] == [["custom", "npu_v3_verfc", reason, 1]]
    assert answer["told"] == ["custom", "npu_v3_verfc", reason]
    assert answer["attempts"] == [["native", False], ["custom", True]]
    assert answer["close"]
    assert "[SME] Mapping aten::erfc -> npu_v3_verfc (layout=contiguous, dtype=fp32)" in answer["stderr"]


def test_a_kernel_of_the_adapter_serves_what_the_rows_refuse(variant: Variant) -> None:
    answer = variant(
        """
        ops: [{op: aten::exp, kernel: npu_v3_exp, dtypes: [float16]}]
        fallback: {default: cpu, ops: {"aten::exp": npu_v3_vexp}}
        """,
        """
        torchfl.reset_stats()
        for dtype in (torch.float16, torch.float32):
            torch.ones(3, dtype=dtype, device=D).exp()
        say(rows=sorted([r["path"], r["target"], r["reason"]] for r in torchfl.stats() if r["op"].startswith("aten::exp")))
        """,
    )
    assert answer["rows"] == [
        ["custom", "npu_v3_vexp", "float32 is not a dtype of npu_v3_exp (float16)"],
        ["native", "npu_v3_exp", ""],
    ]


@pytest.mark.parametrize(("default", "next_path"), [("compose", "composed"), ("cpu", "cpu")])
def test_a_kernel_that_refuses_leaves_the_call_to_the_next_path(variant: Variant, default: str, next_path: str) -> None:
    """`npu_v3_mean` takes no integers, and says so when it runs."""
    answer = variant(
        f"""
        ops: [{{op: aten::prod, kernel: npu_v3_prod, dtypes: [float16]}}]
        fallback: {{default: {default}, ops: {{"aten::prod": npu_v3_mean}}}}
        """,
        """
        x = torch.arange(1, 5)
        value, rows = ran("aten::prod", lambda: [x.to(D).prod().item() for _ in range(3)])
        say(value=value, rows=rows)
        """,
    )
    assert answer["value"] == [24, 24, 24]
    ((path, _, reason, calls),) = answer["rows"]
    assert (path, calls) == (next_path, 3)
    assert reason.startswith("int64 is not a dtype of npu_v3_prod (float16); ")
    assert "npu_v3_reduce" in reason, "the reason is the SDK's own"


def test_a_kernel_that_is_not_there_is_an_error(variant: Variant) -> None:
    answer = variant(
        """
        fallback: {default: cpu, ops: {"aten::erfc": my_erfc}}
        """,
        """
        try:
            torch.special.erfc(torch.ones(3, device=D))
        except torchfl.UnsupportedOpError as error:
            text = str(error)
        torchfl.register_fallback("aten::erfc", lambda x: torch.special.erfc(x.cpu()))
        got, rows = ran("aten::erfc", lambda: torch.special.erfc(torch.zeros(3, device=D)))
        say(text=text, rows=rows, got=got.tolist())
        """,
    )
    assert (
        "fallback.ops names my_erfc for aten::erfc, and the adapter of variant has no kernel of that name"
        in (answer["text"])
    )
    assert answer["rows"][0][0] == "custom"
    assert answer["got"] == [1.0, 1.0, 1.0]


def test_a_function_serves_every_form(functions: Variant) -> None:
    answer = functions(
        """
        fallback: {default: compose, ops: {"aten::erfc": "own_fallbacks:erfc"}}
        """,
        """
        assert "own_fallbacks" not in sys.modules
        sys.path.append(FOLDER)
        x = torch.linspace(-2, 2, 12).reshape(3, 4)
        want = torch.special.erfc(x)
        got, rows = ran("aten::erfc", lambda: torch.special.erfc(x.to(D)))
        target = x.to(D)
        same = target.erfc_() is target
        grown = torch.empty(0, device=D)
        torch.special.erfc(x.to(D), out=grown)
        view = torch.zeros(4, 3, device=D).t()
        torch.special.erfc(x.to(D), out=view)
        narrow = torch.zeros(6, 4, device=D)
        narrow[::2].copy_(x.to(D)).erfc_()
        again, second = ran("aten::erfc", lambda: torch.special.erfc(x.to(D).t()))
        leaf = x.to(D).requires_grad_()
        torch.special.erfc(leaf).sum().backward()
        host = x.clone().requires_grad_()
        torch.special.erfc(host).sum().backward()
        try:
            torch.special.erfc(x.to(D), out=torch.empty(3, 4, dtype=torch.int32, device=D))
            refused = ""
        except RuntimeError as error:
            refused = str(error)
        import own_fallbacks
        told = torchfl.explain("aten::erfc", x.to(D))
        say(rows=rows, second=second, same=same, refused=refused, seen=sorted(set(own_fallbacks.calls)),
            contiguous=got.is_contiguous(), device=str(got.device),
            told=[told["path"], told["target"], told["attempts"][-1]["taken"]],
            close=[torch.allclose(a.cpu(), b, atol=1e-6) for a, b in
                   ((got, want), (target, want), (grown, want), (view, want), (narrow[::2], want), (again, want.t()),
                    (leaf.grad, host.grad))],
            untouched=narrow[1::2].abs().sum().item(), lines=lines)
        """,
        TORCH_FL_DEBUG="1",
    )
    reason = "variant has no kernel for aten::erfc"
    assert answer["rows"] == [["custom", "own_fallbacks:erfc", reason, 1]]
    assert answer["second"] == [["custom", "own_fallbacks:erfc", reason, 1]]
    assert answer["told"] == ["custom", "own_fallbacks:erfc", True]
    assert all(answer["close"]), answer["close"]
    assert answer["same"] and answer["contiguous"] and answer["untouched"] == 0
    assert answer["device"] == "variant:0"
    assert answer["seen"] == ["variant"], "it is given the tensors of the device"
    assert "can't be cast" in answer["refused"]
    assert f"[SME] Fallback to own_fallbacks:erfc: aten::erfc ({reason})" in answer["stderr"]


def test_functions_get_the_arguments_as_written_and_give_several_results(functions: Variant) -> None:
    answer = functions(
        """
        fallback:
          default: compose
          ops:
            "aten::cumsum": "own_fallbacks:cumsum"
            "aten::aminmax": "own_fallbacks:aminmax"
            "aten::_foreach_expm1": "own_fallbacks:foreach_expm1"
        """,
        """
        sys.path.append(FOLDER)
        import own_fallbacks
        x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
        a = torch.cumsum(x.to(D), 1)
        b = torch.cumsum(x.to(D), -1, dtype=torch.float64)
        low, high = torch.aminmax(x.to(D), dim=1)
        list_, rows = ran("aten::_foreach_expm1", lambda: torch._foreach_expm1([x.to(D), x.to(D)[0]]))
        into = [x.to(D), x.to(D)[0].clone()]
        torch._foreach_expm1_(into)
        outs = torch.empty(3, device=D), torch.empty(3, device=D)
        torch.aminmax(x.to(D), dim=1, out=outs)
        say(calls=[[c[0], str(c[1])] for c in own_fallbacks.calls], rows=rows,
            close=[torch.allclose(p.cpu().double(), q.double()) for p, q in (
                (a, x.cumsum(1)), (b, x.cumsum(1)), (low, x.amin(1)), (high, x.amax(1)), (outs[0], x.amin(1)),
                (outs[1], x.amax(1)), (list_[0], x.expm1()), (list_[1], x[0].expm1()), (into[0], x.expm1()),
                (into[1], x[0].expm1()))], dtype=str(b.dtype))
        """,
    )
    assert all(answer["close"]), answer["close"]
    assert answer["calls"] == [[1, "None"], [-1, "torch.float64"]]
    assert answer["dtype"] == "torch.float64"
    assert answer["rows"][0][:2] == ["custom", "own_fallbacks:foreach_expm1"]


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        ("own_fallbacks:itself", "RuntimeError", "calls aten::erfc on that device itself, which would never end"),
        ("own_fallbacks:wrong_dtype", "RuntimeError", "returned int32[2, 3], expected float32[2, 3]"),
        ("own_fallbacks:wrong_shape", "RuntimeError", "returned float32[6], expected float32[2, 3]"),
        ("own_fallbacks:nothing", "RuntimeError", "returned no tensor, expected float32[2, 3]"),
        ("own_fallbacks:text", "TypeError", "returned <class 'str'>, expected Tensor"),
        ("own_fallbacks:other_device", "RuntimeError", "returned a tensor on meta, expected one on variant:0"),
        ("own_fallbacks:raises", "KeyError", "broken on purpose"),
        ("own_fallbacks:missing", "LoadError", "'own_fallbacks' has no 'missing'"),
        ("own_fallbacks:number", "LoadError", "that is a int and cannot be called"),
        ("no_such_module:erfc", "LoadError", "module 'no_such_module' cannot be imported"),
    ],
)
def test_what_a_function_does_wrong_is_told(functions: Variant, function: str, kind: str, words: str) -> None:
    answer = functions(
        f"""
        fallback: {{default: compose, ops: {{"aten::erfc": "{function}"}}}}
        """,
        """
        sys.path.append(FOLDER)
        x = torch.ones(2, 3, device=D)
        told = []
        for _ in range(2):
            try:
                torch.special.erfc(x)
            except Exception as error:
                told.append([type(error).__name__, str(error)])
        say(told=told, after=(x + 1).sum().item())
        """,
    )
    assert len(answer["told"]) == 2
    for name, text in answer["told"]:
        assert name == kind
        assert words in text
    assert answer["after"] == 12


def test_a_function_may_return_its_argument_or_odd_strides_or_run_on_the_chip(functions: Variant) -> None:
    answer = functions(
        "fallback: {default: compose}",
        """
        sys.path.append(FOLDER)
        import own_fallbacks as own
        x = torch.randn(2, 3, device=D)
        answers = {}
        for function in (own.identity, own.transposed, own.on_the_chip):
            torchfl.register_fallback("aten::erfc", function)
            y = torch.special.erfc(x)
            answers[function.__name__] = [y.data_ptr() != x.data_ptr(), y.is_contiguous()]
        want = torch.special.erfc(x.cpu())
        say(answers=answers, close=torch.allclose(y.cpu(), want, atol=1e-5))
        """,
    )
    assert answer["answers"] == {name: [True, True] for name in ("identity", "transposed", "on_the_chip")}
    assert answer["close"]


def test_not_implemented_takes_the_next_path_and_a_default_of_error_forbids_it(functions: Variant) -> None:
    code = """
        sys.path.append(FOLDER)
        x = torch.ones(3)
        def call():
            try:
                return torch.special.erfc(x.to(D)).cpu().tolist()
            except torchfl.UnsupportedOpError as error:
                return str(error)
        (first, rows), (second, again) = ran("aten::erfc", call), ran("aten::erfc", call)
        say(first=first, second=second, rows=rows, again=again, want=torch.special.erfc(x).tolist())
    """
    for default, path in (("compose", "composed"), ("cpu", "cpu")):
        answer = functions(f'fallback: {{default: {default}, ops: {{"aten::erfc": "own_fallbacks:not_this"}}}}', code)
        assert answer["first"] == answer["second"] and answer["first"] == pytest.approx(answer["want"], rel=1e-6)
        assert answer["rows"] == answer["again"]
        assert answer["rows"][0][0] == path
        assert "own_fallbacks:not_this does not serve this call" in answer["rows"][0][2]
    forbidden = functions('fallback: {default: error, ops: {"aten::erfc": "own_fallbacks:not_this"}}', code)
    assert "own_fallbacks:not_this does not serve this call" in forbidden["first"]
    assert forbidden["second"] == forbidden["first"]


def test_strict_mode_lets_no_function_run(functions: Variant) -> None:
    answer = functions(
        """
        fallback: {default: compose, ops: {"aten::erfc": "own_fallbacks:erfc"}}
        """,
        """
        sys.path.append(FOLDER)
        x = torch.ones(3, device=D)
        torch.special.erfc(x)
        try:
            with torchfl.strict():
                torch.special.erfc(x)
        except torchfl.UnsupportedOpError as error:
            text = str(error)
        torch.special.erfc(x)
        say(text=text)
        """,
    )
    assert "It would run in its fallback own_fallbacks:erfc, which strict mode forbids." in answer["text"]


def test_registering_and_taking_back(functions: Variant) -> None:
    answer = functions(
        """
        fallback: {default: cpu, ops: {"aten::erfc": "own_fallbacks:erfc", "aten::lgamma": error}}
        """,
        """
        sys.path.append(FOLDER)
        x = torch.rand(3, device=D) + 1
        def path(call=lambda: torch.special.erfc(x), op="aten::erfc"):
            return ran(op, call)[1][0][:2]
        def mine(t):
            return torch.special.erfc(t.cpu())
        paths = [path()]
        torchfl.register_fallback("aten::erfc", mine, device=D)
        paths.append(path())
        torchfl.register_fallback("aten::erfc", None, device=D)
        paths.append(path())
        torchfl.register_fallback("erfc", mine)
        paths.append(path())
        torchfl.register_fallback("aten::erfc", None)
        paths.append(path())
        torchfl.register_fallback("aten::lgamma", lambda t: torch.lgamma(t.cpu()), device="variant")
        paths.append(path(lambda: torch.lgamma(x), "aten::lgamma")[:1])
        # PyTorch would take this one apart before it came here.
        torchfl.register_fallback("aten::logaddexp2", lambda a, b: torch.logaddexp2(a.cpu(), b.cpu()))
        paths.append(path(lambda: torch.logaddexp2(x, x), "aten::logaddexp2")[:1])
        # An operator by the name that users know.
        torchfl.register_fallback("aten::softmax", lambda a, dim, half: torch.softmax(a.double().cpu(), dim).to(a.dtype))
        y = torch.rand(3, dtype=torch.float64, device=D)
        paths.append(path(lambda: torch.softmax(y, 0), "aten::_softmax")[:1])
        # Of one overload only.
        torchfl.register_fallback("aten::bitwise_left_shift.Tensor", lambda a, b: torch.bitwise_left_shift(a.cpu(), b.cpu()))
        i = torch.ones(3, dtype=torch.int32, device=D)
        paths.append(path(lambda: torch.bitwise_left_shift(i, i), "aten::bitwise_left_shift")[:1])
        errors = []
        for op, function in (("aten::einsum", mine), ("aten::t", mine), ("aten::no_such", mine), ("aten::cat", mine), ("aten::erfc", 3)):
            try:
                torchfl.register_fallback(op, function)
            except (ValueError, TypeError) as error:
                errors.append([type(error).__name__, str(error)])
        say(paths=paths, errors=errors)
        """,
    )
    own, mine = ["custom", "own_fallbacks:erfc"], ["custom", "__main__:mine"]
    assert answer["paths"] == [own, mine, own, mine, own] + [["custom"]] * 4
    kinds, texts = zip(*answer["errors"], strict=True)
    assert kinds == ("ValueError", "ValueError", "ValueError", "ValueError", "TypeError")
    assert "PyTorch takes it apart before" in texts[0]
    assert "is a view" in texts[1]
    assert "no such operator" in texts[2]
    assert "moves or fills memory, which the engine does itself" in texts[3]


def test_an_operator_that_no_function_can_serve_is_refused_and_nothing_changes(functions: Variant) -> None:
    answer = functions(
        "fallback: {default: compose}",
        """
        told = {}
        for op in ("copy_", "_to_copy", "zero_", "fill_", "set_", "resize_", "cat", "_local_scalar_dense", "matmul",
                   "linear", "einsum", "item", "contiguous", "view", "transpose"):
            try:
                torchfl.register_fallback("aten::" + op, lambda *args, **named: 1 / 0)
                told[op] = "accepted"
            except ValueError as error:
                told[op] = str(error)
        x = torch.arange(6.0).reshape(2, 3)
        d = x.to(D)
        same = [torch.equal(a.cpu(), b) for a, b in (
            (d.double(), x.double()), (torch.ones(2, 3).to(D), torch.ones(2, 3)), (d.clone().copy_(x + 1), x + 1),
            (d.clone().zero_(), x * 0), (torch.cat([d, d]), torch.cat([x, x])), (d @ d.t(), x @ x.t()))]
        say(told=told, same=same, text=str(d))
        """,
    )
    told = answer["told"]
    for op in ("copy_", "_to_copy", "zero_", "fill_", "set_", "resize_", "cat", "_local_scalar_dense"):
        assert "moves or fills memory" in told[op], (op, told[op])
    assert "Register a function for one of them: aten::mm, aten::bmm" in told["matmul"]
    assert "Register a function for one of them: aten::addmm, aten::mm" in told["linear"]
    for op in ("einsum", "item", "contiguous"):
        assert f"`torchfl explain aten::{op} --device CHIP` names" in told[op], (op, told[op])
    assert "is a view" in told["transpose"] and "is a view" in told["view"]
    assert all(answer["same"]), answer["same"]
    assert "[3., 4., 5.]" in answer["text"]


def test_a_function_serves_what_has_no_shape_beforehand(functions: Variant) -> None:
    answer = functions(
        "fallback: {default: compose}",
        """
        x = torch.tensor([[1.0, 0.0, 2.0], [2.0, 3.0, 0.0]])
        i = torch.tensor([1, 2, 2, 0])
        calls = {
            "aten::nonzero": lambda a, b: torch.nonzero(a),
            "aten::masked_select": lambda a, b: torch.masked_select(a, a > 1),
            "aten::_unique2": lambda a, b: torch.unique(a, return_inverse=True, return_counts=True),
            "aten::unique_dim": lambda a, b: torch.unique(a, dim=0),
            "aten::equal": lambda a, b: torch.equal(a, a + 0),
            "aten::allclose": lambda a, b: torch.allclose(a, a + 0),
            "aten::bincount": lambda a, b: torch.bincount(b),
            "aten::repeat_interleave": lambda a, b: torch.repeat_interleave(b),
            "aten::rand": lambda a, b: torch.rand(2, 3, device=a.device) * 0,
            "aten::zeros": lambda a, b: torch.zeros(2, 3, device=a.device),
            "aten::linspace": lambda a, b: torch.linspace(0, 1, 5, device=a.device),
            "aten::native_dropout": lambda a, b: F.dropout(a.double(), 0.5) * 0,
        }
        def host(value):
            if isinstance(value, torch.Tensor):
                return value.cpu()
            if isinstance(value, torch.device):
                return torch.device("cpu")
            return value
        def on_cpu(op):
            def run(*args, **named):
                hits.append(op)
                return getattr(torch.ops.aten, op[6:])(*map(host, args), **{k: host(v) for k, v in named.items()})
            return run
        hits, wrong = [], {}
        for op, call in calls.items():
            torchfl.register_fallback(op, on_cpu(op))
            try:
                got, want = [v if isinstance(v, tuple) else (v,) for v in (call(x.to(D), i.to(D)), call(x, i))]
                for g, w in zip(got, want, strict=True):
                    if isinstance(w, torch.Tensor):
                        assert str(g.device) == D
                        torch.testing.assert_close(g.cpu(), w)
                    else:
                        assert g == w
                print(x.to(D))
            except Exception as error:
                wrong[op] = f"{type(error).__name__}: {error}"
            torchfl.register_fallback(op, None)
        out = torch.empty(0, dtype=torch.int64, device=D)
        torchfl.register_fallback("aten::nonzero", on_cpu("aten::nonzero"))
        torch.nonzero(x.to(D), out=out)
        say(wrong=wrong, never=sorted(set(calls) - set(hits)), out=torch.equal(out.cpu(), torch.nonzero(x)))
        """,
    )
    assert answer["wrong"] == {} and answer["never"] == []
    assert answer["out"]


def test_functions_run_in_autograds_threads(functions: Variant) -> None:
    answer = functions(
        "fallback: {default: compose}",
        """
        import threading
        def tanh_backward(grad, output):
            threads.add(threading.get_ident())
            return grad.cpu() * (1 - output.cpu() ** 2)
        threads = set()
        torchfl.register_fallback("aten::hardswish_backward", lambda grad, x: 1 / 0)
        torchfl.register_fallback("aten::softplus_backward", lambda g, x, beta, threshold: threads.add(
            threading.get_ident()) or torch.ops.aten.softplus_backward(g.cpu(), x.cpu(), beta, threshold))
        x = torch.randn(5)
        leaf, host = x.to(D).requires_grad_(), x.clone().requires_grad_()
        torch.nn.functional.softplus(leaf).sum().backward()
        torch.nn.functional.softplus(host).sum().backward()
        try:
            torch.nn.functional.hardswish(leaf).sum().backward()
            failed = ""
        except ZeroDivisionError as error:
            failed = str(error)
        say(close=torch.allclose(leaf.grad.cpu(), host.grad, atol=1e-6), failed=failed, threads=len(threads))
        """,
    )
    assert answer["close"] and answer["threads"] == 1
    assert answer["failed"] == "division by zero"


_BRIDGE = """
    fallback:
      default: compose
      ops: {"aten::softmax": onnxruntime, "aten::logaddexp": onnxruntime,
            "aten::conv2d": onnxruntime, "aten::topk": onnxruntime}
    """


def test_the_bridge_gives_the_values_of_pytorch(variant: Variant) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    answer = variant(
        _BRIDGE,
        """
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        double = x.double()
        checks, rows = [], []
        def check(op, call, *args, tolerance=1e-5):
            got, found = ran(op, lambda: call(*[a.to(D) for a in args]))
            rows.append(found[0][:2])
            want = call(*args)
            got, want = [v if isinstance(v, tuple) else (v,) for v in (got, want)]
            checks.append(all(str(g.device) == D and g.dtype == w.dtype and
                              torch.allclose(g.cpu(), w, rtol=tolerance, atol=tolerance) for g, w in zip(got, want)))
        check("aten::_softmax", lambda t: torch.softmax(t, 1), double)
        check("aten::logaddexp", torch.logaddexp, x, y)
        check("aten::logaddexp", torch.logaddexp, x.t(), y.t())
        check("aten::logaddexp", torch.logaddexp, x.bfloat16(), y.bfloat16(), tolerance=2e-2)
        weight = torch.randn(6, 2, 3, 3)
        check("aten::convolution", lambda t, w: F.conv2d(t, w, stride=3, groups=2), torch.randn(2, 4, 9, 9), weight)
        check("aten::topk", lambda t: tuple(torch.topk(t, 2, 1)), x)
        from torchfl import _onnx_bridge
        before = len(_onnx_bridge._sessions)
        torch.logaddexp(y.to(D), x.to(D))
        say(checks=checks, rows=rows, reused=len(_onnx_bridge._sessions) == before)
        """,
    )
    assert answer["checks"] == [True] * 6
    assert answer["rows"] == [["custom", "onnxruntime"]] * 6
    assert answer["reused"], "a call of the same signature needs no session of its own"


def test_the_bridge_says_what_it_lacks(variant: Variant) -> None:
    code = """
        sys.modules.update(onnxruntime=None, onnxscript=None)  # as if they were not installed
        try:
            torch.logaddexp(torch.ones(3, device=D), torch.ones(3, device=D))
        except torchfl.LoadError as error:
            say(text=str(error))
        """
    assert (
        "fallback.ops names 'onnxruntime' for aten::logaddexp, which needs onnxruntime, onnxscript: pip install"
        in variant(_BRIDGE, code)["text"]
    )


def test_the_bridge_says_what_no_graph_can_say(variant: Variant) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    answer = variant(
        'fallback: {default: compose, ops: {"aten::_linalg_eigh": onnxruntime}}',
        """
        try:
            torch.linalg.eigh(torch.eye(3, device=D))
        except torchfl.UnsupportedOpError as error:
            say(text=str(error))
        """,
    )
    assert "cannot be written as an ONNX graph" in answer["text"]
    assert "name another fallback for aten::_linalg_eigh" in answer["text"]


def test_the_check_counts_it_as_custom(tmp_path: Path) -> None:
    import json
    import os
    import subprocess
    import sys

    from helpers import environment

    from torchfl import hcd
    from torchfl._paths import shipped_chips

    shipped = shipped_chips()["npu_v3"]
    descriptor = tmp_path / "own.yaml"
    descriptor.write_text(
        f"hcd: 1\nextends: {os.path.relpath(shipped, tmp_path)}\nchip: {{device_type: own}}\n"
        f"adapter: {{library: {hcd.load(shipped).lower()['adapter_library']}}}\n"
        'fallback: {default: compose, ops: {"aten::erfc": npu_v3_verfc, "aten::lgamma": "own_fallbacks:lgamma"}}\n'
    )
    (tmp_path / "own_fallbacks.py").write_text("def lgamma(x):\n    return x.cpu().lgamma()\n")
    done = subprocess.run(
        [sys.executable, "-m", "torchfl.cli", "check", str(descriptor), "--ops", "erfc", "--ops", "lgamma", "--json"],
        env=environment(PYTHONPATH=os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])),
        capture_output=True,
        text=True,
        timeout=300,
    )
    entries = json.loads(done.stdout)["entries"]
    assert {e["name"]: e["path"] for e in entries} == {"erfc": "custom", "lgamma": "custom"}, done.stdout + done.stderr
