"""A learning-rate range test that leaves the model as it was."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.checkpoint.atomic import written_atomically
from mirrored_keras.errors import SetupError, message

_SMOOTHING = 0.9


@dataclasses.dataclass(frozen=True)
class RangeTest:
    """The losses that a range test found.

    Attributes:
        rates: Learning rate of every step.
        losses: Loss of every step's batch, before its update.
        smoothed: The losses, averaged exponentially.
        diverged: Whether it ended before the largest rate because the loss had run away.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    diverged: bool

    @property
    def suggestion(self) -> float:
        """The rate at which the smoothed loss falls fastest, by the logarithm of the rate; a place to start from."""
        if len(self.rates) < 2:
            return self.rates[0]
        slopes = np.gradient(np.array(self.smoothed), np.log(self.rates))
        return self.rates[int(np.argmin(slopes))]

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws loss over learning rate.

        Args:
            path: Of the picture.

        Raises:
            SetupError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise SetupError(
                message("Pictures need matplotlib.", f"{error}", 'pip install "mirrored-keras[plot]"')
            ) from error
        figure = Figure(figsize=(7, 4), layout="constrained")  # without pyplot, which would look for a screen
        axes = figure.add_subplot()
        axes.semilogx(self.rates, self.losses, color="tab:gray", alpha=0.5, label="loss of the batch")
        axes.semilogx(self.rates, self.smoothed, color="tab:blue", label="smoothed")
        axes.axvline(self.suggestion, color="tab:orange", label=f"falls fastest: {self.suggestion:.2g}")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss")
        axes.legend()
        with written_atomically(path) as temporary:
            figure.savefig(temporary)


def learning_rate_range_test(
    model: Any,
    data: Any,
    *,
    batch_size: int = 32,
    smallest: float = 1e-6,
    largest: float = 10.0,
    steps: int = 100,
    divergence: float = 4.0,
) -> RangeTest:
    """Trains with a rate that grows from step to step, and puts the model back to where it was.

    Step i of n trains one global batch with smallest * (largest / smallest)^(i / (n - 1)). It stops where the loss is
    not finite, or the smoothed loss is `divergence` times its best. After L. N. Smith, "Cyclical Learning Rates for
    Training Neural Networks", WACV 2017. Weights, states, optimizer, metrics and random state of the model come back
    to the bit, also after an error; draws of `tf.random` operations do not.

    Args:
        model: A compiled model; its learning rate is a number, no schedule.
        data: A `tf.data.Dataset` of global batches, or `(x, y)` or `(x, y, sample_weight)` of arrays.
        batch_size: Rows of the global batch, for arrays.
        smallest: The first rate.
        largest: The last rate.
        steps: n; data are repeated as needed.
        divergence: Ratio of smoothed loss to its best at which the test stops.

    Returns:
        The rates and losses.

    Raises:
        SetupError: The model is not compiled or has a schedule, or the rates are no range.

    Example:
        >>> import keras, numpy as np
        >>> from mirrored_keras import DistributedModel
        >>> from mirrored_keras.callbacks import learning_rate_range_test
        >>> inputs = keras.Input((4,))
        >>> model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        >>> model.compile("sgd", "mse")
        >>> found = learning_rate_range_test(model, (np.ones((8, 4)), np.ones((8, 1))), steps=5, largest=0.1)
        >>> len(found.rates), int(model.optimizer.iterations)
        (5, 0)
    """
    _check(model, smallest, largest, steps)
    if not isinstance(data, tf.data.Dataset):
        data = tf.data.Dataset.from_tensor_slices(data).batch(batch_size)
    rates = [float(rate) for rate in np.geomspace(smallest, largest, steps)]
    losses: list[float] = []
    smoothed: list[float] = []
    average, diverged = 0.0, False
    with _kept(model, next(iter(data))):
        for rate, batch in zip(rates, data.repeat(), strict=False):
            model.optimizer.learning_rate = rate
            losses.append(_loss_of_step(model, batch))
            average = _SMOOTHING * average + (1 - _SMOOTHING) * losses[-1]
            # the average starts from 0: divided by what it has seen
            smoothed.append(average / (1 - _SMOOTHING ** len(losses)))
            diverged = not math.isfinite(losses[-1]) or _has_run_away(smoothed[_settled(steps) :], divergence)
            if diverged:
                break
    return RangeTest(tuple(rates[: len(losses)]), tuple(losses), tuple(smoothed), diverged)


def _check(model, smallest, largest, steps):
    if not _takes_a_rate(getattr(model, "optimizer", None)):
        raise SetupError(
            message(
                "A range test needs a compiled model whose learning rate is a number.",
                f"optimizer={getattr(model, 'optimizer', None)!r}",
                "model.compile(keras.optimizers.Adam(1e-3), loss=...)   # without a schedule, for the test",
            )
        )
    if not 0 < smallest < largest or steps < 2:
        raise SetupError(
            message(
                "A range test goes from a smaller to a larger positive rate, in 2 steps or more.",
                f"smallest={smallest!r}, largest={largest!r}, steps={steps!r}",
                "learning_rate_range_test(model, dataset, smallest=1e-6, largest=1.0, steps=100)",
            )
        )


def _settled(steps):
    # an average of few batches is as far from the others as these batches are
    return max(5, steps // 10)


def _has_run_away(smoothed, divergence):
    return bool(smoothed) and smoothed[-1] > divergence * max(min(smoothed), 1e-12)


def _takes_a_rate(optimizer):
    if optimizer is None:
        return False
    try:
        optimizer.learning_rate = float(
            keras.ops.convert_to_numpy(optimizer.learning_rate)
        )  # the same number; refused where a schedule decides
    except (TypeError, AttributeError):
        return False
    return True


def _loss_of_step(model, batch):
    model.reset_metrics()  # the logged loss is then that of this batch alone
    return float(model.train_on_batch(*keras.utils.unpack_x_y_sample_weight(batch), return_dict=True)["loss"])


@contextlib.contextmanager
def _kept(model: Any, batch: Any) -> Iterator[None]:
    """Puts everything that training changes in a model back to where it was before the block."""
    random_state = model.get_random_state() if hasattr(model, "get_random_state") and model.built else None
    if not model.built or not getattr(model, "metrics_names", None):
        model.test_on_batch(*keras.utils.unpack_x_y_sample_weight(batch))  # makes weights and metrics
    if not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    random_state = random_state or (model.get_random_state() if hasattr(model, "get_random_state") else None)
    variables = [*model.variables, *model.optimizer.variables, *(v for m in model.metrics for v in m.variables)]
    unique = {id(variable): variable for variable in variables}.values()
    before = [(variable, np.array(keras.ops.convert_to_numpy(variable))) for variable in unique]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)
        if random_state is not None:
            model.set_random_state(random_state)
        model.reset_metrics()
