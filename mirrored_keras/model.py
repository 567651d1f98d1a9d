"""`DistributedModel`: a drop-in for `keras.Model` whose replicas train as one."""

import contextlib
import functools
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras import own_step
from mirrored_keras.compiled_losses import CompiledLosses, LossTracker
from mirrored_keras.execution import StepRunner
from mirrored_keras.global_batch import GlobalBatch, build_optimizer
from mirrored_keras.replica import private, scope, splitting, startup


@keras.saving.register_keras_serializable(package="mirrored_keras")
class DistributedModel(keras.Model):
    """doc"""

    def __new__(cls, *args: Any, **kwargs: Any) -> "DistributedModel":
        if private.is_functional_call(args, kwargs):
            cls = functional_variant(cls)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any):
        # the names `args` and `kwargs` are part of Keras' rules for reviving a model from its config
        if private.is_functional_call(args, kwargs):
            if not isinstance(self, private.Functional):
                # an own `__init__` that hands inputs and outputs up: `__new__` could not know
                self.__class__ = functional_variant(type(self))
            private.initialize_functional(self, *args, **kwargs)
        else:
            super().__init__(*args, **kwargs)
        self.reports_own_loss = False

    # -- compile ---------------------------------------------------------------------------------

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: Any = "auto",
        auto_scale_loss: bool = True,
    ) -> None:
        """Configures the model for training; arguments and defaults are those of `keras.Model.compile`.

        May be called inside or outside the strategy's scope: what it creates (optimizers, losses and
        metrics given by name, trackers) is created inside.
        """
        scope.check_compile(self, optimizer=optimizer, metrics=(metrics, weighted_metrics))
        with self.distribute_strategy.scope():
            super().compile(
                optimizer=optimizer,
                loss=loss,
                loss_weights=loss_weights,
                metrics=metrics,
                weighted_metrics=weighted_metrics,
                run_eagerly=run_eagerly,
                steps_per_execution=steps_per_execution,
                jit_compile=jit_compile,
                auto_scale_loss=auto_scale_loss,
            )
            compiled = None
            if loss is not None:
                compiled = CompiledLosses(loss, loss_weights, output_names=getattr(self, "output_names", None))
            private.replace_compiled_parts(self, loss_tracker=LossTracker(), compile_loss=compiled)
            if self.built and self.optimizer is not None and self.distribute_strategy.num_replicas_in_sync > 1:
                # inside a replica it is too late for a hand-written loop to create slots
                build_optimizer(self.optimizer, self.trainable_variables)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles with what `get_compile_config` wrote, inside the strategy's scope.

        Args:
            config: Serialised arguments of `compile`.
        """
        if type(self).compile is not DistributedModel.compile:
            super().compile_from_config(config)
            return
        with self.distribute_strategy.scope():
            self.compile(**keras.saving.deserialize_keras_object(config))
            if self.optimizer is not None and self.built:
                build_optimizer(self.optimizer, self.trainable_variables)

    # -- the step, on one replica ----------------------------------------------------------------

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> tf.Tensor:
        """Returns the loss of this replica, L_r, in "mean of this replica's rows" units."""
        active = GlobalBatch.active()
        if active is not None:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        with GlobalBatch(y_pred if x is None else x):
            return super().compute_loss(x, y, y_pred, sample_weight, training)

    def _aggregate_additional_loss(self, loss: tf.Tensor) -> tf.Tensor:
        # Already in "mean of rows" units: a penalty on weights is the same on every replica and
        # sum_r (B / G) * penalty = penalty; an added mean over rows weighs B / G by itself.
        loss = loss if loss.dtype.is_floating else tf.cast(loss, keras.config.floatx())
        return keras.ops.sum(loss)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Runs forward, backward and update for this replica's part of one global batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        batch = GlobalBatch.current(x)
        with batch, tf.GradientTape() as tape:
            y_pred = self._forward(x, training=True)
            loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            share = batch.share(loss)
            if self.optimizer is not None:
                share = self.optimizer.scale_loss(share)
        private.loss_tracker(self).add(loss, batch)
        variables = self.trainable_weights
        if variables:
            batch.apply_gradients(self.optimizer, tape.gradient(share, variables), variables)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Runs forward and metrics for this replica's part of one global batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        batch = GlobalBatch.current(x)
        with batch:
            y_pred = self._forward(x, training=False)
            loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False)
        private.loss_tracker(self).add(loss, batch)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def _forward(self, x, *, training):
        return self(x, training=training) if private.call_has_training_argument(self) else self(x)

    # -- the step, on all replicas ---------------------------------------------------------------

    def make_train_function(self, force: bool = False) -> Any:
        """Makes the function that runs `train_step` on all replicas; see `StepRunner`."""
        if self.train_function is None or force:
            own = type(self).train_step is not DistributedModel.train_step
            around = functools.partial(own_step.guided, self) if own else contextlib.nullcontext
            self.train_function = StepRunner(self, step=self._noting_own_loss(self.train_step), around=around)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        """Makes the function that runs `test_step` on all replicas; see `StepRunner`."""
        if self.test_function is None or force:
            self.test_function = StepRunner(self, step=self._noting_own_loss(self.test_step))
        return self.test_function

    def _noting_own_loss(self, step):
        def noted(_, data):
            tracker = private.loss_tracker(self)
            tracker.was_updated = False
            outputs = step(data)
            own = isinstance(outputs, dict) and "loss" in outputs and not tracker.was_updated
            others = [m for m in self.metrics if m is not tracker and m.name == "loss"]
            self.reports_own_loss = own and not others
            return outputs

        return noted

    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        # Keras would replace the step's own `loss` by the tracker that the step never updated.
        return logs if self.reports_own_loss and logs else super()._get_metrics_result_or_logs(logs)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Stock draws a batch and averages it over the replicas; shapes are all that is needed.
        if private.strategy_of_model(self) is None:
            return
        spec = private.element_spec_of(iterator) if iterator is not None else data_batch
        with self.distribute_strategy.scope():
            self._symbolic_build(data_batch=startup.shapes_of(spec))


def functional_variant(cls: type) -> type:
    """Returns the class of functional models of `cls`: the same class with Keras' `Functional` behind it.

    `keras.Model` would rewrite the bases of `cls` and of all its parents in place at the first functional
    use, after which no subclass with an own `call` works.

    Args:
        cls: `DistributedModel` or a subclass.

    Returns:
        A subclass of `cls` under the same name, made once.
    """
    if issubclass(cls, private.Functional):
        return cls
    variant = cls.__dict__.get("_functional_variant")
    if variant is None:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        variant = type(cls)(cls.__name__, (cls, private.Functional), names)
        cls._functional_variant = variant
        registered = keras.saving.get_registered_name(cls)
        if ">" in registered:
            package, name = registered.split(">", 1)
            keras.saving.register_keras_serializable(package, name)(variant)
            keras.saving.get_custom_objects()[registered] = cls
    return variant


# Keras' legacy .h5 format stores the bare class name.
keras.saving.get_custom_objects()["DistributedModel"] = DistributedModel
