"""Kill training at random moments, resume it, and compare it with a run that was never interrupted, bit for bit.

python -m tests.kills [number] [seed] [processes] [forked]: several processes are started, and restarted, by torchrun;
forked ones do not import what they need, which saves most of the time.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from training import assert_same, last_moments, last_weights, small_run, write_noise

import scalespaces.train._run  # noqa: F401  so that forked processes have it
from scalespaces.cli import main as main_of_the_command

EACH = 5  # kills of a run
EARLY, SECONDS = 0.2, 8.0  # the share of kills while a run starts, and how long that takes
STEPS = 0.5  # seconds after a new checkpoint in which the other kills are


def command(root: Path, *more: str, processes: int = 1, restarts: int = 0) -> list[str]:
    """The command that trains or resumes; the folder for the results comes last."""
    said = "--optimizer.lr=0.01 --optimizer.warmup=3 --data.jitter=[0.8,1.25] --trainer.accelerator=cpu"
    said += " --trainer.epochs=12 --trainer.checkpoint_every=1"
    train = ["-m", "scalespaces", "train", *small_run(root, 8, *said.split(), *more), "--resume", "--out"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *([*torchrun, "--max-restarts", str(restarts)] if processes > 1 else []), *train]


class Started(subprocess.Popen):
    """The command. What it says goes into a file: a full pipe, which nobody reads meanwhile, would block it."""

    def __init__(self, argv: list[str]) -> None:
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        super().__init__(argv, stdout=subprocess.DEVNULL, stderr=self.said, env=environment)


class Forked:
    """The command in a child of this process, which has imported what it needs; like :class:`subprocess.Popen`."""

    def __init__(self, argv: list[str]) -> None:
        self.said, self.returncode = tempfile.TemporaryFile("w+"), None  # noqa: SIM115
        self.pid = os.fork()
        if self.pid == 0:
            for number in (1, 2):
                os.dup2(self.said.fileno(), number)
            os._exit(main_of_the_command(argv[argv.index("scalespaces") + 1 :]))

    def poll(self) -> int | None:
        if self.returncode is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        while self.poll() is None:
            time.sleep(0.01)


def said_by(process: Any) -> str:
    """Wait for the end, and return what was said until then."""
    process.wait()
    with process.said as said:
        said.seek(0)
        return said.read()


def finish(process: Any) -> None:
    said = said_by(process)
    assert process.returncode == 0, said


def wait(process: Any, folder: Path, chance: random.Random) -> bool:
    """Wait for a random moment: any at the start, or soon after a new checkpoint. Whether the run still runs then."""
    seen, since = newest(folder), time.monotonic()
    early = chance.uniform(0, SECONDS) if chance.random() < EARLY else float("inf")
    while process.poll() is None and newest(folder) == seen and time.monotonic() - since < early:
        time.sleep(0.002)
    time.sleep(chance.uniform(0, STEPS) if early > SECONDS else 0)
    return process.poll() is None


def newest(folder: Path) -> int:
    last = folder / "last.ckpt"
    return last.stat().st_mtime_ns if last.exists() else 0


def kill_runs(number: int, seed: int, folder: Path, workers: tuple[int, ...] = (0, 2), start: Any = Started) -> None:
    """Kill so many runs, with reading processes or without, resume them, and compare them with whole ones."""
    root, chance, kills, runs = write_noise(folder / "data", train=47, valid=12), random.Random(seed), 0, 0
    wholes = {}
    while kills < number:
        readers = workers[runs % len(workers)]
        argv = command(root, f"--data.workers={readers}")
        if readers not in wholes:
            wholes[readers] = folder / f"whole{readers}"
            finish(start([*argv, str(wholes[readers])]))
        out, before, tries = folder / f"run{runs}", kills, 0
        while kills < min(number, before + EACH) and (tries := tries + 1) < 3 * EACH:
            process = start([*argv, str(out)])
            kills += wait(process, out, chance)
            process.kill()
            said_by(process)
        finish(start([*argv, str(out)]))
        assert_same(out, wholes[readers])
        runs += 1
        print(f"{kills} kills, {runs} runs: equal (the last with {readers} readers)", flush=True)


def kill_workers(number: int, seed: int, folder: Path) -> None:
    """Kill so many of the processes that torchrun started, one at a time."""
    root, chance, kills = write_noise(folder / "data", train=47, valid=12), random.Random(seed), 0
    whole, out, more = folder / "whole", folder / "killed", [f"--trainer.epochs={12 * max(1, number // 2)}"]
    finish(Started([*command(root, *more, processes=2), str(whole)]))
    run = Started([*command(root, *more, processes=2, restarts=number), str(out)])
    while kills < number and wait(run, out, chance):
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(run.pid)], capture_output=True, text=True)
        processes = [int(pid) for pid in listed.stdout.split()]
        if len(processes) < 2:  # they are being started
            continue
        os.kill(chance.choice(processes), signal.SIGKILL)
        kills += 1
        print(f"{kills} kills", flush=True)
    finish(run)
    assert kills == number, f"the run ended after {kills} kills"
    one, two = (last_weights(place) | last_moments(place) for place in (whole, out))
    assert one.keys() == two.keys()
    assert [key for key in one if not torch.equal(one[key], two[key])] == []
    print(f"{kills} killed processes: completed and equal", flush=True)


def main(number: int = 100, seed: int = 0, processes: int = 1, forked: int = 0) -> None:
    """Run a campaign in a folder that is removed at the end."""
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        if processes > 1:
            kill_workers(number, seed, folder)
        else:
            kill_runs(number, seed, folder, start=Forked if forked else Started)
    finally:
        shutil.rmtree(folder)
    print(f"seed {seed}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
