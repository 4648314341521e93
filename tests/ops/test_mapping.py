"""The five requirements of Section 3.2 on f, as properties of the learnable sigmoid, and the other mappings."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datransformer import MAPPINGS, distance_coefficients

shifts = st.floats(-50, 50)
weighted_distances = st.floats(-1e4, 1e4)


def learnable_sigmoid(weighted: float, shift: float) -> float:
    value = MAPPINGS["learnable_sigmoid"](
        torch.tensor(weighted, dtype=torch.float64), torch.tensor(shift, dtype=torch.float64)
    )
    return value.item()


@given(shifts)
def test_zero_distance_changes_nothing(shift: float) -> None:
    assert learnable_sigmoid(0.0, shift) == pytest.approx(1.0, rel=1e-12)


@given(shifts)
def test_vanishes_far_away_when_the_weight_is_negative(shift: float) -> None:
    assert learnable_sigmoid(-1000.0, shift) < 1e-300


@given(weighted_distances, shifts)
def test_bounded_by_one_plus_e_to_the_shift(weighted: float, shift: float) -> None:
    assert 0 <= learnable_sigmoid(weighted, shift) <= (1 + math.exp(shift)) * (1 + 1e-12)


@given(shifts)
def test_the_bound_is_reached_so_the_shift_tunes_the_scale(shift: float) -> None:
    assert learnable_sigmoid(1000.0, shift) == pytest.approx(1 + math.exp(shift), rel=1e-12)


@given(weighted_distances, st.floats(0, 1e4), shifts)
def test_monotone(weighted: float, step: float, shift: float) -> None:
    assert learnable_sigmoid(weighted, shift) <= learnable_sigmoid(weighted + step, shift)


@given(st.floats(-30, 30), st.floats(-30, 30))
def test_is_equation_5(weighted: float, shift: float) -> None:
    printed = (1 + math.exp(shift)) / (1 + math.exp(shift - weighted))
    assert learnable_sigmoid(weighted, shift) == pytest.approx(printed, rel=1e-12)


@given(st.floats(-30, 30))
def test_shift_zero_is_twice_the_sigmoid(weighted: float) -> None:
    twice = 2 * MAPPINGS["sigmoid"](torch.tensor(weighted, dtype=torch.float64), torch.tensor(0.0)).item()
    assert learnable_sigmoid(weighted, 0.0) == pytest.approx(twice, rel=1e-12)


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ("clip", [0.0, 0.5, 0.75, 0.75]),
        ("linear", [0.75, 1.25, 1.75, 2.25]),
        ("exponent", [1.0, math.exp(0.5), math.exp(1.0), math.exp(1.5)]),
        ("sigmoid", [1 / (1 + math.exp(-0.5 * distance)) for distance in range(4)]),
    ],
)
def test_the_other_mappings_by_hand(mapping: str, expected: list[float]) -> None:
    got = distance_coefficients(torch.arange(4.0), torch.tensor([0.5]), torch.tensor([0.75]), mapping)
    torch.testing.assert_close(got, torch.tensor([expected]))


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_finite_on_a_table_of_100_000_distances(mapping: str) -> None:
    """fp32, |w| up to 100 and |v| up to 50: values and gradients."""
    extremes = torch.tensor([-100.0, -1.0, -1e-4, 0.0, 1e-4, 1.0, 100.0])
    weight, shift = torch.cartesian_prod(extremes, torch.tensor([-50.0, -1.0, 0.0, 1.0, 50.0])).unbind(-1)
    weight, shift = weight.clone().requires_grad_(), shift.clone().requires_grad_()
    coefficients = distance_coefficients(torch.arange(100_000.0), weight, shift, mapping)
    assert coefficients.isfinite().all()
    coefficients.sum().backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()
    assert shift.grad is None or shift.grad.isfinite().all()  # None: exponent and sigmoid do not use it


def test_the_printed_quotient_would_not_be_finite() -> None:
    """The reason why Eq. 5 is not written as it is printed: if this fails, the rewrite is no longer needed."""
    weight = torch.tensor(-1.0, requires_grad=True)
    ((1 + math.exp(0.0)) / (1 + torch.exp(0.0 - weight * 100))).backward()
    assert weight.grad is not None
    assert weight.grad.isnan()
