"""What costs speed in a model and its data; the result of training is the same either way."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.doctor.findings import Finding, finding_of_message
from mirrored_keras.errors import MirroredKerasError
from mirrored_keras.replica import feeding

_TINY = 1_000_000  # weights; the models of docs/memory_and_speed.md, which gain most, have fewer
_MANY, _SMALL = 100, 1_000  # variables, and the numbers in the middle one of them


def findings_of_model(model: keras.Model) -> Iterator[Finding]:
    """Yields what costs speed in a compiled model.

    Args:
        model: Any model.

    Yields:
        Findings.
    """
    if not model.compiled:
        return
    if model.run_eagerly:
        reason = "Every operation is started by Python, one after the other."
        yield Finding("warning", "run_eagerly", reason, "model.compile(..., run_eagerly=False)")
        return
    single = model.steps_per_execution == 1 and not getattr(model, "chooses_steps_per_execution", False)
    fix = 'model.compile(..., steps_per_execution="auto")'
    sizes = [int(np.prod(variable.shape)) for variable in model.trainable_variables] if model.built else []
    if single and sizes and sum(sizes) < _TINY:
        reason = f"The model has {sum(sizes):,} weights: between its steps, Python takes a good part of the time."
        yield Finding("note", "steps_per_execution", reason, fix)
    if len(sizes) > _MANY and np.median(sizes) < _SMALL:
        reason = f"{len(sizes)} variables, half of them below {_SMALL:,} numbers: each costs a few operations per step."
        yield Finding("note", "small variables", reason, fix if single else "fewer, larger layers")


def findings_of_data(dataset: Any, replicas: int) -> list[Finding]:
    """Returns what is wrong, or slow, with a dataset.

    Args:
        dataset: What is given to `fit`; anything but a `tf.data.Dataset` passes.
        replicas: R.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return []
    try:
        feeding.check_dataset(dataset)
    except MirroredKerasError as error:
        return [finding_of_message("error", "dataset", str(error))]
    findings = []
    kind = type(dataset).__name__
    if "Prefetch" not in kind and "Options" not in kind:  # options hide what stands before them
        reason = "It does not end in `prefetch`: batches are made while the replicas wait."
        findings.append(Finding("note", "prefetch", reason, "dataset = dataset.prefetch(tf.data.AUTOTUNE)"))
    shapes = [tf.TensorShape(spec.shape) for spec in tf.nest.flatten(dataset.element_spec) if hasattr(spec, "shape")]
    rows = shapes[0][0] if shapes and shapes[0].rank else None
    if rows is not None and rows < replicas:
        reason = f"Batches of {rows} rows leave {replicas - rows} of {replicas} replicas without any."
        findings.append(
            Finding("warning", "global batch", reason, f"dataset.batch({32 * replicas})   # over all replicas")
        )
    return findings
