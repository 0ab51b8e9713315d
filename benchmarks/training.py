"""Whether loading, augmentation or the network takes the time of a training step: python benchmarks/training.py.

PCam's recipes on patches made on the spot, in a plain HDF5 file that the page cache holds. For each patch: what a
loader's worker does (read, and put into a batch), the augmentation and its parts, and forward, backward and step of the
networks. Times are CPU seconds of this process, so that other programs count little; parts take turns, and a cell has
the median and, in brackets, the quartiles. Then the shares of a step, and how many workers keep one fed: on this CPU,
and on a device of so many operations per second (a multiply-add is two, backward twice the work of forward), which is
arithmetic and no measurement.
"""

import argparse
import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from scalespaces.data import PCam, to_unit
from scalespaces.data._augment import PCamAugment, move, recolor
from scalespaces.data._make import make_pcam
from scalespaces.models import create_model, summarize
from scalespaces.train._batches import KeyedBatches, training_loader
from scalespaces.train._levels import supervise

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "densenet": ("densenet", {}),
    "s_densenet, dense": ("s_densenet", {"preset": "paper"}),
    "s_densenet, pyramid": ("s_densenet", {}),
}
PARTS = ("draw", "move", "to_unit", "color")


def batches(dataset: PCam, size: int) -> Iterator[list[Tensor]]:
    """Batches without end, as a worker makes them."""
    keyed = KeyedBatches(dataset, size)
    loader = training_loader(keyed, workers=0)
    epoch = 0
    while True:
        keyed.set_epoch(epoch)
        yield from loader
        epoch += 1


def training_step(name: str, images: Tensor, target: Tensor) -> Callable[[], None]:
    """Forward, backward and step, as the recipes have them."""
    model, arguments = NETWORKS[name]
    torch.manual_seed(0)
    network: Any = create_model(model, **arguments).train()
    network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        (supervise(network, images, target, "answer") / len(target)).backward()
        optimizer.step()

    return step


def work(folder: str, batch: int) -> dict[str, Callable[[], Any]]:
    """All that is timed, by name."""
    augment, loaded = PCamAugment(), batches(PCam(folder), batch)
    patches, target, indices = next(loaded)
    places, colors = augment.draw(indices, 0)
    moved = move(patches, places)
    unit = to_unit(moved)
    columns = colors.to(unit).unbind(1)
    images = recolor(unit, *columns).contiguous(memory_format=torch.channels_last)
    return {
        "load": lambda: next(loaded),
        "augment": lambda: augment(patches, indices, 0),
        "draw": lambda: augment.draw(indices, 0),
        "move": lambda: move(patches, places),
        "to_unit": lambda: to_unit(moved),
        "color": lambda: recolor(unit, *columns),
        **{name: training_step(name, images, target) for name in NETWORKS},
    }


def take_turns(parts: dict[str, Callable[[], Any]], batch: int, runs: int) -> dict[str, list[float]]:
    """CPU seconds for each patch, of every part in every run."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    for run in range(runs + 1):
        for name, part in parts.items():
            start = time.process_time()
            part()
            if run:  # the first is to warm up
                times[name].append((time.process_time() - start) / batch)
    return times


def table(head: list[str], rows: list[list[str]]) -> None:
    print("\n| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def spread(values: list[float]) -> str:
    low, middle, high = (1e3 * value for value in statistics.quantiles(values, n=4))
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"


def report(times: dict[str, list[float]], multiply_adds: dict[str, int], teraflops: list[float]) -> None:
    medians = {name: statistics.median(values) for name, values in times.items()}
    table(
        ["part", "ms of a patch", "patches per second"],
        [[f"- {n}" if n in PARTS else n, spread(values), f"{1 / medians[n]:,.0f}"] for n, values in times.items()],
    )
    load, augment = medians["load"], medians["augment"]
    rows = []
    for name in NETWORKS:
        step = augment + medians[name]
        shares = [f"{100 * part / step:.3g} %" for part in (augment, medians[name], load)]
        rows.append([name, *shares, str(math.ceil(load / step))])
    print("\nOn this CPU, one process: shares of a step; loading goes on beside it, in workers, so long busy")
    table(["network", "augmentation", "forward, backward, step", "loading", "workers needed"], rows)
    print("\nOn a device of so many TFLOP/s that are really reached, by arithmetic, its augmentation left out")
    rows = []
    for name in NETWORKS:
        for speed in teraflops:
            step = 6 * multiply_adds[name] / (speed * 1e12)
            busy = f"{100 * medians['draw'] / step:.0f} %"
            rows.append([name, f"{speed:g}", f"{1 / step:,.0f}", f"{math.ceil(load / step)}", busy])
    table(["network", "TFLOP/s", "patches per second", "workers needed", "draws, of a step"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patches", type=int, default=1024, help="patches in the file (default: 1024)")
    parser.add_argument("--batch", type=int, default=32, help="patches in a batch (default: 32)")
    parser.add_argument("--runs", type=int, default=15, help="of each part, at least 2 (default: 15)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("--teraflops", type=float, nargs="+", default=[5, 50], help="of a device (default: 5 50)")
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON")
    arguments = parser.parse_args()
    if arguments.runs < 2 or min(arguments.batch, arguments.threads) < 1 or arguments.patches < arguments.batch:
        parser.error("--runs is at least 2, --batch and --threads 1, and --patches as many as --batch")
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        make_pcam(folder, {"train": arguments.patches})
        times = take_turns(work(folder, arguments.batch), arguments.batch, arguments.runs)
    multiply_adds = {
        name: summarize(create_model(model, **options), (3, 96, 96)).multiply_adds
        for name, (model, options) in NETWORKS.items()
    }
    about = {
        "batch": arguments.batch,
        "runs": arguments.runs,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "h5py")},
    }
    if arguments.json:
        print(json.dumps({"about": about, "seconds": times, "multiply_adds": multiply_adds}, indent=1))
        return
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    report(times, multiply_adds, arguments.teraflops)


if __name__ == "__main__":
    main()
