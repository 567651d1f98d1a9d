"""The part that all tuners share: what a search does around the trials of KerasTuner."""

import contextlib
import inspect
import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import keras_tuner
import tensorflow as tf

from mirrored_keras import DistributedModel, mirrored_strategy
from mirrored_keras.errors import SetupError, TuningError, message
from mirrored_keras.tuning import json_files, private, retention, worker
from mirrored_keras.tuning.best_models import BestModels
from mirrored_keras.tuning.callback_copies import check_callbacks
from mirrored_keras.tuning.options import check_options
from mirrored_keras.tuning.oracles import HonestResults
from mirrored_keras.tuning.outcomes import InfeasibleError
from mirrored_keras.tuning.pruning import Pruner
from mirrored_keras.tuning.results import Results
from mirrored_keras.tuning.trial_record import TrialRecord
from mirrored_keras.tuning.trial_run import TrialRun, is_fatal, reason_of
from mirrored_keras.tuning.worker_group import WorkerGroup, check_groups


class DistributedSearch(BestModels, Results, private.TunerHooks):
    """Comes before a tuner of KerasTuner: each trial is a `DistributedModel`, apart from others, and can be resumed.

    `tuning.RandomSearch` and the like have it; your own tuner is `class MyTuner(tuning.Tuner)`.

    Args:
        *args: Those of the tuner of KerasTuner.
        keep_checkpoints: Of how many trials, the best ones, the weights are kept; `None` for all.
        diverged: What becomes of a trial whose loss or objective ends as NaN or infinity. "fail": it fails;
            "best_epoch": its best finite epoch counts.
        pruner: Stops trials early: `MedianPruner()`, `SuccessiveHalvingPruner()`, or your own.
        workers: Groups of device numbers, each for one process that runs trials: `[[0, 1], [2, 3]]`.
        process_per_trial: Whether every trial has a process of its own, whose memory ends with it.
        **kwargs: Those of the tuner of KerasTuner; `distribution_strategy` is the strategy of every trial.

    Raises:
        SetupError: An option is none of these.
        TuningError: From `search`: no trial was completed, or too many failed one after the other.
        CheckpointError: A search is to go on from files that are damaged.

    Example:
        >>> from mirrored_keras import tuning
        >>> issubclass(tuning.RandomSearch, tuning.DistributedSearch)
        True
    """

    #: Class of the oracle that the tuner makes; `None` if it is given one.
    oracle_class: type[keras_tuner.Oracle] | None = None
    #: A model that does not fit in memory is tried with up to 2**6 micro-batches where its batch size is not known.
    largest_power_of_pieces = 6

    def __init__(
        self,
        *args: Any,
        keep_checkpoints: int | None = None,
        diverged: str = "fail",
        pruner: Pruner | None = None,
        workers: Sequence[Sequence[int]] | None = None,
        process_per_trial: bool = False,
        **kwargs: Any,
    ):
        if self.oracle_class is None:
            args, kwargs = (), _by_name(keras_tuner.Tuner, self, args, kwargs)
        check_options(keep_checkpoints, diverged, pruner)
        self.keep_checkpoints, self.diverged, self.pruner = keep_checkpoints, diverged, pruner
        self.workers = check_groups(workers)
        self.process_per_trial = process_per_trial
        self._building_seed: int | None = None
        if "://" in os.fspath(kwargs.get("directory") or ""):
            raise SetupError(
                message(
                    "A search writes its files on a local file system, where a rename replaces a file at once.",
                    f"directory={os.fspath(kwargs['directory'])!r}",
                    'directory="search", and tf.io.gfile.copy afterwards',
                )
            )
        self._pace = worker.Pace()
        worker.watch_parent()
        with worker.as_member_of(kwargs) as options:
            if self.oracle_class is None:
                self._set_up(**options)
            else:
                oracle, hypermodel, options = self._make_oracle(args, options)
                self._set_up(oracle=oracle, hypermodel=hypermodel, **options)

    def _make_oracle(self, args, kwargs):
        stock = next(c for c in type(self).__mro__ if c.__module__.startswith("keras_tuner."))
        given = inspect.signature(stock.__init__).bind(self, *args, **kwargs).arguments
        options = given.pop("kwargs", {})
        hypermodel = given.pop("hypermodel", None)
        del given["self"]
        self.seed = given.get("seed")
        return self.oracle_class(**given), hypermodel, options

    def _set_up(self, **kwargs):
        if self.workers and kwargs.get("distribution_strategy") is None and worker.devices() is not None:
            # first of all: on the CPU, replicas are made before TensorFlow starts
            kwargs["distribution_strategy"] = mirrored_strategy(len(worker.devices()))
        oracle = kwargs.get("oracle")
        if not isinstance(oracle, HonestResults):
            raise SetupError(
                message(
                    "The oracle of a tuner comes from `mirrored_keras.tuning`, as its files and results do.",
                    f"oracle={type(oracle).__module__}.{type(oracle).__name__}",
                    "tuning.oracles.RandomSearchOracle(...); for your own, class MyOracle(tuning.Oracle): ...",
                )
            )
        # in a worker, `self.oracle` becomes a client that does not tell it
        keras_tuner.Tuner.__init__(self, **kwargs)
        self.search_seed = worker.seed() if worker.seed() is not None else oracle.seed

    # -- the search ------------------------------------------------------------------------------

    def search(self, *args: Any, **kwargs: Any) -> None:
        """Searches; the arguments are those of `fit`, or of your `HyperModel.fit`.

        A search that was stopped, at whatever moment, goes on when the same script runs again with
        `overwrite=False`.

        Args:
            *args: Handed to `fit`.
            **kwargs: Handed to `fit`. `callbacks` is a list of callbacks, which every execution gets copies of, and of
                functions that make one; or a function of a `TrialContext` that returns a list.

        Raises:
            TuningError: No trial was completed, or too many failed one after the other.
            SetupError: A callback cannot be copied, or the models cannot be trained under the strategy.
        """
        if worker.is_for_another_search(self.project_dir):
            return
        check_callbacks(kwargs.get("callbacks"))
        if worker.is_started_by_a_search():
            worker.run(lambda: super(DistributedSearch, self).search(*args, **kwargs))
        elif self.workers or self.process_per_trial:
            if "verbose" in kwargs:
                self.oracle.verbose = kwargs["verbose"]
            self.save()
            WorkerGroup(self, self.workers or [None], one_trial_each=self.process_per_trial).run()
        else:
            super().search(*args, **kwargs)
        if not private.is_worker(self):
            self.check_completed()

    def pre_create_trial(self) -> None:
        """Waits a little in a worker, where the chief may have no trial at the moment."""
        super().pre_create_trial()
        if private.is_worker(self):
            self._pace.wait()

    def on_trial_begin(self, trial: Any) -> None:
        """Reads the exact values of a trial, which KerasTuner's protocol rounds to single precision."""
        super().on_trial_begin(trial)
        if private.is_worker(self):
            path = os.path.join(self.get_trial_dir(trial.trial_id), "trial.json")
            trial.hyperparameters.values = json_files.read(path)["hyperparameters"]["values"]

    def on_search_begin(self) -> None:
        """Writes the state of the search, so that one that is killed in its first trial goes on."""
        super().on_search_begin()
        self.save()

    def on_trial_end(self, trial: Any) -> None:
        """Ends a trial, removes what is not needed any more, and stops a search whose trials all fail."""
        if private.is_worker(self) and trial.message is not None:
            # KerasTuner's protocol has no place for it
            record = TrialRecord(self.get_trial_dir(trial.trial_id))
            if record.content["failure"] is None or record.content["outcome"] is not None:  # an own `run_trial`
                record.fail("failed", trial.message)
        super().on_trial_end(trial)
        if private.is_worker(self):
            worker.end_if_one_trial()
            return
        retention.clean(self)
        self.check_failures()

    def check_failures(self) -> None:
        """Stops a search whose last trials all failed.

        Raises:
            TuningError: As many failed in a row as `max_consecutive_failed_trials` says.
        """
        failed = self.oracle.consecutive_failures()
        if len(failed) >= self.oracle.max_consecutive_failed_trials:
            raise TuningError(
                message(
                    "A search ends when too many trials fail one after the other.",
                    f"max_consecutive_failed_trials={self.oracle.max_consecutive_failed_trials}; "
                    f"trial {failed[0].trial_id}: {failed[0].message}",
                    "correct the error above, or max_consecutive_failed_trials=10",
                )
            )

    def check_completed(self) -> None:
        """Refuses to name a best trial where none was completed.

        Raises:
            TuningError: With the first traceback.
        """
        if self.oracle.get_best_trials(1):
            return
        trials = [self.oracle.trials[trial_id] for trial_id in self.oracle.end_order]
        reason = f"trial {trials[0].trial_id}: {trials[0].message}" if trials else "there was no trial at all"
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes().items() if count)
        raise TuningError(
            message(
                "A search must have a trial that was completed.",
                f"trials={len(trials)} ({counts}); {reason}",
                "correct the error above, and search again: tuner = tuning.RandomSearch(..., overwrite=True)",
            )
        )

    # -- one trial -------------------------------------------------------------------------------

    def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> Any:
        """Trains all executions of a trial; may be overridden as with KerasTuner."""
        run = TrialRun(self, trial)
        try:
            return run.run(args, kwargs)
        except Exception as error:
            reason = reason_of(error)
            run.record.fail("infeasible" if isinstance(error, InfeasibleError) else "failed", reason)
            if isinstance(error, InfeasibleError):
                raise keras_tuner.errors.FailedTrialError(reason) from error
            if is_fatal(error):
                trial.status, trial.message = "FAILED", reason
                self.oracle.end_trial(trial)
                self.save()
                if not isinstance(error, keras_tuner.errors.FatalError):
                    raise private.fatal(error) from error
            raise

    def build_trial(self, hp: keras_tuner.HyperParameters, *, seed: int | None) -> keras.Model:
        """Builds the model of an execution.

        Args:
            hp: The values of the trial.
            seed: From which Python, NumPy, TensorFlow and Keras draw; `None` leaves them alone.
        """
        self._building_seed = seed
        try:
            return private.try_build(self, hp)
        finally:
            self._building_seed = None

    def build_model(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """Builds a model in the scope of the strategy, and makes a plain one a `DistributedModel`.

        Args:
            hp: The values of the trial.
        """
        with keras_tuner.engine.tuner.maybe_distribute(self.distribution_strategy):
            if self._building_seed is not None:
                keras.utils.set_random_seed(self._building_seed)
            model = self.hypermodel.build(hp)
            if isinstance(model, keras.Model) and not isinstance(model, DistributedModel):
                with _scope_of(model):
                    model = DistributedModel.from_model(model, compiled=True)
            self._compile_with_own(model)
        return model

    def _compile_with_own(self, model):
        # KerasTuner's own way reads attributes that an uncompiled model does not have
        given = {"optimizer": self.optimizer, "loss": self.loss, "metrics": self.metrics}
        given = {name: value for name, value in given.items() if value}
        if not given or not isinstance(model, keras.Model):
            return
        if isinstance(given.get("optimizer"), keras.optimizers.Optimizer):  # one for each trial, made in the scope
            given["optimizer"] = keras.optimizers.deserialize(keras.optimizers.serialize(given["optimizer"]))
        before = keras.saving.deserialize_keras_object(model.get_compile_config() or {}) if model.compiled else {}
        model.compile(**{**before, **given})


def _by_name(stock, tuner, args, kwargs):
    given = inspect.signature(stock.__init__).bind(tuner, *args, **kwargs).arguments
    del given["self"]
    options = given.pop("kwargs", {})
    return {**given, **options}


@contextlib.contextmanager
def _scope_of(model: keras.Model) -> Iterator[None]:
    # a build function may have entered the scope of a strategy by itself
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync > 1 and not tf.distribute.has_strategy():
        with strategy.scope():
            yield
    else:
        yield
