"""The demo's experiment: what is shown to the networks, and what is counted."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from scalespaces.demo import _study as study
from scalespaces.demo._result import SIZES
from scalespaces.demo._study import LARGE, QUICK, SIDE, SMALL, Settings, Trial, show

TINY = Settings(train=40, test=20, epochs=2, batch_size=16, rounds=1)


def always(label: int) -> Any:
    """A network that answers with one class, whatever it sees."""
    return lambda images: nn.functional.one_hot(torch.tensor([label]), 10).float().expand(len(images), -1)


@pytest.fixture(scope="module")
def trial() -> Trial:
    return study.train_all(0, TINY)


@given(st.floats(0.5, 4), st.integers(0, 99))
def test_a_digit_is_as_large_as_asked_for_and_whole(size, seed):
    white = np.full((1, 8, 8), 255, np.uint8)
    shown = show(white, [size], LARGE, (seed,))[0, 0]
    side = SIDE * size
    assert shown.sum().item() == pytest.approx(side**2, rel=0.03)  # bicubic edges overshoot by a little
    rows = (shown > 0.5).any(1).nonzero().flatten()
    assert len(rows) == pytest.approx(side, abs=1.01)


def test_places_follow_from_the_key_and_without_one_are_the_middle():
    white = np.full((6, 8, 8), 255, np.uint8)
    assert torch.equal(show(white, [1.0] * 6, SMALL, (3,)), show(white, [1.0] * 6, SMALL, (3,)))
    assert not torch.equal(show(white, [1.0] * 6, SMALL, (3,)), show(white, [1.0] * 6, SMALL, (4,)))
    middle = show(white[:1], [1.0], SMALL)[0, 0]
    torch.testing.assert_close(middle, middle.flip(0).flip(1), atol=1 / 255, rtol=0)


@pytest.mark.parametrize(("jitter", "digits"), [(False, 40), (True, 40), (False, 41)])
def test_an_epoch_shows_every_digit_once(jitter, digits):
    """Digits that are left over at its end are dropped, or the learning rate would run past its schedule."""
    labels, settings = torch.arange(digits), Settings(train=digits, epochs=2, batch_size=8)
    batches = list(study.moving(np.zeros((digits, 8, 8), np.uint8), labels, jitter, 0, settings))
    assert len(batches) == settings.steps == 10
    for epoch in (batches[:5], batches[5:]):
        shown = torch.cat([target for _, target in epoch]).tolist()
        assert len(set(shown)) == len(shown) == 40
    assert batches[0][0].shape[-1] == (LARGE if jitter else SMALL)


def test_jitter_shows_all_sizes_and_the_others_one():
    white, labels = np.full((200, 8, 8), 255, np.uint8), torch.zeros(200)
    sides = {}
    for jitter in (False, True):
        batches = study.moving(white, labels, jitter, 0, Settings(train=200, epochs=1))
        sides[jitter] = torch.cat([images for images, _ in batches]).sum((1, 2, 3)).sqrt() / SIDE
    assert sides[False].min() > 0.98
    assert sides[False].max() < 1.02
    assert sides[True].min() < 0.55
    assert sides[True].max() > 3.6
    assert (sides[True] < 2**0.5).float().mean().item() == pytest.approx(0.5, abs=0.1)  # logarithmic: half below


def test_networks_have_as_many_parameters_and_follow_from_the_seed(trial):
    again = study.train_all(0, TINY)
    assert len({sum(p.numel() for p in getattr(trial, key).parameters()) for key in ("cnn", "jitter", "ours")}) == 1
    for key in ("cnn", "ours"):
        for ours, theirs in zip(getattr(trial, key).parameters(), getattr(again, key).parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def test_test_digits_are_not_among_those_learned(trial, monkeypatch):
    seen = []
    monkeypatch.setattr(study, "train", lambda network, batches, *_: seen.append(network))
    monkeypatch.setattr(study, "moving", lambda images, *_: seen.append(images))
    study.train_all(0, TINY)
    learned = {image.tobytes() for image in seen[0]}
    assert len(learned) == 40
    assert not learned & {image.tobytes() for image in trial.images}


def test_accuracy_is_the_share_of_right_answers(trial):
    labels = torch.tensor([3] * 5 + [7] * 15)
    made = Trial(always(3), always(7), trial.ours, trial.images, labels, 0)
    found = study.accuracies(made)
    assert found["cnn"] == found["tta"] == (0.25,) * len(SIZES)
    assert found["jitter"] == (0.75,) * len(SIZES)


def test_test_time_augmentation_undoes_every_tested_size():
    assert [scale * size for scale, size in zip(study.TTA, SIZES, strict=True)] == pytest.approx([1] * len(SIZES))


def test_costs_are_relative_to_the_plain_network(trial):
    cost = study.costs(trial, QUICK)
    assert cost["cnn"].predict == cost["cnn"].train == cost["cnn"].predict_memory == cost["cnn"].train_memory == 1
    assert {found.parameters for found in cost.values()} == {sum(p.numel() for p in trial.cnn.parameters())}
    assert cost["jitter"].predict_memory == 1  # the same network
    assert cost["jitter"].train_memory == pytest.approx((LARGE / SMALL) ** 2, rel=0.1)  # on a larger canvas
    assert cost["tta"].predict_memory > 2  # an image twice as large is among those it is asked about
    assert cost["tta"].train == 1


def test_series_are_what_the_networks_answer(trial):
    found = study.series(trial, 4)
    assert [frame.size for frame in found] == sorted(frame.size for frame in found)
    frame = found[8]
    assert frame.size == 1
    pixels = np.array(Image.open(io.BytesIO(frame.picture)))
    assert pixels.shape == (LARGE, LARGE)
    image = torch.from_numpy(pixels)[None, None] / 255
    with torch.no_grad():
        for network, seen in ((trial.cnn, frame.cnn), (trial.ours, frame.ours)):
            torch.testing.assert_close(network(image).softmax(1)[0], torch.tensor(seen), atol=1e-3, rtol=0)
        levels = trial.ours.scores(image).levels
    share = torch.cat(levels)[:, int(np.argmax(frame.ours))].softmax(0)
    torch.testing.assert_close(torch.tensor(frame.shares), share, atol=1e-3, rtol=0)


def test_levels_see_the_image_ever_smaller(trial):
    found = study.activations(trial)
    assert list(found) == list(study.COARSE_SIZES)
    sides = [Image.open(io.BytesIO(picture)).size[0] for picture in found[0.5]]
    assert sides == sorted(sides, reverse=True)
    assert len(sides) == len(study.SELECTION) == 8
    smaller = [trial.ours.lift.base ** (k + trial.ours.lift.first_level) for k in range(8)]
    assert [1 / scale for scale in study.SELECTION] == pytest.approx(smaller)


@pytest.mark.slow
def test_our_lift_is_exact_and_the_papers_is_not():
    for lift, tables in study.equivariance().items():
        for table in tables.values():
            errors = table.before(table.boundary).tolist()
            assert len(errors) == sum(range(table.boundary))
            assert max(errors) < 1e-14 if lift == "cascade, pyramid" else 1e-4 < max(errors) < 0.05
