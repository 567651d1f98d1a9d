"""Processes that run the trials of a search: started, watched and ended by it, through KerasTuner's own protocol."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from mirrored_keras.errors import SetupError, TuningError, message
from mirrored_keras.tuning import json_files, private, retention, worker
from mirrored_keras.tuning.trial_record import TrialRecord

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_END = 10.0
#: So often a trial may lose its process; then it fails, since it may be what ends the process.
_LOST_WORKERS = 3


class WorkerGroup:
    """One process for each group of devices, or for each trial.

    Args:
        tuner: With the oracle in this process.
        groups: Device numbers for each process; `None` for those that the script chooses.
        one_trial_each: Whether a process ends after a trial, and another one follows.
    """

    def __init__(self, tuner: Any, groups: Sequence[Sequence[int] | None], *, one_trial_each: bool):
        self._tuner, self._oracle = tuner, tuner.oracle
        self._groups, self._one_trial_each = list(groups), one_trial_each
        self._folder = pathlib.Path(tuner.project_dir, "workers")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._requests: dict[int, int] = {}
        self._cleaned = -1

    def run(self) -> None:
        """Runs trials until there are none.

        Raises:
            TuningError: A worker has ended with an error, or too many trials failed one after the other.
            SetupError: This program cannot be started again.
        """
        check_command()
        self._folder.mkdir(parents=True, exist_ok=True)
        server, self._port = private.serve(self._oracle, threads=len(self._groups) + 1)
        try:
            for index in range(len(self._groups)):
                self._start(index)
            while self._processes:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                for index, process in list(self._processes.items()):
                    if process.poll() is not None:
                        self._after(index, process.returncode)
                self._look_at_trials()
        finally:
            self._end_all()
            server.stop(grace=None)

    def _start(self, index):
        name = f"worker{index}"
        devices = self._groups[index]
        error = self._folder / f"{name}.error.json"
        error.unlink(missing_ok=True)
        settings = {
            "parent": os.getpid(),
            "project": os.path.abspath(self._tuner.project_dir),
            "seed": self._tuner.search_seed,
            "devices": None if devices is None else list(devices),
            "one_trial": self._one_trial_each,
            "error": os.fspath(error),
        }
        address = dict(zip(worker.ADDRESS, ("127.0.0.1", str(self._port), name), strict=True))
        environment = {**os.environ, **address, worker.SETTINGS: json.dumps(settings), **visible_devices(devices)}
        self._requests[index] = self._oracle.requests[name]
        with open(self._folder / f"{name}.log", "ab") as log:
            self._processes[index] = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _after(self, index, code):
        del self._processes[index]
        name = f"worker{index}"
        error = self._folder / f"{name}.error.json"
        if error.exists():
            self._refuse(name, code, json_files.read(error)["traceback"])
        if code == 0:
            if self._oracle.requests[name] == self._requests[index]:
                self._refuse(name, code, "it did not come to `search`")
            if self._oracle.has_trials_left():
                self._start(index)
            return
        if code > 0 and self._oracle.requests[name] == self._requests[index]:
            self._refuse(name, code, self._last_words(name))
        trial_id = self._oracle.give_back(name)
        if trial_id is not None:
            self._count_loss(trial_id, code, name)
        self._start(index)

    def _count_loss(self, trial_id, code, name):
        record = TrialRecord(self._oracle.trial_folder(trial_id))
        record.content["lost_workers"] += 1
        record.save()
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        print(f"Trial {trial_id} waits for another process: {name} was ended by {cause}.", file=sys.stderr)
        if record.content["lost_workers"] >= _LOST_WORKERS:
            reason = (
                f"Its process was ended {record.content['lost_workers']} times, the last time by {cause}; the system "
                f"may have run out of memory. Last lines of its output:\n{self._last_words(name)}"
            )
            record.fail("failed", reason)
            self._oracle.fail(trial_id, reason)

    def _look_at_trials(self):
        ended = len(self._oracle.end_order)
        if ended != self._cleaned:
            self._cleaned = ended
            retention.clean(self._tuner)
            self._tuner.check_failures()

    def _last_words(self, name):
        text = (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-20:])

    def _refuse(self, name, code, why):
        raise TuningError(
            message(
                "A worker process runs the same script, and takes trials until there are none.",
                f"{name} ended with code {code}: {why}",
                f"correct the error above; all that it printed is in {os.fspath(self._folder / (name + '.log'))!r}",
            )
        )

    def _end_all(self):
        for process in self._processes.values():
            process.terminate()
        until = time.monotonic() + _SECONDS_TO_END
        for process in self._processes.values():
            try:
                process.wait(timeout=max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def check_groups(workers: Any) -> list[list[int]] | None:
    """Returns the groups of devices as lists.

    Args:
        workers: What the tuner was given.

    Raises:
        SetupError: They are no groups of different device numbers.
    """
    if workers is None:
        return None
    try:
        groups = [list(group) for group in workers]
        numbers = [number for group in groups for number in group]
        right = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)
        right = right and bool(groups) and all(groups) and len(set(numbers)) == len(numbers)
    except TypeError:
        right = False
    if not right:
        raise SetupError(
            message(
                "`workers` is a list with the device numbers of each process, every number once.",
                f"workers={workers!r}",
                "tuning.RandomSearch(..., workers=[[0, 1], [2, 3]])",
            )
        )
    return groups


def check_command() -> None:
    """Refuses programs that cannot be started a second time.

    Raises:
        SetupError: It is a notebook, an interactive session, or comes from the standard input.
    """
    interactive = hasattr(sys, "ps1") or "ipykernel" in sys.modules
    if interactive or len(sys.orig_argv) < 2 or sys.orig_argv[-1] == "-":
        raise SetupError(
            message(
                "Worker processes run the same script again, so there must be one.",
                f"command={sys.orig_argv}",
                "python search.py, or without `workers` and `process_per_trial`",
            )
        )


def visible_devices(devices: Sequence[int] | None) -> dict[str, str]:
    """Returns the variable that shows a worker its GPUs, if there are any.

    Args:
        devices: Physical ids.

    Raises:
        SetupError: They are hidden from this process.
    """
    known = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices is None or known in ("", "-1"):
        return {}
    if known is not None and not {str(n) for n in devices} <= {part.strip() for part in known.split(",")}:
        raise SetupError(
            message(
                "Devices of workers are physical ids of GPUs that `CUDA_VISIBLE_DEVICES` lets through.",
                f"devices={list(devices)}, CUDA_VISIBLE_DEVICES={known!r}",
                f"workers=[[{known}]]",
            )
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(number) for number in devices)}
