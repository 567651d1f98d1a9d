"""A model that plain Keras makes again from its file."""

import keras

from mirrored_keras import DistributedModel
from mirrored_keras.checkpoint import refusals
from mirrored_keras.replica import private

_ARGUMENTS = ("loss", "loss_weights", "metrics", "weighted_metrics", "run_eagerly")


def plain_model(model: keras.Model) -> keras.Model:
    """Returns a `keras.Model` over the same layers, compiled with the same optimizer, for files without this library.

    Args:
        model: A functional `DistributedModel`; a model of Keras' own classes comes back itself.

    Returns:
        The model.

    Raises:
        CheckpointError: It is a subclassed model, whose steps and layers are in its own class.
    """
    if refusals.is_stock(model):
        return model
    if not refusals.is_graph(model) or type(model).__mro__[1] is not DistributedModel:
        raise refusals.refused(
            "Only a functional model can be written without its class.",
            f"model={model.name!r} of class {type(model).__name__}, plain=True",
            "save_model(model, path)",
        )
    plain = keras.Model(*private.graph_of(model), name=model.name)
    if model.compiled:
        arguments = {name: private.compile_argument(model, name) for name in _ARGUMENTS}
        plain.compile(optimizer=model.optimizer, steps_per_execution=model.steps_per_execution, **arguments)
    return plain
