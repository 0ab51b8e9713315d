"""The paper's operations on scale-spaces, as pure functions."""

from scalespaces.functional._conv import scale_conv
from scalespaces.functional._lift import downscale, lift
from scalespaces.functional._norm import scale_batch_norm, scale_dropout
from scalespaces.functional._pool import avg_pool, blur_pool, global_pool, max_pool, scale_pool
from scalespaces.functional._resample import feature_pyramid, resample, scale_shift
from scalespaces.functional._trust import trust

__all__ = ["downscale", "feature_pyramid", "lift", "resample", "scale_shift"]
__all__ += ["avg_pool", "blur_pool", "global_pool", "max_pool", "scale_pool", "trust"]
__all__ += ["scale_batch_norm", "scale_conv", "scale_dropout"]

# Goes up on purpose, and last: it fills the container's table of torch's functions.
import scalespaces.foreign  # noqa: E402, F401
