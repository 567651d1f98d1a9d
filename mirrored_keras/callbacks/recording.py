"""What `Throughput` and `StepLedger` share: notes of the steps of a `fit`, from its first to its last."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from mirrored_keras import DistributedModel
from mirrored_keras.errors import SetupError, message


class RecordingCallback(keras.callbacks.Callback):
    """A callback that reads what steps note about themselves; steps may run ahead of it."""

    #: The notes are read later: steps need not wait, and `steps_per_execution="auto"` may choose.
    acts_on_batches = False
    async_safe = True

    def __init__(self) -> None:
        super().__init__()
        self._records: Any = None

    @contextlib.contextmanager
    def around_fit(self, model: Any, arguments: dict[str, Any]) -> Iterator[None]:
        """Lets the steps of one `fit` be noted.

        Args:
            model: The model.
            arguments: Those of `fit`.

        Yields:
            Nothing.
        """
        runner = model.make_train_function()
        self._records = runner.start_records()
        try:
            yield
        finally:
            runner.stop_records(self._records)
            self._records = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses a model whose steps note nothing."""
        if self._records is None:
            raise SetupError(
                message(
                    f"`{type(self).__name__}` reads what the steps of a `DistributedModel` note.",
                    f"model={self.model.name!r} (of type {type(self.model).__name__})",
                    "model = DistributedModel.from_model(model)"
                    if not isinstance(self.model, DistributedModel)
                    else "model.fit(..., callbacks=[callback])",
                )
            )
