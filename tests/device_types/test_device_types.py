"""PyTorch's own machinery for tests of devices, on ours: templates that `instantiate_device_type_tests` makes a class of
for each device type, with `@dtypes`, `@onlyOn` and `deviceCountAtLeast` meaning what they mean in PyTorch's tests.

The chip is TORCHFL_TEST_CHIP (npu_v3). Each template also runs on the CPU, which shows that it asks for the right thing.
"""

import io
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import environment

import torchfl

CHIP = os.environ.get("TORCHFL_TEST_CHIP", "npu_v3")
torchfl.load(CHIP)  # before the machinery looks for devices

from torch.testing import make_tensor  # noqa: E402
from torch.testing._internal import common_device_type as machinery  # noqa: E402
from torch.testing._internal.common_device_type import (  # noqa: E402
    deviceCountAtLeast,
    dtypes,
    instantiate_device_type_tests,
    onlyPRIVATEUSE1,
)
from torch.testing._internal.common_dtype import get_all_dtypes  # noqa: E402
from torch.testing._internal.common_utils import TestCase, parametrize  # noqa: E402

if machinery.PrivateUse1TestBase not in machinery.device_type_test_bases:  # it was imported before there was a device
    machinery.device_type_test_bases.append(machinery.PrivateUse1TestBase)

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
ALL = (*FLOATS, *WHOLE, torch.bool, torch.complex64)


class TestCreation(TestCase):
    @dtypes(*ALL)
    def test_filled_tensors(self, device, dtype):
        for size in ((), (0,), (3,), (2, 0, 3), (2, 3, 4)):
            for made, value in (
                (torch.zeros(size, dtype=dtype, device=device), 0),
                (torch.ones(size, dtype=dtype, device=device), 1),
                (torch.full(size, 1, dtype=dtype, device=device), 1),
                (torch.empty(size, dtype=dtype, device=device).fill_(1), 1),
                (torch.zeros_like(torch.empty(size, dtype=dtype, device=device)), 0),
                (torch.empty(size, dtype=dtype, device=device).new_ones(size), 1),
            ):
                self.assertEqual(made.device.type, torch.device(device).type)
                self.assertEqual(made.dtype, dtype)
                self.assertEqual(made.cpu(), torch.full(size, value, dtype=dtype))

    @dtypes(torch.float32, torch.float64, torch.int64, torch.int32)
    def test_ranges(self, device, dtype):
        for args in ((5,), (1, 8, 3), (8, 1, -2), (0, 0), (-3, 4)):
            self.assertEqual(torch.arange(*args, dtype=dtype, device=device).cpu(), torch.arange(*args, dtype=dtype))
        if dtype.is_floating_point:
            self.assertEqual(
                torch.linspace(-1, 2, 7, dtype=dtype, device=device).cpu(), torch.linspace(-1, 2, 7, dtype=dtype)
            )
            self.assertEqual(
                torch.logspace(0, 1, 4, dtype=dtype, device=device).cpu(), torch.logspace(0, 1, 4, dtype=dtype)
            )

    @dtypes(*ALL)
    def test_matrices(self, device, dtype):
        self.assertEqual(torch.eye(3, 4, dtype=dtype, device=device).cpu(), torch.eye(3, 4, dtype=dtype))
        x = make_tensor((3, 3), dtype=dtype, device="cpu")
        self.assertEqual(torch.tril(x.to(device)).cpu(), torch.tril(x))
        self.assertEqual(torch.diag_embed(x.to(device)).cpu(), torch.diag_embed(x))

    def test_from_python_and_numpy(self, device):
        for data in (1, 2.5, True, 1j, [1, 2], [[1.5], [2]], [], np.eye(2), np.float32(3)):
            made = torch.tensor(data, device=device)
            self.assertEqual(made.cpu(), torch.tensor(data))
            self.assertEqual(torch.as_tensor(data, device=device).cpu(), torch.as_tensor(data))

    def test_wrong_arguments_say_what_the_cpu_says(self, device):
        for call in (
            lambda d: torch.zeros(-1, device=d),
            lambda d: torch.arange(1, 5, -1, device=d),
            lambda d: torch.full((2,), "a", device=d),
            lambda d: torch.eye(-2, device=d),
        ):
            with pytest.raises(Exception) as ours:
                call(device)
            with pytest.raises(type(ours.value)) as theirs:
                call("cpu")
            self.assertEqual(str(ours.value), str(theirs.value))


class TestIndexing(TestCase):
    @dtypes(torch.float32, torch.float16, torch.int64, torch.bool)
    def test_basic(self, device, dtype):
        x = make_tensor((4, 5, 6), dtype=dtype, device="cpu")
        y = x.to(device)
        for index in (
            0,
            -1,
            slice(1, 3),
            (slice(None), 2),
            (Ellipsis, -2),
            (None, 1, None),
            (slice(None, None, 2), slice(4, 1), 3),
        ):
            self.assertEqual(y[index].cpu(), x[index])
            self.assertEqual(y[index].stride(), x[index].stride())
            self.assertEqual(y[index].storage_offset(), x[index].storage_offset())

    @dtypes(torch.float32, torch.int64, torch.bool)
    def test_with_tensors(self, device, dtype):
        x = make_tensor((4, 5, 6), dtype=dtype, device="cpu")
        rows, columns = torch.tensor([2, 0, 2, -1]), torch.tensor([[1], [4]])
        mask = torch.rand(4, 5) > 0.5
        for index in (
            (rows,),
            (slice(None), rows),
            (columns % 4, slice(None), rows),
            (mask,),
            (Ellipsis, rows),
            (rows, slice(1, 3), 2),
        ):
            there = tuple(i.to(device) if isinstance(i, torch.Tensor) else i for i in index)
            self.assertEqual(x.to(device)[there].cpu(), x[index])
            value = make_tensor((), dtype=dtype, device="cpu")
            y, z = x.to(device), x.clone()
            y[there] = value.to(device)
            z[index] = value
            self.assertEqual(y.cpu(), z)

    @dtypes(torch.float32, torch.int64)
    def test_index_functions(self, device, dtype):
        x, source = make_tensor((4, 5), dtype=dtype, device="cpu"), make_tensor((2, 5), dtype=dtype, device="cpu")
        index, spread = torch.tensor([3, 0]), torch.tensor([[0, 1, 2, 3, 0], [3, 3, 1, 0, 2]])
        for run in (
            lambda t, d: t.index_select(0, index.to(d)),
            lambda t, d: t.index_add(0, index.to(d), source.to(d)),
            lambda t, d: t.index_copy(0, index.to(d), source.to(d)),
            lambda t, d: t.index_fill(0, index.to(d), 7),
            lambda t, d: t.gather(0, spread.to(d)),
            lambda t, d: t.scatter(0, spread.to(d), source.to(d)),
            lambda t, d: t.scatter_add(0, spread.to(d), source.to(d)),
            lambda t, d: t.take(spread.to(d)),
            lambda t, d: t.masked_fill((t > 0), 3),
            lambda t, d: t.masked_select(t > 0),
            lambda t, d: torch.take_along_dim(t, spread.to(d), 0),
            lambda t, d: (t > 0).nonzero(),
        ):
            self.assertEqual(run(x.to(device), device).cpu(), run(x, "cpu"))

    def test_out_of_range(self, device):
        x = torch.ones(3, device=device)
        for call in (lambda: x[3], lambda: x[-4], lambda: x[0, 0], lambda: x.select(0, 5)):
            with self.assertRaises(IndexError):
                call()


class TestViews(TestCase):
    def pairs(self, device):
        x = torch.arange(24.0).view(2, 3, 4)
        for make in (
            lambda t: t.view(6, 4), lambda t: t.transpose(0, 2), lambda t: t.permute(1, 2, 0), lambda t: t[:, 1:],
            lambda t: t.select(1, 2), lambda t: t.narrow(2, 1, 2), lambda t: t.unsqueeze(1), lambda t: t.squeeze(),
            lambda t: t.diagonal(0, 1, 2), lambda t: t.unfold(2, 2, 1)[..., 0], lambda t: t.movedim(0, 2),
            lambda t: t.flatten(1), lambda t: t.unflatten(2, (2, 2)), lambda t: t.swapaxes(0, 1), lambda t: t.T if t.dim() == 2 else t.mT,
            lambda t: t.as_strided((2, 2), (12, 3), 1), lambda t: t.detach(), lambda t: t.split(2, 2)[1],
            lambda t: t.unbind(1)[2], lambda t: t[..., None][:, :, 1::2],
        ):  # fmt: skip
            base, copy = x.to(device), x.clone()
            yield base, make(base), copy, make(copy)

    def test_views_look_as_on_the_cpu_and_alias(self, device):
        for base, view, copy, want in self.pairs(device):
            self.assertEqual(view.stride(), want.stride())
            self.assertEqual(view.storage_offset(), want.storage_offset())
            self.assertEqual(view.untyped_storage().data_ptr(), base.untyped_storage().data_ptr())
            view.add_(100)
            want.add_(100)
            self.assertEqual(base.cpu(), copy)
            base.mul_(2)
            copy.mul_(2)
            self.assertEqual(view.cpu(), want)

    def test_views_keep_versions_and_gradients(self, device):
        for base, view, copy, want in self.pairs(device):
            leaf, model = base.clone().requires_grad_(), copy.clone().requires_grad_()
            (leaf * 2).sum().backward()
            (model * 2).sum().backward()
            self.assertEqual(leaf.grad.cpu(), model.grad)
            before = base._version
            view.zero_()
            want.zero_()
            self.assertGreater(base._version, before)
            self.assertEqual(base.cpu(), copy)

    def test_what_cannot_be_a_view_is_refused(self, device):
        x = torch.arange(6.0, device=device).view(2, 3).t()
        with self.assertRaisesRegex(RuntimeError, "view size is not compatible"):
            x.view(6)
        self.assertEqual(x.reshape(6).cpu(), torch.arange(6.0).view(2, 3).t().reshape(6))
        with self.assertRaisesRegex(RuntimeError, "shape|invalid"):
            x.view(5)

    @dtypes(torch.float32, torch.int32, torch.float16, torch.int64)
    def test_views_as_another_dtype(self, device, dtype):
        x = make_tensor((4, 8), dtype=dtype, device="cpu")
        for other in (torch.uint8, torch.int16, torch.float32, torch.int64):
            self.assertEqual(x.to(device).view(other).cpu(), x.view(other), equal_nan=True)


class TestReductions(TestCase):
    @dtypes(*FLOATS)
    @parametrize("name", ["sum", "mean", "amax", "amin", "prod", "logsumexp", "std", "var", "norm"])
    def test_floats(self, device, dtype, name):
        x = make_tensor((3, 4, 5), dtype=dtype, device="cpu", low=-2, high=2)
        run = getattr(torch, name)
        for dims, keep in itertools.product(((0,), (1, 2), (0, 2), (-1,)), (False, True)):
            if name == "prod":
                dims = dims[0]
            arguments = {"dim": dims, "keepdim": keep}
            got, want = run(x.to(device), **arguments), run(x.double(), **arguments).to(dtype)
            self.assertEqual(got.dtype, dtype)
            self.assertEqual(
                got.cpu(), want, rtol=2e-2 if dtype.itemsize == 2 else 1e-5, atol=2e-2 if dtype.itemsize == 2 else 1e-5
            )

    @dtypes(*WHOLE, torch.bool)
    def test_whole_numbers(self, device, dtype):
        x = torch.randint(3, (3, 4, 5)).to(dtype)
        for run in (
            torch.sum,
            torch.prod,
            torch.any,
            torch.all,
            torch.count_nonzero,
            torch.amax,
            torch.amin,
            torch.argmax,
        )[: 7 if dtype == torch.bool else 8]:  # PyTorch has no argmax of bool
            got, want = run(x.to(device), 1), run(x, 1)
            self.assertEqual(got.dtype, want.dtype)
            self.assertEqual(got.cpu(), want)
        self.assertEqual(x.to(device).sum().cpu(), x.sum())

    @dtypes(torch.float32, torch.int64)
    def test_with_places(self, device, dtype):
        x = torch.randperm(60).view(3, 4, 5).to(dtype)
        for run in (
            torch.max,
            torch.min,
            torch.sort,
            torch.median,
            torch.cummax,
            lambda t, d: torch.topk(t, 2, d),
            torch.mode,
        ):
            for dim in (0, 1, 2):
                got, want = run(x.to(device), dim), run(x, dim)
                self.assertEqual(got.values.cpu(), want.values)
                self.assertEqual(got.indices.cpu(), want.indices)

    def test_of_nothing(self, device):
        x = torch.empty(0, 3, device=device)
        self.assertEqual(x.sum(0).cpu(), torch.zeros(3))
        self.assertEqual(x.prod(0).cpu(), torch.ones(3))
        self.assertTrue(torch.isnan(x.mean()).item())
        for run in (lambda t: t.amax(0), lambda t: t.max(), lambda t: t.argmin(0)):
            with self.assertRaises((RuntimeError, IndexError)):
                run(x)

    def test_special_values(self, device):
        x = torch.tensor([[1.0, float("nan"), 2.0], [float("inf"), -float("inf"), 0.0], [-0.0, 5.0, -5.0]])
        for run in (
            lambda t: t.amax(1),
            lambda t: t.amin(1),
            lambda t: t.sum(1),
            lambda t: t.nansum(1),
            lambda t: t.argmax(1),
            lambda t: t.max(0).values,
        ):
            self.assertEqual(run(x.to(device)).cpu(), run(x), equal_nan=True)


class TestAutograd(TestCase):
    @dtypes(torch.float32, torch.float64)
    def test_gradients(self, device, dtype):
        x, w = make_tensor((5, 4), dtype=dtype, device="cpu"), make_tensor((4, 3), dtype=dtype, device="cpu")
        for run in (
            lambda a, b: (a @ b).relu().sum(), lambda a, b: torch.softmax(a @ b, 1)[:, 0].sum(), lambda a, b: (a @ b).pow(2).mean(),
            lambda a, b: torch.nn.functional.gelu(a @ b).sum(), lambda a, b: (a[:, :3] * b.t()[0, :3]).exp().sum(),
            lambda a, b: torch.cat([a, b.t()]).tanh().sum(), lambda a, b: torch.where(a > 0, a, a * 2).sum() + b.sum(),
            lambda a, b: torch.nn.functional.layer_norm(a @ b, (3,)).square().sum(),
        ):  # fmt: skip
            grads = []
            for where in (device, "cpu"):
                a, b = (t.detach().to(where, copy=True).requires_grad_() for t in (x, w))
                run(a, b).backward()
                grads.append((a.grad.cpu(), b.grad.cpu()))
            self.assertEqual(grads[0], grads[1], rtol=1e-4, atol=1e-4)

    def test_second_derivatives_and_no_grad(self, device):
        x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        self.assertEqual(second.cpu(), torch.tensor([6.0, 12.0, 18.0]))
        with torch.no_grad():
            self.assertFalse((x * 2).requires_grad)
        with torch.inference_mode():
            self.assertTrue((x * 2).is_inference())

    def test_written_after_saved(self, device):
        x = torch.ones(3, device=device, requires_grad=True)
        y = x.exp()
        y.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            y.sum().backward()

    def test_hooks_and_accumulation(self, device):
        x = torch.ones(3, device=device, requires_grad=True)
        seen = []
        x.register_hook(lambda g: seen.append(g.device.type))
        for _ in range(2):
            (x * 2).sum().backward()
        self.assertEqual(x.grad.cpu(), torch.full((3,), 4.0))
        self.assertEqual(seen, [torch.device(device).type] * 2)

    @deviceCountAtLeast(1)
    @onlyPRIVATEUSE1
    def test_every_device_of_the_type(self, devices):
        for name in devices:
            x = torch.ones(2, device=name, requires_grad=True)
            (x * 3).sum().backward()
            self.assertEqual(str(x.grad.device), name)


class TestSerialization(TestCase):
    @dtypes(*ALL)
    def test_round_trip(self, device, dtype):
        x = make_tensor((3, 4), dtype=dtype, device="cpu").to(device)
        for value in (x, x.t(), x[1:, ::2], x[0, 0], x[:0]):
            for modern in (True, False):
                file = io.BytesIO()
                torch.save(value, file, _use_new_zipfile_serialization=modern)
                file.seek(0)
                back = torch.load(file)
                self.assertEqual((back.device, back.dtype, back.stride()), (value.device, dtype, value.stride()))
                self.assertEqual(back.cpu(), value.cpu())

    def test_modules(self, device):
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(device)
        file = io.BytesIO()
        torch.save(net.state_dict(), file)
        file.seek(0)
        other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        other.load_state_dict(torch.load(file, map_location="cpu"))
        for a, b in zip(net.state_dict().values(), other.state_dict().values(), strict=True):
            self.assertEqual(a.cpu(), b)


class TestTypePromotion(TestCase):
    @parametrize("name", ["add", "mul", "div", "pow", "maximum", "eq", "where"])
    def test_pairs_of_tensors(self, device, name):
        kinds = [t for t in get_all_dtypes(include_complex32=False) if t in ALL]
        for a, b in itertools.product(kinds, kinds):
            if name == "maximum" and (a.is_complex or b.is_complex):
                continue
            x, y = torch.tensor([1, 2, 0]).to(a), torch.tensor([2, 1, 1]).to(b)
            run = (
                (lambda s, t: torch.where(s > t if not (s.is_complex() or t.is_complex()) else s == t, s, t))
                if name == "where"
                else getattr(torch, name)
            )
            try:
                want = run(x, y)
            except RuntimeError:
                with self.assertRaises(RuntimeError):
                    run(x.to(device), y.to(device))
                continue
            got = run(x.to(device), y.to(device))
            self.assertEqual(got.dtype, want.dtype, msg=f"{name} {a} {b}")
            self.assertEqual(got.cpu(), want, msg=f"{name} {a} {b}")

    @dtypes(*ALL)
    def test_numbers_and_scalars(self, device, dtype):
        x = torch.tensor([1, 2]).to(dtype)
        for number in (2, 2.5, True, torch.tensor(3), torch.tensor(1.5), torch.tensor(2.0, dtype=torch.float64)):
            there = number.to(device) if isinstance(number, torch.Tensor) else number
            for run in (torch.add, torch.mul, torch.div):
                want = run(x, number)
                for other in (there, number):  # a 0-dim tensor on the CPU counts as a number
                    got = run(x.to(device), other)
                    self.assertEqual(got.dtype, want.dtype)
                    self.assertEqual(got.cpu(), want)

    def test_in_place_may_not_narrow(self, device):
        with self.assertRaisesRegex(RuntimeError, r"can't be cast|not possible due to element size"):
            torch.ones(2, dtype=torch.int64, device=device).add_(1.5)
        self.assertEqual(torch.result_type(torch.ones(2, dtype=torch.int8, device=device), 2.5), torch.float32)
        self.assertEqual((torch.ones(2, dtype=torch.uint8, device=device) / 2).dtype, torch.float32)


for template in (
    TestCreation,
    TestIndexing,
    TestViews,
    TestReductions,
    TestAutograd,
    TestSerialization,
    TestTypePromotion,
):
    instantiate_device_type_tests(template, globals(), only_for=("cpu", CHIP))
del template


@pytest.mark.skipif(CHIP != "npu_v3", reason="it is what this test starts")
def test_another_chip_passes_the_same_templates():
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "FPGA_MM"],
        env=environment(TORCHFL_TEST_CHIP="fpga_mm"), capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert "passed" in ran.stdout
