"""The learning rate against equation 3 of the paper."""

import pytest
import torch

from modeling_vanilla.training.schedule import inverse_sqrt_factor, inverse_sqrt_schedule, noam_peak


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (1024, 4000), (128, 2000), (64, 1)])
def test_rate_equals_the_formula_at_every_step(d_model, warmup):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=noam_peak(d_model, warmup))
    scheduler = inverse_sqrt_schedule(optimizer, warmup)
    for step in range(1, 3 * warmup + 10):
        formula = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(formula, rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_first_update_learns():
    assert inverse_sqrt_factor(1, 4000) == 1 / 4000


def test_peak_is_at_the_end_of_warm_up():
    factors = [inverse_sqrt_factor(step, 50) for step in range(1, 200)]
    assert factors.index(max(factors)) == 49
    assert max(factors) == 1


def test_peak_of_the_papers_models():
    assert noam_peak(512, 4000) == pytest.approx(6.99e-4, abs=1e-6)
    assert noam_peak(1024, 4000) == pytest.approx(4.94e-4, abs=1e-6)


def test_without_warm_up_the_rate_starts_at_its_peak():
    assert inverse_sqrt_factor(1, 0) == 1
    assert inverse_sqrt_factor(4, 0) == 0.5


def test_peak_without_warm_up_is_refused():
    with pytest.raises(ValueError, match=r"warmup_steps=0.*learning_rate"):
        noam_peak(512, 0)


@pytest.mark.parametrize(("peak", "warmup", "initial"), [(5e-3, 2000, 1e-7), (5e-4, 10, 1e-5), (1e-3, 0, 0.0)])
def test_fairseqs_warm_up(peak, warmup, initial):
    """With n updates done: init + n (peak - init) / warmup, then peak sqrt(warmup) / sqrt(n)."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = inverse_sqrt_schedule(optimizer, warmup, initial / peak)
    for done in range(3 * warmup + 10):
        rate = peak * max(warmup, 1) ** 0.5 * done**-0.5 if done >= max(warmup, 1) else None
        expected = initial + done * (peak - initial) / max(warmup, 1) if rate is None else rate
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-9)
        optimizer.step()
        scheduler.step()
