"""What happens between a call of `fit` (or the like) and Keras' own: checks, and one rewritten argument."""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras import generators, pace
from mirrored_keras.class_weights import class_weight_map
from mirrored_keras.prediction import PredictRunner
from mirrored_keras.replica import collective, feeding, scope, seeds, sharing_out
from mirrored_keras.replica.watchdog import loss_of_workers_named, watched
from mirrored_keras.workers import agreement
from mirrored_keras.workers.callbacks import files_by_the_chief

_BATCH_SIZES = ("batch_size", "validation_batch_size")
_DATA = ("x", "validation_data")
_ARRAYS = ("x", "y", "sample_weight", "validation_data")


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
    if method in ("fit", "train_on_batch") and model.compiled and not model.has_own_train_step:
        scope.check_trainable(model)
    collective.check_collective(model.distribute_strategy)
    for name in _BATCH_SIZES:
        feeding.check_batch_size(name, arguments.get(name))
    for name in _ARRAYS:
        feeding.check_not_masked(name, arguments.get(name))
    for name in _DATA:
        if name in arguments:
            feeding.check_dataset(arguments[name])
            arguments[name] = feeding.without_trailing_none(arguments[name])
    agreement.before_run(model, method, arguments)
    if method == "fit":
        generators.readable_again(arguments)
    if method in ("fit", "evaluate") and model.compiled:
        _count_steps(model, method, arguments)
    strategy = model.distribute_strategy
    with (
        loss_of_workers_named(strategy, method),
        sharing_out.shared_out(strategy),
        contextlib.nullcontext() if method.endswith("_on_batch") else files_by_the_chief(model, arguments),
        _class_weight_in_step(model, arguments),
        seeds.one_unseeded_stream(strategy),
        contextlib.ExitStack() as around,
    ):
        for enter in _around_fit(arguments) if method == "fit" else ():
            around.enter_context(enter(model, arguments))
        yield arguments


def _around_fit(arguments):
    # A callback that must see or change the arguments of `fit`, or hold something while it runs, has a method
    # `around_fit(model, arguments)` that returns a context manager.
    callbacks = arguments.get("callbacks")
    callbacks = callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else callbacks
    found = [getattr(callback, "around_fit", None) for callback in keras.tree.flatten(callbacks or [])]
    return [enter for enter in found if enter is not None]


def _by_name(method, args, kwargs):
    signature = inspect.signature(getattr(keras.Model, method))
    arguments = dict(signature.bind(None, *args, **kwargs).arguments)
    arguments.update(arguments.pop("kwargs", {}))
    arguments.pop("self")
    return arguments


def _count_steps(model, method, arguments):
    callbacks = arguments.get("callbacks")
    phase = "train" if method == "fit" else "test"
    callbacks = [callbacks] if isinstance(callbacks, keras.callbacks.Callback) else list(callbacks or ())
    automatic = model.chooses_steps_per_execution and not any(pace.looks_at_batches(part, phase) for part in callbacks)
    scope.check_callbacks(model, callbacks)
    if method == "evaluate":
        model.make_test_function()
        model.test_function.pace.start(arguments.get("steps"), automatic=automatic)
        return
    start = pace.EpochStart(automatic=automatic)
    if len(callbacks) == 1 and isinstance(callbacks[0], keras.callbacks.CallbackList):
        start.set_model(model)
        start.set_params(callbacks[0].params)
        callbacks[0].callbacks.append(start)
    else:
        arguments["callbacks"] = [*callbacks, start]


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


class CheckedRuns(keras.Model):
    """The methods of `keras.Model` that run it: each call is checked and prepared first."""

    @functools.wraps(keras.Model.fit)
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        with prepared(self, "fit", args, kwargs) as arguments:
            return super().fit(**arguments)

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with prepared(self, "evaluate", args, kwargs) as arguments:
            return super().evaluate(**arguments)

    @functools.wraps(keras.Model.predict)
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with prepared(self, "predict", args, kwargs) as arguments:
            return self._dense_where_possible(super().predict(**arguments))

    @functools.wraps(keras.Model.train_on_batch)
    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        with prepared(self, "train_on_batch", args, kwargs) as arguments:
            return super().train_on_batch(**arguments)

    @functools.wraps(keras.Model.test_on_batch)
    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        with prepared(self, "test_on_batch", args, kwargs) as arguments:
            return super().test_on_batch(**arguments)

    @functools.wraps(keras.Model.predict_on_batch)
    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        with prepared(self, "predict_on_batch", args, kwargs) as arguments:
            return self._dense_where_possible(super().predict_on_batch(**arguments))

    @functools.wraps(keras.Model.get_metrics_result)
    def get_metrics_result(self) -> Any:
        with watched(self.distribute_strategy, "reading metrics"):
            return super().get_metrics_result()

    def _dense_where_possible(self, outputs):
        runner = self.predict_function
        if not isinstance(runner, PredictRunner):
            return outputs
        return keras.tree.map_structure(_as_array, runner.dense_where_possible(outputs))


def _as_array(output):
    return output.numpy() if isinstance(output, tf.Tensor) else output
