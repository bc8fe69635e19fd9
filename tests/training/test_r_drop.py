"""R-Drop beside a plain computation with all the logits."""

import pytest
import torch
from torch import nn

from modeling_vanilla.training import VanillaTrainer
from modeling_vanilla.training.r_drop import r_drop_loss, twice

from ..test_loss import Sizes
from .conftest import make_model
from .test_trainer import arguments


def plain(alpha: float, head: nn.Linear, hidden: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    one, two = (head(half) for half in hidden.chunk(2))  # (B, T, V)
    y = labels.chunk(2)[0]
    keep = y != -100
    entropy = sum(
        nn.functional.cross_entropy(x[keep], y[keep], label_smoothing=smoothing, reduction="sum") for x in (one, two)
    )
    p, q = one[keep].softmax(-1), two[keep].softmax(-1)
    divergence = (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
    return (entropy / 2 + alpha / 4 * divergence) / keep.sum()


@pytest.mark.parametrize("hooked", [False, True])  # a head with a hook is called, not taken apart
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_equals_the_formula_and_its_gradients(monkeypatch, alpha, smoothing, hooked):
    monkeypatch.setattr("modeling_vanilla.training.r_drop.tokens_per_chunk", lambda weight: 15)
    head, called = nn.Linear(8, 13).double(), []
    if hooked:
        head.register_forward_hook(lambda *_: called.append(True))
    hidden = torch.randn(6, 5, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(13, (3, 5)).masked_fill(torch.rand(3, 5) < 0.3, -100).repeat(2, 1)
    found = r_drop_loss(alpha, head, hidden, labels, label_smoothing=smoothing)
    assert bool(called) is hooked
    expected = plain(alpha, head, hidden, labels, smoothing)
    torch.testing.assert_close(found.loss.double(), expected, rtol=1e-6, atol=1e-6)
    parameters = (hidden, head.weight, head.bias)
    for a, b in zip(
        torch.autograd.grad(found.loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_in_bf16_it_is_near_the_formula_and_keeps_its_sign():
    """Logits far apart, as an untrained pass's are not: the products are bf16, the rest is float32."""
    head = nn.Linear(64, 101, bias=False)
    hidden = torch.randn(4, 30, 64).mul(3).requires_grad_()
    labels = torch.randint(101, (2, 30)).repeat(2, 1)
    with torch.autocast("cpu", torch.bfloat16):
        found = r_drop_loss(5.0, head, hidden, labels, label_smoothing=0.1)
    expected = plain(5.0, head, hidden, labels, 0.1)
    torch.testing.assert_close(found.loss, expected, rtol=1e-2, atol=0)
    for a, b in zip(*(torch.autograd.grad(x, (hidden, head.weight)) for x in (found.loss, expected)), strict=True):
        assert torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), 0) > 0.999


def test_the_logits_are_never_there_all_at_once(monkeypatch):
    monkeypatch.setattr("modeling_vanilla.training.r_drop.tokens_per_chunk", lambda weight: 16)
    hidden, labels = torch.randn(2, 200, 6, requires_grad=True), torch.randint(500, (1, 200)).repeat(2, 1)
    with Sizes() as sizes:
        r_drop_loss(5.0, nn.Linear(6, 500), hidden, labels, label_smoothing=0.1).loss.backward()
    assert max(sizes.seen) <= 8 * 500  # a chunk's; (V, D) is 3,000


def test_a_batch_of_padding_costs_nothing():
    found = r_drop_loss(5.0, nn.Linear(4, 7), torch.randn(2, 3, 4), torch.full((2, 3), -100))
    assert found.loss == 0


@pytest.mark.parametrize("hooked", [False, True])
def test_pieces_of_an_update_add_up_to_it(hooked):
    head, hidden = nn.Linear(8, 13), torch.randn(6, 5, 8)
    if hooked:
        head.register_forward_hook(lambda *_: None)
    labels = torch.randint(13, (3, 5)).masked_fill(torch.rand(3, 5) < 0.3, -100)
    whole = r_drop_loss(5.0, head, hidden, labels.repeat(2, 1)).loss
    tokens = (labels != -100).sum()
    pieces = [
        r_drop_loss(5.0, head, hidden[[i, i + 3]], labels[[i, i]], num_items_in_batch=tokens).loss for i in range(3)
    ]
    torch.testing.assert_close(sum(pieces), whole)


def test_without_dropout_it_is_the_plain_loss(tmp_path, pairs):
    """The passes then agree, so that R-Drop's run is the plain one, accumulation and counts of tokens included."""
    runs = []
    for alpha in (0.0, 5.0):
        torch.manual_seed(0)
        trainer = VanillaTrainer(
            make_model(dropout=0.0),
            arguments(tmp_path, r_drop=alpha, gradient_accumulation_steps=2),
            train_dataset=pairs,
        )
        trainer.train()
        runs.append([(entry["loss"], entry["nll"]) for entry in trainer.state.log_history if "nll" in entry])
    assert runs[0] == [pytest.approx(entry, rel=1e-4) for entry in runs[1]]


def test_the_passes_have_dropout_of_their_own():
    model = make_model(dropout=0.5).train()
    ids = torch.randint(3, 20, (2, 6))
    batch = twice({"input_ids": ids, "labels": ids, "num_items_in_batch": torch.tensor(12)})
    assert batch["num_items_in_batch"] == 12
    states = model.model(batch["input_ids"], decoder_input_ids=batch["labels"]).last_hidden_state
    assert not torch.allclose(*states.chunk(2))
