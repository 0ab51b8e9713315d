"""Training, evaluation and prediction: recipes run by Lightning, metrics at many scales, and masks of large images.

A notebook needs only five names; the commands run the same functions::

    recipe = scalespaces.train.load_recipe("recipes/pcam_s_densenet.yaml", ["--data.root", "data/pcam"])
    result = scalespaces.train.train(recipe, "out/pcam")
    network = scalespaces.models.load(result.folder / "model.safetensors")
    scalespaces.train.evaluate(network, scalespaces.data.PCam("data/pcam", "test"))
    scalespaces.train.predict(network, "slide.png")
"""

from typing import TYPE_CHECKING

from scalespaces._extras import late

if TYPE_CHECKING:
    from scalespaces.train._evaluate import evaluate
    from scalespaces.train._predict import predict
    from scalespaces.train._recipe import Recipe, load_recipe
    from scalespaces.train._run import train

__all__ = ["Recipe", "evaluate", "load_recipe", "predict", "train"]

# The file of each name, imported late since Lightning takes seconds; and the extra's module that a file needs.
_HOME = {"Recipe": "_recipe", "evaluate": "_evaluate", "load_recipe": "_recipe", "predict": "_predict", "train": "_run"}
_NEEDS = {"_recipe": ("yaml", "train"), "_run": ("lightning.pytorch", "train")}
__getattr__, __dir__ = late(__name__, _HOME, _NEEDS)
