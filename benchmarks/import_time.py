"""How much `import scalespaces` costs beyond importing its dependencies: python benchmarks/import_time.py."""

import statistics
import subprocess
import sys

RUNS = 7
SCRIPT = """
import time
start = time.perf_counter()
import numpy, scipy.special, torch
middle = time.perf_counter()
import scalespaces
print(middle - start, time.perf_counter() - middle)
"""


def measure() -> tuple[float, float]:
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    dependencies, ours = map(float, out.split())
    return dependencies, ours


def main() -> None:
    measure()  # the first run reads from disk and writes bytecode
    dependencies, ours = zip(*(measure() for _ in range(RUNS)), strict=True)
    print(f"torch, numpy, scipy.special: {statistics.median(dependencies):.3f} s")
    print(f"scalespaces on top of them:  {statistics.median(ours):.3f} s (median of {RUNS} runs)")


if __name__ == "__main__":
    main()
