"""The files of a run: the last checkpoint, the best one, the best network, and the metrics of every epoch."""

import copy
import csv
import math
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from torch import nn

from scalespaces._files import load_checkpoint, replacing
from scalespaces.models import save

_CONTENTS = {"state_dict": dict, "loops": dict, "optimizer_states": list, "lr_schedulers": list, "callbacks": dict}
_CONTENTS |= {"epoch": int, "global_step": int}
LAST, BEST, NETWORK, METRICS = "last.ckpt", "best.ckpt", "model.safetensors", "metrics.csv"


class AtomicCheckpoints(TorchCheckpointIO):
    """Checkpoints are written completely or not at all, and loading one runs no code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: object = None) -> None:
        with replacing(path) as draft:
            try:
                torch.save(checkpoint, draft)
            except RuntimeError as error:  # torch's own, with a stack of C++
                way = "make room, then continue with --resume"
                raise OSError(f"cannot write {str(path)!r}, perhaps because the disk is full; {way}") from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = True) -> dict[str, Any]:
        if not Path(path).is_file():  # a pipe might never end
            raise FileNotFoundError(f"no checkpoint {str(path)!r}, or it is not a regular file")
        try:
            found = load_checkpoint(path, map_location or "cpu")
        except (RuntimeError, EOFError, ValueError, OSError, BadZipFile) as error:
            raise ValueError(f"{str(path)!r} is not a checkpoint, or is damaged: {error}") from error
        except Exception as error:
            raise ValueError(f"{str(path)!r} contains more than tensors and plain values: {error}") from error
        for key, kind in _CONTENTS.items():
            if not isinstance(found, dict) or not isinstance(found.get(key), kind):
                rule = f"a checkpoint is a dict with {', '.join(_CONTENTS)}"
                raise ValueError(f"{rule}, but {str(path)!r} has no {key}, or a wrong one; --force starts over")
        return found


class Keeper(Checkpoint):
    """Writes the files of a run, each completely or not at all.

    ``last.ckpt`` is written after ``every`` steps and after every epoch, ``best.ckpt`` and ``model.safetensors`` after
    the best epoch so far. ``metrics.csv`` has a line per epoch, which is also printed. After ``max_steps`` steps,
    training stops. (Lightning's own ``max_steps`` ends an epoch twice in a resumed run.)
    """

    def __init__(self, folder: Path, monitor: str, every: int, network: nn.Module, max_steps: int | None) -> None:
        self.folder, self.monitor, self.every, self.max_steps = folder, monitor, every, max_steps
        self.best: float | None = None
        self.best_epoch: int | None = None
        self.rows: list[dict[str, float]] = []
        self._headed = self.started = False
        self.twin: Any = copy.deepcopy(network)  # gets the weights that are saved

    def state_dict(self) -> dict[str, Any]:
        """The best value so far, its epoch, and the lines of the table."""
        return {name: getattr(self, name) for name in ("best", "best_epoch", "rows")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        rows = state_dict["rows"]
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TypeError(f"rows is a list of dicts, got {rows!r:.80}")
        self.best, self.best_epoch, self.rows = state_dict["best"], state_dict["best_epoch"], rows

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Stop at once if all steps are already done."""
        self.started = True
        trainer.should_stop = trainer.should_stop or self._enough(trainer)

    def _enough(self, trainer: Any) -> bool:
        return self.max_steps is not None and trainer.global_step >= self.max_steps

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save within an epoch, between steps; its last batch is left to the end of the epoch."""
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        last = batch_idx + 1 >= trainer.num_training_batches
        enough = self._enough(trainer)
        if stepped and not last and (enough or trainer.global_step % self.every == 0):
            trainer.save_checkpoint(self.folder / LAST, weights_only=False)
        trainer.should_stop = trainer.should_stop or (stepped and enough)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Add a line, and save; if it is the best epoch, also save that."""
        if trainer.fit_loop.epoch_loop.batch_progress.current.ready < trainer.num_training_batches:
            if self.best is None:  # max_steps ended an epoch early: it can be resumed, but has no metrics
                self._save_network(trainer)
            return
        values = dict(sorted(pl_module.found.items()))
        if not math.isfinite(values["train/loss"]):
            raise ValueError(f"the loss is {values['train/loss']} in epoch {trainer.current_epoch}; use a smaller lr")
        self.rows.append({"epoch": trainer.current_epoch, "step": trainer.global_step, **values})
        if trainer.is_global_zero:
            self._write_table()
        value, best = values.get(self.monitor), self.best  # a metric may be unknown, such as that of a missing class
        if value is not None and (best is None or (value < best if is_lower_better(self.monitor) else value > best)):
            self.best, self.best_epoch = value, trainer.current_epoch
            trainer.save_checkpoint(self.folder / BEST, weights_only=False)
        if best is None or self.best != best:
            self._save_network(trainer)
        trainer.save_checkpoint(self.folder / LAST, weights_only=False)

    def _save_network(self, trainer: Any) -> None:
        state = trainer.strategy.lightning_module_state_dict()  # gathered, where it is sharded
        if trainer.is_global_zero:
            own = {key.removeprefix("network."): value for key, value in state.items() if key.startswith("network.")}
            self.twin.load_state_dict(own, assign=True)  # in the precision they are in
            save(self.twin, self.folder / NETWORK)

    def _write_table(self) -> None:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        with replacing(self.folder / METRICS) as draft, draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(self.rows)
        heads = [name.removeprefix("valid/") for name in names]
        values = [self.rows[-1].get(name) for name in names]
        cells = ["-" if v is None else f"{v:d}" if isinstance(v, int) else f"{v:.4g}" for v in values]
        for line in (cells,) if self._headed else (heads, cells):
            print(*(f"{word:>{max(8, len(head))}}" for word, head in zip(line, heads, strict=True)), flush=True)
        self._headed = True


def is_lower_better(monitor: str) -> bool:
    """Whether the monitored quantity is a loss."""
    return monitor.split("/")[-1] in ("loss", "nll")
