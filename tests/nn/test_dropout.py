import pytest
import torch

from datransformer.nn.dropout import Dropout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_units_are_dropped_as_often_as_told_and_the_mean_stays(probability: float) -> None:
    outputs = Dropout(probability)(torch.ones(1001, 997))
    assert abs((outputs == 0).float().mean().item() - probability) < 2e-3
    assert abs(outputs.mean().item() - 1) < 1e-2
    values = outputs.unique()
    torch.testing.assert_close(values, torch.tensor([0.0, 1 / (1 - probability)]), rtol=1e-4, atol=0)


def test_neighbours_are_dropped_independently() -> None:
    kept = (Dropout(0.5)(torch.ones(400_000)) > 0).double() - 0.5
    for lag in (1, 2, 3, 4, 5, 8, 16, 4096):  # two units, eight apart, share a hash
        assert abs((kept[:-lag] * kept[lag:]).mean().item()) < 2e-3
    rows = (Dropout(0.5)(torch.ones(1000, 400)) > 0).double().mean(0)
    assert abs(rows - 0.5).max() < 0.09


def test_it_is_seeded_and_silent_in_evaluation() -> None:
    dropout, inputs = Dropout(0.3), torch.randn(7, 11)
    torch.manual_seed(1)
    first = dropout(inputs)
    torch.manual_seed(1)
    torch.testing.assert_close(dropout(inputs), first, rtol=0, atol=0)
    assert not torch.equal(dropout(inputs), first)
    assert dropout.eval()(inputs) is inputs


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_none_and_all(probability: float, expected: float) -> None:
    assert (Dropout(probability)(torch.ones(5, 3)) == expected).all()


def test_the_gradient_goes_where_the_input_went() -> None:
    inputs = torch.ones(13, 7, dtype=torch.float64, requires_grad=True)
    outputs = Dropout(0.4)(inputs)
    outputs.sum().backward()
    torch.testing.assert_close(inputs.grad, outputs.detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_type_stays(dtype: torch.dtype) -> None:
    assert Dropout(0.5)(torch.ones(3, 5, dtype=dtype)).dtype == dtype


def test_an_odd_shape_and_an_empty_one() -> None:
    assert Dropout(0.5)(torch.ones(0, 3)).shape == (0, 3)
    assert Dropout(0.5)(torch.ones(3, 5, 7).transpose(0, 2)).shape == (7, 5, 3)
