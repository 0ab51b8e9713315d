"""What is trained: a network, its loss and its batches, as a Lightning module. Fine-tuning is at the end."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, cast

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, distributed, nn
from torchmetrics import MeanMetric

from scalespaces._torch import NormBase
from scalespaces.data import to_unit
from scalespaces.data._augment import PCamAugment, recolor
from scalespaces.models import Card, Converted, ScaleNetwork
from scalespaces.theory._arguments import check_choice, did_you_mean
from scalespaces.train._batches import KeyedBatches, evaluation_loader, training_loader
from scalespaces.train._levels import POOL, supervise
from scalespaces.train._metrics import ClassificationMetrics, SegmentationMetrics
from scalespaces.train._predict import class_scores
from scalespaces.train._recipe import Recipe
from scalespaces.train._scales import draw_scales, zoom, zoom_masks


class Task(pl.LightningModule):
    """Classification of images, or of their pixels, with everything random keyed by (seed, epoch, sample).

    The loss is the mean cross-entropy over all targets of a batch that are not ignored, on all devices. Dropout is
    drawn from a generator that is a function of (seed, epoch, batch, process), so that a resumed run continues with the
    same numbers. The network's card normalizes images.
    """

    trainer: Any

    def __init__(
        self, network: nn.Module, recipe: Recipe, classes: int, names: Sequence[str] = (), sets: Sequence[Any] = ()
    ) -> None:
        super().__init__()
        self.network, self.recipe, self.sets = network, recipe, sets
        self.card = Card.of(network)
        masks = recipe.data.segmentation
        self.ignored = 255 if masks else -100  # only masks have such a target, so classes may have any number
        self.metrics: Any = SegmentationMetrics(classes, names) if masks else ClassificationMetrics(classes, names)
        self.monitor = recipe.trainer.monitor or f"valid/{'mean_iou' if masks else 'accuracy'}"
        check_choice("trainer.monitor", self.monitor, ["train/loss", *(f"valid/{n}" for n in self.metrics.names)])
        self._loss = recipe.levels.supervise, self.ignored, recipe.levels.label_smoothing
        self.augment = PCamAugment(recipe.seed) if recipe.data.augment == "pcam" else None
        self._supervise = torch.compile(supervise) if recipe.trainer.compile else supervise
        self.train_loss = MeanMetric(nan_strategy="disable")  # a look at values would make a GPU wait
        self.train_loss.persistent(True)  # so that the mean over an epoch survives an interruption
        self.found: dict[str, float] = {}  # what was measured in this epoch so far
        self.rate = recipe.optimizer.lr
        self._sharded = False
        freeze(network, recipe.finetune.freeze)
        if recipe.levels.supervise != "answer" and isinstance(network, ScaleNetwork):
            network.scale_pool.requires_grad_(False)  # the loss does not depend on it
        staged, decays = recipe.finetune.head_first > 0, recipe.finetune.layer_decay < 1
        self._head = head_of(network, classes) if staged or decays else ""
        if staged and not any(p.requires_grad and in_head(name, self._head) for name, p in network.named_parameters()):
            raise ValueError(f"finetune.head_first trains {self._head}, which finetune.freeze freezes; use one of them")
        self._body: list[nn.Parameter] = []  # what is not trained in the first epochs
        self._head_only = False

    def configure_model(self) -> None:
        """Lay filters out with channels last, or shard the network's larger parts if the strategy is FSDP."""
        mesh, network = self.device_mesh, cast(Any, self.network)
        if mesh is None and self.recipe.trainer.channels_last:  # images of one channel do not say it; FSDP refuses it
            network.to(memory_format=torch.channels_last)
        if mesh is None or self._sharded:
            return
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        shard: Any = fully_shard
        for module in self.network.modules():
            for block in module if isinstance(module, nn.ModuleList) else ():
                if any(True for _ in block.parameters()):
                    shard(block, mesh=mesh["data_parallel"])
        shard(self.network, mesh=mesh["data_parallel"])
        if isinstance(self.network, ScaleNetwork):
            register_fsdp_forward_method(self.network, "scores")
        self._sharded = True

    def train_dataloader(self) -> Any:
        """The batches, from the next one of a resumed run on."""
        options, loop, place = self.recipe.data, self.trainer.fit_loop, self._place()
        accumulate, pin = self.recipe.trainer.accumulate, place.pop("pin")
        place |= {"accumulate": accumulate, "balanced": options.balanced}
        batches = KeyedBatches(self.sets[0], options.batch_size, self.recipe.seed, **place)
        batches.set_epoch(loop.epoch_progress.current.processed)
        batches.start = loop.epoch_loop.batch_progress.current.ready % len(batches)
        return training_loader(batches, options.workers, pin=pin)

    def val_dataloader(self) -> Any:
        """The validation set, divided among processes; whole images one by one."""
        options = self.recipe.data
        size = 1 if options.segmentation else max(1, options.batch_size // self.trainer.world_size)
        return evaluation_loader(self.sets[1], min(size, 256), options.workers, **self._place())

    def _place(self) -> dict[str, Any]:
        pin = self.trainer.strategy.root_device.type == "cuda"
        return {"rank": self.trainer.global_rank, "processes": self.trainer.world_size, "pin": pin}

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Images and targets; indices stay on the CPU, where random numbers are drawn."""
        return [*super().transfer_batch_to_device(batch[:2], device, dataloader_idx), *batch[2:]]

    def configure_optimizers(self) -> Any:
        """The recipe's optimizer and learning rates."""
        options = self.recipe.optimizer
        kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        more = {"momentum": options.momentum} if options.name == "sgd" else {}
        decay, groups = self.recipe.finetune.layer_decay, {}
        depth = depths(self.network, self._head) if decay < 1 else {}
        for name, parameter in self.network.named_parameters():
            if parameter.requires_grad:
                groups.setdefault(depth.get(name, 0), []).append(parameter)
                self._body += [] if in_head(name, self._head) else [parameter]
        rates = [{"params": some, "lr": options.lr * decay**n} for n, some in sorted(groups.items())]
        optimizer = kinds[options.name](rates, lr=options.lr, weight_decay=options.weight_decay, **more)
        steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, options.lr_milestones, options.lr_factor)
        return [optimizer], [{"scheduler": steps, "interval": "epoch"}]

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Make a step; the first ones use a smaller learning rate."""
        rates = [group["lr"] for group in optimizer.param_groups]
        share = rate_share(self.recipe, self.trainer.global_step, self._steps_per_epoch())
        for group in optimizer.param_groups:
            group["lr"] *= share
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _steps_per_epoch(self) -> int:
        return len(self.sets[0]) // self.recipe.data.batch_size

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Forget the gradients of what is not trained yet: then the optimizer leaves it, and its moments, alone."""
        for parameter in self._body if self._head_only else ():
            parameter.grad = None

    def on_train_epoch_start(self) -> None:
        """Tell the batches which epoch it is."""
        self.trainer.train_dataloader.batch_sampler.set_epoch(self.current_epoch)
        self.found = {}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Set what is trained in this epoch, and key the generators that dropout uses."""
        self._head_only = self.current_epoch < self.recipe.finetune.head_first
        for parameter in self._body:  # several processes expect all gradients in every step
            parameter.requires_grad_(not self._head_only or self.trainer.world_size > 1)
        for name, module in self.network.named_modules():
            if isinstance(module, NormBase) and not name.startswith(POOL):
                module.train(not (self._head_only or self.recipe.finetune.freeze_batchnorm))
        key = np.random.SeedSequence(self.recipe.seed, spawn_key=(self.current_epoch, batch_idx, self.global_rank))
        torch.manual_seed(int(key.generate_state(1, np.uint64)[0]))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        images, target = self._prepare(*batch)
        total = self._supervise(self.network, images, target, *self._loss)
        count = (target != self.ignored).sum()
        everywhere, processes = count.clone(), self.trainer.world_size
        self.train_loss.update(total.detach() / count.clamp(min=1), count)
        if processes > 1:
            distributed.all_reduce(everywhere)
        # Processes' gradients are averaged, so each one's share is of the mean over all targets.
        loss = total * processes / everywhere.clamp(min=1)
        self.log("train/loss_step", loss.detach(), prog_bar=True)
        optimizer: Any = self.optimizers()
        self.rate = optimizer.param_groups[0]["lr"]
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the mean loss over all processes; each resumes with an equal share of it."""
        if self.trainer.world_size > 1:
            for name, value in self.train_loss.metric_state.items():
                everywhere = torch.as_tensor(value).detach().clone().to(self.device)
                distributed.all_reduce(everywhere)
                if f"train_loss.{name}" in checkpoint["state_dict"]:  # of a sharded network, in one process only
                    checkpoint["state_dict"][f"train_loss.{name}"] = everywhere.cpu() / self.trainer.world_size

    def on_train_epoch_end(self) -> None:
        """Log the mean loss."""
        own = {"train/loss": float(self.train_loss.compute()), "lr": self.rate}
        self.train_loss.reset()
        self.log_dict(own)
        self.found |= own

    def _prepare(self, images: Tensor, target: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Training images as the network takes them."""
        data, epoch = self.recipe.data, self.current_epoch
        images = to_unit(images) if self.augment is None else self.augment(images, indices, epoch)
        if data.color is not None:
            brightness, contrast, saturation, hue = data.color
            colors = PCamAugment(self.recipe.seed, 0, brightness, saturation, hue, contrast).draw(indices, epoch)[1]
            images = recolor(images, *colors.to(images).unbind(1))
        if data.jitter is not None:
            factors = draw_scales(indices, epoch, self.recipe.seed, *data.jitter)
            images = zoom(images, factors, data.jitter_fill)
            target = zoom_masks(target, factors, self.ignored) if data.segmentation else target
        return self._normalize(images), target

    def _normalize(self, images: Tensor) -> Tensor:
        images = self.card.normalize(images)
        if self.recipe.trainer.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images.double() if self.recipe.trainer.precision == "64-true" else images

    def on_validation_epoch_start(self) -> None:
        """Let batch norms measure their statistics again, with the weights that are validated and saved."""
        if self.recipe.trainer.norm_batches is None or self._head_only or self.recipe.finetune.freeze_batchnorm:
            return
        loader = self.trainer.train_dataloader
        batches = loader.batch_sampler
        start, batches.start = batches.start, max(0, len(batches) - self.recipe.trainer.norm_batches)
        with measuring_norms(self.network), self.trainer.precision_plugin.forward_context():
            for batch in loader:
                self.network(self._prepare(*self.transfer_batch_to_device(batch, self.device, 0))[0])
        batches.start = start

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Score a batch; whole images are segmented through windows of the size of the crops."""
        images, target = batch
        data, images = self.recipe.data, self._normalize(to_unit(images))
        window = data.crop if data.segmentation else None
        logits = class_scores(self.network, images, data.segmentation, self.recipe.levels.meanwhile, window)
        self.metrics.update(logits.float(), target)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the validation set."""
        for name, value in self.metrics.compute().items():
            if isinstance(value, float):
                self.found[f"valid/{name}"] = value
                self.log(f"valid/{name}", value, prog_bar=f"valid/{name}" == self.monitor)
        self.metrics.reset()


@contextmanager
def measuring_norms(network: nn.Module) -> Iterator[None]:
    r"""Let batch norms take as their statistics the mean over the batches that the network sees meanwhile.

    Running averages :math:`m \leftarrow m + \mu (m_n - m)` lag behind: they are of weights some :math:`1 / \mu` steps
    ago, which are others while these change fast. All else is in evaluation mode, as the statistics are for that.
    """
    norms: list[Any] = [m for m in network.modules() if isinstance(m, NormBase) and m.track_running_stats]
    before = [(norm, norm.momentum, int(norm.num_batches_tracked)) for norm in norms]
    for norm, _, _ in before:
        norm.momentum = None  # a plain average over all batches so far; the first replaces what was there
        norm.num_batches_tracked.zero_()
        norm.train()
    try:
        yield
    finally:
        for norm, momentum, count in before:
            norm.momentum = momentum
            norm.num_batches_tracked.fill_(count)
            norm.eval()


def rate_share(recipe: Recipe, step: int, per_epoch: int) -> float:
    r"""The learning rate of a step, as a share of the one before warm-up and schedule.

    It rises linearly over the first :math:`W` steps. The schedule cosine then takes, of :math:`T` steps in all,

    .. math:: \tfrac12 \left(1 + \cos \pi \tfrac{t - W}{T - W}\right)
    """
    options, trainer = recipe.optimizer, recipe.trainer
    if step < options.warmup:
        return (step + 1) / options.warmup
    if options.schedule == "steps":
        return 1.0
    total = min(trainer.epochs * per_epoch, trainer.max_steps or trainer.epochs * per_epoch)
    done = (step - options.warmup) / max(1, total - options.warmup)
    return (1 + math.cos(math.pi * min(1.0, done))) / 2


def freeze(network: nn.Module, patterns: Sequence[str]) -> None:
    """Keep the parameters whose names match from being trained; ``model.`` of converted networks may be left out."""
    parameters = dict(network.named_parameters())
    parts = [f"{name}.*" for name, module in network.named_modules() if name and list(module.parameters())]
    for pattern in patterns:
        chosen = [n for n in parameters if fnmatchcase(n, pattern) or fnmatchcase(n.removeprefix("model."), pattern)]
        if not chosen:
            got = f"{pattern!r}, which matches none{did_you_mean(pattern, [*parts, *parameters])}"
            raise ValueError(f"finetune.freeze has patterns of parameters' names, such as layer1.*, got {got}")
        for name in chosen:
            parameters[name].requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in parameters.values()):
        raise ValueError(f"finetune.freeze leaves parameters to train, got {', '.join(patterns)}, which match all")


def head_of(network: nn.Module, classes: int) -> str:
    """The name of the module that scores come from: the last linear layer or convolution with an output per class."""
    named = f"model.{network.config['features']}" if isinstance(network, Converted) else ""
    if any(name.startswith(f"{named}.") for name, _ in network.named_parameters()):
        return named
    for name, module in reversed(list(network.named_modules())):
        outputs = getattr(module, "out_features", getattr(module, "out_channels", None))
        if outputs == classes and hasattr(module, "weight") and not name.startswith(POOL):
            return name
    rule = f"finetune.head_first and layer_decay need the layer that scores come from, with {classes} outputs"
    raise ValueError(f"{rule}, and the {type(network).__name__} has none; name it with model.convert.features")


def in_head(name: str, head: str) -> bool:
    """Whether the parameter is of the head, or of trust, which is on top of it and as new."""
    return name.startswith((f"{head}.", POOL))


def depths(network: nn.Module, head: str) -> dict[str, int]:
    """How many layers below the head each parameter is, by name. Layers are in the order of their definition."""
    parameters, layers, places = dict(network.named_parameters()), {}, {}
    for name in parameters:
        parts = name.removeprefix("model.").split(".")[:-1]
        end = next((n for n, part in enumerate(parts, 1) if any(map(str.isdigit, part))), len(parts))
        layers.setdefault(tuple(parts[:end]), []).append(name)
    for names in layers.values():
        places |= dict.fromkeys(names, max(places.values(), default=0) + any(parameters[n].ndim > 1 for n in names))
    top = max(place for name, place in places.items() if name.startswith(f"{head}."))
    return {name: 0 if in_head(name, head) else max(0, top - place) for name, place in places.items()}
