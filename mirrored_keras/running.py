"""What happens between a call of `fit` (or the like) and Keras' own: checks, and one rewritten argument."""

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.class_weights import class_weight_map
from mirrored_keras.replica import collective, feeding, scope, seeds

_BATCH_SIZES = ("batch_size", "validation_batch_size")
_DATA = ("x", "validation_data")


@contextlib.contextmanager
def prepared(model: keras.Model, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Checks a call before anything runs and yields its arguments by name.

    Args:
        model: The model.
        method: The name of a method of `keras.Model`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Yields:
        The arguments to call Keras' method with.

    Raises:
        SetupError: Scope, devices or collectives are wrong.
        CollectiveError: The strategy does not sum over all replicas.
        BatchError: The data cannot be split.
    """
    arguments = _by_name(method, args, kwargs)
    scope.check_model(model)
    if method in ("fit", "train_on_batch") and not model.has_own_train_step:
        scope.check_trainable(model)
    collective.check_collective(model.distribute_strategy)
    for name in _BATCH_SIZES:
        feeding.check_batch_size(name, arguments.get(name))
    for name in _DATA:
        if name in arguments:
            feeding.check_dataset(arguments[name])
            arguments[name] = feeding.without_trailing_none(arguments[name])
    with _class_weight_in_step(model, arguments), seeds.one_unseeded_stream(model.distribute_strategy):
        yield arguments


def _by_name(method, args, kwargs):
    signature = inspect.signature(getattr(keras.Model, method))
    arguments = dict(signature.bind(None, *args, **kwargs).arguments)
    arguments.update(arguments.pop("kwargs", {}))
    arguments.pop("self")
    return arguments


@contextlib.contextmanager
def _class_weight_in_step(model, arguments):
    # a distributed dataset cannot be mapped any more: its class weights are looked up in the step
    distributed = isinstance(arguments.get("x"), tf.distribute.DistributedDataset)
    if not distributed or not arguments.get("class_weight"):
        yield
        return
    model.make_train_function(force=True)
    model.train_function.map_data = class_weight_map(arguments.pop("class_weight"))
    try:
        yield
    finally:
        model.train_function = None
