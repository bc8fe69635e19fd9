"""The loss against torch.nn.functional.cross_entropy, in value and in every gradient, and what it may hold in memory.

Shapes: `B` sentences, `T` target positions, `D` d_model, `V` vocabulary.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.trainer_pt_utils import LabelSmoother

from modeling_vanilla.decoding.scoring import token_log_probs
from modeling_vanilla.loss import projected_cross_entropy, smoothed_cross_entropy

CHUNKS = [1, 3, 7, 10**9, None]
SMOOTHINGS = [0.0, 0.1, 1.0]

# What the third sentence of a batch, and with it the batch, looks like.
PADDINGS = {
    "none": [5, 5, 5],
    "some": [5, 2, 4],
    "a-row": [5, 0, 3],
    "all-but-one": [0, 1, 0],
}


def batch(lengths, V=11, D=6, T=5, dtype=torch.float32):
    """Hidden states `(B, T, D)`, a projection and its bias, and labels `(B, T)` with -100 after each length."""
    labels = torch.randint(V, (len(lengths), T)).masked_fill(torch.arange(T) >= torch.tensor(lengths)[:, None], -100)
    tensors = torch.randn(len(lengths), T, D), torch.randn(V, D), torch.randn(V)
    return *(x.to(dtype).requires_grad_() for x in tensors), labels


def reference(hidden_states, weight, bias, labels, label_smoothing=0.0, num_items=None):
    """PyTorch's loss of all the logits."""
    logits = nn.functional.linear(hidden_states, weight, bias)
    total = nn.functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), label_smoothing=label_smoothing, reduction="sum"
    )
    return total / (num_items or (labels != -100).sum().clamp(min=1))


def gradients(loss, *tensors):
    return torch.autograd.grad(loss, [x for x in tensors if x is not None])


@pytest.mark.parametrize("chunk_size", CHUNKS)
@pytest.mark.parametrize("label_smoothing", SMOOTHINGS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_value_and_gradients_are_those_of_torchs_cross_entropy(chunk_size, label_smoothing, padding, has_bias):
    hidden, weight, bias, labels = batch(PADDINGS[padding])
    bias = bias if has_bias else None
    expected = reference(hidden, weight, bias, labels, label_smoothing)
    loss, nll = projected_cross_entropy(hidden, weight, labels, bias, label_smoothing, chunk_size=chunk_size)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(nll, reference(hidden, weight, bias, labels).detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(
        gradients(loss, hidden, weight, bias), gradients(expected, hidden, weight, bias), rtol=0, atol=1e-6
    )


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any),
    V=st.integers(2, 40),
    D=st.integers(1, 9),
    chunk_size=st.integers(1, 20),
    label_smoothing=st.floats(0, 1),
    num_items=st.none() | st.integers(1, 100),
    seed=st.integers(0, 2**31),
)
def test_any_sizes_agree_with_torchs_cross_entropy(lengths, V, D, chunk_size, label_smoothing, num_items, seed):
    torch.manual_seed(seed)
    # in float64, so that the reference has no rounding of its own; ours then takes softmax and sums in float32
    hidden, weight, bias, labels = batch(lengths, V, D, T=4, dtype=torch.float64)
    expected = reference(hidden, weight, bias, labels, label_smoothing, num_items)
    loss, _ = projected_cross_entropy(hidden, weight, labels, bias, label_smoothing, num_items, chunk_size=chunk_size)
    torch.testing.assert_close(loss.double(), expected, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(
        gradients(loss, hidden, weight, bias), gradients(expected, hidden, weight, bias), rtol=1e-6, atol=2e-6
    )


@pytest.mark.parametrize("label_smoothing", SMOOTHINGS)
@pytest.mark.parametrize("padding", PADDINGS)
def test_the_loss_of_given_logits_is_torchs_cross_entropy(label_smoothing, padding):
    hidden, weight, bias, labels = batch(PADDINGS[padding])
    logits = nn.functional.linear(hidden, weight, bias).detach().requires_grad_()
    expected = reference(hidden, weight, bias, labels, label_smoothing)
    loss, nll = smoothed_cross_entropy(logits, labels, label_smoothing)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(nll, reference(hidden, weight, bias, labels).detach(), rtol=1e-6, atol=0)
    (expected_gradient,) = torch.autograd.grad(
        nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=label_smoothing), logits
    )
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], expected_gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("num_items", [None, 3, torch.tensor(3)], ids=str)
@pytest.mark.parametrize("epsilon", [0.1, 0.5])
def test_the_convention_is_that_of_the_librarys_label_smoother(padding, num_items, epsilon):
    hidden, weight, bias, labels = batch(PADDINGS[padding])
    logits = nn.functional.linear(hidden, weight, bias).detach()
    expected = LabelSmoother(epsilon)({"logits": logits}, labels, num_items_in_batch=num_items)
    given_logits = smoothed_cross_entropy(logits, labels, epsilon, num_items).loss
    projected = projected_cross_entropy(hidden, weight, labels, bias, epsilon, num_items).loss
    torch.testing.assert_close(given_logits, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(projected.detach(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("num_items", [7, 7.0, torch.tensor(7), torch.tensor([7]).squeeze()], ids=str)
@pytest.mark.parametrize("chunk_size", [3, None])
def test_the_sum_is_divided_by_the_items_of_the_whole_update(num_items, chunk_size):
    hidden, weight, bias, labels = batch(PADDINGS["some"])
    loss, nll = projected_cross_entropy(hidden, weight, labels, bias, 0.1, num_items, chunk_size=chunk_size)
    expected = reference(hidden, weight, bias, labels, 0.1, 7)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(nll, reference(hidden, weight, bias, labels, 0.0, 7).detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(
        gradients(loss, hidden, weight, bias), gradients(expected, hidden, weight, bias), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("num_items", [None, 0, 5, torch.tensor(0)], ids=str)
@pytest.mark.parametrize("label_smoothing", SMOOTHINGS)
def test_a_batch_of_padding_costs_nothing_and_moves_nothing(num_items, label_smoothing):
    hidden, weight, bias, labels = batch([0, 0])
    for loss, nll in (
        projected_cross_entropy(hidden, weight, labels, bias, label_smoothing, num_items),
        smoothed_cross_entropy(nn.functional.linear(hidden, weight, bias), labels, label_smoothing, num_items),
    ):
        assert (loss.item(), nll.item()) == (0, 0)
        assert all((gradient == 0).all() for gradient in gradients(loss, hidden, weight, bias))


def test_a_padding_label_of_ones_own_choice_is_left_out():
    hidden, weight, bias, labels = batch(PADDINGS["some"])
    own = labels.masked_fill(labels == -100, -1)
    expected = projected_cross_entropy(hidden, weight, labels, bias, 0.1)
    assert torch.equal(projected_cross_entropy(hidden, weight, own, bias, 0.1, ignore_index=-1).loss, expected.loss)
    logits = nn.functional.linear(hidden, weight, bias)
    torch.testing.assert_close(smoothed_cross_entropy(logits, own, 0.1, ignore_index=-1).loss, expected.loss)


def test_what_stands_at_padded_positions_does_not_matter():
    hidden, weight, bias, labels = batch(PADDINGS["some"])
    spoilt = hidden.detach().clone()
    spoilt[labels == -100] = torch.nan
    spoilt.requires_grad_()
    expected = projected_cross_entropy(hidden, weight, labels, bias, 0.1).loss
    loss = projected_cross_entropy(spoilt, weight, labels, bias, 0.1).loss
    assert torch.equal(loss, expected)
    assert torch.equal(gradients(loss, spoilt)[0], gradients(expected, hidden)[0])


@pytest.mark.parametrize("label_smoothing", SMOOTHINGS)
@pytest.mark.parametrize(("lengths", "V"), [([5, 3], 2), ([1], 11), ([1], 2)], ids=str)
def test_the_smallest_sizes_work(lengths, V, label_smoothing):
    hidden, weight, bias, labels = batch(lengths, V=V)
    expected = reference(hidden, weight, bias, labels, label_smoothing)
    loss, _ = projected_cross_entropy(hidden, weight, labels, bias, label_smoothing)
    exact = reference(hidden.double(), weight.double(), bias.double(), labels, label_smoothing)
    # A probability near 1 is known to float32's epsilon, and so is its logarithm, however small: PyTorch's as well.
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=torch.finfo(torch.float32).eps)
    torch.testing.assert_close(
        gradients(loss, hidden, weight, bias), gradients(expected, hidden, weight, bias), rtol=0, atol=1e-6
    )


def test_hidden_states_may_have_any_number_of_dimensions():
    hidden, weight, bias, labels = batch([5, 5, 5, 5])
    expected = projected_cross_entropy(hidden, weight, labels, bias).loss
    for shape in [(20,), (2, 2, 5)]:
        loss = projected_cross_entropy(hidden.reshape(*shape, 6), weight, labels.reshape(shape), bias).loss
        assert torch.equal(loss, expected)


def test_far_logits_do_not_overflow():
    hidden, weight, bias, labels = batch([5, 5])
    expected = reference(hidden * 1000, weight, bias, labels, 0.1)
    loss, _ = projected_cross_entropy(hidden * 1000, weight, labels, bias, 0.1)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)


def test_an_upstream_factor_scales_every_gradient():
    hidden, weight, bias, labels = batch(PADDINGS["some"])
    loss = projected_cross_entropy(hidden, weight, labels, bias, 0.1).loss
    (loss * 3).backward()
    expected = gradients(3 * reference(hidden, weight, bias, labels, 0.1), hidden, weight, bias)
    torch.testing.assert_close([hidden.grad, weight.grad, bias.grad], list(expected), rtol=0, atol=3e-6)


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)], ids=str)
def test_frozen_tensors_get_no_gradient(needs):
    hidden, weight, bias, labels = batch(PADDINGS["some"])
    expected = gradients(reference(hidden, weight, bias, labels, 0.1), hidden, weight, bias)
    for x, need in zip((hidden, weight, bias), needs, strict=True):
        x.requires_grad_(need)
    projected_cross_entropy(hidden, weight, labels, bias, 0.1).loss.backward()
    for x, need, gradient in zip((hidden, weight, bias), needs, expected, strict=True):
        assert (x.grad is not None) == need
        if need:
            torch.testing.assert_close(x.grad, gradient, rtol=0, atol=1e-6)


def test_a_weight_used_elsewhere_too_gets_both_gradients():
    """As tied embeddings do."""
    _, weight, bias, labels = batch(PADDINGS["some"])
    ids = torch.randint(11, labels.shape)
    loss = projected_cross_entropy(nn.functional.embedding(ids, weight).tanh(), weight, labels, bias).loss
    expected = reference(nn.functional.embedding(ids, weight).tanh(), weight, bias, labels)
    torch.testing.assert_close(gradients(loss, weight), gradients(expected, weight), rtol=0, atol=1e-6)


def test_the_nll_takes_no_gradient():
    hidden, weight, bias, labels = batch(PADDINGS["some"])
    assert not projected_cross_entropy(hidden, weight, labels, bias, 0.1).nll.requires_grad
    assert not smoothed_cross_entropy(nn.functional.linear(hidden, weight), labels, 0.1).nll.requires_grad


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_autocast_computes_in_bfloat16_and_gives_float32_gradients(label_smoothing):
    hidden, weight, bias, labels = batch([40, 31, 17], V=50, D=32, T=40)
    with torch.autocast("cpu", torch.bfloat16):
        loss, nll = projected_cross_entropy(hidden, weight, labels, bias, label_smoothing, chunk_size=16)
    expected = reference(hidden, weight, bias, labels, label_smoothing)
    assert loss.dtype == nll.dtype == torch.float32
    assert loss != expected  # or it was not in bfloat16 at all
    actual = gradients(loss, hidden, weight, bias)
    assert {gradient.dtype for gradient in actual} == {torch.float32}
    torch.testing.assert_close(loss, expected, rtol=2**-8, atol=0)
    for gradient, exact in zip(actual, gradients(expected, hidden, weight, bias), strict=True):
        # each logit is off by up to 2^-8 of itself, and so, about, is the gradient as a whole
        assert (gradient - exact).norm() < 2**-6 * exact.norm()


def test_autocast_and_given_logits_agree():
    hidden, weight, bias, labels = batch(PADDINGS["some"])
    with torch.autocast("cpu", torch.bfloat16):
        projected = projected_cross_entropy(hidden, weight, labels, bias, 0.1).loss
        given_logits = smoothed_cross_entropy(nn.functional.linear(hidden, weight, bias), labels, 0.1).loss
    torch.testing.assert_close(projected, given_logits, rtol=1e-6, atol=0)


@pytest.mark.parametrize("tokens", [100, 400_000])
def test_fp16_gradients_survive_a_large_update_once_the_loss_is_scaled(tokens):
    hidden, weight, bias, labels = batch([40, 31, 17], V=50, D=32, T=40)
    scale = 65536.0
    expected = gradients(reference(hidden, weight, bias, labels, 0.1, tokens), hidden, weight, bias)
    with torch.autocast("cpu", torch.float16):
        loss, _ = projected_cross_entropy(hidden, weight, labels, bias, 0.1, num_items_in_batch=tokens)
    for found, wanted in zip(gradients(loss * scale, hidden, weight, bias), expected, strict=True):
        assert (found / scale - wanted).norm() < 0.005 * wanted.norm()


def test_bfloat16_weights_get_bfloat16_gradients_and_a_float32_loss():
    hidden, weight, bias, labels = batch([40, 31, 17], V=50, D=32, T=40, dtype=torch.bfloat16)
    loss, _ = projected_cross_entropy(hidden, weight, labels, bias, 0.1, chunk_size=16)
    exact = [x.detach().float().requires_grad_() for x in (hidden, weight, bias)]
    expected = reference(*exact, labels, 0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=2**-8, atol=0)
    for gradient, other in zip(gradients(loss, hidden, weight, bias), gradients(expected, *exact), strict=True):
        assert gradient.dtype == torch.bfloat16
        assert (gradient.float() - other).norm() < 2**-6 * other.norm()


def test_bfloat16_sums_over_many_chunks_in_float32():
    """A running sum in bfloat16 would stop growing at 256 equal terms."""
    hidden = torch.ones(2000, 1, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    loss, _ = projected_cross_entropy(hidden, weight, torch.zeros(2000, dtype=torch.long), chunk_size=1)
    # float32 rounds each of 2,000 sums, by 2^-25 of it on average, mostly to the same side
    torch.testing.assert_close(loss.item(), 0.6931471805599453, rtol=1e-5, atol=0)
    assert torch.equal(gradients(loss, weight)[0], torch.tensor([[-0.5], [0.5]], dtype=torch.bfloat16))


class Sizes(TorchDispatchMode):
    """Records the size of every tensor that an operation makes; views are none."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        def tensors(tree):
            return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]

        given = {x.untyped_storage().data_ptr() for x in tensors((args, kwargs))}
        result = function(*args, **kwargs or {})
        self.seen += [x.numel() for x in tensors(result) if x.untyped_storage().data_ptr() not in given]
        return result


@pytest.mark.parametrize("needs_gradients", [True, False])
def test_the_logits_are_never_there_all_at_once(needs_gradients):
    hidden, weight, bias, labels = batch([100] * 4, V=500, D=6, T=100)
    with Sizes() as sizes, torch.set_grad_enabled(needs_gradients):
        loss = projected_cross_entropy(hidden, weight, labels, bias, 0.1, chunk_size=8).loss
        if needs_gradients:
            loss.backward()
    assert max(sizes.seen) <= 8 * 500  # one chunk's logits; (V, D) is 3,000


def test_the_chunk_chosen_for_a_cpu_is_at_most_32_megabytes():
    hidden, weight, bias, labels = batch([600] * 2, V=37_000, D=2, T=600)
    with Sizes() as sizes, torch.no_grad():
        projected_cross_entropy(hidden, weight, labels, bias)
    assert max(sizes.seen) <= 2**23


def test_without_gradients_none_are_computed():
    hidden, weight, bias, labels = batch([2, 2], V=500, D=60)
    with Sizes() as sizes, torch.no_grad():
        projected_cross_entropy(hidden, weight, labels, bias, 0.1)
    assert max(sizes.seen) < weight.numel()


@pytest.mark.parametrize("label_smoothing", [-0.1, 2.0, float("nan")])
def test_a_smoothing_that_is_no_share_is_refused(label_smoothing):
    hidden, weight, bias, labels = batch([5])
    with pytest.raises(ValueError, match=f"label_smoothing={label_smoothing}: must be from 0 to 1"):
        projected_cross_entropy(hidden, weight, labels, bias, label_smoothing)


@pytest.mark.parametrize("chunk_size", [0, -1])
def test_a_chunk_of_no_tokens_is_refused(chunk_size):
    hidden, weight, bias, labels = batch([5])
    with pytest.raises(ValueError, match=f"chunk_size={chunk_size}: must be at least 1"):
        projected_cross_entropy(hidden, weight, labels, bias, chunk_size=chunk_size)


def head_of(weight, bias):
    """The output projection with this weight and bias."""
    head = nn.Linear(*reversed(weight.shape), bias=bias is not None, device="meta")
    head.weight, head.bias = nn.Parameter(weight.detach()), None if bias is None else nn.Parameter(bias.detach())
    return head


@pytest.mark.parametrize("padding", [*PADDINGS, "everything"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_token_log_probs_are_those_of_a_log_softmax(padding, has_bias):
    hidden, weight, bias, labels = batch(PADDINGS.get(padding, [0, 0]))
    bias = bias if has_bias else None
    log_probs = token_log_probs(hidden, head_of(weight, bias), labels)
    expected = nn.functional.linear(hidden, weight, bias).log_softmax(-1)
    expected = expected.gather(-1, labels.clamp(min=0)[..., None])[..., 0] * (labels != -100)
    assert not log_probs.requires_grad
    torch.testing.assert_close(log_probs, expected.detach(), rtol=1e-6, atol=1e-6)


def test_token_log_probs_sum_to_the_nll():
    hidden, weight, bias, labels = batch([600, 300], V=37_000, D=2, T=600)  # many chunks
    log_probs = token_log_probs(hidden, head_of(weight, bias), labels)
    nll = projected_cross_entropy(hidden, weight, labels, bias).nll
    torch.testing.assert_close(-log_probs.sum() / 900, nll, rtol=1e-6, atol=0)


def test_token_log_probs_are_float32_in_half_precision():
    hidden, weight, bias, labels = batch(PADDINGS["some"], dtype=torch.bfloat16)
    log_probs = token_log_probs(hidden, head_of(weight, bias), labels)
    assert log_probs.dtype == torch.float32
    logits = nn.functional.linear(hidden, weight, bias).float()
    expected = -nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    torch.testing.assert_close(log_probs, expected.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("label_smoothing", SMOOTHINGS)
def test_a_label_without_hope_costs_what_it_costs(label_smoothing):
    hidden, weight, bias, labels = batch([5, 3], V=11)
    with torch.no_grad():
        hidden *= 300
    loss, nll = projected_cross_entropy(hidden, weight, labels, bias, label_smoothing)
    exact = reference(hidden.double(), weight.double(), bias.double(), labels)
    assert exact > 100
    torch.testing.assert_close(nll.double(), exact, rtol=1e-5, atol=0)
    smoothed = reference(hidden.double(), weight.double(), bias.double(), labels, label_smoothing)
    torch.testing.assert_close(loss.double(), smoothed, rtol=1e-5, atol=0)
