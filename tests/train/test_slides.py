"""Slides: what is written is what the network says of its windows; kills, processes and sizes make no difference."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import fails
from pictures import noise
from slides import write_slide, write_sparse
from test_cli_predict import classifier, segmenter, tree
from torch import nn
from torch.testing import assert_close

from scalespaces.cli import main
from scalespaces.data._pixels import read_mask, read_pixels
from scalespaces.models import Card
from scalespaces.train._predict import predict, predict_mask, read_channels, to_input
from scalespaces.train._slides import SKIPPED, _Parts, predict_slide

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")


class Near(nn.Module):
    """A network that sees three pixels around each, and has an exact answer wherever it is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 7, padding=3).double()
        self.card = Card(("a", "b", "c", "d"), [0.5] * 3, [0.25] * 3)

    def forward(self, images):
        return self.conv(images)


def levels(file: Path) -> list[np.ndarray]:
    with tifffile.TiffFile(file) as opened:
        return [level.asarray() for level in opened.series[0].levels]


def test_a_mask_is_that_of_the_whole_image(tmp_path):
    file = write_slide(tmp_path / "a.tif", noise(340, 650), resolution=(2e4, 4e4), resolutionunit="CENTIMETER")
    model = Near().eval()
    about = predict_slide(model, file, tmp_path / "out.tif", tile=128, overlap=32)
    expected = predict_mask(model, to_input(model, read_channels(file, 3))).argmax(0).numpy()
    first, *rest = levels(tmp_path / "out.tif")
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(read_mask(tmp_path / "out.tif"), expected)  # Pillow sees the same
    assert [level.shape for level in rest] == [(170, 325)]
    for step, level in zip((2,), rest, strict=True):
        np.testing.assert_array_equal(level, expected[::step, ::step])
    assert about is not None
    assert about["pixel_size"] == [0.5, 0.25]
    assert about["skipped"] == 0
    assert list(about["share"].values()) == pytest.approx(np.bincount(expected.ravel()) / expected.size)
    with tifffile.TiffFile(tmp_path / "out.tif") as opened:
        page = opened.pages[0].pages[0]
        assert (page.tags.valueof(282), page.tags.valueof(283)) == ((10**4, 1), (2 * 10**4, 1))
    assert read_pixels(tmp_path / "out.png").shape == (3, 340, 650)


def test_a_heat_map_holds_what_the_classifier_says_of_each_window(tmp_path):
    model, pixels = classifier(tmp_path / "model.safetensors"), noise(700, 450)
    pixels[:300, :200] = 7
    file = write_slide(tmp_path / "a.tif", pixels)
    about = predict_slide(model, file, tmp_path / "out.tif", tile=32, overlap=8, batch=5, skip_background=0.01)
    (heat,) = levels(tmp_path / "out.tif")
    tops, lefts = ([*range(0, side - 32, 24), side - 32] for side in (700, 450))
    assert heat.shape == (len(tops), len(lefts), 2)
    images = torch.stack([torch.from_numpy(pixels[y : y + 32, x : x + 32]) for y in tops for x in lefts])
    plain = images.flatten(1).double().std(1, correction=0).reshape(heat.shape[:2]) == 0
    expected = predict(model, images.permute(0, 3, 1, 2)).reshape(heat.shape)
    expected[plain] = 0
    assert_close(torch.from_numpy(heat), expected, rtol=1e-4, atol=1e-5)
    assert about is not None
    assert about["skipped"] == pytest.approx(plain.double().mean().item())
    assert 0.1 < about["skipped"] < 0.3


def test_a_region_at_any_step_is_that_of_the_whole(tmp_path):
    """The parts of a mask lie anywhere relative to the tiles of the pyramid."""
    generator = np.random.default_rng(0)
    whole, tops, lefts = generator.integers(0, 9, (100, 90), np.uint8), [0, 7, 40, 61, 100], [0, 33, 50, 90]

    class Plan:
        blank = staticmethod(lambda height, width: np.full((height, width), SKIPPED, np.uint8))

    parts: Any = object.__new__(_Parts)
    parts.plan, parts.tops, parts.lefts = Plan, tops[:-1], lefts[:-1]
    parts.part = lambda n: whole[tops[n // 3] : tops[n // 3 + 1], lefts[n % 3] : lefts[n % 3 + 1]]
    for step, top, left in ((1, 0, 0), (1, 32, 64), (2, 64, 0), (4, 0, 64), (8, 0, 0), (3, 48, 48)):
        found, expected = parts.region(top, left, 16, step), whole[top::step, left::step][:16, :16]
        np.testing.assert_array_equal(found[: expected.shape[0], : expected.shape[1]], expected)


FULL = {26, 27, 300}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A sparse slide of 12,000 pixels a side, and a small network."""
    folder = tmp_path_factory.mktemp("slides")
    torch.manual_seed(0)
    segmenter(folder / "model.safetensors")
    write_sparse(folder / "slide.tif", 12_000, 512, FULL)
    return folder


def command(folder: Path, out: Path, *more: str) -> list[str]:
    words = ["predict", str(folder / "model.safetensors"), str(folder / "slide.tif"), "--out", str(out)]
    return [*words, "--skip-background", "--tile", "192", "--batch", "4", "--device", "cpu", *more]


@pytest.fixture(scope="module")
def uninterrupted(folder) -> bytes:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "scalespaces", *command(folder, folder / "whole")], env=env, check=True)
    assert tree(folder / "whole") == ["legend.json", "slide.png", "slide.tif"]
    return (folder / "whole" / "slide.tif").read_bytes()


def test_sparse_slides_are_mostly_skipped(uninterrupted, folder):
    mask = levels(folder / "whole" / "slide.tif")[0]
    assert mask.shape == (12_000, 12_000)
    assert (mask[10_000:11_500, :10_000] == SKIPPED).all()
    assert (mask[512 + 100 : 1024 - 100, 1024 + 100 : 2048 - 100] != SKIPPED).all()
    assert len(uninterrupted) < 3_000_000


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 20_000])
def test_a_killed_prediction_resumes_to_the_same_bits(size, uninterrupted, folder, tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "scalespaces", *command(folder, tmp_path / "out")]
    process = subprocess.Popen(argv, env=env)
    while process.poll() is None:
        done = sum(part.stat().st_size for part in (tmp_path / "out").glob("*.part"))
        if done >= size:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    assert process.wait() == -signal.SIGKILL
    (part,) = (tmp_path / "out").iterdir()
    kept = part.read_bytes()
    part.write_bytes(kept[:-3])  # a torn record
    part.with_name("slide.tif.0123456789abcdef.0.part").write_bytes(kept)  # another network's: not used, removed
    subprocess.run(argv, env=env, check=True)
    assert tree(tmp_path / "out") == ["legend.json", "slide.png", "slide.tif"]
    assert (tmp_path / "out" / "slide.tif").read_bytes() == uninterrupted


@pytest.mark.slow
def test_two_processes_write_what_one_does(uninterrupted, folder, tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "scalespaces"]
    subprocess.run([sys.executable, *torchrun, *command(folder, tmp_path)], env=env, check=True)
    assert tree(tmp_path) == ["legend.json", "slide.png", "slide.tif"]
    assert (tmp_path / "slide.tif").read_bytes() == uninterrupted


@pytest.mark.slow
def test_a_hundred_thousand_pixels_a_side_need_little_memory(folder, tmp_path):
    write_sparse(tmp_path / "slide.tif", 100_000, 1024, {3, 500, 9603})
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    script = "import sys, resource; from scalespaces.cli import main; assert main(sys.argv[1:]) == 0; "
    script += "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    argv = [sys.executable, "-c", script, *command(tmp_path, tmp_path / "out", "--tile", "512")]
    done = subprocess.run(argv, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True, text=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout.split()[-1]) * unit < 1.5e9
    with tifffile.TiffFile(tmp_path / "out" / "slide.tif") as opened:
        assert opened.series[0].shape == (100_000, 100_000)
    assert (tmp_path / "out" / "slide.tif").stat().st_size < 50_000_000


def test_the_same_call_is_not_repeated_and_another_needs_force(tmp_path, capsys):
    model = classifier(tmp_path / "model.safetensors")
    file, out = write_slide(tmp_path / "a.tif", noise(200, 200)), tmp_path / "out" / "a.tif"
    words = ["predict", str(tmp_path / "model.safetensors"), str(file), "--out", str(out.parent), "--stream"]
    assert main([*words, "--tile", "64"]) == 0
    before = out.stat().st_mtime_ns
    assert main([*words, "--tile", "64"]) == 0
    assert out.stat().st_mtime_ns == before
    capsys.readouterr()
    assert "exists; use --force" in fails(capsys, *words, "--tile", "32")
    assert main([*words, "--tile", "32", "--force"]) == 0
    assert levels(out)[0].shape == (8, 8, 2)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(FileExistsError):
        predict_slide(model, file, out, tile=32)


def test_errors_are_one_line(tmp_path, capsys, monkeypatch):
    classifier(tmp_path / "model.safetensors")
    file = write_slide(tmp_path / "a.tif", noise(100, 100))
    words = ["predict", str(tmp_path / "model.safetensors"), str(file), "--out", str(tmp_path / "out")]
    assert "--skip-background is for slides" in fails(capsys, *words, "--skip-background")
    assert "at least 0" in fails(capsys, *words, "--stream", "--skip-background", "nan")
    assert "--overlay is for images that are read whole" in fails(capsys, *words, "--stream", "--overlay")
    assert "overlap must be less" in fails(capsys, *words, "--stream", "--tile", "32", "--overlap", "32")
    over = [*words[:-1], str(tmp_path)]
    assert "is an input of the prediction" in fails(capsys, *over, "--stream")
    svs = tmp_path / "b.svs"
    svs.write_bytes(file.read_bytes()[:2000])
    assert "predict them separately" in fails(capsys, *words[:3], str(svs), *words[3:])
    assert str(svs) in fails(capsys, *words[:2], str(svs), *words[3:])
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    assert "pip install 'scalespaces[slides]'" in fails(capsys, *words, "--stream")
