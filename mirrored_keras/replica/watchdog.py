"""Ends a wait for workers that do not come along, and says so: a collective by itself waits for ever."""

import contextlib
import threading
import time
from collections.abc import Iterator

import tensorflow as tf

from mirrored_keras.errors import CollectiveError, message
from mirrored_keras.replica import private

#: How long a step, or a look at the other workers, may take before it counts as hung.
DEFAULT_SECONDS = 600.0
_SECONDS_BETWEEN_LOOKS = 0.25
_OF_PEERS = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.InvalidArgumentError,
    tf.errors.FailedPreconditionError,
)


class _Watch:
    """What the process waits for now, looked at by one thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waits: list[tuple[float, float, str]] = []  # deadline, seconds, what; the outermost first
        self.fired: str | None = None
        self.thread: threading.Thread | None = None

    def look(self) -> None:
        while True:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            with self.lock:
                late = [wait for wait in self.waits if wait[0] < time.monotonic()]
                if not late or self.fired:
                    continue
                self.fired = f"{late[-1][2]} has taken more than {late[-1][1]:g} s"
            private.abort_collectives(f"mirrored_keras: {self.fired}")


_WATCH = _Watch()


def limit_of(strategy: tf.distribute.Strategy) -> float:
    """Returns the seconds after which a step counts as hung.

    Args:
        strategy: A strategy of several workers.
    """
    return float(getattr(strategy, "mirrored_keras_timeout", DEFAULT_SECONDS))


def set_limit(strategy: tf.distribute.Strategy, seconds: float) -> None:
    """Sets what `limit_of` returns.

    Args:
        strategy: The strategy.
        seconds: The limit.
    """
    strategy.mirrored_keras_timeout = seconds


@contextlib.contextmanager
def loss_of_workers_named(strategy: tf.distribute.Strategy, what: str) -> Iterator[None]:
    """Names what other workers have to do with an error of the block, however long it takes.

    Args:
        strategy: The strategy.
        what: What runs inside, for the message.

    Yields:
        Nothing.

    Raises:
        CollectiveError: A worker has gone or does something else.
    """
    try:
        yield
    except _OF_PEERS as error:
        if not private.in_multi_worker_mode(strategy) or not (_WATCH.fired or _is_of_peers(error)):
            raise
        raise _explained(error, what) from error


@contextlib.contextmanager
def watched(strategy: tf.distribute.Strategy, what: str) -> Iterator[None]:
    """Bounds the time of what runs inside the block, and names what other workers have to do with its errors.

    Nothing is watched where there is one worker.

    Args:
        strategy: The strategy.
        what: What runs inside, for the message.

    Yields:
        Nothing.

    Raises:
        CollectiveError: The block has waited too long, or a worker has gone or does something else.
    """
    if not private.in_multi_worker_mode(strategy):
        yield
        return
    seconds = limit_of(strategy)
    wait = (time.monotonic() + seconds, seconds, what)
    with _WATCH.lock:
        if _WATCH.thread is None:
            _WATCH.thread = threading.Thread(target=_WATCH.look, name="mirrored_keras watchdog", daemon=True)
            _WATCH.thread.start()
        _WATCH.waits.append(wait)
    try:
        with loss_of_workers_named(strategy, what):
            yield
    finally:
        with _WATCH.lock:
            _WATCH.waits.remove(wait)


def _cause(text):
    # TensorFlow puts the cause behind the place in the graph, or behind where it was noticed
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line.partition("aborted by: ")[2] for line in lines if "aborted by: " in line]
    lost = [line for line in lines if line.startswith("/job:")]
    return " ".join([*(named[:1] or lines[:1]), *lost[:1]])[:300]


def _is_of_peers(error):
    text = str(error)
    signs = ("ollective", "heartbeat", "/job:", "oordination", "Connection", "Socket", "socket", "ancelled")
    if isinstance(error, (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError)):
        return "ollective" in text and "Detected at node" not in text.split("ollective")[0]
    return any(sign in text for sign in signs)


def _explained(error, what):
    if _WATCH.fired is not None:
        return CollectiveError(
            message(
                "Every worker must run the same calls of `fit`, `evaluate`, `predict` and metrics, in the same order; "
                "one that runs them alone waits for the others.",
                f"{_WATCH.fired}",
                "call it on every worker, and leave only files to the chief; "
                "multi_worker_strategy(timeout_seconds=...) if a worker may really take so long",
            )
        )
    return CollectiveError(
        message(
            "All workers train together; one has ended, failed, or runs something else, and this process cannot go on "
            "without it.",
            f"{what}: {type(error).__name__}: {_cause(str(error))}",
            "look for the first error of the other workers; then start all of them again: "
            "mirrored-keras launch --workers 2 --max-restarts 3 train.py, with Resume(folder) among the callbacks",
        )
    )
