"""Training from a recipe, on one device or many, with or without interruptions."""

import logging
import os
import platform
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from errno import EDQUOT, EFBIG, ENOSPC
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, distributed, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from scalespaces._files import prepare, write_json
from scalespaces.data import to_unit
from scalespaces.models import Card, ConversionError, ScaleNetwork, convert, create_model, load
from scalespaces.models._calibrate import FEWEST
from scalespaces.models._network import NamedNetwork, evaluating
from scalespaces.models._registry import build
from scalespaces.nn import synchronize
from scalespaces.train._batches import KeyedBatches, plain_errors
from scalespaces.train._checkpoints import BEST, LAST, METRICS, NETWORK, AtomicCheckpoints, Keeper, is_lower_better
from scalespaces.train._data import class_names, num_classes, open_split
from scalespaces.train._levels import answer, combine_by, fit_trust
from scalespaces.train._recipe import Recipe, load_recipe
from scalespaces.train._tasks import Task

RECIPE, VERSIONS, RESULT = "recipe.yaml", "versions.json", "result.json"
_BAD_ADVICE = (
    ".*does not have many workers.*",  # they are the user's choice
    ".*your dataloader is not resumable.*",  # the sampler starts where a resumed run continues
    ".*smaller than the logging interval.*",
    ".*treespec, LeafSpec.*",
    ".*sync_dist=True.*",  # logged values already cover all processes
)


@dataclass
class Result:
    """The outcome of a run: its folder, the monitored quantity, its best value and the epoch of that."""

    folder: Path
    monitor: str
    best: float | None
    best_epoch: int | None
    steps: int


def train(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    quiet: bool = False,
    allow_source: Sequence[str] = (),
) -> Result:
    """Train a network from a recipe, or on a folder of images with settings that suit them.

    The folder ``out`` gets ``recipe.yaml`` (all of it), ``versions.json``, ``metrics.csv``, ``result.json``,
    TensorBoard's files, ``last.ckpt``, ``best.ckpt``, and ``model.safetensors``: the network of the best epoch.

    Args:
        recipe: the experiment, or its YAML file, or a folder of images; see :func:`load_recipe`.
        out: the folder.
        resume, force: continue from ``last.ckpt``, or start over, if there is one.
        quiet: no progress bar, and no lines of progress.
        allow_source: packages besides timm, torchvision, segmentation_models_pytorch and scalespaces whose functions
            ``model.source`` may name.
    """
    recipe, out = recipe if isinstance(recipe, Recipe) else load_recipe(recipe), Path(out)
    options, data = recipe.trainer, recipe.data
    resume = resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # torchrun has restarted it
    checkpoint = _checkpoint(recipe, out, resume, force)
    _rejoin(recipe)
    if recipe.model.source is None:  # what is wrong with the network is found before the data are read
        with torch.device("meta" if recipe.model.file is None else "cpu"):
            _build(recipe, 3, data.num_classes or 2)
    train_set, valid_set = (open_split(data, split, seed=recipe.seed) for split in ("train", "valid"))
    classes, channels = num_classes(data), train_set[0][0].shape[0]
    if (data.augment == "pcam" or data.color is not None) and channels != 3:
        raise ValueError(f"data.augment pcam and data.color are for color images of 3 channels, got {channels}")
    fits_trust = recipe.levels.meanwhile != recipe.levels.pool
    if fits_trust and len(train_set) < FEWEST:
        raise ValueError(f"levels.pool trust is fitted to {FEWEST} training images at least, got {len(train_set)}")
    network = make_network(recipe, channels, classes, allow_source)
    task = Task(network, recipe, classes, class_names(data), (train_set, valid_set))
    keeper = Keeper(out, task.monitor, options.checkpoint_every, network, options.max_steps)
    trainer = make_trainer(recipe, out, keeper, quiet=quiet)
    if recipe.chosen and trainer.is_global_zero and not quiet:
        print(recipe.chosen, file=sys.stderr, flush=True)
    _try_out(network, valid_set[0][0], recipe, classes)
    # Refuses batch sizes that do not fit.
    KeyedBatches(train_set, data.batch_size, processes=trainer.world_size, accumulate=options.accumulate)
    if trainer.world_size > 1 and options.sync_batchnorm:
        synchronize(network)
    prepare(out / LAST)
    if trainer.is_global_zero:
        old = [f".{Path(name).stem}-*{Path(name).suffix}" for name in (LAST, BEST, NETWORK)]  # drafts of killed runs
        if checkpoint is None:  # all is checked, so the files of a run before may go
            old += [LAST, BEST, NETWORK, METRICS, RESULT, "tensorboard/events.*"]
        for file in [file for pattern in old for file in out.glob(pattern)]:
            file.unlink(missing_ok=True)
        recipe.save(out / RECIPE)
        versions = {"python": platform.python_version(), "platform": platform.platform(), "seed": recipe.seed}
        for name in ("scalespaces", "torch", "lightning", "torchmetrics", "numpy", "scipy", "h5py", "safetensors"):
            with suppress(PackageNotFoundError):
                versions[name] = version(name)
        write_json(out / VERSIONS, versions | {"threads": torch.get_num_threads(), "cuda": torch.version.cuda})
    try:
        with _without_advice(), plain_errors(), _full_disk(out):
            trainer.fit(task, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as stop:
        if trainer.interrupted:
            raise KeyboardInterrupt from stop
        raise
    except (LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        if checkpoint is None or keeper.started:
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{checkpoint!r} is not of this run, so --force starts over: {why:.300}") from error
    result = Result(out, keeper.monitor, keeper.best, keeper.best_epoch, trainer.global_step)
    if trainer.is_global_zero:
        document = {name: value for name, value in vars(result).items() if name != "folder"} | {"epochs": keeper.rows}
        if fits_trust:
            images, device = open_split(replace(data, flip=False), seed=recipe.seed), trainer.strategy.root_device
            found = fit_trust(keeper.twin, out / NETWORK, images, data.batch_size, recipe.seed, device)
            document["trust"] = vars(found)
        write_json(out / RESULT, document)
    return result


def make_network(recipe: Recipe, in_channels: int, classes: int, allow_source: Sequence[str] = ()) -> nn.Module:
    """The network of a recipe, with weights that depend only on its seed."""
    torch.manual_seed(recipe.seed)
    network: Any = _build(recipe, in_channels, classes, allow_source)
    if recipe.trainer.recompute:
        if not isinstance(network, NamedNetwork):
            got = f"{type(network).__name__}; use model.name, or scalespaces.nn.checkpoint inside the network"
            raise ValueError(f"trainer.recompute needs a network whose blocks are known, got {got}")
        network.recompute = True
    if recipe.levels.pool == "trust" and isinstance(network, ScaleNetwork):
        combine_by(network, recipe.levels.meanwhile)
    data, old = recipe.data, Card.of(network)
    network.card = Card(class_names(data) or old.classes, data.mean or old.mean, data.std or old.std)
    return network.train()


def _build(recipe: Recipe, in_channels: int, classes: int, allow_source: Sequence[str] = ()) -> nn.Module:
    options = recipe.model
    try:
        if options.source is not None:
            source = build(options.source, options.arguments, allow_source)
            # The parser makes numbers of names such as "8", which modules of an nn.Sequential have.
            modules = options.convert.keys() & {"pool_before", "features"}
            names = {key: str(options.convert[key]) for key in modules if isinstance(options.convert[key], int)}
            said: dict[str, Any] = {"scale_pool": "mean"} | options.convert | names  # so that all levels learn
            return convert(source, options.lift, **said) if options.file is None else load(options.file, source)
        if options.file is not None:
            return _for_classes(load(options.file), classes)
        said = {"in_channels": in_channels, "num_classes": classes, "lift": options.lift} | options.arguments
        return create_model(str(options.name), preset=options.preset, **said)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"model.file: {error}") from error
    except (TypeError, ConversionError, RuntimeError, MemoryError, ArithmeticError) as error:  # such as an unknown key
        raise ValueError(f"model: {' '.join(str(error).split()):.600}") from error


def _for_classes(network: nn.Module, classes: int) -> nn.Module:
    """The network, with a new head if it was made for another number of classes."""
    if not isinstance(network, NamedNetwork) or network.config["num_classes"] == classes:
        return network
    config: dict[str, Any] = network.config | {"num_classes": classes}
    fresh = create_model(**config)
    own, old = fresh.state_dict(), network.state_dict()
    fresh.load_state_dict(own | {name: value for name, value in old.items() if value.shape == own[name].shape})
    fresh.card = Card((), network.card.mean, network.card.std)
    return fresh


def _try_out(network: nn.Module, image: Tensor, recipe: Recipe, classes: int) -> None:
    """Check that the network takes the images and knows the classes, before anything runs."""
    height, width = recipe.data.crop or image.shape[1:]
    image = image[:, :height, :width]
    try:
        with evaluating(network), torch.no_grad():
            prepared = Card.of(network).normalize(to_unit(image[None]))
            logits = answer(network, prepared, recipe.levels.meanwhile)
            if recipe.levels.pool == "trust" and isinstance(network, ScaleNetwork):
                network.scores_and_features(prepared)  # what it is fitted to
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(f"model: the network does not take images of {tuple(image.shape)}: {error}") from error
    kind, sides = ("segmentation", image.shape[1:]) if recipe.data.segmentation else ("classification", ())
    got = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
    if got != (1, classes, *sides):
        rule = f"answers are {(1, classes, *sides)} for an image of {tuple(image.shape)} and {classes} classes"
        way = f"set the number of classes in model.arguments, and use a network for {kind}"
        raise ValueError(f"model: {rule}, got {got}; {way}")


class Patience(EarlyStopping):
    """Early stopping; a run that has stopped does not start again when it is resumed."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume, with the recipe's current patience."""
        super().load_state_dict(state_dict | {"patience": self.patience})

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Stop at once if patience already ran out."""
        trainer.should_stop = trainer.should_stop or self.wait_count >= self.patience


class Lines(pl.Callback):
    """What is trained, at the start; and every minute without a terminal, how far training is and how long it takes."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.bar = quiet, sys.stderr.isatty()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Print the number of parameters and samples, and where a resumed run continues."""
        self.first, self.began = trainer.global_step, time.monotonic()
        self.shown = self.began
        number = sum(parameter.numel() for parameter in pl_module.network.parameters())
        text = f"{type(pl_module.network).__name__}, {number:,} parameters; {len(pl_module.sets[0]):,} training and "
        text += f"{len(pl_module.sets[1]):,} validation images"
        self._say(trainer, text)
        if self.first:
            total = trainer.estimated_stepping_batches
            self._say(trainer, f"resuming at step {self.first} of {total}, epoch {trainer.current_epoch}")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Print a line if the last one is a minute old."""
        now, step = time.monotonic(), trainer.global_step
        if self.bar or now - self.shown < 60 or step == self.first:
            return
        self.shown, total = now, trainer.estimated_stepping_batches
        left = (now - self.began) / (step - self.first) * (total - step)
        self._say(trainer, f"epoch {trainer.current_epoch}, step {step} of {total}, {left / 60:.0f} min left")

    def _say(self, trainer: Any, text: str) -> None:
        if trainer.is_global_zero and not self.quiet:
            print(text, file=sys.stderr, flush=True)


def make_trainer(recipe: Recipe, out: Path, keeper: Keeper, *, quiet: bool = False) -> pl.Trainer:
    """Lightning's trainer with the recipe's options."""
    options = recipe.trainer
    devices, nodes = _world(recipe)
    callbacks: list[pl.Callback] = [keeper, Lines(quiet)]
    if options.patience is not None:
        mode = "min" if is_lower_better(keeper.monitor) else "max"
        callbacks.append(Patience(keeper.monitor, patience=options.patience, mode=mode, strict=False))
    bar = not quiet and sys.stderr.isatty()
    if bar:
        callbacks.append(RichProgressBar(leave=False))
    alone = devices in (1, "auto") and nodes == 1
    strategy: Any = "ddp" if options.strategy == "auto" and not alone else options.strategy
    if strategy == "fsdp":
        from lightning.pytorch.strategies import ModelParallelStrategy

        if not isinstance(devices, int):
            raise ValueError("trainer.devices must be a number for fsdp, unless torchrun or SLURM started it")
        strategy = ModelParallelStrategy(devices * nodes, 1, save_distributed_checkpoint=False)
    try:
        with _without_advice():
            return pl.Trainer(
                accelerator=options.accelerator,
                devices=devices,
                num_nodes=nodes,
                strategy=strategy,
                precision=options.precision,
                max_epochs=options.epochs,
                accumulate_grad_batches=options.accumulate,
                gradient_clip_val=recipe.optimizer.clip,
                deterministic=options.deterministic or None,
                limit_val_batches=options.valid_batches,
                num_sanity_val_steps=0,
                use_distributed_sampler=False,
                log_every_n_steps=options.log_every,
                logger=TensorBoardLogger(out, name="tensorboard", version=""),
                callbacks=callbacks,
                plugins=[AtomicCheckpoints()],
                enable_progress_bar=bar,
                enable_model_summary=False,
                default_root_dir=out,
            )
    except (MisconfigurationException, ValueError, RuntimeError) as error:  # such as devices that do not exist
        raise ValueError(f"trainer: {error}") from error


def _rejoin(recipe: Recipe) -> None:
    """Connect to the other processes after torchrun has restarted them all."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or distributed.is_initialized():
        return
    cuda = recipe.trainer.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, processes = next(rendezvous("env://"))  # may still hold the addresses of the old processes
    keys = PrefixStore(f"attempt_{attempt}", store)
    distributed.init_process_group("nccl" if cuda else "gloo", store=keys, rank=rank, world_size=processes)


def _world(recipe: Recipe) -> tuple[Any, int]:
    """Devices per machine and machines: those that torchrun or SLURM started, or the recipe's."""
    options, environment = recipe.trainer, os.environ
    if "LOCAL_WORLD_SIZE" in environment:
        local, world = int(environment["LOCAL_WORLD_SIZE"]), int(environment.get("WORLD_SIZE", "1"))
        return local, world // local
    if "SLURM_NTASKS" in environment and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        nodes = int(environment.get("SLURM_NNODES", options.nodes))
        return int(environment["SLURM_NTASKS"]) // nodes, nodes
    return options.devices, options.nodes


def _checkpoint(recipe: Recipe, out: Path, resume: bool, force: bool) -> str | None:
    """The checkpoint to resume from, if there is one; an error if the folder may not be used."""
    last = out / LAST
    if last.exists() and not last.is_file():
        raise ValueError(f"{str(last)!r} must be a regular file; remove it")
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out must be a folder, got {str(out)!r}, which is a file")
    if resume and last.is_file():
        if not (out / RECIPE).is_file():
            raise FileNotFoundError(f"{str(out)!r} has a {LAST} but no {RECIPE}, so it cannot be resumed")
        if differing := recipe.differences(load_recipe(out / RECIPE)):
            way = f"{', '.join(differing)} differ; use the same values, or another --out"
            raise ValueError(f"{str(out)!r} was started with another recipe, so it cannot be resumed: {way}")
        return str(last)
    # A run that was killed in its first epoch has neither a last checkpoint nor a result. Only the first process looks:
    # others may come here when that has begun to write.
    ended = any((out / name).exists() for name in ([RESULT] if resume else [LAST, BEST, NETWORK, RESULT]))
    first = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", os.environ.get("SLURM_PROCID", "0")))) == 0
    if ended and first and not force:
        way = f"it has no {LAST} to resume from" if resume else "--resume continues it"
        raise FileExistsError(f"{str(out)!r} already contains a run; {way}, --force starts over")
    return None


@contextmanager
def _full_disk(out: Path) -> Iterator[None]:
    """Say what to do about a full disk, in one line even if TensorBoard's thread is the first to notice it."""
    hook = threading.excepthook
    threading.excepthook = lambda found: None if isinstance(found.exc_value, OSError) else hook(found)
    try:
        yield
    except OSError as error:
        if error.errno not in (ENOSPC, EDQUOT, EFBIG):
            raise
        where, way = str(error.filename or out), "make room, then continue with --resume"
        raise OSError(f"cannot write {where!r}: {error.strerror}; {way}") from error
    finally:
        threading.excepthook = hook


@contextmanager
def _without_advice() -> Iterator[None]:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        for message in _BAD_ADVICE:
            warnings.filterwarnings("ignore", message)
        yield
