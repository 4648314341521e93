import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datransformer.data.batches import COLLATES, TextBatches, plan_batches
from datransformer.data.encode import CUTS, Examples
from datransformer.data.probe import Probe
from datransformer.data.store import Ragged


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=80),
    st.integers(1, 7),
    st.integers(20, 100),
    st.one_of(st.none(), st.tuples(st.integers(0, 9), st.integers(0, 9))),
)
def test_every_example_is_in_one_batch_within_the_limits(
    sizes: list[int], batch_size: int, max_tokens: int, order: tuple[int, int] | None
) -> None:
    lengths = np.array(sizes)
    plan = plan_batches(lengths, batch_size=batch_size, max_tokens=max_tokens, order=order)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(sizes)))
    for batch in plan:
        assert 1 <= len(batch) <= batch_size
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= max_tokens


def test_the_order_depends_on_its_seed_alone() -> None:
    sizes = np.random.default_rng(0).integers(1, 50, 500)
    first, again, other = (
        [batch.tolist() for batch in plan_batches(sizes, batch_size=8, max_tokens=999, order=order)]
        for order in ((0, 1), (0, 1), (0, 2))
    )
    assert first == again
    assert first != other


def test_like_lengths_lie_together() -> None:
    sizes = np.random.default_rng(0).integers(1, 100, 2000)
    plan = plan_batches(sizes, batch_size=10, max_tokens=10**6, order=(0, 0))
    padded = sum(len(batch) * sizes[batch].max() for batch in plan)
    assert padded < 1.1 * sizes.sum()


def examples() -> Examples:
    tokens = Ragged.from_lengths(np.arange(3, 15, dtype=np.int32), np.array([5, 3, 4]))
    parts = Ragged.from_lengths(np.array([3, 2, 1, 2, 1, 3]), np.array([2, 2, 2]))
    return Examples(tokens, parts, np.array([1, 0, 2], np.int32), np.array([10, 11, 12]))


def test_every_cut_has_a_collate() -> None:
    assert set(CUTS) == set(COLLATES)


def test_collates() -> None:
    wanted = np.array([2, 0])
    first = TextBatches(examples(), "sentence").batch(wanted, ())
    assert first.inputs["tokens"].tolist() == [[11, 12, 13, 14, 0], [3, 4, 5, 6, 7]]
    assert first.targets is not None
    assert first.targets.tolist() == [2, 1]
    assert first.rows.tolist() == [12, 10]
    assert first.tokens == 9
    pair = TextBatches(examples(), "siamese").batch(wanted, ()).inputs
    assert pair["first"].tolist() == [[11, 0, 0], [3, 4, 5]]
    assert pair["second"].tolist() == [[12, 13, 14], [6, 7, 0]]
    document = TextBatches(examples(), "document").batch(wanted, ()).inputs
    assert document["tokens"].tolist() == [[11, 0, 0], [12, 13, 14], [3, 4, 5], [6, 7, 0]]
    assert document["sentences"].tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("shape", COLLATES)
def test_the_shares_of_all_processes_make_up_the_batch(shape: str) -> None:
    source = TextBatches(examples(), shape)
    shares = [source.batch(np.array([2, 0, 1]), (), rank, 2) for rank in range(2)]
    assert [share.rows.tolist() for share in shares] == [[12, 11], [10]]


def test_the_probe_is_decided_by_distance() -> None:
    for variant, pick in (("nearest", np.argmin), ("farthest", np.argmax)):
        tokens, labels = Probe(variant=variant).draw(300, np.random.default_rng(0))
        for row, label in zip(tokens, labels, strict=True):
            query = int((row == 0).argmax())
            places = np.flatnonzero((row == 1) | (row == 2))
            assert len(places) == 8
            assert row[places[pick(abs(places - query))]] == label + 1


def test_the_probe_is_seeded_and_of_the_asked_size() -> None:
    first, again, other = (list(Probe(rows=50, seed=seed).batches()) for seed in (1, 1, 2))
    assert first[0].equals(again[0])
    assert not first[0].equals(other[0])
    assert first[0].num_rows == 50
    assert len(first[0]["text"][0].as_py().split()) == 32


def test_counting_markers_is_right_two_times_in_three() -> None:
    tokens, labels = Probe().draw(20_000, np.random.default_rng(0))
    red, blue = (tokens == 1).sum(1), (tokens == 2).sum(1)
    right = np.where(red == blue, 0.5, (blue > red) == labels)
    assert abs(right.mean() - 0.64) < 0.01


@pytest.mark.parametrize(
    ("options", "name"), [({"variant": "left"}, "variant"), ({"rows": 0}, "rows"), ({"length": 8}, "length")]
)
def test_a_wrong_probe_is_named(options: dict[str, object], name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        Probe(**options)  # type: ignore[arg-type]


def test_batches_are_ready_for_an_embedding() -> None:
    assert TextBatches(examples(), "sentence").batch(np.array([0]), ()).inputs["tokens"].dtype == torch.int64
