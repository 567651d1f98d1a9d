"""Hyperparameters that belong together: the global batch size, and a learning rate that follows it."""

from collections.abc import Sequence
from typing import Any

import keras_tuner

from mirrored_keras.errors import TuningError, message
from mirrored_keras.schedules import RULES, scale_factor

BATCH_SIZE = "global_batch_size"


def global_batch_size(hp: keras_tuner.HyperParameters, values: Sequence[int], *, default: int | None = None) -> int:
    """Declares the number of rows of the global batch, over all replicas together, as a hyperparameter.

    A search over arrays passes it to `fit`; for datasets, `HyperModel.fit` batches by
    `hp.get("global_batch_size")`. A batch that does not fit into memory is trained in micro-batches, which give the
    same result; if not even that fits, the trial is infeasible, and the search goes on.

    Args:
        hp: Of `build` or `fit`.
        values: To choose from, any positive integers; they need not be multiples of the number of replicas.
        default: The first of the values if `None`.

    Returns:
        The value of this trial.

    Raises:
        TuningError: A value is no positive integer.

    Example:
        >>> import keras_tuner
        >>> from mirrored_keras.tuning import global_batch_size
        >>> global_batch_size(keras_tuner.HyperParameters(), [32, 64, 128])
        32
    """
    if not values or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in values):
        raise TuningError(
            message(
                "A global batch size is a positive number of rows.",
                f"values={list(values)!r}",
                "global_batch_size(hp, [32, 64, 128])",
            )
        )
    return hp.Choice(BATCH_SIZE, sorted(values), default=default or values[0], ordered=True)


def scaled_learning_rate(
    hp: keras_tuner.HyperParameters,
    batch: int,
    *,
    base_batch: int,
    bounds: tuple[float, float],
    rule: str = "linear",
    name: str = "base_learning_rate",
) -> float:
    """Declares the learning rate of a base batch as a hyperparameter, and returns that of a batch.

    With b rows in the batch and b_0 in the base batch, the rate r_0 that is searched for becomes r_0 * b / b_0 (linear)
    or r_0 * sqrt(b / b_0) (sqrt), so that one r_0 is good for several batch sizes.

    Args:
        hp: Of `build`.
        batch: b, from `global_batch_size`.
        base_batch: b_0.
        bounds: Smallest and largest r_0; searched on a logarithmic scale.
        rule: "linear", "sqrt" or "constant".
        name: Of the hyperparameter r_0.

    Returns:
        The learning rate for `batch`.

    Raises:
        TuningError: `rule` is another word.

    Example:
        >>> import keras_tuner
        >>> from mirrored_keras.tuning import scaled_learning_rate
        >>> scaled_learning_rate(keras_tuner.HyperParameters(), 128, base_batch=32, bounds=(0.1, 1.0), rule="sqrt")
        0.2
    """
    if rule not in RULES:
        raise TuningError(
            message(
                f"`rule` is one of {tuple(RULES)}.",
                f"rule={rule!r}",
                'scaled_learning_rate(hp, batch, base_batch=32, bounds=(1e-4, 1e-2), rule="sqrt")',
            )
        )
    base = hp.Float(name, min_value=bounds[0], max_value=bounds[1], sampling="log")
    return base * scale_factor(batch, base_batch, rule=rule)


def batch_size_in(values: dict[str, Any], options: dict[str, Any]) -> int | None:
    """Returns the rows of the global batch, if it is known without looking at the data.

    Args:
        values: Of the trial.
        options: Of `search`.
    """
    return options.get("batch_size") or values.get(BATCH_SIZE)


def with_batch_size(hypermodel: Any, hp: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of `fit` with the batch size of the trial, where `fit` can use one.

    Args:
        hypermodel: One with its own `fit` decides by itself.
        hp: Of the trial.
        arguments: Of `search`.
        options: Of `search`.
    """
    own_fit = getattr(hypermodel.fit, "__func__", None) is not keras_tuner.HyperModel.fit
    data = arguments[0] if arguments else options.get("x")
    if own_fit or BATCH_SIZE not in hp.values or "batch_size" in options or not hasattr(data, "__getitem__"):
        return options
    if hasattr(data, "on_epoch_end"):  # a `PyDataset` has its own batches
        return options
    return {**options, "batch_size": hp.values[BATCH_SIZE]}
