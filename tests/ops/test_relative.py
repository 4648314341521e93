import pytest
import torch

from datransformer.ops.relative import relative_positions, skew, toeplitz, unskew

LENGTHS = [(5, 5), (1, 7), (7, 1), (3, 5), (5, 3), (1, 1)]


def position_of(query: int, query_length: int, key_length: int) -> int:
    return query + key_length - query_length


@pytest.mark.parametrize(("query_length", "key_length"), LENGTHS)
def test_toeplitz_puts_each_relative_position_at_its_pairs(query_length: int, key_length: int) -> None:
    positions = relative_positions(query_length, key_length, like=torch.empty(0))
    pairs = toeplitz(positions, query_length, key_length)
    expected = [[position_of(i, query_length, key_length) - j for j in range(key_length)] for i in range(query_length)]
    assert pairs.tolist() == expected


@pytest.mark.parametrize(("query_length", "key_length"), LENGTHS)
def test_skew_reads_the_offset_of_each_pair(query_length: int, key_length: int) -> None:
    by_offset = torch.randn(2, 3, query_length, query_length + key_length)
    pairs = skew(by_offset, key_length)
    assert pairs.shape == (2, 3, query_length, key_length)
    for i in range(query_length):
        for j in range(key_length):
            offset = j - position_of(i, query_length, key_length) + key_length - 1
            assert torch.equal(pairs[..., i, j], by_offset[..., i, offset])


@pytest.mark.parametrize(("query_length", "key_length"), LENGTHS)
def test_unskew_is_its_inverse_and_fills_with_zeros(query_length: int, key_length: int) -> None:
    pairs = torch.randn(2, 3, query_length, key_length)
    by_offset = unskew(pairs)
    assert by_offset.shape == (2, 3, query_length, query_length + key_length)
    assert torch.equal(skew(by_offset, key_length), pairs)
    assert by_offset.count_nonzero() == pairs.numel()
