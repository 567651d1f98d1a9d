"""Causes that can be taken away: train once more without one of them, and see whether the difference is gone."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import keras
import tensorflow as tf

from mirrored_keras import DistributedModel, GlobalBatch, GlobalBatchLoss, sync_batch_norm
from mirrored_keras.parity import losses, places, random_layers
from mirrored_keras.parity.additivity import loss_that_is_not_additive
from mirrored_keras.parity.case import Case
from mirrored_keras.parity.findings import Finding
from mirrored_keras.parity.runs import Edit
from mirrored_keras.replica import private
from mirrored_keras.step import scale


@dataclasses.dataclass(frozen=True)
class Suspect:
    """A finding that is true if the edit takes the difference away."""

    finding: Finding
    edit: Edit


def of(case: Case) -> list[Suspect]:
    """Returns what could be the cause and can be taken away.

    Args:
        case: The case; its model is a `DistributedModel`.

    Returns:
        Suspects.
    """
    model = case.one.model
    return [
        *_own_step(model),
        *_keras_loss_in_own_code(model),
        *_batch_norm(case, model),
        *_random_layers(case, model),
        *_whole_batch_losses(case, model),
    ]


def _own_step(model):
    if not losses.overrides(model, "train_step"):
        return
    uses = "GlobalBatch" in places.source_of(type(model).train_step)
    fix = "share = batch.share(loss)   # differentiate the share" if uses else "batch = GlobalBatch(x)"
    fix += "\nbatch.apply_gradients(self.optimizer, gradients, self.trainable_variables)" if not uses else ""
    fix = fix if uses else fix.replace("\n", "\nshare = batch.share(loss)   # differentiate the share\n")
    yield Suspect(
        Finding(
            "train-step-without-scale",
            "with the gradients of every replica times its part of the rows, the difference is gone",
            fix,
            places.of(type(model).train_step, r"apply_gradients\(|\.apply\(|\.gradient\("),
        ),
        lambda _: mock.patch.object(GlobalBatch, "apply_gradients", _scaled(GlobalBatch.apply_gradients)),
    )


def _scaled(apply_gradients: Any) -> Any:
    def scaled(batch, optimizer, gradients, variables):
        active = GlobalBatch.active()
        shared = batch.was_shared or (active is not None and (active.was_shared or active.loss_was_computed))
        if not shared and batch.num_replicas > 1:
            ratio = scale.rows_ratio(batch.rows, batch.global_rows, tf.float32)
            gradients = [None if g is None else _times(g, ratio) for g in gradients]
        return apply_gradients(batch, optimizer, gradients, variables)

    return scaled


def _times(gradient, ratio):
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(ratio, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(ratio, gradient.dtype)


def _keras_loss_in_own_code(model):
    owners = [name for name in ("train_step", "compute_loss") if losses.overrides(model, name)]
    if not owners:
        return
    place = places.of(getattr(type(model), owners[0]), r"loss\w*\(|losses\.")
    yield Suspect(
        Finding(
            "keras-loss-called-directly",
            f"with the losses called in {owners[0]} evaluated by the batch, the difference is gone",
            "loss = GlobalBatch.current(x).loss(loss_object, y, y_pred, sample_weight)",
            place,
        ),
        lambda _: _losses_evaluated_by_the_batch(),
    )


@contextlib.contextmanager
def _losses_evaluated_by_the_batch() -> Iterator[None]:
    stock = keras.losses.Loss.__call__

    def call(loss, y_true, y_pred, sample_weight=None):
        batch = GlobalBatch.active()
        if batch is None or batch.num_replicas == 1:
            return stock(loss, y_true, y_pred, sample_weight)
        return batch.loss(loss, y_true, y_pred, sample_weight)

    with mock.patch.object(keras.losses.Loss, "__call__", call):
        yield


def _batch_norm(case, model):
    kind = keras.layers.BatchNormalization
    layers = [layer for layer in private.all_layers(model) if isinstance(layer, kind) and not layer.synchronized]
    if layers:
        names = ", ".join(repr(layer.name) for layer in layers[:3])
        yield Suspect(
            Finding(
                "batch-norm-not-synchronised",
                f"with synchronized=True on {len(layers)} layers ({names}), the difference is gone",
                "keras.layers.BatchNormalization(synchronized=True), or sync_batch_norm(model)",
                places.of_call(case.user_build, "BatchNormalization"),
            ),
            _synchronise,
        )


def _synchronise(model: keras.Model) -> None:
    sync_batch_norm(model)


def _random_layers(case, model):
    layers = random_layers.drawing(model)
    if layers and getattr(model, "randomness", "row") == "replica":
        name = type(layers[0]).__name__
        place = places.of_call(case.user_build, name) or places.of(layers[0])
        yield Suspect(
            Finding(
                "random-layers",
                f'with randomness="row" the difference is gone; {len(layers)} layers draw, {layers[0].name!r} first',
                'model.compile(..., randomness="row"), or accept it: replicas draw streams of their own',
                place,
            ),
            _draw_by_row,
        )


def _draw_by_row(model: Any) -> None:
    model.randomness = "row"
    model.train_function = None


def _whole_batch_losses(case, model):
    if losses.overrides(model, "compute_loss") or losses.overrides(model, "train_step"):
        return
    for number, loss in enumerate(losses.per_output(model)):
        why = loss_that_is_not_additive(case, number, loss)
        if why is None:
            continue
        name = losses.name_of(loss)
        own = losses.as_object(loss)
        code = getattr(own, "fn", None) or getattr(type(own), "call", None)
        fix = "loss=GlobalBatchLoss(...)   # sees the rows of all replicas"
        fix += "" if name else "\nor return a value per row, and leave the mean to Keras: ops.mean(..., axis=-1)"
        yield Suspect(
            Finding(
                "loss-over-the-whole-batch" if name else "custom-loss-not-additive",
                f"{why}; in GlobalBatchLoss the difference is gone",
                fix,
                places.of_call(case.user_build, name) if name else places.of(code, r"mean\(|sum\(|max\(|sqrt\(|std\("),
            ),
            _wrapping(number),
        )


def _wrapping(number: int) -> Edit:
    def edit(model: Any) -> None:
        arguments = private.compile_arguments(model)
        wrapped = losses.per_output(model)
        wrapped[number] = GlobalBatchLoss(wrapped[number])
        given = arguments["loss"]
        if isinstance(given, dict):
            names = sorted(given) if set(given) != set(model.output_names) else list(model.output_names)
            arguments["loss"] = dict(zip(names, wrapped, strict=False))
        else:
            arguments["loss"] = wrapped if isinstance(given, (list, tuple)) else wrapped[0]
        scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        extra = {"randomness": model.randomness, "micro_batches": model.micro_batches}
        arguments.update(optimizer=model.optimizer, auto_scale_loss=scaled, jit_compile="auto", **extra)
        model.compile(**arguments)

    return edit


def convertible(model: keras.Model) -> bool:
    """Returns whether a stock model can be tried as a `DistributedModel`.

    Args:
        model: A compiled model.

    Returns:
        Whether it has no steps of its own.
    """
    steps = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")
    return not isinstance(model, DistributedModel) and not any(losses.overrides(model, name) for name in steps)
