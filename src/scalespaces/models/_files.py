"""Networks in files: safetensors with a description of the network."""

import json
import math
import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from scalespaces._extras import require
from scalespaces._files import open_tensors, replacing
from scalespaces._torch import uncompiled
from scalespaces.models._convert import Converted, convert
from scalespaces.models._network import Card, ScaleNetwork
from scalespaces.models._registry import create_model
from scalespaces.nn import Lift
from scalespaces.nn._lift import ARGUMENTS
from scalespaces.theory._arguments import check_integer

FORMAT = 2
_KEY = "scalespaces"  # the only entry of the metadata: the order of several would differ from file to file
_MOST_METADATA = 2**20  # characters
_MOST_LEVELS = 64
_MOST_SIDE = 2**16  # of the smallest level
_FARTHEST = {False: 2.0**16, True: 2.0**8}  # standard deviation of the last level's blur in pixels; of a matrix base
_FINEST = 2.0**6  # samples of the finest level for each of the image's, along an axis
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_OTHERS = {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
_DTYPES: dict[str, torch.dtype] = _FLOATS | _OTHERS | {"BOOL": torch.bool}
_KINDS = {dtype: kind for kind, dtype in _DTYPES.items()}

_Path = str | os.PathLike[str]
Device = torch.device | str | int
Tensors = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and type, as safetensors calls it, of every tensor in a file."""


def save(model: nn.Module, path: _Path) -> None:
    """Write a network into a safetensors file, from which :func:`load` builds the same network.

    The file contains the ``state_dict`` under its own names. The metadata's entry ``scalespaces`` contains, as JSON,
    the name and arguments of the architecture, or the arguments of the conversion; the network's
    :class:`~scalespaces.models.Card`; and the version of the library. Tensors that share memory are written under each
    of their names. The file is written completely or not at all.

    Args:
        model: made by :func:`~scalespaces.models.create_model` or :func:`~scalespaces.models.convert`.
        path: of the file; folders above it are created.
    """
    model = uncompiled(model)
    config = model.config if isinstance(model, ScaleNetwork) else {}
    if isinstance(model, ScaleNetwork) and model.prepared:
        raise ValueError("a prepared network lacks batch norms that its file would need; save the one it was made from")
    if not (isinstance(model, Converted) or isinstance(config.get("name"), str)):
        rule = "networks made by scalespaces.models.create_model or scalespaces.convert can be saved"
        came = f"a {type(model).__name__} with no config"
        raise ValueError(f"{rule}, got {came}; for others, save the state_dict with safetensors.torch.save_file")
    card = Card.of(model)
    card.check(config)
    document = {"format": FORMAT, "version": version("scalespaces"), "card": card.to_json()}
    state = {name: _dense(name, tensor) for name, tensor in model.state_dict().items()}
    if isinstance(model, Converted):
        document |= {"conversion": config, "converted": type(model.model).__qualname__}
    else:
        document["network"] = config
        tensors = {name: (tuple(tensor.shape), _KINDS[tensor.dtype]) for name, tensor in state.items()}
        _compare(tensors, _skeleton(config), "the network differs from what its config builds")
    try:
        text = json.dumps(document, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the arguments of a network must be plain values, as in JSON, got {config}") from error
    with replacing(path) as draft:
        files = require("safetensors.torch", "files")
        try:
            files.save_file(state, draft, metadata={_KEY: text})
        except require("safetensors", "files").SafetensorError as error:
            raise OSError(f"cannot write {str(path)!r}, perhaps because the disk is full: {error}") from error


def _dense(name: str, tensor: object) -> Tensor:
    """The tensor as safetensors takes it: in memory of its own, on the CPU."""
    if not isinstance(tensor, Tensor) or tensor.is_meta or tensor.layout != torch.strided or tensor.dtype not in _KINDS:
        given = [str(getattr(tensor, key, type(tensor).__name__)) for key in ("dtype", "layout", "device")]
        raise ValueError(f"a file contains only dense tensors of real numbers, got {', '.join(given)} for {name!r}")
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


@overload
def load(path: _Path, model: None = None, *, num_levels: int | None = None, device: Device = "cpu") -> ScaleNetwork: ...
@overload
def load(path: _Path, model: nn.Module, *, num_levels: int | None = None, device: Device = "cpu") -> Converted: ...
def load(
    path: _Path, model: nn.Module | None = None, *, num_levels: int | None = None, device: Device = "cpu"
) -> ScaleNetwork:
    """Read a network that :func:`save` wrote, in evaluation mode, with its :class:`~scalespaces.models.Card`.

    Files are not trusted: no code in them is run, and a file that is damaged, foreign or absurd raises a ``ValueError``
    before its tensors are read. Data types are those of the file. The global random state is left as it was.

    Args:
        path: of the file.
        model: for a converted network, the model it was made from, with any weights; it is not changed.
        num_levels: the number of levels, if it is not that of the file: more for objects larger than in training, fewer
            for less time. The weights are the same, as all levels share them.
        device: where to put the network.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/model.safetensors"
        >>> save(scalespaces.models.create_model("densenet", num_classes=5), path)
        >>> load(path)(torch.zeros(1, 3, 96, 96)).shape
        torch.Size([1, 5])
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"expected a file, got {str(path)!r}, which is a folder")
    if not path.is_file():  # a pipe might never end
        raise FileNotFoundError(f"expected a file, got {str(path)!r}, which does not exist or is not a regular file")
    safetensors = require("safetensors", "files")
    try:
        with open_tensors(path) as file:
            slices = {key: file.get_slice(key) for key in sorted(file.keys())}
            tensors = {key: (tuple(item.get_shape()), item.get_dtype()) for key, item in slices.items()}
            document = _describe(file.metadata() or {})
            network = _rebuild(_with_levels(document, num_levels), tensors, model)
            network.card = Card.from_json(document.get("card", {}))
            network.card.check(network.config)
            _set_dtypes(network, tensors)
            network.load_state_dict({key: file.get_tensor(key) for key in tensors})
    except safetensors.SafetensorError as error:
        raise ValueError(f"{str(path)!r} is not a safetensors file, or is damaged: {error}") from error
    except (ValueError, OverflowError, RecursionError) as error:  # the last two about absurd numbers and nesting
        raise ValueError(f"cannot load {str(path)!r}: {error}") from error
    return network.to(device).eval()


def _with_levels(document: dict[str, Any], num_levels: int | None) -> dict[str, Any]:
    """The description of the network with another number of levels."""
    if num_levels is None:
        return document
    key = "conversion" if "conversion" in document else "network"
    lift = _lift_of(document[key])
    number = check_integer("num_levels", num_levels, 1)
    return document | {key: document[key] | {"lift": lift | {"num_levels": number}}}


def _set_dtypes(network: nn.Module, tensors: Tensors) -> None:
    """Give the network the file's data types. Buffers outside the file follow if all its floats have one type."""
    floats = {kind for _, kind in tensors.values() if kind in _FLOATS}
    if len(floats) == 1:
        network.to(_FLOATS[floats.pop()])
    for name, tensor in network.state_dict(keep_vars=True).items():
        tensor.data = tensor.data.to(_DTYPES[tensors[name][1]])


def _describe(metadata: Mapping[str, str]) -> dict[str, Any]:
    """An untrusted file's description of its network, as far as it can be checked without building it."""
    text = metadata.get(_KEY)
    if text is None:
        remedy = "read its tensors with safetensors.torch.load_file, and give them to load_state_dict"
        raise ValueError(f"it does not name its network, so scalespaces did not write it; {remedy}")
    if len(text) > _MOST_METADATA:
        raise ValueError(f"its description may have {_MOST_METADATA} characters, but has {len(text)}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its description is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"its description is a {type(document).__name__}, not an object")
    number = document.get("format")
    if type(number) is not int or number != FORMAT:
        which = f"its format is {number!r:.40}, of scalespaces {document.get('version')!r:.40}"
        raise ValueError(f"{which}, but this version reads format {FORMAT}; upgrade if the file is newer")
    if sum(isinstance(document.get(key), dict) for key in ("network", "conversion")) != 1:
        raise ValueError("its description has neither or both of a network and a conversion")
    return document


def _rebuild(document: dict[str, Any], tensors: Tensors, model: nn.Module | None) -> ScaleNetwork:
    """The network, once the file is known to contain exactly its tensors."""
    converted = isinstance(document.get("conversion"), dict)
    config = document["conversion" if converted else "network"]
    lift = _lift_of(config)
    _check_sizes(config, lift, tensors)
    if converted:
        if model is None:
            ways = "load(path, model=...), or --model MODULE:FUNCTION on the command line"
            came = f"a conversion of a {document.get('converted')!r:.80}"
            raise ValueError(f"it contains {came}; give that model: {ways}")
        _check_reach(lift, lift.get("num_levels", 4))
        network = _attempt(lambda: convert(model, **config))
        _compare(tensors, network, "its tensors are not those of the model, converted")
        return network
    if model is not None:
        raise ValueError(f"it contains all of {config.get('name')!r:.80}; leave out the model")
    skeleton = _attempt(lambda: _skeleton(config))
    _compare(tensors, skeleton, f"its tensors are not those of {config['name']!r}")
    _check_reach(lift, skeleton.lift.num_levels)
    with torch.random.fork_rng(devices=[]):
        return _attempt(lambda: create_model(**config))


def _attempt(build: Callable[[], ScaleNetwork]) -> ScaleNetwork:
    """Build from a file's arguments. These may be of any type, and so may the error."""
    try:
        return build()
    except Exception as error:
        raise ValueError(f"its arguments build no network: {error}") from error


def _skeleton(config: dict[str, Any]) -> ScaleNetwork:
    """The network with no memory and with the cheapest lift, on which none of its parameters depend."""
    cheap = {name: value for name, value in _lift_of(config).items() if name in ("num_levels", "first_level", "dims")}
    with torch.device("meta"), _Unfilled():
        return create_model(**dict(config, lift=Lift(**cheap).config))


class _Unfilled(TorchFunctionMode):
    """Draws no random numbers: on the meta device torch would spend seconds loading its compiler for nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func in (Tensor.normal_, Tensor.uniform_) else func(*args, **kwargs or {})


def _compare(tensors: Tensors, network: nn.Module, complaint: str) -> None:
    """Refuse tensors unless their names, shapes and kinds of numbers are those of the network."""
    state = network.state_dict()
    for name in sorted(tensors.keys() ^ state.keys()):
        raise ValueError(f"{complaint}: {name!r:.200} is {'missing' if name in state else 'unknown'}")
    for name, expected in state.items():
        shape, kind = tensors[name]
        if shape != tuple(expected.shape):
            raise ValueError(f"{complaint}: {name!r} has shape {shape} instead of {tuple(expected.shape)}")
        if kind not in _FLOATS if expected.is_floating_point() else _DTYPES.get(kind) != expected.dtype:
            raise ValueError(f"{complaint}: {name!r} is of type {kind}, which cannot stand for {expected.dtype}")


def _lift_of(config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the lift, the only ones that are nested."""
    lift = config.get("lift", {})
    if not isinstance(lift, dict) or not lift.keys() <= ARGUMENTS.keys():
        raise ValueError(f"its lift is an object of a lift's arguments, got {lift!r:.80}")
    return lift


def _check_sizes(config: dict[str, Any], lift: dict[str, Any], tensors: Tensors) -> None:
    """Refuse numbers larger, and lists longer, than the tensors need: a malicious file must cost little."""
    longest = max(_MOST_LEVELS, len(tensors))
    most = max([longest, *(n for shape, _ in tensors.values() if 0 not in shape for n in shape)])
    for name, value in [*config.items(), *lift.items()]:
        limit = {"num_levels": _MOST_LEVELS, "first_level": _MOST_LEVELS, "smallest_level": _MOST_SIDE}.get(name, most)
        items = [] if value is lift else _leaves(value)
        if len(items) > longest:
            raise ValueError(f"{name} is too long for a file of {len(tensors)} tensors")
        for item in items:
            if isinstance(item, float) and not math.isfinite(item):
                raise ValueError(f"{name} must be finite, got {item}")
            if isinstance(item, int) and abs(item) > limit:
                raise ValueError(f"{name} may be {limit} at most with these tensors, got {item!r:.40}")


def _leaves(value: object, depth: int = 3) -> list[object]:
    """The items of nested lists: matrices, and lists of them, are all that arguments may nest."""
    if isinstance(value, dict) or (isinstance(value, list) and not depth):
        raise ValueError(f"arguments are plain values and lists, got {value!r:.80}")
    return [leaf for item in value for leaf in _leaves(item, depth - 1)] if isinstance(value, list) else [value]


def _check_reach(lift: dict[str, Any], num_levels: int) -> None:
    """Refuse a lift whose last kernel is too wide to be computed; a larger truncation counts as wider."""
    matrix = isinstance(lift.get("base"), list)
    try:
        base = float(np.linalg.norm(lift["base"])) if matrix else float(lift.get("base", 2.0))
        sigma = math.sqrt(lift.get("zero_scale", 0.25)) * base ** (num_levels - 1)
        sigma *= max(lift.get("truncation", 4.0), 4.0) / 4
        fine = base ** -lift.get("first_level", 0) > _FINEST
    except (TypeError, ValueError, OverflowError):
        fine, sigma = True, math.inf
    if fine or not sigma <= _FARTHEST[matrix]:
        raise ValueError(f"{num_levels!r:.40} levels blur too far, or are too fine, to be computed: {lift!r:.200}")
