"""The models of the best trials, with the optimizer of their best epoch, under any strategy."""

import logging
import os
from typing import Any

import keras
import keras_tuner
import tensorflow as tf

from mirrored_keras import load_weights
from mirrored_keras.errors import CheckpointError, message
from mirrored_keras.tuning import json_files
from mirrored_keras.tuning.best_epoch import FILE
from mirrored_keras.tuning.private import MixedWithTuner

_LOG = logging.getLogger(__name__)


class BestModels(MixedWithTuner):
    """What a tuner gives out when its search is over."""

    distribution_strategy: tf.distribute.Strategy | None

    def load_model(self, trial: Any) -> keras.Model:
        """Builds the model of a trial with the weights of its best epoch, and the optimizer of that epoch.

        Args:
            trial: Of this search.

        Raises:
            CheckpointError: The checkpoint is damaged, or was not kept.
        """
        model = self.build_trial(trial.hyperparameters, seed=None)
        folder = self.get_trial_dir(trial.trial_id)
        if not model.built:
            self._build_weights(model, json_files.read(os.path.join(folder, "build_config.json")))
        path = os.path.join(folder, FILE)
        if not os.path.exists(path):
            raise CheckpointError(
                message(
                    "The weights of a trial are read from its checkpoint.",
                    f"path={path!r}, which is not there; keep_checkpoints={self.keep_checkpoints}",
                    f"tuner.get_best_models({self.keep_checkpoints or 1}); or train tuner.get_best_hyperparameters()",
                )
            )
        self.restore(model, path)
        return model

    def _build_weights(self, model, config):
        shapes = (config or {}).get("input_shape")
        if shapes is None:
            model.build_from_config(config)
            return
        with keras_tuner.engine.tuner.maybe_distribute(self.distribution_strategy):
            # called, not only built: a subclassed model has weights where its `call` has them
            model(keras.tree.map_shape_structure(lambda shape: keras.ops.zeros((1, *shape[1:])), shapes))

    def restore(self, model: keras.Model, path: str) -> None:
        """Sets the weights and, if the file has it, the state of the optimizer of a model.

        Args:
            model: Built and compiled as then.
            path: A checkpoint of a trial.
        """
        load_weights(model, path)

    def get_best_models(
        self, num_models: int = 1, *, strategy: tf.distribute.Strategy | None = None
    ) -> list[keras.Model]:
        """Returns the best models, ready to go on training: with the weights and the optimizer of their best epoch.

        Args:
            num_models: How many.
            strategy: Where they are to live; that of the search if `None`.

        Returns:
            The best first. A trial whose checkpoint is damaged is passed over, with a warning.

        Raises:
            CheckpointError: There are fewer checkpoints, since `keep_checkpoints` is less than `num_models`.
            TuningError: No trial was completed.
        """
        self.check_completed()
        models: list[keras.Model] = []
        own = self.distribution_strategy
        self.distribution_strategy = strategy or own
        try:
            for trial in self.oracle.get_best_trials(len(self.oracle.trials)):
                if len(models) == num_models:
                    break
                try:
                    models.append(self.load_model(trial))
                except CheckpointError as error:
                    if "which is not there" in str(error):
                        raise
                    _LOG.warning("trial %s is passed over: %s", trial.trial_id, error)
        finally:
            self.distribution_strategy = own
        return models

    def get_best_hyperparameters(self, num_trials: int = 1) -> list[keras_tuner.HyperParameters]:
        """Returns the values of the best trials, the best first; never of one that failed.

        Args:
            num_trials: How many.

        Raises:
            TuningError: No trial was completed.
        """
        self.check_completed()
        return super().get_best_hyperparameters(num_trials)
