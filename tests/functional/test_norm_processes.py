"""Batch normalization over processes with unequal batches is that of one process with the joint batch."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import process_group
from torch import Tensor, distributed
from torch.multiprocessing.spawn import start_processes
from torch.testing import assert_close

from scalespaces import ScaleSpace
from scalespaces.nn import ScaleBatchNorm

# This file is also the program that starts the processes, so that they import torch once and not each.
BATCHES = (3, 0, 2)  # samples of the processes


def joint_batch() -> tuple[ScaleSpace, tuple[Tensor, ...]]:
    torch.manual_seed(1)
    levels = tuple(
        3 * torch.randn(sum(BATCHES), 3, *size, dtype=torch.float64) + 2 for size in ((6, 5), (3, 3), (2, 2))
    )
    return ScaleSpace(levels, steps=(1, 2, 4)), tuple(map(torch.randn_like, levels))


def run(x: ScaleSpace, back: tuple[Tensor, ...], sync: bool) -> dict[str, Any]:
    """One step of training, and what it leaves behind."""
    layer = ScaleBatchNorm(3, sync=sync, dtype=torch.float64)
    leaves = tuple(f.detach().clone().requires_grad_() for f in x.levels)
    out = layer(x.replace(leaves)).levels
    torch.autograd.backward(out, back)
    return {
        "out": [f.detach() for f in out],
        "grads": [f.grad for f in leaves],
        "parameters": torch.stack([p.grad for p in layer.parameters() if p.grad is not None]),
        "state": [layer.running_mean, layer.running_var, layer.num_batches_tracked],
    }


def worker(rank: int, folder: Path) -> None:
    with process_group(rank, folder, len(BATCHES)):
        x, back = joint_batch()
        own = slice(sum(BATCHES[:rank]), sum(BATCHES[: rank + 1]))
        result = run(x[own], tuple(f[own] for f in back), sync=True)
        torch.save(result, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process, with batches of different sizes, has after one step."""
    folder = tmp_path_factory.mktemp("gloo")
    command = [sys.executable, "-W", "error", __file__, str(folder)]
    paths = os.pathsep.join(sys.path)  # of this file's helpers
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(len(BATCHES))]


@pytest.mark.skipif(not distributed.is_available(), reason="torch was built without torch.distributed")
def test_unequal_batches_one_of_them_empty(parts):
    expected = run(*joint_batch(), sync=False)
    for name, tolerance in (("out", 1e-12), ("grads", 1e-7)):
        got = [torch.cat(pieces) for pieces in zip(*(part[name] for part in parts), strict=True)]
        assert_close(got, expected[name], rtol=tolerance, atol=tolerance)
    assert_close(sum(part["parameters"] for part in parts), expected["parameters"], rtol=1e-6, atol=1e-7)
    for part in parts:
        assert_close(part["state"], expected["state"], rtol=1e-6, atol=1e-7)
        assert all(torch.equal(a, b) for a, b in zip(part["state"], parts[0]["state"], strict=True))


def test_without_processes_sync_changes_nothing():
    x, back = joint_batch()
    assert_close(run(x, back, sync=True), run(x, back, sync=False))


if __name__ == "__main__":
    start_processes(worker, (Path(sys.argv[1]),), len(BATCHES), start_method="fork")
