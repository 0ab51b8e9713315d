"""The choices that functions, recipes and commands share: each list once, and without torch, so that help is fast."""

from typing import Any, Literal, get_args

METHODS = ("cascade", "direct")  # of the lift: the exact one, and the paper's
WINDOWS = ("dilated", "plain")  # of pooling layers: the equivariant one, and the paper's
SCALE_PADDINGS = ("zeros", "replicate", "valid")  # past the last level
PAPER: dict[str, Any] = {"sampling": "dense", "method": "direct"}
"""The paper's lift."""

PRESETS: dict[str, dict[str, Any]] = {"recommended": {}, "paper": {"lift": PAPER, "window": "plain"}}
"""The arguments of a network that each preset changes."""

ScaleMode = Literal["image", "mean", "max", "logsumexp", "probabilities", "trust"]
SCALE_MODES: tuple[str, ...] = get_args(ScaleMode)
"""How levels are combined: the one list for networks, recipes and commands."""

LevelPool = Literal["model", ScaleMode]
Supervision = Literal["answer", "mean", "apart"]  # how levels are supervised in training
DOWNSCALINGS = ("cascade", "direct", "pillow")  # of the image, when equivariance is measured
SCALES = (0.25, 0.5, 2**-0.5, 1.0, 2**0.5, 2.0)  # that trust is learned from, relative to the images
Kind = Literal["pcam", "cityscapes", "idx", "class_folders", "table", "masks"]  # layouts of data
Fill = Literal["zeros", "reflect"]  # around an image that scale jitter makes smaller
Baselines = Literal["one-level", "all"]  # networks that are evaluated with test-time augmentation, too
TILE = 1024  # side of the windows in which large images are segmented, in pixels
WINDOW = 256  # side of the windows in which slides are classified
BACKGROUND = 0.02  # largest standard deviation of a plain window, of values from 0 to 1
EPOCHS = 12  # of the demo
