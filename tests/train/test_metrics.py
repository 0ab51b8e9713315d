"""Metrics: scikit-learn's, whatever the batches, and never NaN."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import process_group
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from scalespaces.train._metrics import ClassificationMetrics, SegmentationMetrics

sklearn: Any = pytest.importorskip("sklearn.metrics")


def fill(metrics: Any, logits: Tensor, target: Tensor, parts: int = 3) -> dict[str, Any]:
    """Update in several batches."""
    for rows in torch.arange(len(logits)).tensor_split(parts):
        metrics.update(logits[rows], target[rows])
    found = metrics.compute()
    json.dumps(found, allow_nan=False)
    return found


def flat(found: Any) -> list[Any]:
    """The numbers, those of classes too."""
    return [number for value in found.values() for number in flat(value)] if isinstance(found, dict) else [found]


def drawn(seed: int, samples: int, classes: int, *shape: int) -> tuple[Tensor, Tensor]:
    """Scores that know something of the target, in float64."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(classes, (samples, *shape), generator=generator)
    target.view(-1)[:classes] = torch.arange(classes)  # every class occurs
    logits = torch.randn(samples, classes, *shape, generator=generator, dtype=torch.float64)
    return logits + torch.nn.functional.one_hot(target, classes).movedim(-1, 1), target


@given(st.integers(2, 5), st.integers(10, 40), st.integers(0, 10**6))
def test_classification_agrees_with_scikit_learn(classes, samples, seed):
    logits, target = drawn(seed, samples, classes)
    logits = logits.round(decimals=1)  # ties
    found = fill(ClassificationMetrics(classes), logits, target)
    p, y = logits.softmax(1).numpy(), target.numpy()
    ranked = p[:, 1] if classes == 2 else p
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(y, p.argmax(1)))
    assert found["auroc"] == pytest.approx(sklearn.roc_auc_score(y, ranked, multi_class="ovr"), abs=1e-6)
    assert found["nll"] == pytest.approx(sklearn.log_loss(y, p, labels=range(classes)), rel=1e-5)
    recall = sklearn.recall_score(y, p.argmax(1), average=None)
    for c in range(classes):
        auroc = sklearn.roc_auc_score(y == c, p[:, c])
        expected = {"accuracy": recall[c], "auroc": auroc, "support": (y == c).sum()}
        assert found["per_class"][str(c)] == pytest.approx(expected, abs=1e-6)


def test_a_class_that_does_not_occur_is_left_out():
    logits, target = drawn(1, 30, 3)
    target[target == 2] = 0
    found = fill(ClassificationMetrics(3, ["a", "b", "c"]), logits, target)
    assert found["per_class"]["c"] == {"accuracy": None, "auroc": None, "support": 0}
    p, y = logits.softmax(1).numpy(), target.numpy()
    rest = [sklearn.roc_auc_score(y == c, p[:, c]) for c in (0, 1)]
    assert found["auroc"] == pytest.approx(np.mean(rest), abs=1e-6)
    one = fill(ClassificationMetrics(2), logits[:, :2], torch.ones_like(target))
    assert (one["auroc"], one["per_class"]["1"]["auroc"]) == (None, None)


def test_confident_networks_are_still_ranked_and_numbers_that_are_none_become_null():
    certain = torch.stack([torch.zeros(8), torch.linspace(20, 30, 8)], 1)  # in float32 all these probabilities are 1
    assert fill(ClassificationMetrics(2), certain, torch.arange(8) // 4)["auroc"] == 1
    for bad in (float("nan"), float("inf")):
        logits, target = drawn(2, 12, 3)
        logits[3, 1] = bad
        found = fill(ClassificationMetrics(3), logits, target)
        assert found["nll"] is None
        assert found["auroc"] is not None


def loops(logits: Tensor, target: Tensor, bins: int) -> dict[str, list[Any]]:
    """Each class by itself, with scikit-learn, of probabilities rounded down to the bins."""
    p = logits.softmax(1).movedim(1, -1).flatten(0, -2).numpy()
    y = target.flatten().numpy()
    p, y = p[y != 255], y[y != 255]
    found = {"average_precision": [], "iou": [], "support": []}
    for c in range(logits.shape[1]):
        positive, predicted = y == c, p.argmax(1) == c
        rounded = np.floor(p[:, c] * (bins - 1))
        absent = not positive.any()
        found["average_precision"].append(None if absent else sklearn.average_precision_score(positive, rounded))
        found["iou"].append(None if absent else sklearn.jaccard_score(positive, predicted))
        found["support"].append(int(positive.sum()))
    return found


@given(st.integers(2, 5), st.sampled_from([2, 7, 200]), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_segmentation_agrees_with_scikit_learn(classes, bins, ignoring, certain, seed):
    logits, target = drawn(seed, 4, classes, 5, 6)
    logits = logits.float() * (100 if certain else 1)  # so that probabilities are 1
    if ignoring:
        target[:, 3:] = 255
        target[target == 1] = 255  # and said to be there nevertheless
    found = fill(SegmentationMetrics(classes, thresholds=bins), logits, target)
    expected = loops(logits, target, bins)
    for name in ("average_precision", "iou", "support"):
        assert [row[name] for row in found["per_class"].values()] == pytest.approx(expected[name], abs=1e-6)
    for name, key in (("average_precision", "average_precision"), ("mean_iou", "iou")):
        there = [value for value in expected[key] if value is not None]
        assert found[name] == pytest.approx(np.mean(there), abs=1e-6)
    seen = target != 255
    assert found["accuracy"] == pytest.approx((logits.argmax(1) == target)[seen].double().mean().item())


@pytest.mark.parametrize("kind", [ClassificationMetrics, SegmentationMetrics])
def test_nothing_is_null(kind):
    metrics = kind(2, ["a", "b"])
    empty = metrics.compute()
    assert empty == dict.fromkeys(kind.names) | {"per_class": dict.fromkeys("ab", empty["per_class"]["a"])}
    assert set(empty["per_class"]["a"].values()) == {None, 0}
    if kind is SegmentationMetrics:
        metrics.update(torch.randn(2, 2, 4, 4), torch.full((2, 4, 4), 255))  # all ignored
        assert metrics.compute() == empty
    metrics.update(torch.randn(4, 2, *kind.pixels), torch.tensor([0, 1, 0, 1]).view(4, *kind.pixels))
    assert metrics.compute() != empty
    assert (metrics.state_dict(), list(metrics.parameters())) == ({}, [])  # checkpoints are left alone
    assert metrics.to(torch.float64).to("cpu").compute()["accuracy"] is not None
    metrics.reset()
    assert metrics.compute() == empty


def test_another_number_may_be_ignored_and_nan_scores_count_as_no_evidence():
    logits, target = drawn(4, 3, 3, 4, 4)
    target[0], other = 255, target.clone()
    other[0] = -1
    assert fill(SegmentationMetrics(3), logits, target) == fill(SegmentationMetrics(3, ignore_index=-1), logits, other)
    logits[1] = float("nan")
    assert 0 < fill(SegmentationMetrics(3), logits, target)["average_precision"] < 1


@pytest.mark.parametrize("kind", [ClassificationMetrics, SegmentationMetrics])
def test_arguments(kind):
    with pytest.raises(ValueError, match="2 different names"):
        kind(2, ["a", "a"])
    with pytest.raises(ValueError, match="num_classes must be an integer >= 2"):
        kind(1)
    for logits, target in (((4, 3), (4,)), ((4, 2, 5, 5), (4,)), ((4, 2), (3,)), ((4, 2, 5, 5), (4, 5, 4))):
        with pytest.raises(ValueError, match=r"logits are \(B, 2, \.\.\.\) and target is \(B, \.\.\.\), got \(4, "):
            kind(2).update(torch.zeros(logits), torch.zeros(target).long())
    ignored = "" if kind is ClassificationMetrics else " or 255"
    with pytest.raises(ValueError, match=f"classes are 0 to 2{ignored}, got -1"):
        kind(3).update(torch.zeros(2, 3), torch.tensor([0, -1]))


def _process(rank: int, folder: Path) -> None:
    with process_group(rank, folder):
        found = []
        for metrics, (logits, target) in _distributed_cases():
            rows = slice(0, 5) if rank == 0 else slice(5, None)
            metrics.update(logits[rows], target[rows])
            found.append(metrics.compute())
            metrics.reset()
            if rank == 0:  # the other process has seen nothing
                metrics.update(logits, target)
            found.append(metrics.compute())
        (folder / f"{rank}.json").write_text(json.dumps(found))


def _distributed_cases() -> list[Any]:
    return [(ClassificationMetrics(3), drawn(0, 12, 3)), (SegmentationMetrics(3), drawn(0, 12, 3, 4, 4))]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="gloo over files")
def test_processes_put_their_states_together(tmp_path):
    spawn(_process, (tmp_path,), nprocs=2)
    expected = [fill(metrics, *case) for metrics, case in _distributed_cases()]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for n, part in enumerate(found):
            assert flat(part) == pytest.approx(flat(expected[n // 2]), abs=1e-6)
