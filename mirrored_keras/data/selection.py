"""Which features of a row are inputs, targets and weights."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from mirrored_keras.data.features import Feature
from mirrored_keras.errors import DataError, message

_WEIGHT = "sample_weight"


def make_selector(
    schema: Mapping[str, Feature], inputs: Any, targets: Any, sample_weight: str | None, *, pad: bool, mapped: bool
) -> Callable[[dict[str, Any], tf.Tensor], Any]:
    """Returns the function that makes the element of a dataset from features.

    Args:
        schema: What there is.
        inputs: Name, names, or names by name.
        targets: Likewise.
        sample_weight: Name.
        pad: Whether rows of weight 0 fill up the last batch; they have negative positions.
        mapped: Whether the features are those that a function of the user made.

    Returns:
        A function from features and positions `(G,)` to a dictionary, `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

    Raises:
        DataError: A name is not that of a feature, or targets are named without inputs.
    """
    if inputs is None and (targets is not None or sample_weight is not None):
        raise DataError(
            message(
                "Targets and weights go with inputs.",
                f"inputs=None, targets={targets!r}, sample_weight={sample_weight!r}",
                'inputs="image", targets="label"',
            )
        )
    unknown = [name for name in [*_names(inputs), *_names(targets), *_names(sample_weight)] if name not in schema]
    if unknown and not mapped:
        raise _unknown(unknown, schema)

    def select(features, positions):
        counts = tf.cast(positions >= 0, tf.float32)
        if inputs is None:
            return {**features, _WEIGHT: _weights(features.get(_WEIGHT), counts)} if pad else features
        weight = None if sample_weight is None else _pick(features, sample_weight)
        if pad:
            weight = _weights(weight, counts)
        parts = [_pick(features, inputs)]
        if targets is not None or weight is not None:
            parts.append(None if targets is None else _pick(features, targets))
        return tuple(parts) if weight is None else (*parts, weight)

    return select


def _unknown(names, features):
    return DataError(
        message(
            "Inputs, targets and weights must be features of the records.",
            f"unknown={names}, where there are {sorted(features)}",
            f"inputs={next(iter(features))!r}",
        )
    )


def _weights(given, counts):
    if given is None:
        return counts
    counts = tf.reshape(tf.cast(counts, given.dtype), (-1, *[1] * (given.shape.rank - 1)))
    return given * counts


def _names(chosen):
    if chosen is None:
        return []
    if isinstance(chosen, Mapping):
        return list(chosen.values())
    return list(chosen) if isinstance(chosen, (list, tuple)) else [chosen]


def _pick(features, chosen):
    missing = [name for name in _names(chosen) if name not in features]
    if missing:
        raise _unknown(missing, features)  # `map_rows` has left them out
    if isinstance(chosen, str):
        return features[chosen]
    if isinstance(chosen, Mapping):
        return {name: features[feature] for name, feature in chosen.items()}
    return tuple(features[name] for name in chosen)
