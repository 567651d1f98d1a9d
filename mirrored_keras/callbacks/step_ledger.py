"""A ledger of steps: rows of every replica, what losses were divided by, skipped updates."""

import csv
import os
from typing import Any

import keras

from mirrored_keras.callbacks.recording import RecordingCallback
from mirrored_keras.checkpoint.atomic import written_atomically


class StepLedger(RecordingCallback):
    """Keeps one line for every step of training: an audit trail of what was divided by what.

    A line is a dictionary: `epoch` and `step`, from 0; `rows`, B of every replica; `denominators`, D of every output
    (or loss) over the whole batch, 1 for one that is divided by nothing; `updates`, those of the optimizer so far;
    `loss_scale`, if there is one; `skipped`, whether a scaling optimizer left the update out because a gradient was
    not finite. The logs of an epoch get `rows` and `skipped_updates`.

    Lines are read at the end of an epoch, also where steps run in one graph. Without this callback a step does none
    of it.

    Args:
        path: A CSV file of all lines, written anew after every epoch; none if `None`.

    Raises:
        SetupError: From `fit`, when the model is no `DistributedModel`.

    Example:
        >>> import keras, numpy as np
        >>> from mirrored_keras import DistributedModel
        >>> from mirrored_keras.callbacks import StepLedger
        >>> inputs = keras.Input((4,))
        >>> model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        >>> model.compile("sgd", "mse")
        >>> ledger = StepLedger()
        >>> history = model.fit(np.ones((10, 4)), np.ones((10, 1)), batch_size=4, verbose=0, callbacks=[ledger])
        >>> [line["rows"] for line in ledger.lines]
        [(4,), (4,), (2,)]
    """

    def __init__(self, path: str | os.PathLike[str] | None = None):
        super().__init__()
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self._epoch = 0
        self._updates: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts a new ledger."""
        super().on_train_begin(logs)
        self.lines = []
        optimizer = self.model.optimizer
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        built = inner is not None and inner.built
        self._updates = int(keras.ops.convert_to_numpy(inner.iterations)) if built else 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the number of the epoch."""
        self._epoch = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Reads the lines of the epoch."""
        lines = [self._line(step, record) for step, record in enumerate(self._records.read_steps())]
        self.lines += lines
        if logs is not None:
            logs["rows"] = sum(sum(line["rows"]) for line in lines)
            logs["skipped_updates"] = sum(line["skipped"] for line in lines)
        if self.path is not None:
            self._write()

    def _line(self, step, record):
        stood_still = record.updates is not None and record.updates == self._updates
        self._updates = record.updates
        return {
            "epoch": self._epoch,
            "step": step,
            "rows": record.rows,
            "denominators": dict(record.denominators),
            "updates": record.updates,
            "loss_scale": record.loss_scale,
            # an optimizer without a scale may stand still because it accumulates gradients
            "skipped": record.loss_scale is not None and stood_still,
        }

    def _write(self):
        with written_atomically(self.path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            rows = [_flat(line) for line in self.lines]
            names = list(dict.fromkeys(name for row in rows for name in row))
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)


def _flat(line):
    flat = {name: value for name, value in line.items() if name not in ("rows", "denominators")}
    flat |= {f"rows_{replica}": rows for replica, rows in enumerate(line["rows"])}
    return flat | {f"denominator_{name}": value for name, value in line["denominators"].items()}
