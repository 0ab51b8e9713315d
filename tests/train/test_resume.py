"""A resumed run ends with the same weights, bit for bit, as one that was never interrupted."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from errno import ENOSPC
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import noise, save_picture
from training import assert_same, metrics_of, small_run, write_noise

from scalespaces.train._checkpoints import AtomicCheckpoints, Keeper
from scalespaces.train._recipe import load_recipe
from scalespaces.train._run import Result, _full_disk, train
from scalespaces.train._tasks import Task
from tests.command import fails
from tests.kills import Started, kill_runs, said_by


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_noise(tmp_path_factory.mktemp("data"), train=47, valid=12)


def options(root: Path, *more: str) -> list[str]:
    said = "--optimizer.lr=0.01 --optimizer.lr_milestones=[2] --optimizer.warmup=3 --data.jitter=[0.8,1.25]"
    said += " --trainer.epochs=3 --trainer.checkpoint_every=2 --trainer.patience=10"
    return small_run(root, 8, *said.split(), *more)


def run(root: Path, out: Path, *more: str, **how: Any) -> Result:
    return train(load_recipe(None, options(root, *more)), out, **how)


class Crash(Exception):
    pass


def crash_at(monkeypatch: pytest.MonkeyPatch, home: Any, name: str, number: int) -> None:
    """Let this call of a function, counted from 1, raise."""
    calls, original = itertools.count(1), getattr(home, name)

    def crash(*args: Any) -> Any:
        if next(calls) == number:
            raise Crash
        return original(*args)

    monkeypatch.setattr(home, name, crash)


@pytest.fixture(scope="module")
def whole(root, tmp_path_factory) -> Callable[[int], Path]:
    """The folder of a run that was never interrupted, made once for each number of accumulated batches."""

    @cache
    def folder(accumulate: int) -> Path:
        return run(root, tmp_path_factory.mktemp("whole"), f"--trainer.accumulate={accumulate}").folder

    return folder


CRASHES = [("training_step", n, 1) for n in (1, 7, 11, 13)]  # before there is any checkpoint; early in the next epoch
CRASHES += [("validation_step", 1, 1), ("validation_step", 4, 1), ("on_train_epoch_end", 2, 1)]
CRASHES += [("training_step", 7, 2), ("training_step", 13, 2), ("validation_step", 4, 2)]


@pytest.mark.parametrize(("hook", "number", "accumulate"), CRASHES)
def test_a_crash_changes_nothing(root, tmp_path, monkeypatch, whole, accumulate, hook, number):
    crash_at(monkeypatch, Task, hook, number)
    with pytest.raises(Crash):
        run(root, tmp_path, f"--trainer.accumulate={accumulate}")
    run(root, tmp_path, f"--trainer.accumulate={accumulate}", resume=True)
    assert_same(tmp_path, whole(accumulate))


def test_a_run_killed_before_its_first_checkpoint_begins_anew(root, tmp_path, whole, monkeypatch):
    original = Keeper._save_network

    def crash(self, trainer):
        original(self, trainer)
        raise Crash

    monkeypatch.setattr(Keeper, "_save_network", crash)
    said = ["--trainer.accumulate=1", "--trainer.checkpoint_every=100"]
    with pytest.raises(Crash):
        run(root, tmp_path, *said)
    monkeypatch.undo()
    assert not (tmp_path / "last.ckpt").exists()
    run(root, tmp_path, *said, resume=True)
    assert_same(tmp_path, whole(1))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_sigkill_changes_nothing(tmp_path, workers):
    """Real processes, killed with SIGKILL at random moments, several times each."""
    kill_runs(5, workers, tmp_path, (workers,))


def test_a_second_run_is_refused_and_the_first_kept_until_all_is_checked(root, tmp_path):
    run(root, tmp_path, "--trainer.max_steps=2")
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(FileExistsError, match="--resume continues it, --force starts over"):
        run(root, tmp_path, "--trainer.max_steps=2")
    with pytest.raises(ValueError, match=r"another recipe.*optimizer\.lr differ"):
        run(root, tmp_path, "--trainer.max_steps=2", "--optimizer.lr=0.1", resume=True)
    for wrong in ("--data.root=nowhere", "--model.arguments.num_classes=3", "--data.batch_size=1000"):
        with pytest.raises((ValueError, OSError)):
            run(root, tmp_path, wrong, force=True)
    (tmp_path / "last.ckpt").unlink()
    with pytest.raises(FileExistsError, match=r"has no last\.ckpt to resume from, --force starts over"):
        run(root, tmp_path, "--trainer.max_steps=2", resume=True)
    del kept["last.ckpt"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == kept
    run(root, tmp_path, "--trainer.max_steps=2", "--optimizer.lr=0.1", force=True)


def test_a_run_that_stopped_early_stays_stopped(root, tmp_path):
    said = ["--optimizer.lr=1e-12", "--trainer.epochs=50", "--trainer.patience=1"]
    first = run(root, tmp_path, *said)
    assert first.best_epoch is not None
    assert len(metrics_of(tmp_path)) == first.best_epoch + 2
    assert run(root, tmp_path, *said, resume=True) == first


def test_the_best_network_stays_when_steps_run_out(root, tmp_path):
    run(root, tmp_path, "--trainer.epochs=1")
    best = (tmp_path / "model.safetensors").read_bytes()
    result = run(root, tmp_path, "--trainer.max_steps=7", resume=True)
    assert result.steps == 7
    assert (result.best_epoch, (tmp_path / "model.safetensors").read_bytes()) == (0, best)


@pytest.mark.parametrize(("first", "steps"), [("max_steps=5", 5), ("max_steps=7", 7), ("epochs=2", 10)])
def test_a_finished_run_goes_on_with_more_steps_or_epochs(root, tmp_path, whole, first, steps):
    assert run(root, tmp_path, f"--trainer.{first}").steps == steps
    assert run(root, tmp_path, f"--trainer.{first}", resume=True).steps == steps
    run(root, tmp_path, resume=True)
    assert_same(tmp_path, whole(1))


def without(key: str) -> Callable[[Any], Any]:
    return lambda found: {name: value for name, value in found.items() if name != key}


def with_callback(**state: Any) -> Callable[[Any], Any]:
    return lambda found: found | {"callbacks": {name: value | state for name, value in found["callbacks"].items()}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((without(key), f"has no {key}") for key in ("loops", "state_dict", "optimizer_states", "callbacks", "epoch")),
        (lambda found: [1, 2], "a checkpoint is a dict"),
        (lambda found: found | {"loops": {}}, "is not of this run, so --force starts over: KeyError"),
        (lambda found: found | {"loops": {"fit_loop": {"state_dict": 3}}}, "is not of this run"),
        (lambda found: found | {"state_dict": {"a": torch.zeros(1)}}, "is not of this run"),
        (lambda found: found | {"state_dict": {"a": 1}}, "is not of this run"),
        (lambda found: found | {"optimizer_states": [{}]}, "is not of this run"),
        (lambda found: found | {"lr_schedulers": [3]}, "is not of this run"),
        (with_callback(rows=5), "is not of this run"),
    ],
)
def test_checkpoints_with_wrong_contents_are_refused(root, tmp_path, capsys, change, message):
    said = options(root, "--trainer.max_steps=2")
    train(load_recipe(None, said), tmp_path)
    last = tmp_path / "last.ckpt"
    torch.save(change(torch.load(last, weights_only=True)), last)
    kept = last.read_bytes()
    capsys.readouterr()
    assert message in fails(capsys, "train", *said, "--out", str(tmp_path), "--resume")
    assert last.read_bytes() == kept


def test_a_checkpoint_cannot_move_the_run_elsewhere(root, tmp_path):
    run(root, tmp_path / "out", "--trainer.max_steps=2")
    last = tmp_path / "out" / "last.ckpt"
    torch.save(with_callback(folder=str(tmp_path / "elsewhere"))(torch.load(last, weights_only=True)), last)
    run(root, tmp_path / "out", "--trainer.max_steps=4", resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_pipe_is_no_checkpoint(root, tmp_path):
    os.mkfifo(tmp_path / "last.ckpt")
    with pytest.raises(FileNotFoundError, match="not a regular file"):
        AtomicCheckpoints().load_checkpoint(tmp_path / "last.ckpt")
    for how in ({"resume": True}, {"force": True}):
        with pytest.raises(ValueError, match=r"last\.ckpt' must be a regular file"):
            run(root, tmp_path, **how)


class Long:
    """An object whose pickle has a few bytes, and which is as long as these say."""

    def __reduce__(self):
        return bytearray, (10**11,)


def test_checkpoints_need_no_more_memory_than_they_have_bytes(tmp_path):
    file, packed = tmp_path / "last.ckpt", tmp_path / "packed.ckpt"
    torch.save({"epoch": Long()}, file)
    with pytest.raises(ValueError, match=r"last\.ckpt' is not a checkpoint, or is damaged: it has an array of bytes"):
        AtomicCheckpoints().load_checkpoint(file)
    torch.save({"epoch": torch.zeros(10**6)}, file)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(ValueError, match=r"packed\.ckpt' is not a checkpoint, or is damaged: it is compressed"):
        AtomicCheckpoints().load_checkpoint(packed)


def test_a_clock_that_jumps_changes_nothing(root, tmp_path, monkeypatch, whole):
    real, calls = time.time, itertools.count()
    monkeypatch.setattr(time, "time", lambda: real() - 86_400 * (next(calls) % 7) ** 2)
    crash_at(monkeypatch, Task, "training_step", 11)
    with pytest.raises(Crash):
        run(root, tmp_path, "--trainer.accumulate=1")
    run(root, tmp_path, "--trainer.accumulate=1", resume=True)
    assert_same(tmp_path, whole(1))


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Images in files, in two classes."""
    folder = tmp_path_factory.mktemp("photos")
    for split, number in (("train", 24), ("valid", 6)):
        for n in range(number):
            save_picture(folder / split / f"class_{n % 2}" / f"{n}.png", noise(20, 20, n))
    return folder


def interrupt(photos: Path, out: Path, harm: Callable[[Any], None], *more: str) -> str:
    """Start a long run, do harm to it after its first checkpoint, and return the line that it ends with."""
    process = Started([sys.executable, "-m", "scalespaces", "train", *reading(photos, 10**6, *more), "--out", str(out)])
    while process.poll() is None and not (out / "last.ckpt").exists():
        time.sleep(0.01)
    harm(process)
    about, *progress, error = said_by(process).splitlines()
    assert process.returncode == 2
    assert [line for line in progress if not line.startswith("epoch ")] == []  # one a minute
    assert "6 validation images" in about
    assert error.startswith("scalespaces train: error: ")
    return error


def reading(photos: Path, epochs: int, *more: str) -> list[str]:
    said = small_run(photos, 8, "--trainer.checkpoint_every=1", f"--trainer.epochs={epochs}", *more)
    return ["--data.kind=class_folders" if word.startswith("--data.kind") else word for word in said]


def assert_resumes(photos: Path, out: Path) -> None:
    """A run that was interrupted ends like one that was not; neither has reading processes."""
    epochs = 2 + AtomicCheckpoints().load_checkpoint(out / "last.ckpt")["epoch"]
    recipe = load_recipe(None, reading(photos, epochs))
    assert_same(train(recipe, out, resume=True).folder, train(recipe, out.with_name("whole")).folder)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_file_that_vanishes_is_one_line_and_the_run_goes_on(photos, tmp_path, workers):
    file = photos / "train" / "class_0" / "0.png"
    kept = file.read_bytes()
    error = interrupt(photos, tmp_path / "out", lambda _: file.unlink(), f"--data.workers={workers}")
    file.write_bytes(kept)
    assert error == f"scalespaces train: error: cannot read {str(file)!r}: No such file or directory"
    assert_resumes(photos, tmp_path / "out")


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]


@pytest.mark.slow
def test_a_reading_process_that_dies_is_one_line_and_the_run_goes_on(photos, tmp_path):
    def harm(process: Any) -> None:
        readers = [reader for server in children(process.pid) for reader in children(server)]
        assert len(readers) >= 2
        os.kill(readers[0], signal.SIGKILL)

    error = interrupt(photos, tmp_path / "out", harm, "--data.workers=2")
    assert "a process that reads data has died" in error
    assert_resumes(photos, tmp_path / "out")


def test_a_full_disk_that_a_thread_notices_is_one_line(tmp_path, capsys):
    def write() -> None:
        raise OSError(ENOSPC, "No space left on device")

    @_full_disk(tmp_path)
    def log() -> None:
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        write()

    message = r"^cannot write '.*': No space left on device; make room, then continue with --resume$"
    with pytest.raises(OSError, match=message):
        log()
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_one_line_and_the_run_goes_on(root, tmp_path):
    """No file may grow beyond 3000 bytes, so no checkpoint can be written. Bytecode (-B) would be cut off as well."""
    said = [*options(root, "--trainer.max_steps=6"), "--out", str(tmp_path), "--resume"]
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))"
    start = f"{limit}; import sys; from scalespaces.cli import main; sys.exit(main(['train', *sys.argv[1:]]))"
    found = subprocess.run([sys.executable, "-B", "-c", start, *said], capture_output=True, text=True)
    about, error = found.stderr.splitlines()
    assert found.returncode == 2
    assert "12 validation images" in about
    assert error.endswith("perhaps because the disk is full; make room, then continue with --resume")
    assert not list(tmp_path.glob(".*"))
    recipe = load_recipe(None, options(root, "--trainer.max_steps=6"))
    assert_same(train(recipe, tmp_path, resume=True).folder, train(recipe, tmp_path / "whole").folder)
