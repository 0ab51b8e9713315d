"""Networks for other programs: ONNX and torch.export, checked before they are written."""

from __future__ import annotations

import bisect
import copy
import json
import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from scalespaces._extras import require
from scalespaces._files import prepare as make_room
from scalespaces._files import replacing
from scalespaces._torch import uncompiled
from scalespaces.models._modules import TORCHS_OWN, is_plain
from scalespaces.models._network import Card, ScaleNetwork, first_channels
from scalespaces.models._prepare import prepare
from scalespaces.models._registry import entry
from scalespaces.space import ScaleSpace
from scalespaces.theory._arguments import check_choice, check_integer

OPSET = 18
TOLERANCE = 1e-4
_NEEDS = {".onnx": ("onnx", "onnxscript", "onnxruntime"), ".pt2": ()}  # by the ending of the file
_AXES = ("batch", "channels", "height", "width")
Shape = Sequence[int]
_MOST_BYTES = 2**31 - 2**24  # of a file in protocol buffers, with some room for the graph


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    shape: tuple[int | None, ...]  # of the input; None for batch, height and width that may be anything
    smallest: int | None  # height and width, of a shape that is not fixed
    outputs: tuple[str, ...]  # their names
    difference: float  # the largest from PyTorch's outputs, relative to the largest output
    notes: tuple[str, ...]  # what may be unexpected, and why

    @property
    def dynamic(self) -> bool:
        """Whether batch, height and width may vary."""
        return None in self.shape

    def __str__(self) -> str:
        sizes = [name if n is None else str(n) for name, n in zip(_AXES, self.shape, strict=True)]
        image = f"({', '.join(sizes)})" + (f", height and width from {self.smallest}" if self.smallest else "")
        difference = f"differs from PyTorch by {self.difference:.1e} at most"
        return f"{self.path}: image {image} -> {', '.join(self.outputs)}; {difference}"


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    size: Sequence[int] | None = None,
    batch: int = 1,
    static: bool = False,
    levels: bool = False,
    normalize: bool = False,
) -> Exported:
    """Write a network as ONNX (``.onnx``, opset 18) or as a program of torch.export (``.pt2``).

    Batch, height and width stay dynamic when the levels have steps :math:`2^k` (base 2 in pyramid sampling), from the
    ``smallest`` side that leaves the last level two samples. For other networks sizes are fixed, and ``notes`` gives
    the reason. The file is read back, run on random images of odd and even sizes (in onnxruntime if it is ONNX) and
    compared with PyTorch; it appears only if they agree to 1e-4 of the largest output.

    Args:
        model: a network that takes images; it is not changed. What is exported is a copy in evaluation mode, made by
            :func:`prepare` if the network has levels.
        path: of the file, which ends in ``.onnx`` or ``.pt2``.
        size: height and width, if they are fixed; by default those of the registered network, or 224;
            larger if the network needs larger images.
        batch: number of images, if it is fixed.
        static: fix batch, height and width in any case.
        levels: also return the scores of every level, for a network that has levels.
        normalize: add the input normalization of the network's :class:`~scalespaces.models.Card` to the graph.

    The file's outputs are called ``output`` for a single tensor, ``level_0`` and so on for levels, keys and numbers for
    nested ones. Its metadata has the card (``scalespaces`` in ONNX, the extra file ``scalespaces.json`` in a ``.pt2``).
    """
    path, model = check_format(path), uncompiled(model)
    card = Card.of(model)
    if normalize and not card.mean:
        raise ValueError("the network has no normalization to add to the graph; give it a Card with mean and std")
    if levels and not isinstance(model, ScaleNetwork):
        raise ValueError(f"levels=True needs a network with levels, got a {type(model).__name__}; convert it first")
    ready, notes = _ready(model)
    graph = _Graph(ready, card if normalize else Card(), levels)
    job = _Job(make_room(path), graph, {"card": card.to_json(), "normalizes": normalize})
    job.notes += notes
    name = model.config.get("name") if isinstance(model, ScaleNetwork) else None
    least = model.smallest_side if isinstance(model, ScaleNetwork) else 1
    usual = [max(n, least) for n in ((224, 224) if name is None else entry(name).input_shape[1:])]
    height, width = (check_integer("size", n, 1) for n in size or usual)
    fixed = (check_integer("batch", batch, 1), first_channels(model), height, width)
    # Traced with two samples of the last level after strides of 32: torch takes sizes of one for constants.
    side = 64 * 2 ** (model.lift.num_levels + model.lift.first_level - 1 if isinstance(model, ScaleNetwork) else 0)
    reason = None if static else _why_static(model)
    with torch.no_grad(), _quiet():
        if not static and reason is None:
            try:
                return job.dynamic(fixed[1], side, [fixed] if size else [])
            except (OSError, ImportError):
                raise
            except Exception as error:
                reason = f"torch {torch.__version__} cannot keep them dynamic: {_first_line(error)}"
        if reason is not None:
            job.notes.append(f"batch, height and width are fixed at {batch}, {height} and {width}: {reason}")
        try:
            return job.write(job.trace(job.image(fixed)), fixed, None, [fixed])
        except (ValueError, OSError, ImportError):
            raise
        except Exception as error:
            raise ValueError(f"torch {torch.__version__} cannot export the network: {_first_line(error)}") from error


def _ready(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """A copy for inference, prepared if it has levels; and why it is not."""
    plain = copy.deepcopy(model).eval()
    if not isinstance(plain, ScaleNetwork):
        return plain, []
    try:
        return prepare(plain), []
    except (ValueError, RuntimeError) as error:  # the network may need images of a special size
        return plain, [f"batch normalization is not folded into convolutions: {_first_line(error)}"]


def check_format(path: str | os.PathLike[str]) -> Path:
    """Return the path if its ending is that of a format, and what this needs is installed."""
    path = Path(path)
    check_choice("the ending of an exported file", path.suffix, _NEEDS)
    for module in _NEEDS[path.suffix]:
        require(module, "export")
    return path


def _why_static(model: nn.Module) -> str | None:
    """The reason why sizes cannot be dynamic, if there is one."""
    if not isinstance(model, ScaleNetwork) or model.lift.num_levels == 1:
        return None
    lift = model.lift
    if lift.base != 2:
        return f"they are dynamic for base 2, but this is base {lift.base}"
    steps = [2.0 ** (k + lift.first_level) for k in range(lift.num_levels)]
    return None if list(lift.plan.steps) == steps else f"dynamic sizes need a pyramid, but this is {lift.sampling}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class _Graph(nn.Module):
    """What is exported: the normalization, the network, and a tensor or tensors with names."""

    def __init__(self, model: Any, card: Card, levels: bool) -> None:
        super().__init__()
        self.model, self.card, self.levels = model, card, levels
        self.eval().cpu()

    def forward(self, image: Tensor) -> Tensor | dict[str, Tensor]:
        image = self.card.normalize(image)
        if self.levels:
            answer, scores = self.model.answer_and_scores(image)
            return _named({"output": answer, "": scores})
        named = _named(self.model(image))
        return named["output"] if named.keys() == {"output"} else named


def _named(value: object, name: str = "") -> dict[str, Tensor]:
    """The tensors of an output, which may be nested, by names."""
    if value is None:
        return {}
    if isinstance(value, Tensor):
        return {name or "output": value}
    if isinstance(value, ScaleSpace):
        value = {f"level_{value.first_level + n}": level for n, level in enumerate(value.levels)}
    elif isinstance(value, list | tuple):
        value = dict(enumerate(value))
    elif not isinstance(value, Mapping):
        raise ValueError(f"outputs must be tensors, or dicts, lists and tuples of them, got {type(value).__name__}")
    named: dict[str, Tensor] = {}
    for part, item in value.items():
        named |= _named(item, "_".join(filter(None, (name, str(part)))))
    return named


class _Job:
    """One export: the graph and its file."""

    def __init__(self, path: Path, graph: _Graph, description: dict[str, object]) -> None:
        self.path, self.graph, self.description = path, graph, description
        self.notes: list[str] = []
        tensors = [*graph.parameters(), *graph.buffers()]
        self.dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)
        if path.suffix == ".onnx":
            if self.dtype != torch.float32:
                self.notes.append(f"onnxruntime convolves in float32: exported in that instead of {self.dtype}")
                graph.float()
                self.dtype = torch.float32
            if sum(tensor.nbytes for tensor in tensors) > _MOST_BYTES:
                raise ValueError("a single ONNX file is limited to 2 GB, but this network is larger; export .pt2")

    def dynamic(self, channels: int, side: int, more: Sequence[Shape]) -> Exported:
        """Export with dynamic batch, height and width, traced with images of about that side."""
        free = {0: torch.export.Dim("batch", min=1), 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
        _refuse_endless(self.graph)
        program = self.trace(self.image((2, channels, side, side + 3)), (free,))
        run = program.module()

        def fits(n: int) -> bool:
            try:
                return self.difference(run, (1, channels, n, n)) <= TOLERANCE
            except Exception:  # the network and the program raise errors of many kinds
                return False

        n = 1 + bisect.bisect_left(range(1, side), True, key=fits)  # the least side that the program takes
        shapes = [(1, channels, n, n), (3, channels, n + 1, n + 2), (2, channels, 2 * n + 5, n + 13), *more]
        return self.write(program, (None, channels, None, None), n, shapes)

    def trace(self, image: Tensor, free: tuple | None = None) -> ExportedProgram:
        """Export, after a run in which the network may learn which levels it takes: tracing fixes them."""
        self.graph(image)
        return torch.export.export(self.graph, (image,), dynamic_shapes=free, strict=False)

    def write(
        self, program: ExportedProgram, shape: tuple[int | None, ...], smallest: int | None, shapes: Sequence[Shape]
    ) -> Exported:
        """Write the file, and put it in place if it computes what PyTorch does for images of those shapes."""
        outputs = tuple(_named(self.graph(self.image(shapes[0]))))
        description = json.dumps(self.description | {"smallest": smallest})
        with replacing(self.path) as draft:
            if self.path.suffix == ".onnx":
                _write_onnx(program, draft, outputs, description)
                run = _read_onnx(draft)
            else:
                torch.export.save(program, draft, extra_files={"scalespaces.json": description})
                run = torch.export.load(draft).module()
            difference = float(torch.tensor([self.difference(run, shape) for shape in shapes]).max())
            if not difference <= TOLERANCE:
                amount = f"by {difference:.1e} of the largest output, more than {TOLERANCE:g}"
                raise ValueError(f"the exported network differs from PyTorch {amount}; nothing was written")
        return Exported(self.path, shape, smallest, outputs, difference, tuple(self.notes))

    def image(self, shape: Shape) -> Tensor:
        return torch.rand(*shape, dtype=self.dtype, generator=torch.Generator().manual_seed(0))

    def difference(self, run: Callable[[Tensor], object], shape: Shape) -> float:
        """How far the outputs are from PyTorch's, relative to the largest where that is above one."""
        image = self.image(shape)
        expected, found = _named(self.graph(image)), _named(run(image))
        if expected.keys() != found.keys() or any(expected[name].shape != found[name].shape for name in expected):
            return math.inf
        pairs = [(expected[name].double(), found[name].double()) for name in expected]
        return float(torch.stack([(a - b).abs().max() / a.abs().max().clip(min=1) for a, b in pairs]).max())


def _write_onnx(program: ExportedProgram, path: Path, outputs: Sequence[str], description: str) -> None:
    names: dict[str, Any] = {"input_names": ["image"], "output_names": list(outputs)}
    options: dict[str, Any] = {"custom_translation_table": {torch.ops.aten.remainder.Scalar: _remainder}}
    converted: Any = torch.onnx.export(program, dynamo=True, verbose=False, opset_version=OPSET, **names, **options)
    proto = converted.model_proto
    (image,) = (node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs)
    symbols = {str(n): axis for n, axis in zip(image.meta["val"].shape, _AXES, strict=True) if not isinstance(n, int)}
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(r"\w+", lambda found: symbols.get(found[0], found[0]), dim.dim_param)
    proto.metadata_props.add(key="scalespaces", value=description)
    require("onnx", "export").checker.check_model(proto, full_check=True)
    path.write_bytes(proto.SerializeToString())


def _read_onnx(path: Path) -> Callable[[Tensor], dict[str, Tensor]]:
    runtime = require("onnxruntime", "export")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda image: dict(
        zip(names, map(torch.from_numpy, session.run(names, {"image": image.numpy()})), strict=True)
    )


def _remainder(self: Any, other: Any) -> Any:
    """The remainder as ONNX has it: torch's own translation does not support a size as divisor."""
    op: Any = require("onnxscript", "export").opset18
    other = op.CastLike(other, self)
    if self.dtype.is_floating_point():
        return op.Sub(self, op.Mul(op.Floor(op.Div(self, other)), other))
    return op.Mod(self, other)


def _refuse_endless(graph: nn.Module) -> None:
    """Let convolutions raise an error where tracing with free sizes would not end."""
    # A convolution that computes its padding from the size of the image leaves a maximum in the formula of the size. A
    # second one makes torch look for the bounds of nested formulas, for hours.

    def check(module: nn.Module, inputs: tuple) -> None:
        tensors = [x for x in inputs[:1] for x in (x.levels if isinstance(x, ScaleSpace) else (x,))]
        if any("Max" in str(n) for x in tensors for n in x.shape if not isinstance(n, int)):
            reason = "computes its padding from the size of the image, and torch finds no end of the formulas for sizes"
            raise ValueError(f"{type(module).__name__} {reason}; choose one with size=(height, width), or --size")

    for module in graph.modules():
        if isinstance(module, TORCHS_OWN) and not is_plain(module):
            module.register_forward_pre_hook(check)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence messages that torch has for its developers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)
