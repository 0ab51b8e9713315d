"""What is trained: classification of images, and of pixels, as Lightning modules."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, distributed, nn
from torchmetrics import MeanMetric

from scalespaces.data import to_unit
from scalespaces.data._augment import PCamAugment
from scalespaces.models import Card, ScaleNetwork
from scalespaces.train._levels import answer, supervise
from scalespaces.train._metrics import ClassificationMetrics, SegmentationMetrics
from scalespaces.train._predict import predict_mask
from scalespaces.train._recipe import Recipe
from scalespaces.train._scales import jitter


class Task(pl.LightningModule):
    r"""A network and its loss, with all that is random keyed by (seed, epoch, sample).

    The loss is the mean cross-entropy over all targets of a batch that are not ignored, on whatever device they are:

    .. math:: L = \frac{\sum_p \sum_{i \in p} \ell_i}{\sum_p n_p}

    over processes :math:`p`. Dropout in batch :math:`b` of epoch :math:`e` is drawn from a generator that is a function
    of (seed, e, b, p), so that a run which was interrupted goes on with the same numbers.

    Args:
        network: from images to logits; its card normalizes the images.
        recipe: the experiment.
    """

    metrics: ClassificationMetrics | SegmentationMetrics
    ignored = -100  # target that does not count
    measured: tuple[str, ...]
    """What the metrics are called; epochs are compared by the first, unless the recipe says otherwise."""

    def __init__(self, network: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self.network, self.recipe = network, recipe
        self.card = Card.of(network)
        self.augment = PCamAugment(recipe.seed) if recipe.data.augment == "pcam" else None
        self._supervise = torch.compile(supervise) if recipe.trainer.compile else supervise
        self.train_loss = MeanMetric(nan_strategy="disable")  # a look at values would make a GPU wait
        self.train_loss.persistent(True)  # so that the mean over an epoch survives an interruption
        self.found: dict[str, float] = {}
        """What was measured of this epoch, as far as it is over."""
        self.rate = recipe.optimizer.lr
        self._sharded = False

    def configure_model(self) -> None:
        """Shard the network's larger parts, where the strategy asks for that."""
        mesh = self.device_mesh
        if mesh is None or self._sharded:
            return
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        shard: Any = fully_shard
        for module in self.network.modules():
            if isinstance(module, nn.ModuleList):
                for block in module:
                    if any(True for _ in block.parameters()):
                        shard(block, mesh=mesh["data_parallel"])
        shard(self.network, mesh=mesh["data_parallel"])
        if isinstance(self.network, ScaleNetwork):
            register_fsdp_forward_method(self.network, "scores")
        self._sharded = True

    def configure_optimizers(self) -> Any:
        """The recipe's optimizer and learning rates."""
        options = self.recipe.optimizer
        parameters = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        common: dict[str, Any] = {"lr": options.lr, "weight_decay": options.weight_decay}
        if options.name == "sgd":
            optimizer: Any = torch.optim.SGD(parameters, momentum=options.momentum, **common)
        else:
            kinds: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
            optimizer = kinds[options.name](parameters, **common)
        steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, options.lr_milestones, options.lr_factor)
        return [optimizer], [{"scheduler": steps, "interval": "epoch"}]

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """A step; the first ones, with a smaller learning rate."""
        warmup, step = self.recipe.optimizer.warmup, self.trainer.global_step
        optimizer: Any = kwargs.get("optimizer", args[2] if len(args) > 2 else None)
        if step >= warmup:
            super().optimizer_step(*args, **kwargs)
            return
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= (step + 1) / warmup
        super().optimizer_step(*args, **kwargs)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def on_train_epoch_start(self) -> None:
        """Tell the batches which epoch it is."""
        loader: Any = self.trainer.train_dataloader
        loader.batch_sampler.set_epoch(self.current_epoch)
        self.found = {}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Key the generators that dropout uses."""
        key = np.random.SeedSequence(self.recipe.seed, spawn_key=(self.current_epoch, batch_idx, self.global_rank))
        torch.manual_seed(int(key.generate_state(1, np.uint64)[0]))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        images, target, indices = batch
        images, target = self._prepare(images, target, indices)
        total = self._supervise(self.network, images, target, self.recipe.levels.supervise, self.ignored)
        count = (target != self.ignored).sum()
        self.train_loss.update(total.detach() / count.clamp(min=1), count)
        if self.trainer.world_size > 1:
            # Processes' gradients are averaged, so each one's share is of the mean over all targets.
            everywhere = count.clone()
            distributed.all_reduce(everywhere)
            loss = total * self.trainer.world_size / everywhere.clamp(min=1)
        else:
            loss = total / count.clamp(min=1)
        self.log("train/loss_step", loss.detach(), prog_bar=True)
        optimizer: Any = self.optimizers()
        self.rate = optimizer.param_groups[0]["lr"]
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save of the mean loss what all processes have seen of it: each will go on with its share."""
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
        if data.jitter is not None:
            images, target = jitter(
                images, target, indices, epoch, self.recipe.seed, *data.jitter, ignore_index=self.ignored
            )
        return self._normalize(images), target

    def _normalize(self, images: Tensor) -> Tensor:
        images = self.card.normalize(images)
        if self.recipe.trainer.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images.double() if self.recipe.trainer.precision == "64-true" else images

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the validation set."""
        values = self.metrics.compute()
        self.metrics.reset()
        for name, value in values.items():
            if isinstance(value, float):
                self.found[f"valid/{name}"] = value
                self.log(f"valid/{name}", value, prog_bar=name == self.monitor.removeprefix("valid/"))

    @property
    def monitor(self) -> str:
        """The quantity by which epochs are compared."""
        known = ["train/loss", *(f"valid/{name}" for name in self.measured)]
        monitor = self.recipe.trainer.monitor or known[1]
        if monitor not in known:
            raise ValueError(f"trainer.monitor is one of {', '.join(known)}, got {monitor!r}")
        return monitor


class Classification(Task):
    """Every image has a class."""

    measured = ("accuracy", "auroc", "nll")

    def __init__(self, network: nn.Module, recipe: Recipe, num_classes: int, names: tuple[str, ...] = ()) -> None:
        super().__init__(network, recipe)
        self.metrics = ClassificationMetrics(num_classes, names)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Score a batch."""
        images, target = batch
        logits = answer(self.network, self._normalize(to_unit(images)), self.recipe.levels.pool)
        self.metrics.update(logits.float(), target)


class Segmentation(Task):
    """Every pixel has a class, or is ignored."""

    ignored = 255
    measured = ("mean_iou", "average_precision", "accuracy")

    def __init__(self, network: nn.Module, recipe: Recipe, num_classes: int, names: tuple[str, ...] = ()) -> None:
        super().__init__(network, recipe)
        self.metrics = SegmentationMetrics(num_classes, names, ignore_index=self.ignored)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Score whole images, seen through windows of the size of the crops."""
        images, target = batch
        for image, mask in zip(images, target, strict=True):
            probabilities = predict_mask(
                self.network,
                self._normalize(to_unit(image[None]))[0],
                tile=self.recipe.data.crop,
                pool=self.recipe.levels.pool,
            )
            self.metrics.update(probabilities[None].clamp(min=1e-30).log(), mask[None])
