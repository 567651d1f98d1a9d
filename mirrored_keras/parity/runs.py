"""Trains a model by its own `fit`, and keeps loss and every variable of every step."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.parity import variables
from mirrored_keras.parity.snapshots import Snapshots
from mirrored_keras.replica import devices, private, startup

Build = Callable[[], keras.Model]
#: Changes a model before it is trained; what it returns is held while `fit` runs.
Edit = Callable[[keras.Model], contextlib.AbstractContextManager | None]


@dataclasses.dataclass
class Trace:
    """One training: what it started from, and what every step left behind.

    Attributes:
        name: What trained.
        replicas: Their number; `None` for no strategy.
        model: The trained model.
        start: The state that training started from.
        built_with: The weights that the model was built with, before it got those of the first run.
        labels: The variables, in the order of `values`.
        values: Values of all variables after every step.
        drift: For every step, index of a variable -> `(replica, value)` where that replica differs from the first.
        logs: What `fit` logs of every batch by itself.
        warnings: What was warned about.
        error: What stopped it.
    """

    name: str
    replicas: int | None
    model: Any = None
    start: variables.State | None = None
    built_with: list[np.ndarray] = dataclasses.field(default_factory=list)
    labels: list[variables.Label] = dataclasses.field(default_factory=list)
    values: Snapshots = dataclasses.field(default_factory=Snapshots)
    drift: list[dict[int, tuple[int, np.ndarray]]] = dataclasses.field(default_factory=list)
    logs: list[dict[str, float]] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    error: Exception | None = None

    @property
    def start_state(self) -> variables.State:
        """The state that training started from; there is one as soon as the model is built.

        Raises:
            SetupError: The model could not be built.
        """
        if self.start is None:
            raise _wrong_build("nothing, because the model could not be built")
        return self.start

    def add_step(self, logs: dict[str, float]) -> None:
        """Keeps the values of all variables of the model, and the numbers that the step logged.

        Args:
            logs: Name -> number.
        """
        read = variables.read(self.model)
        self.labels = [label for label, _, _ in read]
        self.values.append([value for _, value, _ in read])
        self.drift.append({index: other for index, (_, _, other) in enumerate(read) if other is not None})
        self.logs.append(logs)


class _Recorder(keras.callbacks.Callback):
    def __init__(self, trace: Trace):
        super().__init__()
        self._trace = trace

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.reset_metrics()  # so that the logs are those of this batch alone

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._trace.add_step({name: float(np.mean(value)) for name, value in (logs or {}).items()})


def strategy_of(replicas: int | None) -> tf.distribute.Strategy | None:
    """Returns a strategy over CPU devices, of which several can live in one process.

    The default collectives of TensorFlow allow one group of devices per process and hang or abort with the second.

    Args:
        replicas: Their number; `None` for no strategy.

    Returns:
        The strategy, or `None`.

    Raises:
        SetupError: TensorFlow has started with too few CPU devices.
    """
    if replicas is None:
        return None
    names = [f"CPU:{index}" for index in range(replicas)]
    return devices.mirrored_strategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())


def train(
    build: Build,
    batches: Sequence[tuple[Any, ...]],
    *,
    replicas: int | None,
    seed: int,
    start: variables.State | None = None,
    edit: Edit | None = None,
    name: str = "",
) -> Trace:
    """Builds the model in the scope of R replicas and trains it on the batches, in their order.

    Args:
        build: The user's function.
        batches: Global batches: tuples of NumPy arrays.
        replicas: R; `None` for no strategy.
        seed: Global seed that is set before the model is built, and before it is trained.
        start: The state to start from; that of the built model if `None`.
        edit: Changes the model before it is trained.
        name: What to call the run.

    Returns:
        The trace; its `error` is what stopped training on several replicas.

    Raises:
        SetupError: `build` returns no compiled model, with no strategy.
    """
    trace = Trace(name or ("1 replica" if replicas is None else f"{replicas} replicas"), replicas)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _train(trace, build, batches, seed=seed, start=start, edit=edit)
        except Exception as error:  # whatever stops it on several replicas is a finding
            if replicas is None:
                raise
            trace.error = error
    trace.warnings = list(dict.fromkeys(str(warning.message) for warning in caught))
    return trace


def _train(trace, build, batches, *, seed, start, edit):
    strategy = strategy_of(trace.replicas)
    with strategy.scope() if strategy else contextlib.nullcontext():
        keras.utils.set_random_seed(seed)
        trace.model = model = checked(build())
        build_on(model, batches[0])
        trace.built_with = model.get_weights()
        if start is not None:
            variables.set_state(model, start)
        trace.start = variables.state_of(model)
        around = edit(model) if edit else None
    # one step per call of the function, so that every step can be looked at
    model.steps_per_execution, model.chooses_steps_per_execution = 1, False
    model.jit_compile = False  # several replicas have no XLA either, and it takes longer than the steps here
    keras.utils.set_random_seed(seed)
    with around or contextlib.nullcontext():
        model.fit(dataset_of(batches), shuffle=False, verbose=0, callbacks=[_Recorder(trace)])


def checked(model: Any) -> keras.Model:
    """Refuses what a build function must not return.

    Args:
        model: What it returned.

    Returns:
        The model.

    Raises:
        SetupError: It is no compiled `keras.Model`.
    """
    if not isinstance(model, keras.Model) or not model.compiled:
        kind = "not compiled" if isinstance(model, keras.Model) else "no keras.Model"
        raise _wrong_build(f"{type(model).__name__}, {kind}")
    return model


def _wrong_build(received):
    return SetupError(
        message(
            "A build function takes nothing and returns a compiled model.",
            received,
            'def build_fn():\n    model = DistributedModel(inputs, outputs)\n    model.compile("adam", "mse")\n'
            "    return model",
        )
    )


def build_on(model: keras.Model, batch: tuple[Any, ...]) -> None:
    """Makes all weights of a model, and of its optimizer, for data of these shapes.

    Args:
        model: A compiled model.
        batch: One global batch.
    """
    from mirrored_keras.model import DistributedModel

    if isinstance(model, DistributedModel):
        startup.build(model, batch)
    else:
        private.build_from_specs(model, startup.specs_of(batch))


def dataset_of(batches: Sequence[tuple[Any, ...]]) -> tf.data.Dataset:
    """Returns a dataset of batches whose numbers of rows differ.

    Args:
        batches: Tuples of NumPy arrays, nested or not.

    Returns:
        The dataset, of known length.
    """

    def spec_of(array):
        return tf.TensorSpec((None, *array.shape[1:]), array.dtype)

    signature = keras.tree.map_structure(spec_of, batches[0])
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))
