"""Where a `fit` stands in its data: counted while it runs, and found again in another process."""

from collections.abc import Callable, Iterator
from typing import Any

from mirrored_keras.checkpoint.sources import Source
from mirrored_keras.replica import private


class Position:
    """Counts the passes that a `fit` makes over its data, and enters them where another process left off.

    Keras asks for an iterator at the start of every pass, and where the number of batches is known at its end too;
    an infinite dataset has one for all epochs. What was drawn from each of them is enough to find the place again.

    Args:
        epoch_iterator: Keras' iterator over the batches of training.
        source: Its data.
        steps_run: Returns the number of steps that have run, in all epochs.
        entered: Called when the first epoch has been entered in the middle.
    """

    def __init__(
        self,
        epoch_iterator: Any,
        *,
        source: Source,
        steps_run: Callable[[], int],
        entered: Callable[[], None],
    ):
        self._keras_iterator = epoch_iterator
        self._source = source
        self._steps_run = steps_run
        self._entered = entered
        self._passes: list[int] = []
        self._steps_at_start = 0  # of the iterator that is under way
        self._epochs = 0
        self._at_epoch_start: dict[str, Any] = {}
        self._resumed: dict[str, Any] | None = None
        self._ready: Any = None
        private.replace_iteration(epoch_iterator, passes=self, enumerated=self._enumerated)

    def state(self, *, in_epoch: bool) -> dict[str, Any]:
        """Returns the position after the steps that have run.

        Args:
            in_epoch: Whether the current epoch goes on; else the position is before the next one.

        Returns:
            A dict for JSON.
        """
        self._note_drawn()
        iteration = self._at_epoch_start if in_epoch else private.iteration_of(self._keras_iterator)
        return {"passes": list(self._passes), "epochs": self._epochs - in_epoch, "iteration": dict(iteration)}

    def resume(self, state: dict[str, Any], *, executions: int, drawn_in_epoch: int) -> None:
        """Lets the first epoch begin at a position.

        Args:
            state: From `state`.
            executions: How often Keras had called the train function in the epoch.
            drawn_in_epoch: Steps that were run in the epoch.
        """
        self._resumed = {**state, "executions": executions, "drawn_in_epoch": drawn_in_epoch}

    def __iter__(self) -> Any:
        self._note_drawn()
        if self._ready is not None:
            ready, self._ready = self._ready, None
            return ready
        if not self._source.begins_with_epochs:
            self._source.begin(len(self._passes), 0)
        self._passes.append(0)
        self._steps_at_start = self._steps_run()
        return self._source.iterator()

    def _note_drawn(self):
        if self._passes:
            self._passes[-1] = self._steps_run() - self._steps_at_start

    def _enumerated(self, enumerate_epoch: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self._find(resumed)
        self._at_epoch_start = private.iteration_of(self._keras_iterator)
        if self._source.begins_with_epochs:
            self._source.begin(self._epochs, resumed["drawn_in_epoch"] if resumed else 0)
        self._epochs += 1
        steps = enumerate_epoch()
        if resumed is not None:
            for _ in range(resumed["executions"]):
                next(steps)
            self._entered()
        yield from steps

    def _find(self, resumed):
        self._epochs = resumed["epochs"]
        self._passes = list(resumed["passes"])
        goes_on = self._keras_iterator.steps_per_epoch is not None
        current = None
        if self._passes and (goes_on or resumed["executions"]):
            current = self._source.iterator_after(self._passes)
            self._steps_at_start = self._steps_run() - self._passes[-1]
        else:
            self._source.make_again(self._passes)
            self._steps_at_start = self._steps_run() - (self._passes[-1] if self._passes else 0)
        private.set_iteration(self._keras_iterator, resumed["iteration"], current if goes_on else None)
        if not goes_on:
            self._ready = current
