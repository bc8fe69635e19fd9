"""Dropout: how many elements it drops, how it scales the others, and that the gradient takes the same way."""

import math

import pytest
import torch

from modeling_vanilla.dropout import Dropout, dropout


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_the_share_of_kept_elements_is_1_minus_p(p):
    n = 1_000_003
    kept = (dropout(torch.ones(n), p, True) != 0).sum().item()
    # five standard deviations of the binomial distribution, and what rounding p to 1 / 65536 may add
    assert abs(kept - n * (1 - p)) < 5 * math.sqrt(n * p * (1 - p)) + n / 65536


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_a_kept_element_is_scaled_by_1_over_1_minus_p(p):
    x = torch.randn(10_000)
    y = dropout(x, p, True)
    # p is rounded to 1 / 65536, which moves the scale by at most 2^-17 / (1 - p) of itself
    torch.testing.assert_close(y[y != 0], x[y != 0] / (1 - p), rtol=2**-17 / (1 - p) + 1e-6, atol=0)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_expectation_is_the_input(p):
    n = 1_000_000
    deviation = math.sqrt(p / (1 - p) / n)  # of the mean of n elements that are 1 / (1 - p) or 0
    assert abs(dropout(torch.ones(n), p, True).mean().item() - 1) < 5 * deviation


def test_neighbours_are_dropped_independently():
    dropped = (dropout(torch.ones(400_000), 0.5, True) == 0).view(-1, 4).double()  # four elements share a draw
    correlation = torch.corrcoef(dropped.t()) - torch.eye(4)
    assert correlation.abs().max() < 5 / math.sqrt(len(dropped))


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (1, 1, 1, 9), ()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_shape_and_type_are_the_inputs(shape, dtype):
    y = dropout(torch.ones(shape, dtype=dtype), 0.5, True)
    assert y.shape == shape
    assert y.dtype == dtype
    assert ((y == 0) | (y == 2)).all()


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0, 2)], ids=str)
def test_an_empty_tensor_stays_empty(shape):
    x = torch.ones(shape, requires_grad=True)
    y = dropout(x, 0.5, True)
    y.sum().backward()
    assert y.shape == x.grad.shape == shape


@pytest.mark.parametrize(
    "x",
    [torch.randn(30, 20).t(), torch.randn(40, 3, 20)[:, 1], torch.randn(1, 20).expand(30, 20)],
    ids=["transposed", "sliced", "expanded"],
)
def test_a_tensor_that_is_not_contiguous_is_dropped_elementwise(x):
    before = x.clone()
    y = dropout(x, 0.5, True)
    assert 0.3 < (y == 0).double().mean() < 0.7
    torch.testing.assert_close(y[y != 0], 2 * x[y != 0])
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_gradient_is_the_mask_times_the_scale(dtype):
    x = torch.ones(1001, dtype=dtype, requires_grad=True)
    upstream = torch.randn(1001, dtype=dtype)
    y = dropout(x, 0.25, True)
    y.backward(upstream)
    assert torch.equal(x.grad, upstream * (y != 0) * (1 / 0.75))


def test_the_input_of_a_frozen_network_needs_no_gradient():
    assert not dropout(torch.ones(5), 0.5, True).requires_grad


def test_gradients_of_gradients_are_right():
    x = torch.randn(20, dtype=torch.float64, requires_grad=True)

    def seeded(x):
        torch.manual_seed(1)
        return dropout(x, 0.5, True) ** 2

    assert torch.autograd.gradcheck(seeded, x)
    assert torch.autograd.gradgradcheck(seeded, x)


@pytest.mark.parametrize(("p", "training"), [(0.5, False), (0.0, True), (0, True), (0.0, False)])
def test_nothing_to_drop_gives_the_same_object(p, training):
    x = torch.randn(5)
    assert dropout(x, p, training) is x


def test_a_p_of_1_drops_everything():
    x = torch.randn(9, requires_grad=True)
    y = dropout(x, 1.0, True)
    y.sum().backward()
    assert torch.equal(y, torch.nn.functional.dropout(x, 1.0, True))
    assert torch.equal(x.grad, torch.zeros(9))


@pytest.mark.parametrize("p", [1e-6, 1 - 1e-6])
def test_a_p_that_rounds_to_0_or_1_gives_finite_numbers(p):
    assert dropout(torch.ones(1000), p, True).isfinite().all()


def test_the_seed_decides():
    x = torch.ones(1001)
    torch.manual_seed(5)
    first = dropout(x, 0.5, True)
    torch.manual_seed(5)
    again = dropout(x, 0.5, True)
    assert torch.equal(first, again)


def test_two_calls_differ():
    x = torch.ones(1001)
    assert not torch.equal(dropout(x, 0.5, True), dropout(x, 0.5, True))


def test_the_module_follows_train_and_eval():
    module = Dropout(0.5)
    x = torch.ones(1001)
    assert (module.train()(x) == 0).any()
    assert module.eval()(x) is x


def test_the_module_is_a_torch_dropout():
    assert isinstance(Dropout(0.1), torch.nn.Dropout)
    with pytest.raises(ValueError, match="between 0 and 1"):
        Dropout(1.5)


def test_recomputation_draws_the_same_mask():
    x = torch.ones(1001, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(lambda x: dropout(x, 0.5, True), x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
