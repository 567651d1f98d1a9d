"""A process that a search has started: it runs the same script, takes trials from the search, and ends with it."""

import functools
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mirrored_keras.tuning import json_files

#: Variable of the environment that makes a process a worker: JSON of what `WorkerGroup` tells it.
SETTINGS = "MIRRORED_KERAS_WORKER"
#: KerasTuner's own, by which its tuners find their chief.
ADDRESS = ("KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT", "KERASTUNER_TUNER_ID")
_SECONDS_BETWEEN_LOOKS = 0.5


def settings() -> dict[str, Any] | None:
    """Returns what this process was told by the search that started it, `None` in any other process."""
    text = os.environ.get(SETTINGS)
    return None if text is None else json.loads(text)


def is_started_by_a_search() -> bool:
    """Returns whether this process is a worker."""
    return settings() is not None


def is_for_another_search(project_dir: str) -> bool:
    """Returns whether this process is a worker of another search than that in a folder.

    Args:
        project_dir: Of the tuner that asks.
    """
    found = settings()
    return found is not None and found["project"] != os.path.abspath(project_dir)


def devices() -> list[int] | None:
    """Returns the numbers of the devices of this worker, `None` if it was given none."""
    found = settings()
    return None if found is None else found["devices"]


def seed() -> int | None:
    """Returns the seed of the search, which the worker's own oracle does not know; `None` in any other process."""
    found = settings()
    return None if found is None else found["seed"]


@contextmanager
def as_member_of(search: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Gives the options with which a tuner is made in a process that may be a worker.

    A worker runs the whole script, in which other tuners may be made: they read their own files, and do not take the
    chief of this search for theirs. None of them may remove files.

    Args:
        search: Options of the tuner.

    Yields:
        The options.
    """
    if settings() is None:
        yield dict(search)
        return
    folder = os.path.join(os.fspath(search.get("directory") or "."), search.get("project_name") or "untitled_project")
    hidden = {name: os.environ.pop(name) for name in ADDRESS} if is_for_another_search(folder) else {}
    try:
        yield {**search, "overwrite": False}
    finally:
        os.environ.update(hidden)


@functools.cache  # once for a process, whatever the number of tuners
def watch_parent() -> None:
    """Ends this process, if it is a worker, within a second of the one that started it."""
    found = settings()
    if found is None:
        return

    def watch():
        while os.getppid() == found["parent"]:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        print("The search that started this worker has ended.", file=sys.stderr, flush=True)
        # the main thread may be in a training step, or wait for the chief for an hour
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="watch_parent", daemon=True).start()


def run(search: Callable[[], None]) -> None:
    """Runs the part of a search that is a worker's, and ends the process.

    Args:
        search: Takes trials until there are none.

    Raises:
        SystemExit: Always: what comes after `search` in the script is for the process that started this one.
    """
    found = settings() or {}
    try:
        search()
    except Exception:
        json_files.write(found["error"], {"traceback": traceback.format_exc()}, copy=False)
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0)


def end_if_one_trial() -> None:
    """Ends a worker that was to run one trial."""
    found = settings()
    if found is not None and found["one_trial"]:
        sys.exit(0)


class Pace:
    """Keeps a worker from asking its chief without a pause, where that has no trial at the moment."""

    def __init__(self) -> None:
        self._asked = 0.0

    def wait(self) -> None:
        """Waits if the last question was just now."""
        if time.monotonic() - self._asked < 0.5:
            time.sleep(0.2)
        self._asked = time.monotonic()
