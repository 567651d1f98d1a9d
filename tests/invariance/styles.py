"""Cases of several outputs, styles of models, ways to write a loss, and ways to run."""

import dataclasses

import keras

from invariance import data, matrix, models
from invariance.losses import (
    ScalarLoss,
    VectorLoss,
    make_loss,
    scalar_function,
    vector_function,
)
from invariance.parts import rows, sgd, usual_case, word_rows
from invariance.updates import SMOOTH_ADAM

MICRO_BATCHED_TOKENS = (
    "tokens-huber-lengths-mean-short-rows",
    "tokens-mse-blank_batch-mean_with_sample_weight-tiny-rows",
    "tokens-mse-lengths-sum_over_batch_size-single-zero_batch",
    "tokens-mse-lengths-None-even-rows",
    "tokens-sparse-off-sum_over_batch_size-tiny-tokens",
)
NO_METRICS = {"metrics": (), "weighted": ()}


def _heads(weights="rows", named=True):
    """Data of two outputs; weights for both, or one set for each."""

    def make(count, batch):
        y = {"a": data.targets(count), "b": data.targets(count, 1)}
        w = data.row_weights(count, batch, "none" if weights == "none" else "rows")
        if weights == "each":
            w = {"a": w, "b": w[::-1] + 0.5}
        return data.features(count), y if named else list(y.values()), w

    return make


def output_cases():
    two = {"output_names": ("a", "b"), "losses": lambda: [make_loss("mse"), make_loss("mae")]}
    one = two | {"losses": lambda: [make_loss("mse"), None]}
    loss_weights = (0.7, 2.0)
    yield usual_case("two outputs", models.two_heads, data=_heads(), tail="single", **two)
    yield usual_case(
        "two outputs, loss weights, weights each",
        models.two_heads,
        data=_heads("each"),
        loss_weights=loss_weights,
        **two,
    )
    yield usual_case(
        "list of outputs, list of targets",
        models.two_heads_list,
        data=_heads(named=False),
        loss_weights=loss_weights,
        tail="odd",
        **two,
    )
    yield usual_case("list of outputs, dict of targets", models.two_heads_list, data=_heads("none"), **two)
    yield usual_case("two outputs, one loss", models.two_heads, data=_heads(), **one)
    # A number added to an unreduced loss counts once per row: Keras broadcasts it.
    mixed = two | {"losses": lambda: [make_loss("mse", None), make_loss("mae")], "optimizer": sgd(0.01)}
    yield usual_case("two outputs, one unreduced", models.two_heads, data=_heads(), **mixed)


def _squared_error(x, y, y_pred):
    return keras.ops.mean(keras.ops.square(y - y_pred))


def _output_penalty(x, y, y_pred):
    return 0.3 * keras.ops.mean(keras.ops.abs(y_pred))


def _features_only(count, batch):
    return data.features(count), None, None


def style_cases():
    plain = rows("none")
    yield usual_case("convolution", models.convolution, data=_images)
    yield usual_case("nested model", models.nested, tail="single")
    yield usual_case("sequential", models.sequential)
    yield usual_case("frozen layer", models.frozen)
    yield usual_case("constraint", models.constrained)
    yield usual_case("kernel regularizer", models.kernel_penalty, tail="single")
    yield usual_case("activity regularizer", models.activity_penalty)
    yield usual_case("activity regularizer, single", models.activity_penalty, tail="single")
    yield usual_case("add_loss of a mean", models.added_mean, tail="odd")
    yield usual_case("add_loss of a mean, single", models.added_mean, tail="single")
    yield usual_case("subclassed", models.subclassed)
    yield usual_case("subclassed, odd", models.subclassed, tail="odd", dataset=True)
    yield usual_case("unused variable", models.unused_variable)
    yield usual_case("only add_loss", models.only_added_loss, data=_features_only, losses=list, **NO_METRICS)
    own = {"data": plain, "losses": list, "extra": _squared_error, **NO_METRICS}
    yield usual_case("own compute_loss", models.own_loss_mean, **own)
    yield usual_case("own compute_loss, single", models.own_loss_mean, tail="single", **own)
    yield usual_case("compute_loss plus penalty", models.own_loss_penalty, extra=_output_penalty)
    yield usual_case("loss function of a vector", losses=lambda: [vector_function], tail="single")
    yield usual_case("loss function of a scalar", losses=lambda: [scalar_function], data=plain)
    yield usual_case("loss class of a vector", losses=lambda: [VectorLoss(reduction="mean")])
    yield usual_case("loss class of a scalar", losses=lambda: [ScalarLoss()], data=plain, tail="odd")
    yield usual_case("recurrent, masked", models.recurrent, data=word_rows("rows"), stock="close")
    yield usual_case("all weights zero", data=_without_weight, tail="odd")
    yield usual_case(
        "class weights",
        data=rows(sparse=True),
        losses=lambda: [make_loss("sparse")],
        class_weight={0: 0.5, 1: 2.0, 2: 1.3},
        metrics=("accuracy",),
        weighted=("accuracy",),
    )


def micro_batch_cases():
    """A step in pieces is the step on all rows; 3 and 4 pieces are unequal, or empty, in every tail."""
    pieces = {"stock": "wrong", "compile_options": {"micro_batches": 3}}
    yield usual_case("3 micro-batches", **pieces)
    yield usual_case("3 micro-batches, single", tail="single", optimizer=sgd(0.5, clipnorm=0.3), **pieces)
    yield usual_case("3 micro-batches, activity regularizer", models.activity_penalty, tail="odd", **pieces)
    yield usual_case(
        "3 micro-batches, accumulating, EMA",
        optimizer=sgd(0.5, gradient_accumulation_steps=2, global_clipnorm=0.3, use_ema=True, ema_momentum=0.7),
        tail="odd",
        **pieces,
    )
    yield usual_case(
        "3 micro-batches, sparse gradient", models.bag_of_words, data=word_rows(), optimizer=SMOOTH_ADAM, **pieces
    )
    four = {"stock": "wrong", "compile_options": {"micro_batches": 4, "steps_per_execution": 2}}
    for case in matrix.token_cases():
        if case.name in MICRO_BATCHED_TOKENS:
            yield dataclasses.replace(case, name=f"4 micro-batches, {case.name}", **four)


def execution_cases():
    """Other ways to run the same step."""
    two = {"output_names": ("a", "b"), "losses": lambda: [make_loss("mse"), make_loss("mae")]}
    yield usual_case("two steps per execution", compile_options={"steps_per_execution": 2})
    yield usual_case("run eagerly", tail="single", compile_options={"run_eagerly": True}, stock="close")
    yield usual_case(
        "two outputs, two steps per execution",
        models.two_heads,
        data=_heads(),
        tail="tiny",
        compile_options={"steps_per_execution": 2},
        **two,
    )
    yield usual_case(
        "metrics with states of their own",
        models.probability,
        data=_yes_or_no,
        losses=lambda: [keras.losses.BinaryCrossentropy()],
        metrics=("AUC", "Precision", "RootMeanSquaredError"),
        weighted=("Recall", "FalsePositives"),
    )


def _yes_or_no(count, batch):
    y = (data.targets(count, 1) > 0).astype(keras.config.floatx())
    return data.features(count), y, data.row_weights(count, batch, "rows")


def _images(count, batch):
    return data.images(count), data.targets(count), data.row_weights(count, batch, "rows")


def _without_weight(count, batch):
    return data.features(count), data.targets(count), 0 * data.row_weights(count, batch, "rows")
