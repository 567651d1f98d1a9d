"""`Resume`: a `fit` that was killed goes on in the middle of its epoch, with the numbers of one that was not."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import keras

from mirrored_keras.checkpoint.resumed_fit import ResumedFit
from mirrored_keras.checkpoint.state_files import StateFiles
from mirrored_keras.errors import SetupError, message


class Resume(keras.callbacks.Callback):
    """Writes the state of a `fit` into a folder; the next `fit` with the same folder goes on from there, exactly.

    State after n steps, then a kill, then N - n steps on any number of replicas = N steps without a break. The state
    holds all weights and moving statistics, everything of the optimizer, the random streams, metrics so far, what
    the other callbacks remember (history too), and the place in the data; files do not depend on the number of
    replicas. A state is written at the end of every epoch, and within epochs as the arguments say; at SIGTERM and
    Ctrl-C too, after the step that runs. A `fit` that had come to its end trains nothing more, until `epochs` is
    larger.

    Several workers use one folder that all of them see; the chief writes. Where one of them gets SIGTERM, the state is
    written after a step, and all of them end: start the group again.

    Arrays and `keras.utils.PyDataset` are shuffled in an order that follows from a seed in the state. A
    `tf.data.Dataset` needs seeds and a deterministic order; without, and with Python generators, a warning says
    that training goes on at the start of the epoch.

    Args:
        folder: Of this training, and no other.
        every_steps: Steps between two states within an epoch, at least.
        every_minutes: Minutes between two states within an epoch, at least.
        keep: How many states are kept; if the newest cannot be read, the one before it is used.
        at_signals: Whether a state is written at SIGTERM and Ctrl-C.

    Raises:
        CheckpointError: From `fit`: the state is of another training, or no state in the folder can be read.
        SetupError: An argument is no positive number; from `fit`: the model is no `DistributedModel`.

    Example:
        >>> import keras, numpy as np, tempfile
        >>> from mirrored_keras import DistributedModel, Resume
        >>> def trained(folder, epochs):
        ...     inputs = keras.Input((4,))
        ...     model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        ...     model.compile("adam", "mse")
        ...     x, y = np.ones((10, 4)), np.ones((10, 1))
        ...     return model.fit(x, y, batch_size=4, epochs=epochs, verbose=0, callbacks=[Resume(folder)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = trained(folder, epochs=2)  # as if it had been killed after two epochs
        ...     second = trained(folder, epochs=3)
        >>> second.epoch, second.history["loss"][:2] == first.history["loss"]
        ([0, 1, 2], True)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_minutes: float | None = None,
        keep: int = 2,
        at_signals: bool = True,
    ):
        super().__init__()
        for name, value in (("every_steps", every_steps), ("every_minutes", every_minutes), ("keep", keep)):
            _check_positive(name, value, whole=name != "every_minutes")
        self.folder = os.fspath(folder)
        self._every_steps, self._every_minutes = every_steps, every_minutes
        self._keep, self._at_signals = keep, at_signals

    @contextlib.contextmanager
    def around_fit(self, model: Any, arguments: dict[str, Any]) -> Iterator[None]:
        """Surrounds a `fit` of a `DistributedModel`, which calls this.

        Args:
            model: The model.
            arguments: Of `fit`, by name; changed where training goes on.

        Yields:
            Nothing.
        """
        _check_alone(arguments)
        fit = ResumedFit(
            model,
            arguments,
            files=StateFiles(self.folder, keep=self._keep),
            every_steps=self._every_steps,
            every_minutes=self._every_minutes,
        )
        with fit.observing(), fit.saving_at_signals() if self._at_signals else contextlib.nullcontext():
            self._runs_in = fit
            try:
                yield
            finally:
                self._runs_in = None

    _runs_in: ResumedFit | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses models whose `fit` does not know this callback."""
        if self._runs_in is None:
            raise SetupError(
                message(
                    "`Resume` needs the `fit` of a `DistributedModel`.",
                    f"model={type(self.model).__name__}",
                    "DistributedModel.from_model(model)",
                )
            )


def _check_alone(arguments):
    callbacks = getattr(arguments["callbacks"], "callbacks", arguments["callbacks"])
    folders = [callback.folder for callback in keras.tree.flatten(callbacks) if isinstance(callback, Resume)]
    if len(folders) > 1:
        raise SetupError(
            message(
                "A `fit` goes on from one state, so it has one `Resume`; a search has its own.",
                f"callbacks with {len(folders)}, of the folders {folders}",
                'model.fit(..., callbacks=[Resume("run1")])',
            )
        )


def _check_positive(name, value, *, whole):
    if value is None and name != "keep":
        return
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or value <= 0:
        raise SetupError(
            message(
                f"`{name}` is a positive number{', a whole one' if whole else ''}.",
                f"{name}={value!r}",
                f'Resume("run1", {name}=2)',
            )
        )
