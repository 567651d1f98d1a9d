"""What a case is, and the three ways to train it: one replica, R replicas, the reference."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from amount import is_one_in
from invariance.data import TAILS, slices
from mirrored_keras.parity import reference

EPOCHS = 2


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        name: what the case is about.
        model: function from a base class to a model.
        data: function from rows and batch to `(x, y, sample_weight)`; the last two may be `None`.
        losses: function to a list of losses, one per output, in the order of the outputs.
        optimizer: function to a fresh optimizer.
        tail: a key of `TAILS`, or the rows of the data and of a batch.
        output_names: for several outputs; compiled losses, weights and metrics become dicts.
        loss_weights: one number per output.
        masks, extra: what the reference must be told, see `Objective`.
        plain_optimizer: what the reference trains with, where it is not `optimizer`.
        metrics: plain metrics; `weighted`: weighted ones.
        class_weight: as for `fit`.
        dataset: whether `fit` gets a `tf.data.Dataset` instead of arrays.
        compile_options: further arguments of `compile`.
        replicas: the numbers of replicas that it runs on.
        stock: what plain Keras computes on one device: `"equal"` to the bit, `"close"` or `"wrong"`.
    """

    name: str
    model: Callable
    data: Callable
    losses: Callable[[], list]
    optimizer: Callable[[], keras.optimizers.Optimizer]
    tail: str | tuple[int, int] = "short"
    output_names: tuple[str, ...] = ()
    loss_weights: tuple[float, ...] | None = None
    masks: Callable | None = None
    extra: Callable | None = None
    plain_optimizer: Callable | None = None
    metrics: tuple[str, ...] = ("mae",)
    weighted: tuple[str, ...] = ("mse",)
    class_weight: dict[int, float] | None = None
    dataset: bool = False
    replicas: tuple[int, ...] = (2, 3)
    compile_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    stock: str = "equal"

    @property
    def stock_is_bit_equal(self) -> bool:
        """Whether plain Keras also compiles for any number of rows, as the reference does.

        For arrays that split evenly it compiles for one number, with other fused operations.
        """
        rows, batch = self.rows_and_batch
        return self.stock == "equal" and (self.dataset or rows % batch != 0)

    @property
    def rows_and_batch(self) -> tuple[int, int]:
        return TAILS[self.tail] if isinstance(self.tail, str) else self.tail

    @property
    def steps(self) -> int:
        rows, batch = self.rows_and_batch
        return EPOCHS * -(-rows // batch)

    @property
    def is_evaluated(self) -> bool:
        """Whether `evaluate` is compared too; it takes as long as training."""
        return is_one_in(3, self.name)

    def by_output(self, values) -> Any:
        """Packs one value per output as `compile` takes it."""
        if self.output_names:
            return dict(zip(self.output_names, values, strict=True))
        return values[0] if values else None

    def objective(self) -> reference.Objective:
        return reference.Objective(self.losses(), self.loss_weights, self.masks, self.extra)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What training left behind: weights, logs per epoch, logs per batch, evaluation."""

    weights: list[np.ndarray]
    history: dict[str, list[float]]
    batch_logs: list[dict[str, float]]
    evaluation: dict[str, float]


def _build(case, base):
    """Makes the model from a fixed seed; a subclassed one gets its weights with its first batch."""
    keras.utils.set_random_seed(7)
    return case.model(base)


def first_weights(case: Case) -> list[np.ndarray]:
    """Returns the weights that every way to train the case starts from."""
    return _first_weights(_ByName(case.name, keras.config.floatx(), case))


@dataclasses.dataclass(frozen=True)
class _ByName:
    name: str
    floatx: str
    case: Case = dataclasses.field(compare=False)


@functools.cache
def _first_weights(key):
    case = key.case
    model = _build(case, keras.Model)
    model(case.data(*case.rows_and_batch)[0])
    return model.get_weights()


def _compile(case, model):
    names = case.output_names or ("out",)
    several = len(names) > 1
    metrics, weighted = list(case.metrics), list(case.weighted)
    model.compile(
        optimizer=case.optimizer(),
        loss=case.by_output(case.losses()),
        loss_weights=case.by_output(case.loss_weights) if case.loss_weights else None,
        metrics=dict.fromkeys(names, metrics) if several else metrics or None,
        weighted_metrics=dict.fromkeys(names, weighted) if several else weighted or None,
        **case.compile_options,
    )


def _feed(case, data):
    """Returns the arguments of `fit` and `evaluate` that carry the data."""
    x, y, weights = data
    _, batch = case.rows_and_batch
    if not case.dataset:
        return {"x": x, "y": y, "sample_weight": weights, "batch_size": batch}
    import tensorflow as tf

    parts = tuple(part for part in data if part is not None)
    return {"x": tf.data.Dataset.from_tensor_slices(parts).batch(batch)}


def train(case: Case, base: type[keras.Model], strategy=None, epochs: int = EPOCHS) -> Outcome:
    """Compiles, fits and evaluates the case with the given base class, inside the strategy."""
    data = case.data(*case.rows_and_batch)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = _build(case, base)
        _compile(case, model)
    batch_logs = []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch_logs.append(dict(logs)))
    history = model.fit(
        **_feed(case, data),
        shuffle=False,
        class_weight=case.class_weight,
        epochs=epochs,
        verbose=0,
        callbacks=[record],
    )
    weights = model.get_weights()
    evaluation = model.evaluate(**_feed(case, data), verbose=0, return_dict=True) if case.is_evaluated else {}
    return Outcome(weights, history.history, batch_logs, evaluation)


def train_reference(case: Case, epochs: int = EPOCHS) -> reference.ReferenceResult:
    """Trains the same model on the same batches by the hand-written loop."""
    rows, batch = case.rows_and_batch
    x, y, weights = case.data(rows, batch)
    if case.class_weight:
        weights = np.vectorize(case.class_weight.get)(y).astype(keras.config.floatx())
    data = tuple(part for part in (x, y, weights) if part is not None)
    optimizer = (case.plain_optimizer or case.optimizer)()
    model = _build(case, keras.Model)
    return reference.train_reference(model, slices(data, batch), case.objective(), optimizer, epochs=epochs)
