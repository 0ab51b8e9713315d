"""How fast PCam's patches are read: python benchmarks/data.py.

Patches per second of one process, at random from files in the page cache, alone and through a DataLoader in batches
of 512; and the augmentation of batches on this machine's CPU.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader

from scalespaces.data import PCam, to_unit
from scalespaces.data._augment import PCamAugment
from scalespaces.data._make import make_pcam
from scalespaces.data._pcam import pcam_file

LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip, patch by patch": {"compression": "gzip", "chunks": (1, 96, 96, 3)},
    "gzip, 32 patches together": {"compression": "gzip", "chunks": (32, 96, 96, 3)},
}


def best_rate(work: Callable[[], int], runs: int) -> float:
    """Patches per second, in the best of some runs: others use this machine too."""
    rates = []
    for _ in range(runs):
        start = time.perf_counter()
        rates.append(work() / (time.perf_counter() - start))
    return max(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", type=int, default=4096, help="patches in the file (default: 4096)")
    parser.add_argument("--batch", type=int, default=512, help="patches in a batch (default: 512)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="of the loader (default: 0 1 2)")
    parser.add_argument("--runs", type=int, default=3, help="the best of so many counts (default: 3)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        make_pcam(folder, {"train": args.patches})
        file = Path(folder) / pcam_file("train", "x")
        with h5py.File(file) as handle:
            patches = np.array(handle["x"])
        print(f"{args.patches} patches, patches per second; loader in batches of {args.batch}")
        head = " ".join(f"{f'{n} workers':>10}" for n in args.workers)
        print(f"{'layout':26} {'MB':>6} {'alone':>10} {head}")
        for name, layout in LAYOUTS.items():
            file.unlink()
            with h5py.File(file, "w") as handle:
                handle.create_dataset("x", data=patches, **layout)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dataset = PCam(folder)
            number = len(dataset) if layout.get("chunks", (1,))[0] == 1 else min(512, len(dataset))
            order = np.random.default_rng(0).permutation(len(dataset))[:number].tolist()
            rates = [best_rate(lambda d=dataset, o=order: len([d[i] for i in o]), args.runs)]
            for workers in args.workers:
                loader = DataLoader(
                    dataset, args.batch, sampler=order, num_workers=workers, persistent_workers=workers > 0
                )
                rates.append(best_rate(lambda loader=loader: sum(len(images) for images, _ in loader), args.runs + 1))
            numbers = " ".join(f"{rate:10,.0f}" for rate in rates)
            print(f"{name:26} {file.stat().st_size / 1e6:6.1f} {numbers}")
    images = torch.from_numpy(patches[: args.batch]).permute(0, 3, 1, 2)
    augment = PCamAugment()
    print(f"\nbatches of {len(images)} on the CPU, one thread, patches per second")
    for name, work in (
        ("draws", lambda: augment.draw(range(len(images)), 0)),
        ("augmentation, all of it", lambda: augment(images, range(len(images)), 0)),
        ("to_unit alone", lambda: to_unit(images)),
    ):
        work()
        print(f"{name:26} {best_rate(lambda work=work: (work(), len(images))[1], args.runs):10,.0f}")


if __name__ == "__main__":
    main()
