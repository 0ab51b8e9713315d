"""Reproduce a study from data to table: train every network with every seed, evaluate them, and print mean and spread.
Each step is a command of scalespaces, which is printed and can be run alone. What is done is not done again, and an
interrupted training resumes, so the same command continues after a stop. The budget full is the published schedule;
quick is one that two CPU cores finish. Run it in a checkout."""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import results
from benchmarks._tables import Table, progress
from scalespaces.cli import positive

ROOT = Path(__file__).parents[1]
SCALES = "0.5 0.71 1 1.41 2"
SIZES = "0.5 0.71 1 1.41 2 2.83 4 5.66 8"
DIGITS = "data make unseen-scale --source {data} --counts 50000 1000 2000 --seed {seed}"
LEVEL_0 = "--model.arguments.scale_pool image"
PAPER = "--trainer.norm_batches null "  # batch norms with running averages, as in the paper


@dataclass(frozen=True)
class Study:
    """The commands of a study. ``{data}``, ``{made}``, ``{seed}`` and ``{out}`` stand for folders and the seed."""

    data: str  # what --data is
    networks: dict[str, str]  # by name: the recipe and its own options
    train: dict[str, str]  # by budget: options of all trainings
    evaluate: dict[str, str]  # by budget: options of the evaluation
    metrics: tuple[str, ...]
    make: dict[str, str] = field(default_factory=dict)  # by folder in {made}: the command that makes these data
    seeds: int = 3
    decimals: int = 1


def little(plan: Sequence[tuple[int, int]], recipes: dict[str, str], milestones: tuple[float, float]) -> dict[str, str]:
    """Networks trained with few images. Fewer are shown in more epochs, or their networks would not be trained."""
    return {
        f"{name}, {images} images": f"{recipe} --data.limit {images} --trainer.epochs {epochs} "
        f"--optimizer.lr_milestones [{','.join(str(round(share * epochs)) for share in milestones)}]"
        for images, epochs in plan
        for name, recipe in recipes.items()
    }


MNIST_SCALE = Study(
    data="MNIST's original files",
    networks={"CNN": "mnist_scale_cnn.yaml", "S-CNN": "mnist_scale_s_cnn.yaml"},
    make={"seed_{seed}": "data make mnist-scale {made} --source {data} --seeds {seed}"},
    train={
        "full": "--data.root {made}/seed_{seed}",
        "quick": "--data.root {made}/seed_{seed} --data.limit 2000 --trainer.epochs 10 --optimizer.lr_milestones [4,7]",
    },
    evaluate={
        "full": "--kind idx --root {made}/seed_{seed}",
        "quick": "--kind idx --root {made}/seed_{seed} --limit 10000",
    },
    metrics=("accuracy",),
    seeds=6,
    decimals=2,
)

STUDIES = {
    "pcam": Study(
        data="PCam: the official files, or for quick a folder with train.csv, valid.csv and test.csv",
        networks={
            "DenseNet": "pcam_densenet.yaml",
            "DenseNet, jitter": "pcam_densenet.yaml --data.jitter [0.5,2]",
            "S-DenseNet": "pcam_s_densenet.yaml",
            "S-DenseNet, level 0": f"pcam_s_densenet.yaml {LEVEL_0}",
            "P4M-DenseNet": "pcam_p4m_densenet.yaml",
        },
        train={
            "full": f"{PAPER}--data.root {{data}}",
            "quick": f"{PAPER}--data.kind table --data.num_classes 2 --data.root {{data}} --data.limit 2000 "
            "--data.workers 0 --data.batch_size 32 --model.preset recommended --model.arguments.init he "
            "--trainer.epochs 10 --optimizer.lr_milestones [7,9] --optimizer.lr 0.01 --optimizer.warmup 60",
        },
        evaluate={
            "full": f"--kind pcam --root {{data}} --scales {SCALES} --tta {SCALES}",
            "quick": "--kind table --root {data} --scales 0.5 1 2 --tta 0.5 1 2",
        },
        metrics=("accuracy", "auroc"),
    ),
    "cityscapes": Study(
        data="Cityscapes: the official tree, or for quick a folder with train/images, train/masks, valid/images ...",
        networks={
            "ResNet": "cityscapes_resnet.yaml",
            "ResNet, jitter": "cityscapes_resnet.yaml --data.jitter [0.5,2]",
            "ResNet, matched parameters": "cityscapes_resnet_matched_parameters.yaml",
            "S-ResNet, no interaction": "cityscapes_s_resnet_no_interaction.yaml",
            "S-ResNet": "cityscapes_s_resnet.yaml",
        },
        train={
            "full": f"{PAPER}--data.root {{data}}",
            # Validated on images held out of the training set; the set valid is for the evaluation.
            "quick": f"{PAPER}--data.kind masks --data.num_classes 19 --data.root {{data}}/train --data.crop [128,128] "
            "--data.workers 0 --model.preset recommended --trainer.epochs 8 --optimizer.lr_milestones [6,7] "
            "--trainer.valid_batches 40",
        },
        evaluate={
            "full": f"--kind cityscapes --root {{data}} --splits valid --scales {SCALES} --tta {SCALES}",
            "quick": "--kind masks --root {data} --splits valid --limit 40 --scales 0.5 1 2 --tta 0.5 1 2",
        },
        metrics=("average_precision", "mean_iou"),
    ),
    "mnist-scale": MNIST_SCALE,
    "mnist-scale-56": replace(
        MNIST_SCALE,
        networks={"CNN, images of 56 x 56": "mnist_scale_cnn.yaml --model.arguments.channels [16,32,63,89]"},
        make={folder: f"{command} --size 56" for folder, command in MNIST_SCALE.make.items()},
    ),
    "mnist-scale-little": replace(
        MNIST_SCALE,
        networks=little(
            ((500, 80), (1000, 50), (2000, 30), (5000, 16)),
            {"CNN": "mnist_scale_cnn.yaml", "S-CNN": "mnist_scale_s_cnn.yaml"},
            (0.4, 0.7),
        ),
        train=dict.fromkeys(("quick", "full"), "--data.root {made}/seed_{seed}"),
        seeds=3,
    ),
    "pcam-little": Study(
        data="as for pcam",
        networks=little(
            ((250, 40), (500, 30), (1000, 20), (2500, 10), (5000, 6)),
            {"DenseNet": "pcam_densenet.yaml", "S-DenseNet, level 0": f"pcam_s_densenet.yaml {LEVEL_0}"},
            (0.7, 0.9),
        ),
        train={
            "full": f"{PAPER}--data.root {{data}}",
            "quick": f"{PAPER}--data.kind table --data.num_classes 2 --data.root {{data}} --data.workers 0 "
            "--data.batch_size 32 --model.preset recommended --model.arguments.init he --optimizer.lr 0.01 "
            "--optimizer.warmup 60",
        },
        evaluate={"full": "--kind pcam --root {data}", "quick": "--kind table --root {data}"},
        metrics=("auroc", "accuracy"),
    ),
    "unseen-scale": Study(
        data="MNIST's original files",
        networks={
            "CNN": "unseen_scale_cnn.yaml --data.root {made}/train_{seed}",
            "CNN, jitter": "unseen_scale_cnn_jitter.yaml --data.root {made}/jitter_{seed}",
            "S-CNN": "unseen_scale_s_cnn.yaml --data.root {made}/train_{seed}",
        },
        make={
            "train_{seed}": f"{DIGITS} {{made}}/train_{{seed}} --canvas 48 --place random --tests 1",
            "jitter_{seed}": f"{DIGITS} {{made}}/jitter_{{seed}} --canvas 112 --tests 1",
            "test_{seed}": f"{DIGITS} {{made}}/test_{{seed}} --canvas 256 --tests-only --tests {SIZES}",
        },
        train={"quick": "--trainer.epochs 3", "full": ""},
        evaluate={
            budget: f"--kind idx --root {{made}}/test_{{seed}} {limit}--splits test_{SIZES.replace(' ', ' test_')} "
            "--num-levels 9 --batch 16 --tta 0.125 0.25 0.5 1 2 --select 0.125 0.25 0.5 1 2"
            for budget, limit in (("quick", "--limit 500 "), ("full", ""))
        },
        metrics=("accuracy",),
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("study", choices=STUDIES, help="; ".join(f"{name} ({study.data})" for name, study in STUDIES.items()))
    add("--data", required=True, metavar="FOLDER", help="the study's data")
    add("--work", default="out/reproduce", metavar="FOLDER", help="networks go there")
    add("--results", metavar="FOLDER", help="evaluations go there; seeds that have one are done (default: --work)")
    add("--budget", choices=("quick", "full"), default="quick", help="the schedule (default: %(default)s)")
    add(
        "--seeds", type=positive, metavar="N", help="repeat everything with seeds 0 to N - 1 (default: the study's own)"
    )
    add("--networks", nargs="+", metavar="NAME", help="only these networks of the study")
    add("--devices", type=positive, default=1, metavar="N", help="train with torchrun on N devices")
    add("--dry-run", action="store_true", help="print the commands that are left to run, and run none")
    add("--plot", metavar="FILE", help="draw the first metric over scale there")


def run(args: argparse.Namespace) -> Iterator[Table]:
    study = STUDIES[args.study]
    if unknown := set(args.networks or ()) - study.networks.keys():
        raise ValueError(f"networks of {args.study} are {'; '.join(study.networks)}, got {'; '.join(sorted(unknown))}")
    seeds = range(args.seeds or study.seeds)
    done = {seed: result_file(seed, args) for seed in seeds}
    steps = [step for seed in seeds if not done[seed].exists() for step in commands(study, seed, args)]
    todo = [command for command, made in steps if not made.exists()]
    for number, command in enumerate(todo, 1):
        text = f"[{number} of {len(todo)}] {shlex.join(command)}"
        progress(text)
        if not args.dry_run and (code := subprocess.run([sys.executable, "-m", *command], cwd=ROOT).returncode):
            raise ValueError(f"exit code {code} from: {shlex.join(command)}; the same command continues from there")
    if not args.dry_run:
        yield from results.tables([str(file) for file in done.values()], study.metrics, args.plot, study.decimals)


def commands(study: Study, seed: int, args: argparse.Namespace) -> Iterator[tuple[list[str], Path]]:
    """The commands for a seed, as arguments of ``python -m``, each with the last file it makes."""
    folder = Path(args.work, f"{args.study}-{args.budget}")
    places = {"data": shown(args.data), "made": shown(folder / "data"), "seed": seed}

    def words(text: str) -> list[str]:
        return [word.format(**places) for word in shlex.split(text)]

    networks = {name: text for name, text in study.networks.items() if name in (args.networks or study.networks)}
    for made, text in study.make.items():
        yield ["scalespaces", *words(text)], folder / "data" / made.format(**places)
    torchrun = f"torch.distributed.run --standalone --nproc-per-node {args.devices} -m " if args.devices > 1 else ""
    files = []
    for name, text in networks.items():
        out = folder / f"{slug(name)}_{seed}"
        own = words(f"recipes/{text} {study.train[args.budget]} --seed {{seed}} --out {shown(out)} --resume")
        yield [*f"{torchrun}scalespaces train".split(), *own], out / "result.json"
        files.append(shown(out / "model.safetensors"))
    made = result_file(seed, args)
    options = words(study.evaluate[args.budget])
    yield ["scalespaces", "evaluate", *files, "--names", *networks, *options, "--json", shown(made)], made


def result_file(seed: int, args: argparse.Namespace) -> Path:
    """The evaluation of all networks, or of some: each choice has its own."""
    name = "_".join(["seed", str(seed), *map(slug, args.networks or ())])
    return Path(args.results or args.work, f"{args.study}-{args.budget}", f"{name}.json")


def shown(path: str | Path) -> str:
    """A path for commands that run in the checkout: relative if it lies there."""
    path = Path(path).absolute()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def slug(name: str) -> str:
    return name.lower().replace(",", "").replace(" ", "_")
