"""Recipes: all settings of an experiment, as plain YAML, checked before anything runs."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

import yaml

from scalespaces._choices import LevelPool, Supervision
from scalespaces._extras import require
from scalespaces._files import read_yaml, replacing
from scalespaces.theory._arguments import did_you_mean
from scalespaces.train._data import DataOptions, choose


@dataclass
class ModelOptions:
    """Which network to train: one by name, one from a file, or any other network, converted.

    Args:
        name: a network that "scalespaces models" lists.
        preset: the settings of that network: recommended, or those of the paper.
        lift: how images become levels: arguments of scalespaces.nn.Lift, as in --model.lift.num_levels 3; others are
            the network's own.
        arguments: arguments of that network, see "scalespaces info NAME"; or of the source. num_classes and in_channels
            follow from the data by default.
        file: a safetensors file to start from, with the network and its weights; a converted network also needs source.
        source: any other network, which is converted, as MODULE:FUNCTION, such as timm:create_model. Packages other
            than timm, torchvision and segmentation_models_pytorch must be allowed with --allow-source PACKAGE.
        convert: arguments of scalespaces.convert for the source, except the lift.
    """

    name: str | None = None
    preset: Literal["recommended", "paper"] = "recommended"
    lift: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    file: str | None = None
    source: str | None = None
    convert: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from scalespaces.nn._lift import ARGUMENTS as LIFT_ARGUMENTS  # late, as it needs torch

        named, sourced, filed = (key is not None for key in (self.name, self.source, self.file))
        arguments = self.arguments if named else {}  # a source may have any
        for key, options in (("arguments", arguments), ("convert", self.convert)):
            for name in options:
                if name in ("lift", *LIFT_ARGUMENTS):
                    place = "model.lift" if name == "lift" else f"model.lift.{name}"
                    raise ValueError(f"the lift is a key of its own: use {place}, not model.{key}.{name}")
        for name in self.lift:
            if name not in LIFT_ARGUMENTS:
                raise ValueError(f"model.lift has no key {name!r:.80}{did_you_mean(name, LIFT_ARGUMENTS)}")
        for wrong, message in (
            (not (named or sourced or filed), "name, model.source or model.file is needed: which network to train"),
            (named and (sourced or filed), "name must be given alone: model.file and model.source also name a network"),
            (self.preset != "recommended" and not named, f"preset is for a model.name, got only {self.preset!r}"),
            (self.lift and filed, "lift is for a model.name or model.source; model.file has its own"),
            (self.convert and (filed or not sourced), "convert is for a model.source without model.file"),
            (self.arguments and not (named or sourced), "arguments are for a model.name or model.source"),
        ):
            if wrong:
                raise ValueError(f"model.{message}")


@dataclass
class OptimizerOptions:
    """How weights are updated.

    Args:
        name: sgd (with momentum), adam or adamw.
        lr: the learning rate.
        momentum: the momentum of sgd.
        weight_decay: how strongly weights are pulled toward zero.
        schedule: how the learning rate falls: in steps (see lr_milestones), or along half a cosine wave from lr to
            0, over all steps after warmup.
        lr_milestones: epochs at whose start the learning rate is multiplied by lr_factor.
        lr_factor: the factor of lr_milestones.
        warmup: steps over which the learning rate rises linearly to lr.
        clip: largest norm of the gradient; a larger one is scaled down.
    """

    name: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Literal["steps", "cosine"] = "steps"
    lr_milestones: list[int] = field(default_factory=list)
    lr_factor: float = 0.1
    warmup: int = 0
    clip: float | None = None

    def __post_init__(self) -> None:
        if not self.lr > 0 or not 0 <= self.momentum < 1 or self.weight_decay < 0 or self.warmup < 0:
            got = f"{self.lr}, {self.momentum}, {self.weight_decay}, {self.warmup}"
            rule = "lr is above 0, momentum from 0 to below 1, weight_decay and warmup at least 0"
            raise ValueError(f"optimizer: {rule}, got {got}")
        if self.schedule == "cosine" and self.lr_milestones:
            raise ValueError("optimizer: lr_milestones are for the schedule steps, not cosine")
        if not self.lr_factor > 0 or (self.clip is not None and not self.clip > 0):
            raise ValueError(f"optimizer: lr_factor and clip are above 0, got {self.lr_factor}, {self.clip}")


@dataclass
class LevelOptions:
    """How levels are supervised and combined.

    Args:
        supervise: compute the loss from the network's own answer (answer), from the mean of its levels' logits, so that
            every level learns (mean), or from every level separately (apart).
        pool: how levels are combined in validation: by the network itself (model), the image's own level (image), the
            mean, max or logsumexp of their logits, the mean of their probabilities, or by trust, weights that the
            network learns and keeps. With supervise answer, trust is trained with the network. Otherwise it is fitted
            to the best network after training, with up to 500 training images; validation uses probabilities until
            then.
        label_smoothing: share of the target that is spread evenly over all classes.
    """

    supervise: Supervision = "answer"
    pool: LevelPool = "model"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"levels.label_smoothing is from 0 to below 1, got {self.label_smoothing}")

    @property
    def meanwhile(self) -> LevelPool:
        """How levels are combined in validation before the end: trust may be fitted after it."""
        return "probabilities" if self.pool == "trust" and self.supervise != "answer" else self.pool


@dataclass
class FinetuneOptions:
    """How a pretrained network is fine-tuned.

    Args:
        freeze: name patterns of parameters that are not trained, such as layer1.*
        head_first: epochs at the start in which only the head is trained: the last linear layer or convolution with an
            output for each class. All else stays as it is, including running statistics.
        layer_decay: the learning rate is multiplied by this factor for each layer below the head. A layer is all
            parameters whose names agree up to the first number, such as layer1 or blocks.3; a norm belongs to the layer
            before it.
        freeze_batchnorm: batch norms use their running statistics and keep them; their weights and biases still learn.
    """

    freeze: list[str] = field(default_factory=list)
    head_first: int = 0
    layer_decay: float = 1.0
    freeze_batchnorm: bool = False

    def __post_init__(self) -> None:
        head, decay = self.head_first, self.layer_decay
        if head < 0 or not 0 < decay <= 1:
            raise ValueError(f"finetune: head_first is at least 0, layer_decay above 0, at most 1, got {head}, {decay}")


@dataclass
class TrainerOptions:
    """How training runs.

    Args:
        epochs: how many times the training set is seen.
        max_steps: stop after this many steps, even within an epoch.
        accelerator: auto, cpu, gpu (cuda) or mps.
        devices: devices per machine; auto means those that torchrun or SLURM started, or else all.
        nodes: number of machines; torchrun and SLURM set it themselves.
        strategy: auto (ddp when there are several devices), ddp, or fsdp to shard large networks.
        precision: bits of floating-point numbers; mixed ones keep weights in 32 bits.
        accumulate: split each batch into this many parts and average their gradients, to save memory. Each part has its
            own batch normalization, and, where pixels are ignored, its own mean loss.
        sync_batchnorm: compute the statistics of batch normalization over all devices.
        recompute: keep only the inputs of a network's blocks for the backward pass, and recompute the rest: less memory
            for about a third more time. For networks by name, not for converted ones.
        compile: run torch.compile on the network.
        channels_last: store images and filters with channels last, which is faster for most networks.
        deterministic: use only deterministic algorithms.
        monitor: the quantity in metrics.csv that selects the best epoch; by default valid/accuracy or valid/mean_iou.
        patience: stop when the monitored quantity has not improved for this many epochs.
        checkpoint_every: steps between checkpoints within an epoch; there is always one after each epoch.
        log_every: steps between points in TensorBoard.
        valid_batches: validate with only this many batches.
        norm_batches: before validation, batch norms recompute their statistics with the current weights, on this many
            training batches, the last of the epoch; null keeps running averages, which lag behind.
    """

    epochs: int = 100
    max_steps: int | None = None
    accelerator: str = "auto"
    devices: int | Literal["auto"] = "auto"
    nodes: int = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    precision: Literal["32-true", "16-mixed", "bf16-mixed", "64-true"] = "32-true"
    accumulate: int = 1
    sync_batchnorm: bool = True
    recompute: bool = False
    compile: bool = False
    channels_last: bool = True
    deterministic: bool = False
    monitor: str | None = None
    patience: int | None = None
    checkpoint_every: int = 200
    log_every: int = 10
    valid_batches: int | None = None
    norm_batches: int | None = 20

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ValueError(f"trainer.{name} is at least 1, got {value}")


@dataclass
class Recipe:
    """An experiment.

    Args:
        seed: random seed.
    """

    model: ModelOptions
    data: DataOptions
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    levels: LevelOptions = field(default_factory=LevelOptions)
    finetune: FinetuneOptions = field(default_factory=FinetuneOptions)
    trainer: TrainerOptions = field(default_factory=TrainerOptions)
    seed: int = 0
    chosen: ClassVar[str] = ""  # what was chosen and why, if the data alone were given

    def __post_init__(self) -> None:
        from scalespaces.models._network import check_classes  # late, as it needs torch

        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is from 0 to 2**63 - 1, got {self.seed!s:.40}")
        check_classes("data.num_classes", self.data.num_classes)

    def save(self, path: str | Path) -> None:
        """Write the whole recipe as YAML, which :func:`load_recipe` reads."""
        with replacing(path) as draft:
            draft.write_text(yaml.safe_dump(self._plain(), sort_keys=False), encoding="utf-8")

    def differences(self, other: Recipe) -> list[str]:
        """The keys that differ, among those that affect the weights."""
        mine, theirs = _flat(self._plain()), _flat(other._plain())
        differing = {key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)}
        return sorted(differing - _FREE)

    def _plain(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self)))  # lists for tuples


_SECTIONS = tuple(entry.name for entry in dataclasses.fields(Recipe) if entry.name != "seed")
_FREE = {"data.root", "data.workers", "data.table"} | {  # keys that a resumed run may change
    f"trainer.{name}" for name in ("epochs", "max_steps", "patience", "recompute", "checkpoint_every", "log_every")
}


def recipe_parser(**options: Any) -> Any:
    """A parser with an option for every key of a recipe."""
    jsonargparse = require("jsonargparse", "train")

    class RecipeFile(jsonargparse.ActionConfigFile):
        @staticmethod
        def apply_config(parser: Any, cfg: Any, dest: str, value: Any) -> None:
            _check_file(Path(value))
            jsonargparse.ActionConfigFile.apply_config(parser, cfg, dest, value)

    parser = jsonargparse.ArgumentParser(exit_on_error=False, env_prefix=False, allow_abbrev=False, **options)
    parser.add_argument("--recipe", action=RecipeFile, help="YAML file with these keys")
    parser.add_class_arguments(Recipe, None, fail_untyped=True)
    return parser


def load_recipe(path: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a YAML file and check it; an error names the unknown, wrong or missing key.

    The path may also be a folder of images or a saved network, ``.safetensors``. Then there is no recipe, and without
    ``data.kind`` all settings that are not given are chosen to suit the images; ``recipe.chosen`` says what and why.

    ``overrides`` are written as on the command line: ``["--data.root", "data/pcam"]``.
    """
    return parse_recipe(recipe_parser(), path, overrides)[0]()


def parse_recipe(parser: Any, path: str | Path | None, words: Sequence[str]) -> tuple[Callable[[], Recipe], Any]:
    """A function that makes the recipe, and the namespace with all of the parser's options.

    Words are checked now. The images that settings are chosen by are read when the recipe is made.
    """
    if path is not None and Path(path).suffix == ".safetensors":
        path, words = None, ["--model.file", str(path), *words]
    elif path is not None and Path(path).is_dir():
        path, words = None, ["--data.root", str(path), *words]
    if path is not None:
        words = ["--recipe", str(path), *words]
    said = options_in(words)
    if "data.root" in said and not {"recipe", "data", "data.kind", "help", "h", "print_config"} & said.keys():
        found = _parsed(parser, path, ["--data.kind=class_folders", *words])
        return lambda: _chosen(parser, said, words), found
    found = _parsed(parser, path, words)
    recipe = _made(parser, path, found)
    return lambda: recipe, found


def _parsed(parser: Any, path: str | Path | None, words: Sequence[str]) -> Any:
    for word, following in zip(words, [*words[1:], ""], strict=False):  # there may be no words
        option, equals, value = word.partition("=")
        if option[2:] in _SECTIONS and not (value if equals else following).lstrip().startswith("{"):
            raise ValueError(f"{option} is one or more keys, as in {option}='{{key: value}}'; files go to --recipe")
    with _explaining(path):
        return parser.parse_args(_joined(words))


def _made(parser: Any, path: str | Path | None, found: Any) -> Recipe:
    with _explaining(path):
        built = parser.instantiate(found)
    return Recipe(**{entry.name: getattr(built, entry.name) for entry in dataclasses.fields(Recipe)})


@contextmanager
def _explaining(path: str | Path | None) -> Iterator[None]:
    """Turn errors of the parser, or of Python about values that no option can have, into one line."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        where = "" if path is None or str(path) in str(error) else f"{str(path)!r}: "
        message = " ".join(str(error).split())
        raise ValueError(f"{where}{message:.600}{_closest_key(message)}") from error


def recipe_beside(file: str | Path) -> Recipe | None:
    """The recipe that a network was trained with, if that is next to it."""
    recipe = Path(file).with_name("recipe.yaml")
    return load_recipe(recipe) if recipe.is_file() else None


def _chosen(parser: Any, said: dict[str, str], words: Sequence[str]) -> Recipe:
    """The recipe of these words, with settings that suit the data where they say nothing."""
    from scalespaces.models import load  # late, as it needs torch
    from scalespaces.models._registry import entry

    network: Any = None
    if "model.name" in said:
        entry(said["model.name"])  # a wrong name is found before the data are read
    if "model.file" in said and "model.source" not in said:
        network, before = load(said["model.file"]), recipe_beside(said["model.file"])
        for key in ("size", "crop"):
            if before is not None and (value := getattr(before.data, key)) is not None:
                words, said = [f"--data.{key}={json.dumps(value)}", *words], {f"data.{key}": json.dumps(value)} | said
    keys, text = choose(said, network)
    plain = {key: value if isinstance(value, str) else json.dumps(value) for key, value in keys.items()}
    recipe: Any = _made(
        parser, None, _parsed(parser, None, [*(f"--{k}={value}" for k, value in plain.items()), *words])
    )
    recipe.chosen = text
    return recipe


def options_in(words: Sequence[str]) -> dict[str, str]:
    """Options and their values, as they are written."""
    found, joined = {}, _joined(words)
    for word, after in zip(joined, [*joined[1:], ""], strict=False):  # there may be no words
        option, equals, value = word.partition("=")
        if option.startswith("-"):
            found[option.lstrip("-")] = value if equals else after
    return found


def _joined(words: Sequence[str]) -> list[str]:
    """The words, with several numbers after an option as a list: ``--data.jitter 0.5 2`` means ``[0.5,2]``."""
    joined: list[str] = []
    for word in words:
        numbers = joined[-1].strip("[]").split(",") if len(joined) > 1 and joined[-2].startswith("--") else []
        if numbers and "=" not in joined[-2] and all(map(_is_number, [*numbers, word])):
            joined[-1] = f"[{','.join([*numbers, word])}]"
        else:
            joined.append(word)
    return joined


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False


def _closest_key(message: str) -> str:
    """The key that was meant, after the parser's error about an unknown one."""
    found = re.search(r"unrecognized arguments: --([\w.]+)|Group '([\w.]+)' does not accept option '([\w.]+)'", message)
    if found is None:
        return ""
    sections = {name: kind for name, kind in get_type_hints(Recipe).items() if name in _SECTIONS}
    known = [f"{name}.{entry.name}" for name, kind in sections.items() for entry in dataclasses.fields(kind)]
    return did_you_mean(found[1] or f"{found[2]}.{found[3]}", known)


def _check_file(path: Path) -> None:
    """Refuse a file that the door refuses, or whose keys are not a recipe's."""
    if not path.is_file():  # a pipe might never end
        got = f"{str(path)!r}, which is not a regular file" if path.exists() else repr(str(path))
        raise FileNotFoundError(f"no recipe {got}; scalespaces has its own in the folder recipes")
    try:
        root = read_yaml(path)
        if not isinstance(root, yaml.MappingNode):
            raise ValueError("a recipe's config is keys and values, as in seed: 1")
        for key, value in root.value:
            if str(key.value).partition(".")[0] not in (*_SECTIONS, "seed"):
                known = f"{did_you_mean(key.value, _SECTIONS)} (there are {', '.join(_SECTIONS)}, seed)"
                raise ValueError(f"unknown key {key.value!r:.80}{known}")
            if key.value in _SECTIONS and not isinstance(value, yaml.MappingNode):
                raise ValueError(f"{key.value} has keys and values, got {value.value!r:.80}")
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"parsing {str(path)!r}: {' '.join(str(error).split()):.300}") from error


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Values by dotted keys."""
    if not isinstance(value, dict):
        return {prefix[1:]: value}
    return {key: leaf for name, item in value.items() for key, leaf in _flat(item, f"{prefix}.{name}").items()}
