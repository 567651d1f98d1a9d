"""What the demo trains: one model, one set of batches, three trainers."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mirrored_keras
from mirrored_keras import DistributedModel, load_model, mirrored_strategy, save_model
from mirrored_keras.data import digits_dataset
from mirrored_keras.data.digits import IMAGE_SHAPE, ROWS


@dataclasses.dataclass(frozen=True)
class Run:
    """What one training gave.

    Attributes:
        name: Heading of its column in the table.
        losses: Loss of each epoch, as in `History`.
        accuracy: Held-out accuracy after the last epoch, in 0 to 1.
        weights: All weights after the last epoch.
        stopped: First line of the error that ended the training, or `None`.
    """

    name: str
    losses: Sequence[float] = ()
    accuracy: float = float("nan")
    weights: Sequence[np.ndarray] = ()
    stopped: str | None = None

    def largest_weight_difference(self, other: Run) -> float:
        """Returns the largest distance of a weight from the same weight of another run."""
        distances = [np.max(np.abs(a - b)) for a, b in zip(self.weights, other.weights, strict=True)]
        return float(np.max(distances))  # not `max`, which can pass over what is not a number

    def largest_loss_difference(self, other: Run) -> float:
        """Returns the largest distance of an epoch's loss from the same epoch's of another run."""
        return float(np.max(np.abs(np.subtract(self.losses, other.losses))))


class Session:
    """One process in which the same model is trained in several ways from the same first weights.

    Args:
        replicas: Number of replicas, one per device.
        epochs: Passes over the training digits.
        global_batch_size: Rows of a batch, over all replicas together.
        seed: Seed of the first weights and of the order of the rows.

    Raises:
        SetupError: The devices cannot be had, for example because TensorFlow has started already.
    """

    def __init__(self, *, replicas: int, epochs: int, global_batch_size: int, seed: int):
        self.replicas = replicas
        self.epochs = epochs
        self.global_batch_size = global_batch_size
        self.seed = seed
        gpus = len(tf.config.list_physical_devices("GPU"))
        if gpus > 1 and replicas <= gpus:
            # Tensor cores round float32 to 10 bits, far more coarsely than what is compared here.
            tf.config.experimental.enable_tensor_float_32_execution(False)
            self.other_replicas = replicas - 1 if replicas > 1 else 2
        else:
            # All trainings on the same kind of device: the one without a strategy would take a lone GPU.
            tf.config.set_visible_devices([], "GPU")
            self.other_replicas = replicas + 1
        # The larger number first, since the CPU can be split into devices only once. TensorFlow's default engine
        # aborts on the second number of replicas in one process; this one does not.
        counts = sorted({replicas, self.other_replicas}, reverse=True)
        engine = tf.distribute.ReductionToOneDevice()
        self._strategies = {count: mirrored_strategy(count, cross_device_ops=engine) for count in counts}
        keras.utils.set_random_seed(seed)
        self._first_weights = self._make_model(keras.Model).get_weights()
        self._train = digits_dataset("train", global_batch_size=global_batch_size, shuffle_seed=seed)
        self._test = digits_dataset("test", global_batch_size=global_batch_size)

    def describe(self) -> str:
        """Returns two lines: versions and devices, then rows and batches."""
        devices = self._strategies[self.replicas].extended.worker_devices
        names = ", ".join(":".join(device.rsplit(":", 2)[1:]) for device in devices)
        last = ROWS["train"] % self.global_batch_size or self.global_batch_size
        return (
            f"mirrored-keras {mirrored_keras.__version__}, Keras {keras.__version__}, TensorFlow {tf.__version__}; "
            f"replicas on {names}\n"
            f"{ROWS['train']:,} digits in batches of {self.global_batch_size}, the last one of {last}; "
            f"{ROWS['test']} digits held out"
        )

    def train_distributed(self) -> tuple[DistributedModel, Run]:
        """Trains N replicas with `DistributedModel`, with a progress bar.

        Returns:
            The trained model and the run.
        """
        name = f"DistributedModel, N={self.replicas}"
        return self._fit(DistributedModel, name, replicas=self.replicas, validation_data=self._test, verbose=1)

    def train_one_replica(self) -> Run:
        """Trains the measure of all others: `keras.Model` without a strategy."""
        return self._fit(keras.Model, "one replica", replicas=None, verbose=0)[1]

    def train_stock(self) -> Run:
        """Trains N replicas with `keras.Model`; an error is a result too."""
        name = f"keras.Model, N={self.replicas}"
        try:
            return self._fit(keras.Model, name, replicas=self.replicas, verbose=0)[1]
        except Exception as error:  # whatever stops it belongs in the table; nothing after this needs TensorFlow
            # TensorFlow puts the node of the graph in double braces before the message.
            first_line = re.sub(r"\{\{.*?\}\} *", "", str(error)).strip().partition("\n")[0]
            return Run(name, stopped=f"{type(error).__name__}: {first_line}")

    def save_and_restore(self, model: DistributedModel, path: pathlib.Path) -> float:
        """Saves outside the scope and restores inside the scope of another number of replicas.

        Args:
            model: A trained model.
            path: The `.h5` file to write.

        Returns:
            Held-out accuracy of the restored model.
        """
        save_model(model, path)
        restored = load_model(path, strategy=self._strategies[self.other_replicas])
        return restored.evaluate(self._test, verbose=0, return_dict=True)["accuracy"]

    def _fit(
        self, model_class: type[keras.Model], name: str, *, replicas: int | None, **options: Any
    ) -> tuple[Any, Run]:
        """Trains a new model of a class from the first weights."""
        scope = contextlib.nullcontext() if replicas is None else self._strategies[replicas].scope()
        with scope:
            model = self._make_model(model_class)
            self._compile(model)
        model.set_weights(self._first_weights)
        # The dataset has its order already.
        history = model.fit(self._train, epochs=self.epochs, shuffle=False, **options)
        accuracy = model.evaluate(self._test, verbose=0, return_dict=True)["accuracy"]
        return model, Run(name, history.history["loss"], accuracy, model.get_weights())

    def _make_model(self, model_class: type[keras.Model]) -> keras.Model:
        """Makes the network: smooth activations, so that rounding does not grow from step to step."""
        image = keras.Input(IMAGE_SHAPE)
        x = keras.layers.Conv2D(32, 3, padding="same", activation="tanh")(image)
        x = keras.layers.Conv2D(64, 3, strides=2, padding="same", activation="tanh")(x)
        x = keras.layers.Flatten()(x)
        x = keras.layers.Dense(128, activation="tanh")(x)
        return model_class(image, keras.layers.Dense(10)(x))

    def _compile(self, model: keras.Model) -> None:
        """Compiles with momentum, a decaying rate and gradients clipped by their global norm."""
        steps = self.epochs * int(self._train.cardinality())
        model.compile(
            optimizer=keras.optimizers.SGD(
                keras.optimizers.schedules.CosineDecay(0.2, steps), momentum=0.9, global_clipnorm=1.0
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
