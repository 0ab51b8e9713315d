"""From a folder of images to a network: check, train, evaluate, predict and export; and what recipes do to images."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import flat, noise, save_picture
from torch.testing import assert_close
from training import last_weights, metrics_of

from scalespaces import data
from scalespaces.cli import main
from scalespaces.models import create_model, load
from scalespaces.train._batches import KeyedBatches
from scalespaces.train._checkpoints import AtomicCheckpoints
from scalespaces.train._levels import supervise
from scalespaces.train._recipe import load_recipe
from scalespaces.train._run import train
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
        (write_masks, "masks", "valid, 1 images"),
    ],
)
def test_from_a_folder_to_an_exported_network(write, kind, sets, tmp_path, capsys):
    root, out = write(tmp_path / "photos"), tmp_path / "out"
    assert main(["data", "check", str(root)]) == 0
    assert "no problems" in capsys.readouterr().out
    dense, model = kind == "masks", str(out / "model.safetensors")
    network = ["--model.name=s_resnet", "--model.arguments.width=3"] if dense else ["--model.name=s_cnn", SMALL]
    network += ["--model.lift.num_levels=2", f"--data.kind={kind}", f"--data.root={root}"]
    network += [] if kind == "class_folders" else ["--data.num_classes=2"]
    assert main(["train", *network, *RUN, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["evaluate", model, "--root", str(root), "--scales", "1", "2"]) == 0
    said = capsys.readouterr().out
    assert f"{root}: {sets}" in said
    assert all(f"\n{name} " in said for name in (("mean_iou", "accuracy") if dense else ("auroc", "nll")))
    picture = next(root.rglob("*.png"))
    result = tmp_path / ("masks" if dense else "predictions.csv")
    assert main(["predict", model, str(picture), "--out", str(result)]) == 0
    assert result.exists()
    exported, size = tmp_path / "model.pt2", ["16", "16"] if dense else ["20", "24"]
    assert main(["export", model, str(exported), "--size", *size, "--static"]) == 0
    assert exported.stat().st_size > 0


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
    assert "\nresuming at step 2, epoch 1\n" in capsys.readouterr().err
