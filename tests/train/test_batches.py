"""Batches are a function of (seed, epoch, batch): processes and accumulated batches split them."""

from collections.abc import Iterable
from itertools import chain, islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalespaces.data import ArrayImages
from scalespaces.train._batches import KeyedBatches

counts = st.integers(1, 4)


def dataset(number: int) -> ArrayImages:
    return ArrayImages(torch.zeros(number, 1, 1, dtype=torch.uint8), torch.zeros(number, dtype=torch.int64))


def flat(batches: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


@given(
    processes=counts,
    accumulate=counts,
    part=counts,
    steps=counts,
    more=st.integers(0, 40),
    seed=st.integers(0, 2**62),
    epoch=st.integers(0, 99),
)
def test_processes_and_accumulated_batches_split_the_steps_of_one(
    processes, accumulate, part, steps, more, seed, epoch
):
    size = part * processes * accumulate
    data = dataset(steps * size + more % size)
    one = list(KeyedBatches(data, size, seed, epoch=epoch))
    split = {"processes": processes, "accumulate": accumulate, "epoch": epoch}
    ranks = [KeyedBatches(data, size, seed, rank=rank, **split) for rank in range(processes)]
    lists = [list(rank) for rank in ranks]
    assert {len(rank) for rank in ranks} == {len(batches) for batches in lists} == {steps * accumulate}
    assert all(len(batch) == part for batches in lists for batch in batches)
    # Batch after batch, process after process, they are what one process takes: in any step, in this order.
    assert flat(flat(together) for together in zip(*lists, strict=True)) == flat(one)
    assert [len(batch) for batch in one] == [size] * steps
    assert len(set(flat(one))) == steps * size


@given(st.integers(0, 2**62), st.integers(0, 99))
def test_an_epoch_is_a_permutation_which_the_seed_and_the_epoch_key(seed, epoch):
    data = dataset(60)
    order = flat(KeyedBatches(data, 6, seed, epoch=epoch))
    assert sorted(order) == list(range(60))
    assert flat(KeyedBatches(data, 6, seed, epoch=epoch)) == order
    assert flat(KeyedBatches(data, 30, seed, epoch=epoch)) == order, "whatever the batch size"
    assert flat(KeyedBatches(data, 6, seed, epoch=epoch + 1)) != order
    assert flat(KeyedBatches(data, 6, seed + 1, epoch=epoch)) != order


def test_every_sample_has_its_turn():
    """Those that do not fill a step are others in every epoch; places are uniform."""
    data, first, left_out = dataset(10), torch.zeros(10), torch.zeros(10)
    for epoch in range(600):
        order = flat(KeyedBatches(data, 4, epoch=epoch))
        first[order[0]] += 1
        left_out[list(set(range(10)) - set(order))] += 1
    # Binomials of 600 draws with probability 1/10 and 2/10: 5 standard deviations are 37 and 49.
    assert (first - 60).abs().max() < 37
    assert (left_out - 120).abs().max() < 49


@given(start=st.integers(0, 12), processes=st.sampled_from([1, 2]), accumulate=st.sampled_from([1, 2, 3]))
def test_a_run_goes_on_in_the_middle_of_an_epoch(start, processes, accumulate):
    options = {"seed": 3, "rank": processes - 1, "processes": processes, "accumulate": accumulate, "epoch": 5}
    whole = KeyedBatches(dataset(50), 12, **options)
    rest = KeyedBatches(dataset(50), 12, **options, start=start)
    assert list(rest) == list(islice(whole, start, None))
    assert len(rest) == len(whole), "an epoch is as long as ever"
    rest.set_epoch(5)
    assert list(rest) == list(islice(whole, start, None)), "it is still the epoch to start with"
    rest.set_epoch(6)
    whole.set_epoch(6)
    assert list(rest) == list(whole), "the next one begins with its first batch"


def test_the_dataset_is_told_the_epoch_when_its_batches_are_asked_for():
    data = dataset(8)
    batches = KeyedBatches(data, 4, epoch=7)
    next(iter(batches))
    assert data.epoch == 7
    batches.set_epoch(9)
    assert data.epoch == 7, "workers may still be at the epoch before"
    next(iter(batches))
    assert data.epoch == 9


@pytest.mark.parametrize(("processes", "accumulate", "least"), [(32, 1, 32), (1, 3, 3), (4, 4, 16)])
def test_steps_that_cannot_be_split_are_refused(processes, accumulate, least):
    rule = rf"divided over {processes} processes and {accumulate} .* got 8; use a multiple of {least}"
    with pytest.raises(ValueError, match=rule):
        KeyedBatches(dataset(64), 8, processes=processes, accumulate=accumulate)


def test_too_few_samples_are_refused():
    assert list(map(len, KeyedBatches(dataset(8), 8))) == [8]
    with pytest.raises(ValueError, match=r"training set has 7, fewer than 8; use a smaller data\.batch_size"):
        KeyedBatches(dataset(7), 8)
