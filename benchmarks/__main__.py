"""Measure what scalespaces costs and how exact it is. Each document names the command that prints its numbers."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module

import torch

from scalespaces._files import prepare, write_json
from scalespaces._measure import environment
from scalespaces.cli import Parser, positive

NAMES = {
    "cost": "time, memory and kernels of layers, lift, networks and loading, compared with plain PyTorch",
    "growth": "how cost grows with the side of images, levels and channels",
    "conversion_time": "time of a converted network, compared with calls of the plain one on every level",
    "sampling": "errors and cost of each sampling, method and zero-scale",
    "choices": "what base, levels, sampling and zero-scale do to a network",
    "pooling": "which way to combine the scores of levels that are trained together",
    "conversion": "accuracy of pretrained networks, converted and calibrated, on photographs at several sizes",
    "scaling": "memory and communication of training on many devices",
    "semigroups": "how far discretized actions are from the law of a semigroup",
    "reproduce": "a study from data to table: PCam, Cityscapes, MNIST-scale",
    "results": "mean and spread of evaluations with several seeds",
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="name", metavar="NAME", title="benchmarks", required=True)
    for name, text in NAMES.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("--threads", type=positive, metavar="N", help="threads of PyTorch")
        command.add_argument("--json", metavar="FILE", help="write all numbers there")
        if [name] == list(argv[:1]):  # to import all of them would take long
            benchmark = import_module(f"benchmarks.{name}")
            command.description = benchmark.__doc__
            getattr(benchmark, "add_arguments", lambda _: None)(command)
            command.set_defaults(run=benchmark.run)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(sys.argv[1:] if argv is None else argv)
    before = torch.get_num_threads()
    try:
        if args.json is not None:
            prepare(args.json)
        torch.set_num_threads(args.threads or before)
        facts, results = environment(), []
        for result in args.run(args):
            print(f"\n{result}", flush=True)
            results.append(asdict(result))
        if args.json is not None:
            options = {name: value for name, value in vars(args).items() if name != "run"}
            write_json(args.json, {"environment": facts, "options": options, "results": results})
            print(f"\nwrote {args.json}")
    except (ValueError, OSError, ImportError) as error:
        print(f"python -m benchmarks {args.name}: error: {error}", file=sys.stderr)
        return 2
    finally:
        torch.set_num_threads(before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
