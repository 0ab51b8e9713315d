"""Batches are a function of (seed, epoch, batch): processes and accumulated batches split them. And their loaders."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import chain, islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pictures import write_cityscapes
from torch import Tensor

from scalespaces.data import ArrayImages, Cityscapes
from scalespaces.train._batches import KeyedBatches, collate, evaluation_loader, training_loader


def dataset(number: int) -> ArrayImages:
    return ArrayImages(torch.zeros(number, 1, 1, dtype=torch.uint8), torch.arange(number))


def flat(batches: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


@given(st.tuples(*[st.integers(1, 4)] * 4), st.integers(0, 40), st.integers(0, 2**62), st.integers(0, 99))
def test_processes_and_accumulated_batches_split_the_steps_of_one(counts, more, seed, epoch):
    processes, accumulate, part, steps = counts
    size = part * processes * accumulate
    data = dataset(steps * size + more % size)
    one = list(KeyedBatches(data, size, seed, epoch=epoch))
    split = {"processes": processes, "accumulate": accumulate, "epoch": epoch}
    ranks = [KeyedBatches(data, size, seed, rank=rank, **split) for rank in range(processes)]
    lists = [list(rank) for rank in ranks]
    assert {len(rank) for rank in ranks} == {len(batches) for batches in lists} == {steps * accumulate}
    assert {len(batch) for batches in lists for batch in batches} == {part}
    # Batch after batch, process after process, they are what one process takes: in any step, in this order.
    assert flat(flat(together) for together in zip(*lists, strict=True)) == flat(one)
    assert ([len(batch) for batch in one], len(set(flat(one)))) == ([size] * steps, steps * size)


@given(st.integers(0, 2**62), st.integers(0, 99))
def test_an_epoch_is_a_permutation_which_the_seed_and_the_epoch_key(seed, epoch):
    data = dataset(60)
    order = flat(KeyedBatches(data, 6, seed, epoch=epoch))
    assert (sorted(order), flat(KeyedBatches(data, 6, seed, epoch=epoch))) == (list(range(60)), order)
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
    data = dataset(8)  # which is told the epoch when its batches are asked for
    batches = KeyedBatches(data, 4, epoch=7)
    next(iter(batches))
    assert data.epoch == 7
    batches.set_epoch(9)
    assert data.epoch == 7, "workers may still be at the epoch before"
    next(iter(batches))
    assert data.epoch == 9


SIZES = [(torch.zeros(3, 4, 6), torch.tensor(0)), (torch.zeros(3, 4, 4), torch.tensor(0))]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: KeyedBatches(dataset(64), 8, processes=32), r"32 processes and 1 .* got 8; use a multiple of 32"),
        (lambda: KeyedBatches(dataset(64), 8, accumulate=3), r"among 1 processes and 3 .* got 8; use a multiple of 3"),
        (lambda: KeyedBatches(dataset(7), 8), r"8 samples, but the training set has 7; use a smaller data\.batch_size"),
        (lambda: evaluation_loader(dataset(3), 2, processes=4), r"4 processes need .* got 3; use fewer processes"),
        (lambda: collate(SIZES), r"one size, got 3 x 4 x 4, 3 x 4 x 6; set data\.size, or data\.crop"),
    ],
)
def test_batches_that_cannot_be_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@given(more=st.integers(0, 25), processes=st.integers(1, 5), batch=st.integers(1, 7))
def test_processes_share_an_evaluation(more, processes, batch):
    data = dataset(processes + more)
    loaders = [evaluation_loader(data, batch, rank=rank, processes=processes) for rank in range(processes)]
    parts = [torch.cat([labels for _, labels in loader]).tolist() for loader in loaders]
    assert sorted(chain(*parts)) == list(range(processes + more)), "each sample once"
    assert all(part == sorted(part) for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.fixture
def streets(tmp_path) -> Cityscapes:
    write_cityscapes(tmp_path, {"train": 5}, size=(40, 64))
    return Cityscapes(tmp_path, crop=(24, 32), flip=True, seed=4)


def epochs(streets: Cityscapes, workers: int, number: int) -> list[list[Tensor]]:
    batches = KeyedBatches(streets, 2, 4)
    loader = training_loader(batches, workers)
    found = []
    for epoch in range(number):
        batches.set_epoch(epoch)
        found += list(loader)
    return found


def test_training_batches_are_the_samples_and_their_indices(streets):
    batches = KeyedBatches(streets, 2, 4)
    loaded = epochs(streets, 0, 3)
    assert len(loaded) == 6
    for n, (images, targets, indices) in enumerate(loaded):
        batches.set_epoch(n // 2)
        expected = list(batches)[n % 2]
        assert indices.tolist() == expected
        for row, index in enumerate(expected):
            assert all(map(torch.equal, (images[row], targets[row]), streets[index]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than there are cores
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(streets, workers):
    """Persistent ones, too, learn the epoch."""
    for one, other in zip(epochs(streets, 0, 4), epochs(streets, workers, 4), strict=True):
        assert all(map(torch.equal, one, other))


READING = """
import time, torch
from scalespaces.data import ArrayImages
from scalespaces.train._batches import evaluation_loader

images = ArrayImages(torch.zeros(8, 4, 4, dtype=torch.uint8), torch.zeros(8, dtype=torch.long))
batches = iter(evaluation_loader(images, 1, workers=2))
next(batches)
print(*(worker.pid for worker in batches._workers), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(os.name == "nt", reason="needs signals and ps")
def test_reading_processes_end_when_their_run_is_killed():
    run = subprocess.Popen([sys.executable, "-c", READING], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    with run.stdout as said:
        readers = said.readline().split()
        assert len(living(readers)) == 2
        run.kill()
    run.wait()
    until = time.monotonic() + 60
    while (left := living(readers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def living(processes: list[str]) -> list[str]:
    """Those that still run."""
    listed = subprocess.run(["ps", "-o", "pid=,stat=", "-p", ",".join(processes)], capture_output=True, text=True)
    return [line.split()[0] for line in listed.stdout.splitlines() if not line.split()[1].startswith("Z")]
