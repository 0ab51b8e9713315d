"""From a folder of images to a network: check, train, evaluate, predict and export; and what recipes do to images."""

import csv
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import flat, noise, save_picture
from torch.testing import assert_close
from training import last_weights, metrics_of

from scalespaces import data
from scalespaces.cli import main
from scalespaces.models import Card, create_model, load, save
from scalespaces.train._batches import KeyedBatches
from scalespaces.train._checkpoints import AtomicCheckpoints
from scalespaces.train._data import num_classes, open_split
from scalespaces.train._evaluate import evaluate
from scalespaces.train._levels import supervise
from scalespaces.train._recipe import load_recipe
from scalespaces.train._run import make_network, train
from scalespaces.train._tasks import rate_share

SMALL = '--model.arguments={"channels": [4, 8], "kernel_size": 3, "hidden": 16}'
RUN = ["--data.workers=0", "--data.batch_size=4", "--trainer.epochs=2"]


def write_classes(root: Path, numbers: range = range(12)) -> Path:
    """Images of two classes, dark and bright, 24 x 20 pixels."""
    for n in numbers:
        save_picture(root / "ab"[n % 2] / f"{n}.png", noise(20, 24, n) // 2 + 127 * (n % 2))
    return root


def write_table(root: Path) -> Path:
    for split, numbers in (("train", range(8)), ("valid", range(8, 10)), ("test", range(10, 12))):
        for n in numbers:
            save_picture(root / "pictures" / f"{n}.png", noise(20, 24, n) // 2 + 127 * (n % 2))
        (root / f"{split}.csv").write_text("id,label\n" + "".join(f"{n},{n % 2}\n" for n in numbers))
    return root


def write_one_table(root: Path) -> Path:
    for n in range(12):
        save_picture(root / f"{n}.png", noise(20, 24, n) // 2 + 127 * (n % 2))
    (root / "labels.csv").write_text("id,label\n" + "".join(f"{n},{n % 2}\n" for n in range(12)))
    return root


def write_splits(root: Path) -> Path:
    for split, numbers in (("train", range(8)), ("valid", range(8, 10)), ("test", range(10, 12))):
        write_classes(root / split, numbers)
    return root


def write_masks(root: Path) -> Path:
    for n in range(6):
        save_picture(root / "images" / f"{n}.png", noise(16, 16, n))
        save_picture(root / "masks" / f"{n}.png", np.concatenate([flat(0, (8, 16)), flat(1, (8, 16))]))
    return root


@pytest.mark.parametrize(
    ("write", "kind", "sets"),
    [
        (write_classes, "class_folders", "valid, 1 images"),
        (write_splits, "class_folders", "test, 2 images"),
        (write_table, "table", "test, 2 images"),
        (write_one_table, "table", "valid, 1 images"),
        (write_masks, "masks", "valid, 1 images"),
    ],
)
def test_from_a_folder_to_an_exported_network(write, kind, sets, tmp_path, capsys):
    root, out = write(tmp_path / "photos"), tmp_path / "out"
    assert main(["data", "check", str(root)]) == 0
    assert "no problems" in capsys.readouterr().out
    dense, model = kind == "masks", str(out)  # the folder of the run stands for its network
    small = "--model.arguments.width=3" if dense else SMALL
    assert main(["train", "--data.root", str(root), small, *RUN, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert f"{root} ({kind}): {'5' if dense else 11 if 'valid' in sets else 8} training images of" in said.err
    assert "2 classes" in said.err
    assert f"to measure it: scalespaces evaluate {out} --root {root}" in said.out
    recipe = load_recipe(out / "recipe.yaml")
    assert (recipe.data.kind, recipe.model.name) == (kind, "s_resnet" if dense else "s_cnn")
    assert num_classes(recipe.data) == 2
    assert main(["evaluate", model, "--root", str(root), "--scales", "1", "2"]) == 0
    said = capsys.readouterr().out
    assert f"{root}: {sets}" in said
    assert "\nout " in said
    assert all(f"\n{name} " in said for name in (("mean_iou", "accuracy") if dense else ("auroc", "nll")))
    picture = next(root.rglob("*.png"))
    result = tmp_path / ("masks" if dense else "predictions.csv")
    assert main(["predict", model, str(picture), "--out", str(result)]) == 0
    assert result.exists()
    if not dense:
        rows = list(csv.DictReader(result.read_text().splitlines()))
        assert list(rows[0])[:3] == ["file", "predicted", "level"]
        assert int(rows[0]["level"]) in range(load(out / "model.safetensors").lift.num_levels)
    exported, size = tmp_path / "model.pt2", ["16", "16"] if dense else ["20", "24"]
    assert main(["export", model, str(exported), "--size", *size, "--static"]) == 0
    assert exported.stat().st_size > 0


def test_what_is_chosen_suits_the_images(tmp_path):
    small = load_recipe(write_classes(tmp_path / "small", range(40)))
    assert "36 training images of 24 x 20 pixels, 2 classes" in small.chosen
    assert (small.data.size, small.data.batch_size, small.optimizer.schedule) == (None, 4, "cosine")
    assert len(small.data.mean or []) == len(small.data.std or []) == 3
    steps = small.trainer.epochs * (36 // small.data.batch_size)
    assert small.optimizer.warmup == steps // 10
    for n in range(12):
        save_picture(tmp_path / "mixed" / "ab"[n % 2] / f"{n}.png", noise(100 + n, 130, n))
    mixed = load_recipe(tmp_path / "mixed")
    assert mixed.data.size == (100, 100)
    assert mixed.model.lift["num_levels"] == 3  # the last level of four would have one sample after three poolings
    larger = load_recipe(tmp_path / "mixed", ["--data.size", "128", "128", "--data.batch_size=2"])
    assert (larger.data.size, larger.model.lift["num_levels"], larger.data.batch_size) == ((128, 128), 4, 2)
    for recipe, side in ((small, 20), (mixed, 100), (larger, 128)):
        network = create_model(str(recipe.model.name), lift=recipe.model.lift, in_channels=3, **recipe.model.arguments)
        assert network.eval()(torch.zeros(1, 3, side, side)).shape == (1, 10)
    own = load_recipe(tmp_path / "small", ["--model.name=cnn", "--trainer.epochs=3"])
    assert (own.model.name, own.model.arguments, own.trainer.epochs) == ("cnn", {}, 3)
    with pytest.raises(ValueError, match="no model is called 's_cn'; did you mean 's_cnn'"):
        load_recipe(tmp_path / "nowhere.safetensors", ["--model.name=s_cn", "--data.root=nowhere"])


def test_classes_of_masks_and_tables_are_counted_over_all_sets(tmp_path):
    for split, label in (("train", 1), ("valid", 4)):
        save_picture(tmp_path / "street" / split / "images" / "0.png", noise(40, 48, 0))
        save_picture(
            tmp_path / "street" / split / "masks" / "0.png",
            np.concatenate([flat(label, (20, 48)), flat(255, (20, 48))]),
        )
    recipe = load_recipe(tmp_path / "street", ["--data.batch_size=1"])
    assert (recipe.data.num_classes, recipe.data.crop) == (5, (32, 32))
    table = write_table(tmp_path / "table")
    with (table / "test.csv").open("a") as file:
        file.write("3,6\n")
    assert load_recipe(table).data.num_classes == 7


def test_a_saved_network_is_trained_further_with_other_classes(tmp_path, capsys):
    root = write_classes(tmp_path / "photos")
    network: Any = create_model("s_cnn", num_classes=5, in_channels=3, channels=(4, 8), kernel_size=3, hidden=16)
    network.card = Card(tuple("vwxyz"), (0.5,) * 3, (0.25,) * 3)
    file = tmp_path / "network.safetensors"
    save(network, file)
    out = tmp_path / "out"
    said = ["--data.root", str(root), "--data.workers=0", "--trainer.epochs=2", "--out", str(out)]
    assert main(["train", str(file), *said]) == 0
    assert "no recipe was given, so this trains the network further" in capsys.readouterr().err
    recipe, found = load_recipe(out / "recipe.yaml"), load(out / "model.safetensors")
    assert (recipe.finetune.head_first, recipe.data.mean) == (1, None)
    assert (found.card.classes, found.card.mean) == (("a", "b"), (0.5,) * 3)
    fresh: Any = make_network(recipe, 3, 2)
    assert_close(fresh.blocks[0].conv.weight, network.blocks[0].conv.weight)  # and not new ones
    assert fresh.linear.weight.shape == (2, 16)
    assert main(["train", str(file), *said, "--resume"]) == 0  # what was chosen is not chosen again


def test_runs_that_differ_in_their_seed_are_one_line(tmp_path, capsys):
    root = write_classes(tmp_path / "photos", range(40))
    said = ["--model.name=cnn", SMALL, "--data.kind=class_folders", f"--data.root={root}", *RUN, "--trainer.epochs=1"]
    for seed in (0, 1):
        train(load_recipe(None, [*said, f"--seed={seed}"]), tmp_path / f"cnn_{seed}", quiet=True)
    train(load_recipe(None, [*said, "--optimizer.lr=0.01"]), tmp_path / "other", quiet=True)
    capsys.readouterr()
    folders = [str(tmp_path / name) for name in ("cnn_0", "cnn_1", "other")]
    result = tmp_path / "found.json"
    assert main(["evaluate", *folders, "--root", str(root), "--json", str(result)]) == 0
    said = capsys.readouterr().out
    assert "each run is measured with the images that it held out itself" in said
    assert "cnn: mean ± standard deviation over 2 runs" in said
    rows = json.loads(result.read_text())["results"]
    assert [(row["model"], row["run"]) for row in rows] == [("cnn", "cnn_0"), ("other", None), ("cnn", "cnn_1")]
    values = {row["run"] or row["model"]: row["metrics"]["nll"] for row in rows}
    for name, value in values.items():  # a network has never seen what its own run held out
        recipe = load_recipe(tmp_path / name / "recipe.yaml")
        alone = evaluate(
            load(tmp_path / name / "model.safetensors"), open_split(recipe.data, "valid", seed=recipe.seed)
        )
        assert alone.rows[0].value("nll") == pytest.approx(value)
    both = [values["cnn_0"], values["cnn_1"]]
    assert f"{statistics.fmean(both):.4f} ± {statistics.stdev(both):.4f}" in said
    assert main(["evaluate", *folders[:2], "--names", "A", "B", "--root", str(root)]) == 0
    assert "±" not in capsys.readouterr().out


def test_missing_sets_are_named(tmp_path, capsys):
    out = tmp_path / "out"
    root = write_classes(tmp_path / "photos")
    train(load_recipe(None, ["--model.name=cnn", SMALL, "--data.kind=class_folders", f"--data.root={root}", *RUN]), out)
    model = str(out / "model.safetensors")
    assert main(["evaluate", model, "--root", str(root), "--splits", "test"]) == 2
    said = capsys.readouterr().err
    assert "there is no set 'test'" in said
    assert "which has train; valid is the part of train that is held out" in said


def test_augmented_runs_are_resumed_to_the_bit(tmp_path):
    root = write_classes(tmp_path / "photos", range(20))
    said = "--model.name=cnn --data.kind=class_folders --data.crop 16 16 --data.flip=true --data.jitter 0.8 1.25"
    said += " --data.color=[0.2,0.2,0.2,0.02] --data.balanced=true --levels.label_smoothing=0.1"
    said += " --optimizer.schedule=cosine --optimizer.warmup=2"
    words = [*said.split(), SMALL, f"--data.root={root}", *RUN]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(load_recipe(None, words), whole)
    recipe = load_recipe(None, words)
    assert (recipe.data.crop, recipe.data.jitter) == ((16, 16), (0.8, 1.25))
    stopped = load_recipe(None, [*words, "--trainer.checkpoint_every=3"])

    original = AtomicCheckpoints.save_checkpoint

    def save_and_stop(*arguments, **more):
        original(*arguments, **more)
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AtomicCheckpoints, "save_checkpoint", save_and_stop)
        with pytest.raises(InterruptedError):
            train(stopped, parts)
    train(recipe, parts, resume=True)
    assert metrics_of(parts) == metrics_of(whole)
    assert all(torch.equal(value, last_weights(parts)[key]) for key, value in last_weights(whole).items())


def test_crops_keep_the_scale_and_validation_takes_the_center(tmp_path):
    root = write_classes(tmp_path, range(2))
    whole = data.ClassFolders(root)[0][0]
    center = data.ClassFolders(root, crop=(10, 12), center=True)[0][0]
    assert torch.equal(center, whole[:, 5:15, 6:18])
    dataset = data.ClassFolders(root, crop=(10, 12), flip=True, seed=3)
    views = []
    for epoch in range(20):
        dataset.set_epoch(epoch)
        views.append(dataset[0][0])
    windows = whole.unfold(1, 10, 1).unfold(2, 12, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    windows = torch.cat([windows, windows.flip(-1)])
    assert all((view == windows).flatten(1).all(1).any() for view in views)
    assert len({view.numpy().tobytes() for view in views}) > 10


def test_balanced_batches_show_all_classes_equally_often():
    labels = torch.tensor([0] * 90 + [1] * 9 + [3] * 1)
    dataset = data.ArrayImages(torch.zeros(100, 2, 2, dtype=torch.uint8), labels)
    drawn = [n for epoch in range(60) for batch in KeyedBatches(dataset, 10, epoch=epoch, balanced=True) for n in batch]
    counts = torch.bincount(labels[drawn], minlength=4)
    assert len(drawn) == 6000
    # Binomial, n = 6000, p = 1/3: five standard deviations are 183.
    assert (counts[[0, 1, 3]] - 2000).abs().max() < 183
    whole = list(KeyedBatches(dataset, 10, 5, epoch=2, balanced=True))
    assert list(KeyedBatches(dataset, 10, 5, epoch=2, start=4, balanced=True)) == whole[4:]


def test_the_cosine_schedule_follows_its_formula():
    network = ["--model.name=cnn", "--data.kind=idx", "--data.root=x", "--trainer.epochs=5"]
    recipe = load_recipe(None, [*network, "--optimizer.schedule=cosine", "--optimizer.warmup=4"])
    found = [rate_share(recipe, step, 8) for step in range(40)]
    expected = [0.25, 0.5, 0.75, 1.0] + [(1 + math.cos(math.pi * t / 36)) / 2 for t in range(36)]
    assert_close(found, expected)
    with pytest.raises(ValueError, match=r"lr_milestones are for the schedule steps"):
        load_recipe(None, [*network, "--optimizer.schedule=cosine", "--optimizer.lr_milestones=[2]"])


def test_label_smoothing_follows_its_formula():
    model, images = create_model("cnn", channels=(4,), kernel_size=3, num_classes=3).eval(), torch.rand(5, 1, 12, 12)
    target, share = torch.tensor([0, 1, 2, 1, 0]), 0.3
    wanted = (1 - share) * torch.nn.functional.one_hot(target, 3) + share / 3
    expected = -(wanted * model(images).log_softmax(1)).sum()
    assert_close(supervise(model, images, target, "answer", label_smoothing=share), expected)


def test_a_run_says_what_it_trains_and_where_it_continues(tmp_path, capsys):
    root, out = write_classes(tmp_path / "photos"), tmp_path / "out"
    words = ["--model.name=cnn", SMALL, "--data.kind=class_folders", f"--data.root={root}", *RUN]
    train(load_recipe(None, [*words, "--trainer.epochs=1"]), out)
    parameters = sum(weight.numel() for weight in load(out / "model.safetensors").parameters())
    said = capsys.readouterr().err
    assert said == f"ConvNet, {parameters:,} parameters; 11 training and 1 validation images\n"
    train(load_recipe(None, words), out, resume=True)
    assert "\nresuming at step 2 of 4, epoch 1\n" in capsys.readouterr().err
