"""One trial: its executions, each with a model, a seed and callbacks of its own."""

import copy
import gc
import os
import shutil
import traceback
from typing import Any

import keras
import keras_tuner
import tensorflow as tf

from mirrored_keras.errors import MirroredKerasError, SetupError
from mirrored_keras.tuning import json_files, private, space, trial_resume
from mirrored_keras.tuning.best_epoch import FILE, BestEpoch
from mirrored_keras.tuning.callback_copies import callbacks_for
from mirrored_keras.tuning.hparams import hparams_callbacks
from mirrored_keras.tuning.outcomes import InfeasibleError, NotFiniteError, checked_result, is_out_of_memory
from mirrored_keras.tuning.pruning import PruningCallback
from mirrored_keras.tuning.trial_context import TrialContext, seed_of
from mirrored_keras.tuning.trial_record import TrialRecord


class EarlierFailure(Exception):
    """What a trial failed of before its process was killed."""


class TrialRun:
    """Runs the executions of one trial for a tuner.

    Args:
        tuner: The tuner.
        trial: The trial.
    """

    def __init__(self, tuner: Any, trial: Any):
        self._tuner, self._trial = tuner, trial
        self._folder = tuner.get_trial_dir(trial.trial_id)
        self.record = TrialRecord(self._folder)

    def run(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
        """Trains all executions that are not finished.

        Args:
            arguments: Of `search`.
            options: Of `search`.

        Returns:
            The results of all executions.

        Raises:
            NotFiniteError: An objective is no finite number.
            InfeasibleError: The model does not fit into memory.
        """
        values = self._trial.hyperparameters.values
        if "tuner/epochs" in values:
            options = {**options, "epochs": values["tuner/epochs"], "initial_epoch": values["tuner/initial_epoch"]}
        if self.record.content["outcome"] in ("failed", "infeasible"):
            trial_resume.remove_states(self._folder)
            self.record.begin_again()
        failure = self.record.content["failure"]
        if failure is not None:  # killed before the oracle heard of it
            raise {"failed": EarlierFailure, "infeasible": InfeasibleError}[failure["kind"]](failure["reason"])
        results = []
        for execution in range(self._tuner.executions_per_trial):
            result = self.record.result_of(execution)
            if result is None:
                result = self._run_execution(self._context(execution), arguments, options)
                self.record.finish_execution(execution, result)
            results.append(checked_result(result, self._tuner.oracle.objective, diverged=self._tuner.diverged))
            if self.record.content["reason"] is not None:  # a pruner has stopped it
                break
        stopped = self.record.content["reason"]
        self.record.end("completed" if stopped is None else "stopped", stopped)
        return results

    def _context(self, execution):
        trial = self._trial
        seed = seed_of(
            self._tuner.search_seed,
            trial.trial_id,
            execution=execution,
            attempt=self.record.content["attempt"],
        )
        folder = os.path.join(self._folder, f"execution{execution}")
        return TrialContext(trial.trial_id, execution, trial.hyperparameters, folder=folder, seed=seed)

    def _run_execution(self, context, arguments, options):
        self.record.begin_execution(context.execution, context.seed)
        while True:
            try:
                return self._fit_once(context, arguments, options)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._take_smaller_pieces(error, options)
            # outside of the handler, whose traceback holds the model
            trial_resume.remove_states(self._folder)
            gc.collect()

    def _take_smaller_pieces(self, error, options):
        count = 2 * self.record.content["micro_batches"]
        batch = space.batch_size_in(self._trial.hyperparameters.values, options)
        strategy = self._tuner.distribution_strategy
        replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        rows = 2**self._tuner.largest_power_of_pieces if batch is None else -(-batch // replicas)
        if not self._built or count > rows:
            raise InfeasibleError(
                f"Too big for the memory, with {count // 2} micro-batches: {type(error).__name__}: {str(error)[:300]}"
            ) from error
        self.record.content["micro_batches"] = count
        self.record.save()

    _built = False

    def _fit_once(self, context, arguments, options):
        self._built = False
        hp = context.hyperparameters
        model = self._tuner.build_trial(hp, seed=context.seed)
        self._continue_past_trial(context, model)
        self._built = True
        self._set_micro_batches(model)
        options = copy.copy(options)
        os.makedirs(context.folder, exist_ok=True)
        callbacks = callbacks_for(options.pop("callbacks", None), context)
        callbacks += hparams_callbacks(callbacks, context)
        objective = self._tuner.oracle.objective
        callbacks += [_TunerCallback(self._tuner, self._trial), BestEpoch(objective, self.record, context)]
        if self._tuner.pruner is not None:
            callbacks.append(PruningCallback(self._tuner.pruner, self.record, context, objective))
        callbacks.append(trial_resume.TrialResume(context))
        options = space.with_batch_size(self._tuner.hypermodel, hp, arguments, options)
        result = self._tuner.hypermodel.fit(hp, model, *arguments, callbacks=callbacks, **options)
        private.validate_result(result, objective)
        # a model without a graph is built by its first batch
        json_files.write(os.path.join(self._folder, "build_config.json"), model.get_build_config(), copy=False)
        return result

    def _set_micro_batches(self, model):
        count = self.record.content["micro_batches"]
        if count > 1:
            try:
                model.micro_batches = count
            except SetupError as error:  # with an own `train_step`, or draws by row
                raise InfeasibleError(f"Too big for the memory, and not to be cut into pieces: {error}") from error

    def _continue_past_trial(self, context, model):
        past = context.hyperparameters.values.get("tuner/trial_id")
        if past is None:
            return
        past_folder = self._tuner.get_trial_dir(past)
        checkpoint = os.path.join(self._folder, FILE)
        if self.record.content["weights"] is None and os.path.exists(os.path.join(past_folder, FILE)):
            # until an epoch is better, the best one is of the past trial
            shutil.copyfile(os.path.join(past_folder, FILE), checkpoint)
            weights = TrialRecord(past_folder).content["weights"]
            self.record.content["weights"] = None if weights is None else {**weights, "trial_id": past}
            self.record.save()
        if not trial_resume.continue_from(past_folder, self._folder, context.execution) and os.path.exists(checkpoint):
            self._tuner.restore(model, checkpoint)  # of stock KerasTuner, or an own `fit` that uses no callbacks


class _TunerCallback(keras.callbacks.Callback):
    """Calls the hooks `on_epoch_begin` and the like of a tuner."""

    def __init__(self, tuner, trial):
        super().__init__()
        self._tuner, self._trial = tuner, trial
        own = type(tuner)
        if own.on_batch_begin is not keras_tuner.Tuner.on_batch_begin:
            self.on_train_batch_begin = self._batch_begin
        if own.on_batch_end is not keras_tuner.Tuner.on_batch_end:
            self.on_train_batch_end = self._batch_end

    def on_epoch_begin(self, epoch, logs=None):
        self._tuner.on_epoch_begin(self._trial, self.model, epoch, logs=logs)

    def on_epoch_end(self, epoch, logs=None):
        self._tuner.on_epoch_end(self._trial, self.model, epoch, logs=logs)

    def _batch_begin(self, batch, logs=None):
        self._tuner.on_batch_begin(self._trial, self.model, batch, logs)

    def _batch_end(self, batch, logs=None):
        self._tuner.on_batch_end(self._trial, self.model, batch, logs)

    def get_state(self):
        return None

    def set_state(self, state):
        pass


def reason_of(error: BaseException) -> str:
    """Returns the text that a failed trial keeps: its traceback, or one line where that says it all.

    Args:
        error: What ended the trial.
    """
    if isinstance(error, (NotFiniteError, InfeasibleError, EarlierFailure)):
        return str(error)
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def is_fatal(error: BaseException) -> bool:
    """Returns whether an error would end every other trial too: those of KerasTuner that say so, and set-up errors.

    Args:
        error: What ended a trial.
    """
    return isinstance(error, (keras_tuner.errors.FatalError, MirroredKerasError)) and not isinstance(
        error, tf.errors.OpError
    )
