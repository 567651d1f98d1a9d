"""`DistributedModel`: a drop-in for `keras.Model` whose replicas train as one."""

import contextlib
import functools
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras import layer_states, own_step
from mirrored_keras.batch_norm import sound_statistics
from mirrored_keras.compile_options import CompileOptions
from mirrored_keras.compiled_losses import CompiledLosses, LossTracker
from mirrored_keras.compiled_metrics import CompiledMetrics
from mirrored_keras.execution import StepRunner
from mirrored_keras.files import SafeFiles, known_by_its_bare_name
from mirrored_keras.forward_pass import loss_of, predictions_of
from mirrored_keras.functional import functional_variant, makes_functional, original_class
from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.micro_batches import gradients_in_pieces
from mirrored_keras.prediction import PredictRunner
from mirrored_keras.random_model import RandomModel
from mirrored_keras.replica import private, scope, startup
from mirrored_keras.replica.update import build_optimizer
from mirrored_keras.running import CheckedRuns
from mirrored_keras.workers import agreement


@known_by_its_bare_name
@keras.saving.register_keras_serializable(package="mirrored_keras")
class DistributedModel(RandomModel, CompileOptions, CheckedRuns, SafeFiles):
    """A `keras.Model` that trains on N replicas exactly as on one.

    With B_r rows on replica r and G = sum_r B_r rows in the global batch, a step minimises

        L = sum_k weight_k * (sum_r n_rk) / (sum_r d_rk) + penalties + sum_r (B_r / G) * added_r

    where n and d are numerator and denominator of loss k on replica r: sums of loss * weight * mask, and
    of what the loss's reduction divides by. Gradients are summed over the replicas once; clipping, weight
    decay and the update see the sum. Every logged number is a total and a count, summed over replicas.
    A replica without rows contributes nothing, and nothing of it reaches a weight or a log.

    Use it as `keras.Model`: functional (`DistributedModel(inputs, outputs)`), as a base class with an own
    `call`, `compute_loss` or `train_step`, nested, or from a model there is (`from_model`). Make it inside
    `with strategy.scope():`. Without a strategy it is `keras.Model` to the bit wherever that is right.
    `batch_size` and the batches of a dataset are global batches.

    Args:
        *args: Those of `keras.Model`: nothing, or inputs and outputs.
        **kwargs: Those of `keras.Model`: `name`, `trainable`, `dtype`, `inputs`, `outputs`.

    Raises:
        SetupError: From `compile`, `fit` and the like, when weights, optimizer or metrics were made outside
            the scope of the model's strategy, or the strategy cannot sum over its replicas.
        BatchError: From `fit` and the like, when the data cannot be split into rows.

    Example:
        >>> import keras, numpy as np
        >>> from mirrored_keras import DistributedModel, mirrored_strategy
        >>> strategy = mirrored_strategy(1)
        >>> with strategy.scope():
        ...     inputs = keras.Input((4,))
        ...     model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        ...     model.compile("adam", loss="mse", metrics=["mae"])
        >>> history = model.fit(np.ones((10, 4)), np.ones((10, 1)), batch_size=4, verbose=0)
        >>> sorted(history.history)
        ['loss', 'mae']
    """

    # set by Keras' trainer, which has no types
    test_function: Any
    predict_function: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> "DistributedModel":
        if makes_functional(cls, args, kwargs):
            return super().__new__(functional_variant(cls))
        # past `keras.Model`, which drops the arguments, so that `get_config` would write down the defaults
        return super(keras.Model, cls).__new__(cls, *args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any):
        # the names `args` and `kwargs` are part of Keras' rules for reviving a model from its config
        if private.is_functional_call(args, kwargs):
            if not isinstance(self, private.Functional):
                # an own `__init__` that hands inputs and outputs up: `__new__` could not know
                self.__class__ = functional_variant(type(self))
            private.initialize_functional(self, *args, **kwargs)
        else:
            super().__init__(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle looks a class up by its name, which leads to the class and not to its functional variant
        revive, state = super().__reduce__()
        return getattr(original_class(type(self)), revive.__name__), state

    @classmethod
    def from_model(cls, model: keras.Model, *, compiled: bool = False) -> "DistributedModel":
        """Converts any `keras.Model`: the same layers and weights, nothing retrained.

        Functional and built Sequential models become functional models over the same layers; all others
        (subclassed, unbuilt) are called as they are.

        Args:
            model: A Sequential model, one of `keras.applications`, KerasHub or your own.
            compiled: Whether the result is compiled as `model` is, with the same optimizer, losses and metrics.

        Returns:
            A model of this class; `model` itself if it is one already.

        Raises:
            SetupError: `model` overrides steps that would be lost, or was made outside the current scope.

        Example:
            >>> import keras
            >>> from mirrored_keras import DistributedModel
            >>> plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="head")])
            >>> DistributedModel.from_model(plain).get_layer("head") is plain.get_layer("head")
            True
        """
        from mirrored_keras.conversion import distribute_model

        return distribute_model(model, cls, compiled=compiled)

    # -- compile ---------------------------------------------------------------------------------

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int | str = 1,
        jit_compile: bool | str = "auto",
        auto_scale_loss: bool = True,
        *,
        micro_batches: int = 1,
        randomness: str = "replica",
    ) -> None:
        """Configures the model for training; arguments and defaults are those of `keras.Model.compile`, and two more.

        May be called inside or outside the scope: what it makes by name (optimizer, losses, metrics) is
        made inside. `steps_per_execution="auto"` chooses the number of steps by the time they take, as long as
        no callback looks at single batches.

        Args:
            optimizer: As for `keras.Model.compile`, like all arguments but the last two.
            loss: See there.
            loss_weights: See there.
            metrics: See there.
            weighted_metrics: See there.
            run_eagerly: See there.
            steps_per_execution: See there.
            jit_compile: See there.
            auto_scale_loss: See there.
            micro_batches: k, the number of pieces that a replica's rows are trained in.
            randomness: What random layers draw on several replicas. "replica": every replica a stream of its
                own. "row": for every row of the global batch what one replica draws for it.

        Raises:
            SetupError: An optimizer or metric object was made outside the model's scope,
                `jit_compile=True` is asked for on several replicas, or `randomness` is another word.
        """
        self.keep_options(
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
            micro_batches=micro_batches,
            randomness=randomness,
        )
        scope.check_compile(self, optimizer=optimizer, metrics=(metrics, weighted_metrics), jit_compile=jit_compile)
        with self.distribute_strategy.scope():
            super().compile(
                optimizer=optimizer,
                loss=loss,
                loss_weights=loss_weights,
                metrics=metrics,
                weighted_metrics=weighted_metrics,
                run_eagerly=run_eagerly,
                steps_per_execution=1 if self.chooses_steps_per_execution else steps_per_execution,
                jit_compile=jit_compile,
                auto_scale_loss=auto_scale_loss,
            )
            names = getattr(self, "output_names", None)
            no_metrics = metrics is None and weighted_metrics is None
            private.replace_compiled_parts(
                self,
                loss_tracker=LossTracker(),
                compile_loss=None if loss is None else CompiledLosses(loss, loss_weights, output_names=names),
                compile_metrics=None if no_metrics else CompiledMetrics(metrics, weighted_metrics, output_names=names),
            )
            if self.distribute_strategy.num_replicas_in_sync > 1:
                # inside a replica, where a hand-written loop first needs them, it is too late for slots
                self._build_optimizer()

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles with what `get_compile_config` wrote, inside the scope.

        Args:
            config: Serialised arguments of `compile`.
        """
        if type(self).compile is not DistributedModel.compile:
            super().compile_from_config(config)  # warns: an own `compile` may take other arguments
            return
        with self.distribute_strategy.scope():
            self.compile(**keras.saving.deserialize_keras_object(config))
            self._build_optimizer()

    def _build_optimizer(self):
        if self.built and self.optimizer is not None and self.trainable_variables:
            build_optimizer(self.optimizer, self.trainable_variables)

    # -- the step, on one replica ----------------------------------------------------------------

    @functools.wraps(keras.Model.__call__)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with sound_statistics(self):
            return super().__call__(*args, **kwargs)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        """Returns this replica's loss L_r in "mean of this replica's rows" units.

        sum_r (B_r / G) * L_r is the loss of one replica on the global batch, so an override may return
        `super().compute_loss(...)` plus a mean over rows or a penalty on weights, or a plain mean.

        Args:
            x: Features.
            y: Targets.
            y_pred: Predictions.
            sample_weight: Weights.
            training: Whether the model is trained or evaluated.

        Returns:
            A float scalar; a vector for a single loss with `reduction=None`. 0 (compiled losses) on a
            replica without rows.
        """
        with GlobalBatch.active() or GlobalBatch.of_step(y_pred if x is None else x, model=self):
            return super().compute_loss(x, y, y_pred, sample_weight, training)

    def _aggregate_additional_loss(self, loss: tf.Tensor) -> tf.Tensor:
        # Already in "mean of rows" units: a penalty on weights is the same on every replica and
        # sum_r (B_r / G) * penalty = penalty; an added mean over rows weighs B_r / G by itself.
        loss = loss if loss.dtype.is_floating else tf.cast(loss, keras.config.floatx())
        total = keras.ops.sum(loss)
        # Keras sums a vector: one of a value per row is a sum over rows
        return GlobalBatch.current(loss).sum_of_rows(total) if _is_per_row(loss) else total

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Runs forward, backward and update for this replica's rows of one global batch.

        Args:
            data: `x`, `(x, y)` or `(x, y, sample_weight)` of this replica; may have no rows.

        Returns:
            Name -> value of every metric.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        batch = GlobalBatch.current(x)
        if self.micro_batches > 1 and self.optimizer is not None:
            with layer_states.kept_alike(self, batch.rows), batch:
                gradients, logs = gradients_in_pieces(self, data, self.micro_batches)
            batch.apply_gradients(self.optimizer, gradients, self.trainable_weights)
            return logs
        with layer_states.kept_alike(self, batch.rows), batch, tf.GradientTape() as tape:
            y_pred = predictions_of(self, x, training=True)
            loss = loss_of(self, x, y, y_pred, sample_weight, training=True)
            share = batch.share(loss)
            if self.optimizer is not None:
                share = self.optimizer.scale_loss(share)
        private.loss_tracker(self).add(loss, batch)
        own_step.update_weights(self, batch, tape, share)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Runs forward and metrics for this replica's rows of one global batch.

        Args:
            data: As for `train_step`.

        Returns:
            Name -> value of every metric.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        batch = GlobalBatch.current(x)
        with layer_states.kept_alike(self, batch.rows), batch:
            y_pred = predictions_of(self, x, training=False)
            loss = loss_of(self, x, y, y_pred, sample_weight, training=False)
        private.loss_tracker(self).add(loss, batch)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    # -- the step, on all replicas ---------------------------------------------------------------

    @property
    def has_own_train_step(self) -> bool:
        """Whether a subclass overrides `train_step`."""
        return type(self).train_step is not DistributedModel.train_step

    def make_train_function(self, force: bool = False) -> StepRunner:
        """Makes, once per `compile`, the function that runs `train_step` on all replicas."""
        if self.train_function is None or force:
            around = functools.partial(own_step.guided, self) if self.has_own_train_step else contextlib.nullcontext
            own = self.has_own_train_step
            self.train_function = StepRunner(self, step=self.train_step, own_step=own, around=around)
        return self.train_function

    def make_test_function(self, force: bool = False) -> StepRunner:
        """Makes, once per `compile`, the function that runs `test_step` on all replicas."""
        if self.test_function is None or force:
            own = type(self).test_step is not DistributedModel.test_step
            self.test_function = StepRunner(self, step=self.test_step, own_step=own)
        return self.test_function

    def make_predict_function(self, force: bool = False) -> Any:
        """Makes, once per `compile`, the function that runs `predict_step` on all replicas."""
        if self.distribute_strategy.num_replicas_in_sync == 1:
            return super().make_predict_function(force)
        if self.predict_function is None or force:
            self.predict_function = PredictRunner(self)
        return self.predict_function

    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        # Keras would replace a step's own `loss` by the tracker that the step never updated.
        for runner in (self.train_function, self.test_function):
            if isinstance(runner, StepRunner) and logs is not None and runner.logs_with_own_loss is logs:
                return logs
        return super()._get_metrics_result_or_logs(logs)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Stock draws a batch and averages it over the replicas; shapes are all that is needed.
        spec = data_batch if iterator is None else private.element_spec_of(iterator)
        self.trace_again_for_other_ranks(spec)
        if private.strategy_of_model(self) is None and self.micro_batches == 1 and not self.jit_compile:
            return  # as Keras; micro-batches need to know all metrics beforehand, XLA all variables
        startup.build(self, spec)
        agreement.before_steps(self, iterator)


# Keras' legacy .h5 format stores the bare class name.
keras.saving.get_custom_objects()["DistributedModel"] = DistributedModel


def _is_per_row(loss):
    rows = GlobalBatch.current(loss).rows
    return bool(loss.shape.rank) and (loss.shape[0] is None or (isinstance(rows, int) and loss.shape[0] == rows))
