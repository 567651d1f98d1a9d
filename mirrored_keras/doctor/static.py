"""Findings about a model that is not run: what depends on the number of replicas, and what costs speed."""

from collections.abc import Callable, Iterator
from typing import Any

import keras

from mirrored_keras.doctor import parts, speed
from mirrored_keras.doctor.findings import Finding, finding_of_message, joined
from mirrored_keras.doctor.own_code import findings_of_train_step
from mirrored_keras.errors import MirroredKerasError, SetupError, message
from mirrored_keras.layer_states import states_of
from mirrored_keras.model import DistributedModel
from mirrored_keras.randomness import drawing_layers
from mirrored_keras.replica import collective, devices, private, scope
from mirrored_keras.whole_batch_loss import name_of_a_loss_over_rows


def static_findings(model: keras.Model, dataset: Any = None) -> list[Finding]:
    """Examines a compiled model, and perhaps its data, without running a step.

    Args:
        model: A `DistributedModel`, or a stock `keras.Model` that is to become one.
        dataset: The `tf.data.Dataset` of `fit`, if there is one.

    Returns:
        The findings: what is not the training of one replica, then what costs speed; "ok" where nothing was found.

    Raises:
        SetupError: `model` is no `keras.Model`.

    Example:
        >>> import keras
        >>> from mirrored_keras import DistributedModel
        >>> from mirrored_keras.doctor import static_findings
        >>> inputs = keras.Input((4,))
        >>> outputs = keras.layers.BatchNormalization(name="norm")(inputs)
        >>> model = DistributedModel(inputs, outputs)
        >>> model.compile("adam", "mse", steps_per_execution="auto")
        >>> print(static_findings(model)[0].subject)
        BatchNormalization 'norm'
    """
    if not isinstance(model, keras.Model):
        raise SetupError(
            message("`static_findings` takes a `keras.Model`.", f"model={model!r}", "static_findings(build_model())")
        )
    found = [finding for look in _LOOKS for finding in look(model)]
    if model.compiled:
        found += parts.findings_of_metrics(model, dataset)
    if not any(finding.severity in ("error", "warning") for finding in found):
        found.append(Finding("ok", "replicas", "nothing found that depends on their number"))
    slow = [*speed.findings_of_model(model)]
    if dataset is not None:
        slow += speed.findings_of_data(dataset, model.distribute_strategy.num_replicas_in_sync)
    return [*found, *(slow or [Finding("ok", "speed", "nothing found that costs it")])]


def _of_class(model: keras.Model) -> Iterator[Finding]:
    if not isinstance(model, DistributedModel):
        reason = (
            f"{type(model).__name__} is a stock model: on several replicas it clips each replica's part of the "
            "gradient, and takes means of means for unequal rows, weights and masks."
        )
        yield Finding("error", "class of the model", reason, "model = DistributedModel.from_model(model)")


def _of_setup(model: keras.Model) -> Iterator[Finding]:
    """Runs the checks that `compile` and `fit` run, on what is there already."""
    if not model.compiled:
        fix = 'model.compile("adam", loss="mse")   # then losses and metrics are examined, too'
        yield Finding("note", "compile", "The model is not compiled.", fix)
    checks: dict[str, Callable[[], None]] = {"scope": lambda: scope.check_model(model)}
    if model.compiled:
        given = private.compile_arguments(model)
        checks["scope"] = lambda: scope.check_compile(
            model,
            optimizer=model.optimizer,
            metrics=(given.get("metrics"), given.get("weighted_metrics")),
            jit_compile=model.jit_compile,
        )
        if model.optimizer is not None and model.built and model.optimizer.built:
            checks["trainable weights"] = lambda: scope.check_trainable(model)
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync > 1:
        checks["collectives"] = lambda: _check_engine(strategy)
    for subject, check in checks.items():
        try:
            check()
        except MirroredKerasError as error:
            yield finding_of_message("error", subject, str(error))


def _check_engine(strategy):
    # the default engine blocks threads, and one failed sum poisons later ones: that is left to a process of its own
    if private.uses_collective_ops(strategy):
        devices.check_threads(strategy)
    else:
        collective.check_collective(strategy)


def _of_normalization(model: keras.Model) -> Iterator[Finding]:
    plain = [
        layer
        for layer in private.all_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized and layer.trainable
    ]
    if plain:
        reason = "Each replica normalises by the statistics of its own rows, so results depend on how many there are."
        yield Finding("warning", parts.named("BatchNormalization", plain), reason, "sync_batch_norm(model)")
    if plain and getattr(model, "micro_batches", 1) > 1:
        reason = "With micro-batches, statistics are those of a piece of the rows."
        yield Finding("note", "micro-batches", reason, "model.compile(..., micro_batches=1)")


def _of_randomness(model: keras.Model) -> Iterator[Finding]:
    by_row, declared, others = drawing_layers(model)
    if getattr(model, "randomness", "replica") != "row":
        random = [*by_row, *declared, *others]
        if random:
            reason = "Replicas draw streams of their own: the same distribution as on one replica, other numbers."
            yield Finding("note", parts.named("random layers", random), reason, 'compile(..., randomness="row")')
        return
    for layer in others:
        reason = "It cannot draw by row, or has not said how it draws: all replicas draw the same numbers."
        fix = "draws_per_row = True   # in the class, if row i of its output depends on row i and on draw i alone"
        yield Finding("warning", parts.named(type(layer).__name__, [layer]), reason, fix)


def _of_losses(model: keras.Model) -> Iterator[Finding]:
    for loss in parts.compiled_losses(model):
        name = name_of_a_loss_over_rows(loss)
        if name is not None:
            reason = "It is one score for all rows of a batch, no mean over rows: every replica scores its own rows."
            fix = f"compile(loss=mirrored_keras.GlobalBatchLoss(keras.losses.{name}(...)))"
            yield Finding("error", f"loss {loss.name!r}", reason, fix)


def _of_states(model: keras.Model) -> Iterator[Finding]:
    unsaid: dict[int, tuple[Any, list[str]]] = {}
    for state in states_of(model):
        if not state.is_declared and parts.may_assign(state.layer):
            unsaid.setdefault(id(state.layer), (state.layer, []))[1].append(state.variable.name)
    for layer, names in unsaid.values():
        reason = (
            f"It has not said what several replicas make of {joined(map(repr, names))}: floats become the mean over "
            "the rows, all else the first replica's value."
        )
        fix = 'self.add_weight(..., trainable=False, aggregation="sum")   # or "mean", or "only_first_replica"'
        yield Finding("warning", parts.named("state of layer", [layer]), reason, fix)


_LOOKS: tuple[Callable[[keras.Model], Iterator[Finding]], ...] = (
    _of_class,
    _of_setup,
    _of_normalization,
    _of_randomness,
    _of_losses,
    _of_states,
    findings_of_train_step,
)
