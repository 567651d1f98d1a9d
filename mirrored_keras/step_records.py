"""What steps note about themselves on request: rows, denominators, updates, and the time they waited for a batch.

Notes are put into queues by the graph of the step, and read from Python whenever that is convenient: nothing waits
for them, and steps that run in one graph have one note each.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

_NOTES = threading.local()  # every replica runs in a thread of its own


@contextlib.contextmanager
def noting() -> Iterator[dict[str, tf.Tensor]]:
    """Lets losses note what they are divided by, inside the block and in this thread.

    Yields:
        Name of output or loss -> D, filled while the block runs.
    """
    before, _NOTES.found = getattr(_NOTES, "found", None), {}
    try:
        yield _NOTES.found
    finally:
        _NOTES.found = before


def are_noted() -> bool:
    """Returns whether denominators are noted in this thread."""
    return getattr(_NOTES, "found", None) is not None


def note_denominator(name: str, denominator: tf.Tensor | None) -> None:
    """Notes what a loss is divided by; costs nothing where nobody asked for it.

    Args:
        name: Of the output, or of the loss.
        denominator: D of the global batch; `None` for a loss that is divided by nothing, which counts as 1.
    """
    if are_noted():
        _NOTES.found[name] = tf.constant(1.0, tf.float64) if denominator is None else tf.cast(denominator, tf.float64)


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """What one step noted.

    Attributes:
        rows: B of every replica.
        denominators: Name of output or loss -> D.
        updates: Updates that the optimizer has made so far; `None` without an optimizer.
        loss_scale: The scale after the step; `None` without a scaling optimizer.
    """

    rows: tuple[int, ...]
    denominators: Mapping[str, float]
    updates: int | None
    loss_scale: float | None


class StepRecords:
    """The notes of a model's steps, from `StepRunner.start_records`.

    Args:
        model: The model; its optimizer is read after every step.
    """

    def __init__(self, model: Any):
        self._model = model
        self._names: tuple[str, ...] = ()
        # queues without limit: a step never waits for its reader
        self._steps = tf.queue.FIFOQueue(-1, [tf.string], shapes=[()])
        self._waits = tf.queue.FIFOQueue(-1, [tf.float64], shapes=[()])

    def now(self) -> tf.Tensor:
        """Returns the time at which the graph is where it is."""
        return tf.timestamp()

    def now_updated(self) -> tf.Tensor:
        """Returns the time at which the update of a step is done, as far as its weights tell."""
        weights = self._model.trainable_variables
        # the gradient of the first layer is the last one that a backward pass finds
        done = [tf.convert_to_tensor(weights[0].value)] if weights else []
        with tf.control_dependencies(done):
            return tf.timestamp()

    def note_wait(self, start: tf.Tensor, batch: tf.Tensor) -> None:
        """Notes how long a step waited for its batch.

        Args:
            start: The time from which on it could have used the batch.
            batch: A number that is there once the batch is.
        """
        with tf.control_dependencies([batch]):
            self._waits.enqueue(tf.maximum(tf.timestamp() - start, 0.0))

    def note_step(self, rows: Sequence[Any], denominators: Mapping[str, tf.Tensor]) -> None:
        """Notes a step that has run on all replicas.

        Args:
            rows: B of every replica.
            denominators: Name -> D.
        """
        self._names = tuple(denominators)
        updates, loss_scale = _state_of(self._model.optimizer)
        numbers = [*rows, updates, loss_scale, *denominators.values()]
        # a text keeps the number of numbers open
        line = tf.io.serialize_tensor(tf.stack([tf.cast(number, tf.float64) for number in numbers]))
        self._steps.enqueue(line)

    def read_steps(self) -> list[StepRecord]:
        """Returns what steps have noted since the last call, in their order."""
        return (
            [self._read(line) for line in self._steps.dequeue_many(self._steps.size()).numpy()] if self._has() else []
        )

    def read_waits(self) -> list[float]:
        """Returns the seconds that steps have waited for batches since the last call."""
        return self._waits.dequeue_many(self._waits.size()).numpy().tolist()

    def _has(self):
        return int(self._steps.size()) > 0

    def _read(self, line):
        numbers = tf.io.parse_tensor(line, tf.float64).numpy()
        replicas = len(numbers) - len(self._names) - 2
        updates, loss_scale = numbers[replicas : replicas + 2]
        return StepRecord(
            rows=tuple(int(count) for count in numbers[:replicas]),
            denominators=dict(zip(self._names, map(float, numbers[replicas + 2 :]), strict=True)),
            updates=None if updates < 0 else int(updates),
            loss_scale=None if loss_scale < 0 else float(loss_scale),
        )


def _state_of(optimizer):
    """Returns the number of updates and the loss scale after a step, -1 where there is none."""
    if optimizer is None or not optimizer.built:
        return -1.0, -1.0
    scale = getattr(optimizer, "dynamic_scale", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    iterations = tf.convert_to_tensor(getattr(inner.iterations, "value", inner.iterations))
    return iterations, -1.0 if scale is None else tf.convert_to_tensor(scale.value)
