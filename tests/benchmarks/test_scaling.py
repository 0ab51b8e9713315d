"""What training on many devices takes, as computed: compared with real tensors and with two processes."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.scaling import Cost, build, find_recipe, kept_bytes
from scalespaces.train._run import train
from scalespaces.train._tasks import Task
from tests.pictures import write_cityscapes, write_pcam


@pytest.mark.parametrize("preset", ["paper", "recommended"])
def test_counted_without_data_is_what_real_tensors_keep(preset):
    recipe = find_recipe("s_densenet")
    counted, real = (kept_bytes(build(recipe, preset, device), recipe, (3, 32, 32), 2) for device in ("meta", "cpu"))
    assert counted == real


@pytest.mark.slow
@pytest.mark.parametrize("model", ["s_densenet", "s_resnet"])
def test_two_processes_send_what_was_computed(model, tmp_path):
    write_pcam(tmp_path / "pcam", {"train": 16, "valid": 2})
    write_cityscapes(tmp_path / "cityscapes", {"train": 16, "val": 2}, size=(64, 64))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "tests.benchmarks.test_scaling", model, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    seen = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    expected = Cost(model, "recommended")
    assert seen["all_gather"] == expected.gathered
    assert sum(seen["all_reduce"]) == sum(expected.reduced) + expected.parameters
    assert len(seen["all_reduce"]) == len(expected.reduced) + 2  # two of gradients
    assert sum(seen["broadcast"]) == sum(buffer.numel() for buffer in expected.buffers)


def watch_a_step(model: str, folder: str) -> None:
    """One of the two processes: four steps of the recipe. The third is watched, since DDP sets up buckets before it."""
    kind = find_recipe(model).data.kind
    overrides = [f"--data.root={folder}/{kind}", "--data.batch_size=4", "--data.workers=0", "--trainer.accelerator=cpu"]
    overrides += ["--trainer.max_steps=4", "--model.preset=recommended"]
    overrides += ["--data.crop=[64, 64]"] if kind == "cityscapes" else []
    profile, begin = torch.profiler.profile(record_shapes=True), Task.on_train_batch_start

    def start(self: Task, batch: Any, batch_idx: int) -> None:
        begin(self, batch, batch_idx)
        if batch_idx == 2:
            profile.start()

    def stop(self: Task, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            profile.stop()

    Task.on_train_batch_start, Task.on_train_batch_end = start, stop
    train(find_recipe(model, overrides), Path(folder) / f"out_{model}", quiet=True)
    seen: dict[str, list[int]] = {"all_reduce": [], "all_gather": [], "broadcast": []}
    for event in profile.events() or []:
        if event.name.startswith("gloo:"):
            seen[event.name.removeprefix("gloo:")].append(math.prod(event.input_shapes[0]))
    print(json.dumps(seen))


if __name__ == "__main__":
    watch_a_step(*sys.argv[1:])
