"""`check`: trains any model on one replica, on several, and by an independent loop, and says what differs."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras import DistributedModel, GlobalBatchLoss
from mirrored_keras.errors import SetupError, message
from mirrored_keras.parity import batches, comparison, independent, losses, random_layers, runs, synthetic_data
from mirrored_keras.parity.case import Case
from mirrored_keras.parity.causes import causes_of
from mirrored_keras.parity.comparison import Comparison
from mirrored_keras.parity.findings import Finding
from mirrored_keras.parity.report import Report, Run
from mirrored_keras.parity.runs import Trace
from mirrored_keras.replica import private

_PIECES = 4


def check(
    build_fn: Callable[[], keras.Model],
    *,
    replicas: Sequence[int] = (2, 4),
    data: Any = None,
    steps: int = 20,
    seed: int = 1,
) -> Report:
    """Trains a model on 1 and on N replicas and by an independent loop, and compares them after every step.

    All runs see the same global batches and start from the same weights, optimizer and seeds, on CPU devices of
    this process. Loss, metrics and every variable must be those of one replica, within
    `mirrored_keras.parity.tolerances`. Where they are not, experiments look for the cause.

    Args:
        build_fn: Takes nothing and returns a compiled `DistributedModel` or `keras.Model`; called once per run, in
            the scope of the run's strategy.
        replicas: The numbers of replicas to compare with one.
        data: A `tf.data.Dataset` of global batches, a list of tuples of arrays, or a function that makes one of
            them; `None` makes data from the model's own inputs and losses.
        steps: How many batches are trained.
        seed: Global seed, set before every run; it also makes the data.

    Returns:
        The `Report`: `passed`, `findings`, `str(report)`, `to_json()`, `plot(path)`.

    Raises:
        SetupError: The arguments, the model or the devices are not such that it can be checked.
        BatchError: The data are no global batches.

    Example:
        >>> import keras
        >>> from mirrored_keras import DistributedModel
        >>> from mirrored_keras.parity import check
        >>> def build_fn():
        ...     inputs = keras.Input((4,))
        ...     model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        ...     model.compile("sgd", "mse")
        ...     return model
        >>> check(build_fn, replicas=[2], steps=2).passed
        True
    """
    _check_arguments(replicas, steps)
    _make_devices(max(replicas))
    drawn = _batches(build_fn, data, steps, replicas, seed)
    findings = [] if data is None else batches.data_findings(data, drawn, seed=seed, replicas=max(replicas))
    one = runs.train(build_fn, drawn, replicas=None, seed=seed)
    noise = _noise(build_fn, drawn, one, seed) if _is_half_precision(one.model) else None
    traces, notes = _other_runs(build_fn, drawn, one, replicas, seed)
    compared = [comparison.compare(one, trace, noise) for trace in traces]
    if noise is None and any(each.first for each in compared):
        noise = _noise(build_fn, drawn, one, seed)
        compared = [comparison.compare(one, trace, noise) for trace in traces]
    findings += _starting_weights(one, traces)
    findings += _findings(build_fn, drawn, seed, one, noise, list(zip(traces, compared, strict=True)))
    all_runs = [Run.of(one), *(Run.of(*pair) for pair in zip(traces, compared, strict=True))]
    rows = [len(keras.tree.flatten(batch)[0]) for batch in drawn]
    return Report(list(dict.fromkeys(findings)), all_runs, rows, notes + _warnings(traces))


def _check_arguments(replicas, steps):
    whole = all(isinstance(count, int) and count > 0 for count in (*replicas, steps))
    if not whole or not replicas:
        raise SetupError(
            message(
                "A check needs at least one number of replicas and one step.",
                f"replicas={tuple(replicas)!r}, steps={steps!r}",
                "check(build_fn, replicas=(2, 4), steps=20)",
            )
        )


def _make_devices(count):
    runs.strategy_of(count)  # the largest first: CPU devices are made once
    if tf.config.list_logical_devices("GPU"):
        raise SetupError(
            message(
                "A check compares CPU replicas; TensorFlow has started with GPUs, which round otherwise.",
                f"devices={[device.name for device in tf.config.list_logical_devices('GPU')]}",
                "CUDA_VISIBLE_DEVICES=-1, or call check before TensorFlow's first operation",
            )
        )


def _batches(build_fn, data, steps, replicas, seed):
    if data is not None:
        return batches.draw(data, steps, seed=seed)
    keras.utils.set_random_seed(seed)
    return synthetic_data.make(runs.checked(build_fn()), steps=steps, replicas=replicas, seed=seed)


def _is_half_precision(model):
    return any(str(layer.compute_dtype) in ("float16", "bfloat16") for layer in private.all_layers(model))


def _noise(build_fn, drawn, one, seed) -> Trace | None:
    """Trains one replica with the same sums in another order: where that is no other training."""
    if random_layers.drawing(one.model):
        return None
    if _is_half_precision(one.model) and _can_train_in_pieces(one.model):
        # gradients of pieces are rounded to half precision each, as those of replicas are
        return runs.train(build_fn, drawn, replicas=None, seed=seed, start=one.start_state, edit=_in_pieces)
    reordered = batches.in_another_order(drawn)
    return runs.train(
        build_fn, reordered, replicas=None, seed=seed, start=one.start_state, name="another order of rows"
    )


def _can_train_in_pieces(model):
    wrapped = [loss for loss in keras.tree.flatten(losses.compiled(model)) if isinstance(loss, GlobalBatchLoss)]
    return isinstance(model, DistributedModel) and not losses.overrides(model, "train_step") and not wrapped


def _in_pieces(model: Any) -> None:
    model.micro_batches = _PIECES


def _other_runs(build_fn, drawn, one, replicas, seed) -> tuple[list[Trace], list[str]]:
    traces = [
        runs.train(build_fn, drawn, replicas=count, seed=seed, start=one.start_state)
        for count in dict.fromkeys(replicas)
    ]
    reason = independent.why_not(one.model)
    if reason is not None:
        return traces, [f"the independent loop was left out: {reason}."]
    try:
        return [*traces, independent.train(build_fn, drawn, seed=seed, start=one.start_state)], []
    except Exception as error:  # what it cannot run proves nothing about the replicas
        first_line = next(iter(str(error).strip().splitlines()), "")
        return traces, [f"the independent loop was left out, {type(error).__name__}: {first_line}"]


def _starting_weights(one, traces) -> list[Finding]:
    for trace in traces:
        pairs = list(zip(one.built_with, trace.built_with, strict=False))
        number = next((n for n, (a, b) in enumerate(pairs) if a.shape == b.shape and not np.array_equal(a, b)), None)
        if number is not None:
            name = one.model.weights[number].path
            evidence = f"weight {name!r} starts with other numbers, after keras.utils.set_random_seed"
            fix = "initialisers of Keras, or np.random.default_rng(1); no random numbers without a seed"
            return [Finding("weights-start-differently", evidence, fix)]
    return []


def _findings(build_fn, drawn, seed, one, noise, pairs) -> list[Finding]:
    """Looks for the causes in the first run on several replicas that differs; else says that the loop does."""
    for trace, compared in pairs:
        if trace.replicas is not None and (compared.first is not None or trace.error is not None):
            return causes_of(Case(build_fn, build_fn, drawn, seed, one, trace, compared, noise))
    for _, compared in pairs:
        if compared.first is not None:
            return [_of_reference(compared)]
    return []


def _of_reference(compared: Comparison) -> Finding:
    first = dataclasses.replace(compared.first, others=0) if compared.first else None
    return Finding(
        "one-replica-differs-from-reference",
        f"{compared.name}: {first}",
        "compare the losses given to compile with docs/maths.md; where Keras errs on one replica, see the README",
        None,
        False,
    )


def _warnings(traces) -> list[str]:
    said = [text for trace in traces for text in trace.warnings if "What to do:" in text]
    return [text.split("\n")[0] for text in dict.fromkeys(said)]
