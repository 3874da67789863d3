"""An operator with a backward of its own, for the tests that look whose is taken (case 33)."""

import torch


class Square(torch.autograd.Function):
    """x * x. Its gradient is that of 1.5 * x * x, so that it shows whose backward ran."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * 3.0
