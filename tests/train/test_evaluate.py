"""Evaluation: every number is what a loop over single images finds, and nothing is lost on the way to files."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from command import fails
from pictures import save_picture
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces.cli import main
from scalespaces.data import ArrayImages, ImageDataset, digits, to_unit
from scalespaces.data._idx import read_idx_images
from scalespaces.models import Card, convert, create_model, load, save
from scalespaces.models._calibrate import rescale_batch
from scalespaces.plotting import plot_over_scales
from scalespaces.train._evaluate import Evaluation, Row, evaluate, num_levels, set_scale
from scalespaces.train._levels import answer
from scalespaces.train._metrics import ClassificationMetrics, SegmentationMetrics
from tests.train.test_metrics import flat
from tests.train.test_recipes import foreign

SMALL: dict[str, Any] = {"channels": (6, 9), "kernel_size": 3, "grid": 1, "hidden": 11}
CARD = Card(mean=[0.3], std=[0.4])


@pytest.fixture(scope="module")
def digit_set() -> ArrayImages:
    images, labels = digits()
    return ArrayImages(np.kron(images[:40], np.ones((2, 2), np.uint8)), labels[:40])


def network(seed: int = 0, **arguments: Any) -> Any:
    """A small network whose answers differ."""
    torch.manual_seed(seed)
    model: Any = create_model("cnn", **SMALL | arguments)
    model.card = CARD
    with torch.no_grad():
        model.linear.weight *= 20
    return model


def leveled(seed: int = 0, **arguments: Any) -> Any:
    return network(seed, lift={"num_levels": 3}, **arguments)


NAMED = network()
NAMED.card = Card([f"digit {n}" for n in range(10)])


class Shapes(ImageDataset):
    """Images of two sizes, with masks of three classes, some of it ignored."""

    def __init__(self, sizes: Sequence[tuple[int, int]] = ((16, 24), (20, 16))) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.samples = []
        for n in range(5):
            size = sizes[n % len(sizes)]
            mask = torch.randint(0, 3, size, generator=generator)
            mask[:2] = 255
            self.samples.append((torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8), mask))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.samples[index]


def loop(ask: Any, data: Any, scale: float, metrics: Any) -> dict[str, Any]:
    """Image by image."""
    for n in range(len(data)):
        image, target = data[n]
        unit = to_unit(image[None])
        with torch.no_grad():
            probabilities = ask(rescale_batch(CARD.normalize(unit) if len(image) == 1 else unit, scale))
        if probabilities.ndim == 4 and probabilities.shape[2:] != target.shape:
            options: Any = {"mode": "bilinear", "antialias": True}
            probabilities = F.interpolate(probabilities, target.shape, **options)
        metrics.update(probabilities.log(), target[None])
    return metrics.compute()


def test_every_number_is_the_loops(digit_set):
    plain, levels = network().eval(), leveled(1).eval()
    scales, tta, select = [0.5, 1, 2], [0.71, 1, 1.41], [0.5, 1]
    options: Any = {"scales": scales, "tta": tta, "select": select, "pool": "max", "batch": 7}
    found = evaluate({"plain": plain, "levels": levels}, {"test_2": digit_set}, **options)

    def mean(x: Tensor) -> Tensor:
        return torch.stack([plain(rescale_batch(x, s)).softmax(1) for s in tta]).mean(0)

    def most_certain(x: Tensor) -> Tensor:
        answers = [plain(rescale_batch(x, s)).softmax(1) for s in select]
        return min(answers, key=lambda p: -(p * p.log()).sum().item())

    asked: list[tuple[str, str, Any]] = [
        ("plain", "plain", lambda x: plain(x).softmax(1)),
        ("plain", "tta", mean),
        ("plain", "select", most_certain),
        ("levels", "plain", lambda x: answer(levels, x, "max").softmax(1)),
    ]
    assert [(row.model, row.method, row.resize) for row in found.rows] == [(*a[:2], s) for a in asked for s in scales]
    rows = iter(found.rows)
    for _, _, ask in asked:
        for scale in scales:
            row = next(rows)
            assert (row.split, row.scale, row.images, row.note) == ("test_2", 2 * scale, 40, None)
            expected = loop(ask, digit_set, scale, ClassificationMetrics(10))
            assert flat(row.metrics) == pytest.approx(flat(expected), abs=1e-4)
    assert len({round(row.value("nll") or 0, 4) for row in found.rows}) == len(found.rows)


@pytest.mark.parametrize("tile", [None, 16])
def test_masks_are_compared_at_their_own_size(tile):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1)).eval()
    widths = []
    handle = model.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].shape[3]))
    found = evaluate(model, Shapes(), scales=[0.5, 1, 2], tile=tile)
    handle.remove()
    assert max(widths[1:]) == (48 if tile is None else 16)  # the first was to find out about classes
    assert found.metric == "average_precision"
    for row in found.rows:
        expected = loop(lambda x: model(x).softmax(1), Shapes(), row.scale, SegmentationMetrics(3))
        assert flat(row.metrics) == pytest.approx(flat(expected), abs=1e-4)
        assert (row.value("average_precision") or 0) > 0.2


def test_several_sets_and_their_scales(digit_set):
    sets = {"test_0.5": digit_set, "test_1-4": digit_set}
    found = evaluate(network(), sets, limit=10)
    assert [(row.split, row.scale) for row in found.rows] == [("test_0.5", 0.5), ("test_1-4", 2.0)]
    assert list(found.lines()) == ["model"]
    both = evaluate(network(), sets, scales=[1, 2], limit=10)
    assert {name: [s for s, _ in line] for name, line in both.lines().items()} == {
        "model, test_0.5": [0.5, 1.0],
        "model, test_1-4": [2.0, 4.0],
    }
    others = ["test", "valid", "test_", "test_a-b", "test_0", "test_inf", "a_-1", "test_nan"]
    assert {set_scale(name) for name in others} == {1}


def test_the_limit_is_spread_evenly(digit_set):
    spread = ArrayImages(digit_set.images[::4], digit_set.labels[::4])
    some = {n: evaluate(NAMED, digit_set, limit=n, classes=NAMED.card.classes).rows[0] for n in (10, 1000)}
    assert some[10].metrics == evaluate(NAMED, spread).rows[0].metrics
    assert [row.images for row in some.values()] == [10, 40]


def test_the_network_is_as_it_was(digit_set):
    models = {"float": network().train(), "double": network().double()}
    before = {name: tensor.clone() for name, tensor in models["float"].state_dict().items()}
    one, other = evaluate(models, digit_set, scales=[0.7]).rows
    assert flat(one.metrics) == pytest.approx(flat(other.metrics), abs=1e-3)
    assert models["float"].training
    assert_close(dict(models["float"].state_dict()), before, rtol=0, atol=0)


@pytest.mark.slow
def test_workers_read_the_same(digit_set):
    rows = [evaluate(network(), digit_set, workers=n).rows[0].metrics for n in (0, 1)]
    assert rows[0] == rows[1]


def test_costs_are_relative_to_the_first_network_of_one_level(digit_set):
    models = {"levels": leveled(), "plain": network(), "more": network(1)}
    found = evaluate(models, digit_set, scales=[1, 2], tta=[1, 2], batch=8)
    plain = [row for row in found.rows if (row.model, row.method) == ("plain", "plain")]
    base: Any = {row.resize: row.seconds_per_image for row in plain}
    for row in found.rows:
        seconds: Any = row.seconds_per_image
        assert row.cost == pytest.approx(seconds / base[row.resize])
    assert [row.cost for row in plain] == [1, 1]
    assert found.models["levels"]["levels"] == num_levels(models["levels"]) == 3


def test_seconds_are_the_median_after_the_first_batch(digit_set, monkeypatch):
    ticks = iter([0, 1000, 2000, 2010, 3000, 3030, 4000, 4080, 5000, 5050])
    monkeypatch.setattr("scalespaces.train._evaluate.time.perf_counter", lambda: next(ticks))
    assert evaluate(network(), digit_set, batch=10, limit=40).rows[0].seconds_per_image == 3
    assert next(ticks) == 5000


def test_without_a_network_of_one_level_the_first_is_the_measure(digit_set):
    found = evaluate({"a": leveled(), "b": leveled(1)}, digit_set, limit=4)
    assert found.rows[0].cost == 1
    with pytest.raises(ValueError, match="tta is for networks with one level, got none; use baselines='all'"):
        evaluate(leveled(), digit_set, tta=[1])
    everywhere = evaluate(leveled(), digit_set, limit=4, tta=[1], baselines="all")
    assert [row.method for row in everywhere.rows] == ["plain", "tta"]
    assert flat(everywhere.rows[0].metrics) == pytest.approx(flat(everywhere.rows[1].metrics), abs=1e-5)


def test_images_that_are_too_small_are_a_note(digit_set):
    models = {"plain": network(), "levels": leveled()}
    assert 4 < models["levels"].smallest_side <= 8
    found = evaluate(models, digit_set, scales=[0.25, 1], tta=[0.05, 1], limit=8)
    missing = {(row.label, row.resize) for row in found.rows if row.metrics is None}
    assert missing == {("plain + TTA", 0.25), ("plain + TTA", 1), ("levels", 0.25)}
    for row in found.rows:
        assert (row.note is None) == (row.metrics is not None)
        assert (row.seconds_per_image is None) == (row.metrics is None)
    note = next(row.note for row in found.rows if row.label == "levels" and row.note)
    assert note.startswith("at scale 0.25, images of 16 x 16 pixels are 4 x 4: ")
    assert "- levels, data: at scale 0.25" in str(found)
    json.dumps(found.to_json(), allow_nan=False)
    tiny = ArrayImages(torch.zeros(4, 4, 4, dtype=torch.uint8), torch.zeros(4).long())
    found = evaluate({"plain": network(), "levels": leveled()}, tiny, scales=[1, 4])
    assert [row.metrics is None for row in found.rows] == [False, False, True, False]
    with pytest.raises(ValueError, match=r"no network can answer .* at scale 1, images of 4 x 4 pixels are 4 x 4"):
        evaluate(leveled(), tiny)


NO_IMAGES = ArrayImages(torch.zeros(0, 4, 4, dtype=torch.uint8), torch.zeros(0).long())


@pytest.mark.parametrize(
    ("models", "data", "arguments", "message"),
    [
        (network(), None, {"classes": 7}, "'model' answers with 10 classes, but the data have 7"),
        (network(), None, {"classes": ["a", "b"]}, "'model' answers with 10 classes, but the data have 2"),
        (network(), None, {"classes": [str(9 - n) for n in range(10)]}, "but the data 9, 8, 7"),
        (network(), None, {"scales": []}, "at least one scale"),
        (network(), None, {"scales": [-1]}, "scale must be a finite number > 0"),
        (network(), None, {"pool": "median"}, "pool is one of model, image, mean"),
        (network(), None, {"baselines": "some"}, "baselines is one of one-level, all"),
        (network(), None, {"limit": 0}, "limit must be an integer >= 1"),
        (network(), None, {"metric": "f1"}, "metric is one of accuracy, auroc, nll, got 'f1'"),
        (NAMED, None, {"classes": list("abcdefghij")}, "has the classes digit 0, .* but the data a, b"),
        ({"a": network(), "b": network(num_classes=3)}, None, {}, "'b' answers with 3 classes, but the data have 10"),
        (nn.Conv2d(1, 10, 1), None, {}, "answers for every pixel, but the data have classes for images as a whole"),
        (create_model("cnn", num_classes=3, in_channels=3), Shapes(), {}, "whole, but the data .* for every pixel"),
        (network(), Shapes(), {"scales": [0.5]}, "'model' takes images of 1 channels, but those of 'data' have 3"),
        (network(), NO_IMAGES, {}, "there are no images in the set 'data'"),
        ({}, None, {}, "at least one network and one set"),
    ],
)
def test_what_does_not_fit(models, data, arguments, message, digit_set):
    with pytest.raises(ValueError, match=message):
        evaluate(models, digit_set if data is None else data, **arguments)


def made_up(metric: str = "accuracy") -> Evaluation:
    def row(model: str, method: str, scale: float, value: float | None, cost: float | None) -> Row:
        metrics = None if value is None else {"accuracy": value, "nll": None, "per_class": {}}
        seconds, note = (None, "too small") if value is None else (0.1, None)
        return Row(model, method, "test", scale, scale, 5, metrics, seconds, cost, note)

    rows = [row("a", "plain", 0.5, None, None), row("a", "plain", 1.0, 0.75, 1.0)]
    return Evaluation([*rows, row("a", "tta", 0.5, 0.5, 4.0), row("a", "tta", 1.0, 0.25, 6.0)], metric)


def test_the_table():
    assert str(made_up()).splitlines() == [
        "accuracy     0.5       1   cost",
        "a              -  0.7500  1.00x",
        "a + TTA   0.5000  0.2500  5.00x",
        "- a, test: too small",
    ]
    assert made_up().lines() == {"a": [(0.5, None), (1.0, 0.75)], "a + TTA": [(0.5, 0.5), (1.0, 0.25)]}
    assert "a          -  -  1.00x" in str(made_up("nll"))


def test_the_picture(tmp_path):
    ax = plot_over_scales(made_up().lines(), tmp_path / "lines.png", ylabel="mean_iou").axes[0]
    assert (tmp_path / "lines.png").stat().st_size > 10_000
    assert (ax.get_ylabel(), ax.get_xscale()) == ("mean iou", "log")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.5", "1"]
    np.testing.assert_array_equal([line.get_ydata() for line in ax.lines], [[np.nan, 0.75], [0.5, 0.25]])
    lines: Any = plot_over_scales({str(n): [(1, n)] for n in range(25)}).axes[0].lines
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}) == 25
    for wrong, message in (([], "nothing to draw"), ([(0, 1)], "scales are above 0")):
        with pytest.raises(ValueError, match=message):
            plot_over_scales({"a": wrong})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Any:
    """Sets of unseen scales, and two networks."""
    root = tmp_path_factory.mktemp("evaluate")
    arguments = ["--tests", "0.5", "1", "2", "--canvas", "24", "--counts", "10", "10", "30"]
    assert main(["data", "make", "unseen-scale", str(root / "data"), *arguments]) == 0
    for name, model in (("plain", network()), ("levels", leveled(1))):
        save(model, root / f"{name}.safetensors")
    return root


def words(folder: Any, *arguments: Any) -> list[str]:
    files = [str(folder / f"{name}.safetensors") for name in ("plain", "levels")]
    return ["evaluate", *files, "--kind", "idx", "--root", str(folder / "data"), *map(str, arguments)]


SETS = ["--splits", "test_0.5", "test_1", "test_2"]


def test_the_command(folder, tmp_path, capsys):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "png")}
    options = ["--tta", "0.71", "1", "1.41", "--select", "0.5", "1", "--pool", "max", "--names", "A", "B"]
    outputs = ["--json", files["json"], "--plot", files["png"]]
    assert main(words(folder, *SETS, *options, *outputs)) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("accuracy"))
    assert lines[head].split() == ["accuracy", "0.5", "1", "2", "cost"]
    labels = [line.partition("  ")[0] for line in lines[head + 1 : head + 5]]
    assert labels == ["A", "A + TTA", "A + selection", "B"]

    document = json.loads(files["json"].read_text(), parse_constant=pytest.fail)
    assert (len(document["results"]), {row["images"] for row in document["results"]}) == (12, {30})
    expected = evaluate(leveled(1), read_idx_images(folder / "data", "test_2"), pool="max").rows[0].metrics
    last = next(row for row in document["results"] if (row["model"], row["split"]) == ("B", "test_2"))
    assert last["metrics"] == expected
    assert document["settings"]["files"]["B"] == str(folder / "levels.safetensors")
    assert document["settings"]["kind"] == "idx"

    assert files["png"].stat().st_size > 10_000


def test_more_levels_are_for_networks_that_have_some(folder, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(words(folder, "--splits", "test_2", "--num-levels", 3, "--json", out)) == 0
    document = json.loads(out.read_text())
    assert [about["levels"] for about in document["models"].values()] == [1, 3]
    other = load(folder / "levels.safetensors", num_levels=3)
    expected = evaluate(other, read_idx_images(folder / "data", "test_2")).rows[0].metrics
    assert document["results"][1]["metrics"] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--splits", "test_7"], "test_7"),
        (["--splits", "test_1", "--names", "A"], "--names must be 2 names, one per network, got A"),
        (["--splits", "test_1", "--classes", "12"], "'plain' answers with 10 classes, but the data have 12"),
        (["--splits", "test_1", "--plot", "a.txt"], "got the path 'a.txt'"),
    ],
)
def test_mistakes_are_one_line(arguments, message, folder, capsys):
    assert message in fails(capsys, *words(folder, *arguments))


def test_own_images_and_masks(tmp_path, capsys):
    for n, (image, mask) in enumerate(Shapes().samples):
        save_picture(tmp_path / "test" / "images" / f"{n}.png", image.permute(1, 2, 0))
        save_picture(tmp_path / "test" / "masks" / f"{n}.png", mask.byte())
    path, out = tmp_path / "model.safetensors", tmp_path / "out.json"
    save(create_model("resnet", width=3, num_classes=3), path)
    said = "--kind masks --metric mean_iou --scales 0.5 1 --tta 1 2"
    assert main(["evaluate", str(path), "--root", str(tmp_path), *said.split(), "--json", str(out)]) == 0
    assert "test, 5 images\nmean_iou  " in capsys.readouterr().out
    results = json.loads(out.read_text(), parse_constant=pytest.fail)["results"]
    assert [(row["method"], row["scale"]) for row in results] == [(m, s) for m in ("plain", "tta") for s in (0.5, 1)]
    expected = evaluate(load(path), Shapes(), scales=[0.5, 1]).rows
    assert [flat(row["metrics"]) for row in results[:2]] == [flat(row.metrics) for row in expected]


def test_converted_networks_and_names_that_come_from_folders(folder, tmp_path, capsys):
    save(network(), tmp_path / "x" / "network.safetensors")
    save(convert(foreign(in_channels=1), {"num_levels": 2}), tmp_path / "y" / "network.safetensors")
    files = [str(tmp_path / name / "network.safetensors") for name in ("x", "y")]
    arguments = ["--kind", "idx", "--root", str(folder / "data"), "--splits", "test_1", "--limit", "5"]
    assert "load(path, model=...)" in fails(capsys, "evaluate", *files, *arguments)
    arguments += [
        "--model",
        "tests.train.test_recipes:foreign(in_channels=1)",
        "--allow-source",
        "tests",
        "--pool",
        "probabilities",
    ]
    assert main(["evaluate", *files, *arguments]) == 0
    out = capsys.readouterr().out
    assert "\nx         " in out
    assert "\ny         " in out
