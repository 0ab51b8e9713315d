"""Several processes, started by torchrun, do what one does; and go on when one of them dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import write_cityscapes
from training import last_weights, metrics_of, small_run

from scalespaces import data
from scalespaces.data._idx import write_sets

pytestmark = pytest.mark.slow


def command(out: Path, *said: str, processes: int = 1, restarts: int = 0) -> list[str]:
    train = ["-m", "scalespaces", "train", *said, "--out", str(out), "--trainer.accelerator=cpu"]
    if processes == 1:
        return [sys.executable, *train]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *torchrun, "--max-restarts", str(restarts), *train]


def start(argv: list[str]) -> Any:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def finish(process: Any) -> str:
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    images, labels = data.digits()
    write_sets(folder / "idx", data.mnist_scale(images, labels, counts=(280, 21, 10)))
    write_cityscapes(folder / "cityscapes", {"train": 6, "val": 3, "test": 1}, size=(48, 64))
    return {path.name: path for path in folder.iterdir()}


SGD = ["--optimizer.name=sgd", "--optimizer.lr=0.05"]


def classification(roots: dict[str, Path]) -> list[str]:
    return small_run(roots["idx"], 8, "--model.arguments.dropout=0.0", "--model.lift.num_levels=3", *SGD)


def segmentation(roots: dict[str, Path]) -> list[str]:
    said = "--model.name=s_resnet --model.arguments.width=4 --model.lift.num_levels=2 --data.kind=cityscapes"
    said += " --data.batch_size=2 --data.crop=[32,32] --data.flip=true --data.workers=0"
    return [*said.split(), f"--data.root={roots['cityscapes']}", *SGD]


def converted(roots: dict[str, Path]) -> list[str]:
    said = "--allow-source=tests --model.source=tests.train.test_recipes:foreign --model.arguments.in_channels=1"
    said += " --model.lift.num_levels=2"
    return [*said.split(), *(word for word in small_run(roots["idx"], 8, *SGD) if not word.startswith("--model"))]


def difference(found: Path, wanted: Path) -> float:
    """The largest relative difference of the last weights of two runs."""
    one, other = ({key: value.double() for key, value in last_weights(folder).items()} for folder in (found, wanted))
    assert one.keys() == other.keys()
    # A bias in front of a batch normalization has no gradient but rounding errors: it stays at almost zero.
    return max(float((one[key] - other[key]).norm() / other[key].norm().clamp(min=1e-3)) for key in one)


@pytest.mark.parametrize("kind", [classification, segmentation, converted])
def test_two_processes_follow_one(kind, roots, tmp_path):
    """The same global batch, 50 steps, batch normalization synchronized. In float32, rounding errors grow too much."""
    said = [*kind(roots), "--trainer.max_steps=50", "--trainer.epochs=1000", "--trainer.precision=64-true"]
    runs = [start(command(tmp_path / str(n), *said, processes=n)) for n in (1, 2)]
    for run in runs:
        finish(run)
    assert difference(tmp_path / "2", tmp_path / "1") < 1e-9
    # The test can fail: without synchronization the two drift apart.
    finish(start(command(tmp_path / "apart", *said, "--trainer.sync_batchnorm=false", processes=2)))
    assert difference(tmp_path / "apart", tmp_path / "1") > 1e-3


def test_sharded_networks_follow_one_process(roots, tmp_path):
    said = [*classification(roots), "--trainer.max_steps=20", "--trainer.epochs=1000", "--levels.supervise=mean"]
    said += ["--trainer.checkpoint_every=5"]
    finish(start(command(tmp_path / "1", *said)))
    finish(start(command(tmp_path / "2", *said, "--trainer.strategy=fsdp", processes=2)))
    assert difference(tmp_path / "2", tmp_path / "1") < 1e-4
    more = [*said, "--trainer.strategy=fsdp", "--trainer.max_steps=25", "--resume"]
    finish(start(command(tmp_path / "2", *more, processes=2)))


def test_a_killed_worker_is_restarted(roots, tmp_path):
    said = [*classification(roots), "--trainer.epochs=4", "--trainer.checkpoint_every=5", "--resume"]
    whole = finish(start(command(tmp_path / "whole", *said, processes=2)))
    assert "wrote" in whole
    run = start(command(tmp_path / "killed", *said, processes=2, restarts=2))
    while not (tmp_path / "killed" / "last.ckpt").exists():
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.01)
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(run.pid)], capture_output=True, text=True)
    workers = [int(pid) for pid in listed.stdout.split()]
    assert len(workers) >= 2
    os.kill(workers[-1], signal.SIGKILL)
    finish(run)
    one, two = last_weights(tmp_path / "whole"), last_weights(tmp_path / "killed")
    assert [key for key in one if not torch.equal(one[key], two[key])] == []
    # Of the mean loss, each process goes on with its share of the sum so far: the same but for rounding.
    for mine, theirs in zip(metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "killed"), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
