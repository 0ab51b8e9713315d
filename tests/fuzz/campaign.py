"""Damage files of every format, read them, and count what comes out: python -m tests.fuzz [number] [seed].

Everything but "read" and "refused" is a fault: the file is kept, and the exit code is 1.
"""

import logging
import os
import resource
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from tests.fuzz.mutations import damage
from tests.fuzz.readers import Reader, WrongLabel, readers

OUTCOMES = ("read", "refused", "foreign", "unnamed", "slow", "large", "executed", "wrong")
SECONDS, BYTES = 5.0, 2**30
BATCH = 200
Found = tuple[str, Counter[str], list[str], float, int]  # a reader, its outcomes and faults, most seconds and bytes


@cache
def corpus() -> tuple[dict[str, Reader], Path]:
    """The readers and the canary of this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Pillow's, about what it could repair
    logging.disable()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    found = {reader.name: reader for reader in readers(folder, folder / "canary")}
    for reader in found.values():
        reader.read()  # a whole file is read
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 4 * BYTES, resource.RLIM_INFINITY))  # spare the machine
    return found, folder / "canary"


def be_quiet() -> None:
    """Drop what libtiff prints about damaged files, but not what Python does."""
    sys.stderr = os.fdopen(os.dup(2), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def peak() -> int:
    """The most memory that this process has had, since it was reset."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def attempt(reader: Reader, canary: Path) -> tuple[str, str, float, int]:
    """Read a file, and return the outcome, what was said, and the time and memory that it took."""
    Path("/proc/self/clear_refs").write_text("5")  # count memory from what it has now
    before, start, said = peak(), time.process_time(), ""  # the time of other processes does not count
    try:
        reader.read()
        outcome = "read"
    except WrongLabel:
        outcome = "wrong"
    except MemoryError:
        outcome = "large"
    except (ValueError, OSError) as error:
        said = str(error)
        outcome = "refused" if reader.file.name in said or str(reader.file.parent) in said else "unnamed"
    except Exception as error:
        outcome, said = "foreign", f"{type(error).__name__}: {error}"
    seconds, size = time.process_time() - start, peak() - before
    if seconds > SECONDS:
        outcome = "slow"
    if size > BYTES:
        outcome = "large"
    if canary.exists():
        outcome = "executed"
        canary.unlink()
    return outcome, said, seconds, size


def batch(name: str, first: int, number: int, seed: int, keep: str) -> Found:
    """Damage one file in many ways; faults are written to the folder ``keep``, and described."""
    found, canary = corpus()
    reader = found[name]
    whole, counts, faults, longest, largest = reader.file.read_bytes(), Counter[str](), [], 0.0, 0
    for n in range(first, first + number):
        generator = np.random.default_rng((seed, zlib.crc32(name.encode()), n))
        change = [damage, *reader.changes][n % (1 + len(reader.changes))]
        reader.file.write_bytes(change(whole, generator))
        outcome, said, seconds, size = attempt(reader, canary)
        counts[outcome] += 1
        longest, largest = max(longest, seconds), max(largest, size)
        if outcome not in ("read", "refused"):
            kept = Path(keep) / f"{name.replace(' ', '_')}-{seed}-{n}{reader.file.suffix}"
            kept.write_bytes(reader.file.read_bytes())
            faults.append(f"{outcome}: {kept}: {' '.join(said.split()):.200}")
    reader.file.write_bytes(whole)
    return name, counts, faults, longest, largest


def plan(number: int) -> list[tuple[str, int, int]]:
    """Reader, first input and number of inputs of every batch."""
    shares = {reader.name: reader.share for reader in corpus()[0].values()}
    numbers = {name: round(number * share / sum(shares.values())) for name, share in shares.items()}
    return [(name, n, min(BATCH, most - n)) for name, most in numbers.items() for n in range(0, most, BATCH)]


def main(number: int = 100_000, seed: int = 0) -> int:
    """Run all batches in two processes."""
    start, keep = time.perf_counter(), tempfile.mkdtemp(prefix="faults-")
    processes, context = min(2, os.cpu_count() or 1), get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=be_quiet) as pool:
        tasks = [pool.submit(batch, *entry, seed, keep) for entry in plan(number)]
        code = report([task.result() for task in tasks])  # a process that crashes raises an error here
    print(f"seed {seed}, {time.perf_counter() - start:.0f} s")
    return code


def alone(number: int, seed: int) -> int:
    """Run all batches in this process."""
    keep = tempfile.mkdtemp(prefix="faults-")
    return report([batch(*entry, seed, keep) for entry in plan(number)])


def report(found: list[Found]) -> int:
    """Print a table of the outcomes, and return the exit code."""
    table: dict[str, Counter[str]] = {}
    most: dict[str, tuple[float, int]] = {}
    for name, counts, _, longest, largest in found:
        for key in (name, "all"):
            table.setdefault(key, Counter()).update(counts)
            most[key] = max(most.get(key, (0, 0))[0], longest), max(most.get(key, (0, 0))[1], largest)
    total, faults = table.pop("all"), [fault for _, _, more, _, _ in found for fault in more]
    print(f"{'reader':<28}", *(f"{outcome:>9}" for outcome in (*OUTCOMES, "most s", "most MB")))
    for name, counts in [*table.items(), ("all", total)]:
        numbers = [f"{counts[outcome]:>9,}" for outcome in OUTCOMES]
        print(f"{name:<28}", *numbers, f"{most[name][0]:>9.2f}", f"{most[name][1] / 1e6:>9.0f}")
    print(f"{total.total():,} inputs, {len(faults)} faults", *faults[:40], sep="\n")
    return 1 if faults else 0
