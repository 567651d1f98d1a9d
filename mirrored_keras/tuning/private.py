"""Every private name of KerasTuner that `mirrored_keras.tuning` relies on, and why.

`tests/tuning/test_private_names.py` looks each of them up, so that a new version of KerasTuner that moves one fails
there and not in somebody's search. Nothing of KerasTuner is replaced: these classes override what they inherit.
"""

import functools
import os
from concurrent import futures
from typing import Any

import keras
import keras_tuner
import numpy as np

# `Stateful` is the parent of everything that is written as JSON; before it in the order of classes, `save` is ours
from keras_tuner.src.engine import tuner_utils
from keras_tuner.src.engine.stateful import Stateful

from mirrored_keras.tuning import json_files

#: owner -> names; owners are resolved by the test.
PRIVATE_NAMES: dict[str, tuple[str, ...]] = {
    "keras_tuner.src.engine.stateful:Stateful": ("save", "reload"),
    "keras_tuner:Tuner": (
        # overridden: Hyperband's loads weights without the optimizer's state, and a plain model would stay plain
        "_build_hypermodel",
        # called: clears the session, builds, checks type and size
        "_try_build",
        # called: does another process own the oracle?
        "_is_worker",
    ),
    "keras_tuner:Oracle": (
        # overridden: trials write their file without a way to do it at once
        "_save_trial",
        # overridden: raises while it holds the oracle's lock, and counts what does not fit in memory
        "_check_consecutive_failures",
        # called: values that were not tried before
        "_random_values",
        "_duplicate",
        # read: where the files are
        "_project_dir",
        "_get_trial_dir",
    ),
    "keras_tuner.oracles:BayesianOptimizationOracle": (
        # overridden: failed points are unknown to the stock model, which proposes them again
        "_vectorize_trials",
        "_nonfixed_space",
    ),
    # called: order of two points of the grid, which the stock state does not hold
    "keras_tuner.oracles:GridSearchOracle": ("_compare",),
    # KerasTuner's own protocol between chief and workers
    "keras_tuner.src.distribute.oracle_chief:OracleServicer": ("CreateTrial", "EndTrial"),
    "keras_tuner.src.protos:get_service_grpc": (),
    # what it accepts from `fit`; its ranges of hyperparameters in the words of TensorBoard
    "keras_tuner.src.engine.tuner_utils:validate_trial_results": (),
    "keras_tuner.src.engine.tuner_utils:convert_hyperparams_to_hparams": (),
}

#: Attributes that only exist on instances; the test makes one and looks.
PRIVATE_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Oracle": ("_retry_queue",),
    "BayesianOptimizationOracle": ("_random_state",),
    "GridSearchOracle": ("_ordered_ids", "_populate_next"),
    "HyperbandOracle": ("_brackets",),
}


# what a type checker is to know of the classes that the ones below come before
MixedWithTuner: Any = object
MixedWithOracle: Any = object


class SavedWhole(Stateful):
    """Comes last among the bases of tuners and oracles: their state is written at once, and read with its copy."""

    def save(self, fname: str) -> str:
        """Writes the state."""
        return json_files.write(fname, self.get_state())

    def reload(self, fname: str) -> None:
        """Reads the state."""
        self.set_state(json_files.read(fname))


class TunerHooks(MixedWithTuner):
    """What a tuner of KerasTuner calls, and has no public name for."""

    def _build_hypermodel(self, hp: Any) -> keras.Model:
        return self.build_model(hp)

    def build_model(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """Builds the model of a trial."""
        raise NotImplementedError


def try_build(tuner: Any, hp: keras_tuner.HyperParameters) -> keras.Model:
    """Builds and checks the model of a trial, in a session without the models before."""
    return tuner._try_build(hp)


def is_worker(tuner: Any) -> bool:
    """Returns whether another process owns the oracle of a tuner."""
    return tuner._is_worker()


def fatal(error: BaseException) -> Exception:
    """Returns an error of the same class and text that KerasTuner does not take for the failure of one trial.

    Args:
        error: Of this package.
    """
    kind = type(error)
    return type(kind.__name__, (kind, keras_tuner.errors.FatalError), {"__module__": kind.__module__})(*error.args)


def validate_result(result: Any, objective: Any) -> None:
    """Refuses, with an error that ends the search, what KerasTuner does not accept from `HyperModel.fit`."""
    tuner_utils.validate_trial_results(result, objective, "HyperModel.fit()")


def tensorboard_hyperparameters(hp: keras_tuner.HyperParameters) -> dict[Any, Any]:
    """Returns the values of a trial by TensorBoard's objects for their ranges."""
    from tensorboard.plugins.hparams import api

    return tuner_utils.convert_hyperparams_to_hparams(hp, api)


class OracleHooks(MixedWithOracle):
    """What an oracle of KerasTuner calls, and has no public name for."""

    trials: dict[str, Any]
    _retry_queue: list[str]
    #: Whether a process was told that there are no more trials.
    is_exhausted = False

    def _save_trial(self, trial: Any) -> None:
        json_files.write(os.path.join(self.trial_folder(trial.trial_id), "trial.json"), trial.get_state())

    def _check_consecutive_failures(self) -> None:
        pass  # the tuner does, after the oracle has let go of its lock

    def trial_folder(self, trial_id: str) -> str:
        """Returns the folder of a trial, which is made if it is not there."""
        return self._get_trial_dir(trial_id)

    def reload(self, fname: str | None = None) -> None:
        """Reads the state of a search that was stopped at any moment; KerasTuner knows the name of the file."""
        for path in sorted(_trial_files(self._project_dir)):
            json_files.read(path)  # restores a damaged one
        super().reload()
        # begun, but unknown to the oracle, which writes its state afterwards: its number is given out again
        self.trials = {trial_id: self.trials[trial_id] for trial_id in self.start_order if trial_id in self.trials}
        waiting = list(dict.fromkeys(self._retry_queue))
        ended = [t for t in self.trials.values() if t.status in ("COMPLETED", "FAILED")]
        for trial in ended:
            if trial.trial_id not in self.end_order:  # ended, and the oracle was stopped before it wrote that down
                self.end_order.append(trial.trial_id)
        known = {*waiting, *self.end_order}
        # what an error left running, too
        waiting += [trial_id for trial_id in self.trials if trial_id not in known]
        finished = {trial.trial_id for trial in ended}
        # the last one is taken first
        self._retry_queue = [trial_id for trial_id in waiting if trial_id not in finished][::-1]

    @keras_tuner.synchronized
    def give_back(self, tuner_id: str) -> str | None:
        """Puts the trial of a process that has ended among those that wait for one; returns its identifier."""
        trial = self.ongoing_trials.pop(tuner_id, None)
        self.tuner_ids.discard(tuner_id)
        if trial is None:
            return None
        if trial.trial_id not in self._retry_queue:
            self._retry_queue.append(trial.trial_id)
        self.save()
        return trial.trial_id

    def fail(self, trial_id: str, reason: str) -> None:
        """Ends a trial that waits for a process."""
        self._retry_queue = [other for other in self._retry_queue if other != trial_id]
        trial = self.trials[trial_id]
        trial.status, trial.message = "FAILED", reason
        self.end_trial(trial)

    @keras_tuner.synchronized
    def has_trials_left(self) -> bool:
        """Returns whether a process that asks may be given a trial."""
        if self.is_exhausted:
            return False
        open_trials = bool(self._retry_queue) or bool(self.ongoing_trials)
        return open_trials or self.max_trials is None or len(self.trials) < self.max_trials

    def unseen_values(self) -> dict[str, Any] | None:
        """Returns random values that no trial had, `None` if there are no more."""
        return self._random_values()

    def was_tried(self, values: dict[str, Any]) -> bool:
        """Returns whether a trial had these values."""
        return self._duplicate(values)


def _trial_files(folder):
    with os.scandir(folder) as entries:
        for entry in entries:
            path = os.path.join(entry.path, "trial.json")
            if entry.name.startswith("trial_") and os.path.exists(path):
                yield path


class PenalizingBayesianOracle(keras_tuner.oracles.BayesianOptimizationOracle):
    """Bayesian optimization that learns from failures too, and can be had again after a kill."""

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Proposes values."""
        # the stock generator is not in the state: a search that goes on would propose other values
        self._random_state = np.random.RandomState((self.seed + len(self.trials)) % 2**32)
        return super().populate_space(trial_id)

    def _vectorize_trials(self) -> tuple[np.ndarray, np.ndarray]:
        x, y = super()._vectorize_trials()
        failed = [self._vector(t) for t in self.trials.values() if t.status in ("FAILED", "INVALID")]
        if not failed or not len(y):
            return x, y
        # as bad as the worst that was measured: large numbers would drown the differences between the others
        return np.concatenate([x, failed]), np.concatenate([y, np.full(len(failed), np.max(y))])

    def _vector(self, trial):
        known = trial.hyperparameters
        return [
            hp.value_to_prob(known.values[hp.name] if known.is_active(hp) and hp.name in known.values else hp.default)
            for hp in self._nonfixed_space()
        ]


class ContinuedGridOracle(keras_tuner.oracles.GridSearchOracle):
    """Grid search whose place in the grid follows from its trials: the stock state does not hold it."""

    _ordered_ids: Any

    def set_state(self, state: dict[str, Any]) -> None:
        """Sets the state, and finds the place in the grid again."""
        super().set_state(state)
        values = {trial_id: self.trials[trial_id].hyperparameters.values for trial_id in self.start_order}
        order = functools.cmp_to_key(lambda one, other: self._compare(values[one], values[other]))
        self._ordered_ids = type(self._ordered_ids)()
        for trial_id in sorted(self.start_order, key=order):
            self._ordered_ids.insert(trial_id)
        self._populate_next = list(self.start_order)  # those whose successor is there are passed over


def trials_to_continue(oracle: Any) -> set[str]:
    """Returns the trials that Hyperband may still continue."""
    names = set()
    for bracket in getattr(oracle, "_brackets", ()):
        taken = {info["past_id"] for infos in bracket["rounds"][1:] for info in infos}
        names |= {info["id"] for infos in bracket["rounds"][:-1] for info in infos} - taken
    return names


def serve(oracle: Any, *, threads: int) -> tuple[Any, int]:
    """Starts the server of KerasTuner's chief on a free port of this machine.

    Args:
        oracle: The oracle.
        threads: One for each worker.

    Returns:
        The server, with `stop(grace)`, and its port.
    """
    import grpc
    from keras_tuner.src import protos
    from keras_tuner.src.distribute.oracle_chief import OracleServicer

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=threads))
    protos.get_service_grpc().add_OracleServicer_to_server(OracleServicer(oracle), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port
