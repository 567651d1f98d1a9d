"""Saves models and weights: outside the scope, atomically, with a checksum and everything that training needs."""

import os

import keras

from mirrored_keras.checkpoint import checksum, doubtful_layers, inspection, refusals
from mirrored_keras.checkpoint.atomic import written_atomically
from mirrored_keras.checkpoint.contents import expected_bytes, extra_of, write_extra
from mirrored_keras.checkpoint.h5_file import save_h5
from mirrored_keras.checkpoint.plain_model import plain_model
from mirrored_keras.replica import private, workers


def save_model(model: keras.Model, path: str | os.PathLike[str], *, plain: bool = False) -> None:
    """Saves a whole model in one `.keras` or `.h5` file: architecture, weights, optimizer state, random state.

    May be called anywhere outside the replicas: inside or outside the scope, and in a callback. The live model is not
    changed. The file appears at once or not at all: it is written beside the target, flushed to the disk, and
    renamed; it ends with a checksum of all its bytes. An existing file is replaced.

    Both formats keep, to the bit: weights, slots, iterations, loss scale, averages and accumulators of the optimizer,
    the arguments of `compile`, names of metrics, the options of `DistributedModel.compile`, and the states of the
    seed generators; for any number of replicas. Values of metrics are not kept.

    Args:
        model: Any built Keras model. `.h5` takes functional and sequential ones.
        path: Ends with `.keras`, `.h5` or `.hdf5`; missing folders are made.
        plain: Whether to write a `keras.Model` that opens where this package is not installed; options and
            random state that plain Keras does not know are left out.

    Raises:
        CheckpointError: The model could not be made again from the file, `path` has another ending, or the
            call comes from inside a replica.
        OSError: The disk is full, and so on; a file that was there is still there.

    Example:
        >>> import keras, os, tempfile
        >>> from mirrored_keras import DistributedModel, load_model, save_model
        >>> inputs = keras.Input((3,))
        >>> model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        >>> model.compile("adam", loss="mse")
        >>> path = os.path.join(tempfile.mkdtemp(), "model.h5")
        >>> save_model(model, path)
        >>> load_model(path).loss
        'mse'
    """
    refusals.check_context("save_model", getattr(model, "distribute_strategy", None))
    name = inspection.check_path(path)
    refusals.check_savable(model, name)
    if not workers.is_chief(model.distribute_strategy):
        return
    saved = plain_model(model) if plain else model
    with written_atomically(name, expected_bytes=expected_bytes(model)) as temporary:
        if name.endswith(".keras"):
            # not `model.save`, which is this function
            with private.compile_config_replaced(saved, _with_optimizer(saved)):
                keras.saving.save_model(saved, temporary)
            if not plain:
                write_extra(temporary, extra_of(model))
        else:
            save_h5(saved, temporary, plain=plain)
        checksum.add_checksum(temporary)


def _with_optimizer(model):
    # stock saving to HDF5 takes the optimizer out of the live model's configuration
    return lambda config: config if config.get("optimizer") is not None else {**config, "optimizer": model.optimizer}


def save_weights(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Saves weights, optimizer state and random state in one `.weights.h5` file, for a model made by code.

    Atomic, with a checksum, and callable where `save_model` is. Works for every built model, subclassed ones too.

    Args:
        model: Any built Keras model.
        path: Ends with `.weights.h5`.

    Raises:
        CheckpointError: The model is not built, `path` has another ending, or the call comes from a replica.
        OSError: The disk is full, and so on; a file that was there is still there.

    Example:
        >>> import keras, os, tempfile
        >>> from mirrored_keras import load_weights, save_weights
        >>> def make_model():
        ...     return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        >>> path = os.path.join(tempfile.mkdtemp(), "model.weights.h5")
        >>> save_weights(make_model(), path)
        >>> len(load_weights(make_model(), path).restored)
        2
    """
    refusals.check_context("save_weights", getattr(model, "distribute_strategy", None))
    name = inspection.check_path(path, suffixes=(".weights.h5",))
    refusals.check_built(model)
    if not workers.is_chief(model.distribute_strategy):
        return
    doubtful_layers.warn_of_merged(model)
    with written_atomically(name, expected_bytes=expected_bytes(model)) as temporary:
        keras.Model.save_weights(model, temporary)
        write_extra(temporary, extra_of(model))
        checksum.add_checksum(temporary)
