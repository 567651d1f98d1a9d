"""Losses that look at all rows of the global batch at once: Dice, Tversky, Circle, contrastive losses."""

import warnings
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.gathering import check_all_rows_are_there, gather_rows
from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.loss_terms import term_of
from mirrored_keras.replica import collective, private
from mirrored_keras.replica.rows import first_leaf, rows_of
from mirrored_keras.serialization import serialized
from mirrored_keras.step import scale


@keras.saving.register_keras_serializable(package="mirrored_keras")
class GlobalBatchLoss(keras.losses.Loss):
    """A loss computed from the rows of all replicas, for a score that is no mean over rows.

    On every replica L = loss(rows of the global batch), the number of one replica with weights, mask and
    reduction; its gradient is that of one replica. Every replica computes the loss of all G rows, so the cost
    of the loss does not fall with the number of replicas. Use it in `compile`, alone or for one of several
    outputs, or call it in `compute_loss`. With one replica it is `loss` itself.

    Args:
        loss: A `keras.losses.Loss`, a loss function of `(y_true, y_pred)`, or the name of one.
        name: Name in the logs; that of `loss` if `None`.

    Raises:
        SetupError: `loss` is none of these; from a call, when an unreduced loss has no value per row.
        BatchError: From a call, when targets, predictions or weights are not dense tensors of numbers.

    Example:
        >>> import keras, numpy as np
        >>> from mirrored_keras import DistributedModel, GlobalBatchLoss
        >>> inputs = keras.Input((4,))
        >>> model = DistributedModel(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))
        >>> model.compile("sgd", loss=GlobalBatchLoss(keras.losses.Dice()))
        >>> history = model.fit(np.ones((10, 4)), np.ones((10, 1)), batch_size=4, verbose=0)
    """

    def __init__(self, loss: Any, name: str | None = None):
        inner = keras.losses.get(loss) if isinstance(loss, str) or callable(loss) else None
        if inner is None:
            raise SetupError(
                message(
                    "`GlobalBatchLoss` takes a loss object, a loss function or the name of one.",
                    f"loss={loss!r}",
                    "GlobalBatchLoss(keras.losses.Dice())",
                )
            )
        if not isinstance(inner, keras.losses.Loss):
            inner = private.LossFunctionWrapper(inner, name=getattr(inner, "__name__", None))
        super().__init__(name=name or inner.name, reduction=inner.reduction, dtype=inner.dtype)
        self.loss = inner

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """Returns the loss of the global batch.

        Args:
            y_true: Targets of this replica, `(B, ...)`.
            y_pred: Predictions of this replica, the mask riding on them.
            sample_weight: Weight per row or element, or `None`.

        Returns:
            The number of one replica, the same on every replica, also on one without rows. With the reduction
            `None`, this replica's rows of the vector of one replica, `(B, ...)`.
        """
        check_all_rows_are_there("GlobalBatchLoss")
        if collective.replicas_in_context() == 1:
            return self.loss(y_true, y_pred, sample_weight)
        local = GlobalBatch(y_pred)
        masks = keras.tree.map_structure(private.get_keras_mask, y_pred)
        y_true, y_pred, masks = gather_rows((_tensors(y_true), _tensors(y_pred), masks))
        keras.tree.map_structure(_put_mask, y_pred, masks)
        if sample_weight is not None and tf.convert_to_tensor(sample_weight).shape.rank:
            sample_weight = gather_rows(_tensors(sample_weight))
        all_rows = rows_of(first_leaf(y_pred))
        term = term_of(self.loss, y_true, y_pred, sample_weight, rows=all_rows, has_rows=True)
        value = scale.mean_over_rows([term], term[1:], rows=all_rows, global_rows=all_rows, dtype=self.dtype)[0]
        return value if value.shape.rank == 0 else self._rows_of_this_replica(value, all_rows, local)

    def _rows_of_this_replica(self, values, all_rows, local):
        if values.shape[0] is not None and not (isinstance(all_rows, int) and values.shape[0] == all_rows):
            raise SetupError(
                message(
                    "Without a reduction, a loss over the whole batch needs a value per row.",
                    f"loss={self.name!r}, values of shape {values.shape}",
                    'GlobalBatchLoss(keras.losses.Dice(axis=0, reduction="sum"))',
                )
            )
        return values[local.first_row :][: local.rows]

    def get_config(self) -> dict[str, Any]:
        """Returns the wrapped loss, serialised, and the name."""
        return {"loss": serialized(self.loss), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GlobalBatchLoss":
        """Makes the loss that `get_config` described.

        Args:
            config: From `get_config`.
        """
        return cls(keras.saving.deserialize_keras_object(config["loss"]), name=config["name"])


def _tensors(structure):
    return keras.tree.map_structure(lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf), structure)


def _put_mask(tensor, mask):
    if mask is not None:
        private.set_keras_mask(tensor, mask)


def name_of_a_loss_over_rows(loss: Any) -> str | None:
    """Returns the name of a built-in loss that looks at all rows of a batch, `None` for any other.

    These are Circle, and all whose `axis` takes in the rows, as that of Dice and Tversky does by default.

    Args:
        loss: A loss object, or a wrapped function.

    Returns:
        The name in `keras.losses`.
    """
    name = _OVER_ROWS.get(getattr(loss, "fn", None))
    if name == "Circle":
        return name
    if name is not None:
        return name if _takes_in_rows(getattr(loss, "axis", None)) else None
    axis = private.axis_of_loss(loss)
    return type(loss).__name__ if axis is not None and _takes_in_rows(axis) else None


def warn_of_a_loss_over_rows(loss: Any) -> None:
    """Warns of a built-in loss that looks at all rows and would see one replica's only.

    Args:
        loss: A loss object, or a wrapped function.
    """
    name = name_of_a_loss_over_rows(loss)
    if name is not None:
        warnings.warn(
            f"`{loss.name}` is one score for all rows of a batch, no mean over rows: each of several replicas "
            "computes it from its own rows, so the result depends on their number.\n"
            f"What to do: compile(loss=mirrored_keras.GlobalBatchLoss(keras.losses.{name}(...)))",
            stacklevel=2,
        )


_OVER_ROWS = {keras.losses.dice: "Dice", keras.losses.tversky: "Tversky", keras.losses.circle: "Circle"}


def _takes_in_rows(axis):
    return axis is None or 0 in ((axis,) if isinstance(axis, int) else tuple(axis))
