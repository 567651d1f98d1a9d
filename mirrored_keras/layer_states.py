"""Variables that layers update themselves: one set of numbers on all replicas after every step."""

import contextlib
import functools
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.replica import collective, private
from mirrored_keras.replica.thread_state import own_tensors_kept
from mirrored_keras.step import replica_states, totals

_THREAD = threading.local()  # every replica runs in a thread of its own
_WARNED: weakref.WeakSet[keras.layers.Layer] = weakref.WeakSet()
_RULES = {"mean": "mean", "sum": "sum", "only_first_replica": "first"}


class State(NamedTuple):
    """A variable that a layer may update, and what its replicas make of it ("mean", "sum", "first", "own")."""

    variable: keras.Variable
    layer: keras.layers.Layer
    rule: str

    @property
    def is_declared(self) -> bool:
        """Whether the layer's author said how replicas combine it, or Keras' layers are known to want a mean."""
        known = isinstance(self.layer, keras.layers.BatchNormalization) or type(self.layer).__module__.startswith(
            "keras."
        )
        return known or self.variable.aggregation != "none"


def states_of(model: keras.Model) -> list[State]:
    """Returns the states of all layers of a model, each once.

    Left out are synchronised normalisation, which every replica updates alike, and stateful recurrent
    layers, whose states belong to rows.

    Args:
        model: The model.

    Returns:
        The states; not those of random seeds, metrics and optimizers.
    """
    found: dict[int, State] = {}
    for layer in private.all_layers(model):
        if getattr(layer, "synchronized", False) or getattr(layer, "stateful", False):
            continue
        for variable in private.states_of_layer(layer):
            found.setdefault(id(variable), State(variable, layer, _rule(variable)))
    return list(found.values())


def synchronized_states(model: keras.Model) -> list[keras.Variable]:
    """Returns the states of synchronised normalisation, which every replica updates alike.

    Args:
        model: The model.

    Returns:
        The variables.
    """
    layers = [layer for layer in private.all_layers(model) if getattr(layer, "synchronized", False)]
    return [variable for layer in layers for variable in private.states_of_layer(layer)]


def _rule(variable):
    if variable.synchronization == "on_read":
        return "own"  # every replica keeps a part, and reading the variable adds the parts up
    if variable.aggregation in _RULES:
        return _RULES[variable.aggregation]
    dtype = tf.as_dtype(variable.dtype)
    return "mean" if dtype.is_floating or dtype.is_complex else "first"


@contextlib.contextmanager
def kept_alike(model: keras.Model, rows: tf.Tensor | int) -> Iterator[None]:
    """Runs a step on this replica, after which every layer state holds one value on all replicas.

    `add_weight(..., aggregation=...)` says which: with v_r the value on replica r after the step, "mean" is
    sum_r (B_r / G) * v_r, "sum" adds up what the replicas added, "only_first_replica" is v_0. The default
    "none" is the mean for floats, among them the moving statistics of `BatchNormalization`, and the first
    replica's value for all others; for layers that are not Keras' own it is warned about once.
    A replica without rows does not count. All states of one rule and dtype travel in one reduction, and
    only those that the step assigns to.

    Args:
        model: The model whose layers run inside the block.
        rows: B of this replica.

    Yields:
        Nothing. Inside a block for an enclosing step, and with one replica, it does nothing.
    """
    states = [] if collective.replicas_in_context() == 1 or _is_inside() else states_of(model)
    if not states:
        yield
        return
    before = {id(s.variable): _value(s.variable) for s in states if s.rule in ("sum", "own")}
    _THREAD.assigned = {}
    try:
        with private.assigned_locally([s.variable for s in states], _note):
            yield
        assigned = [s for s in states if id(s.variable) in _THREAD.assigned]
    finally:
        _THREAD.assigned = None
    _warn(assigned)
    rows = tf.convert_to_tensor(rows)
    groups: dict[tuple[str, str], list[State]] = {}
    for state in assigned:
        groups.setdefault((state.rule, state.variable.dtype), []).append(state)
    for (rule, _), group in groups.items():
        variables = [state.variable for state in group]
        values = [_value(variable) for variable in variables]
        if rule == "own":
            values = [tf.where(rows > 0, v, before[id(s.variable)]) for s, v in zip(group, values, strict=True)]
        elif rule == "sum":
            old = [before[id(variable)] for variable in variables]
            changes = _combined(model, rule, [v - u for v, u in zip(values, old, strict=True)], rows)
            values = [u + change for u, change in zip(old, changes, strict=True)]
        else:
            values = _combined(model, rule, values, rows)
        for variable, value in zip(variables, values, strict=True):
            private.local_copy(variable).assign(value)


def _combined(model: Any, rule: str, values: Sequence[tf.Tensor], rows: tf.Tensor) -> list[tf.Tensor]:
    ((name, packed),) = totals.pack(values).items()
    with own_tensors_kept(model):
        result = collective.combined_small(functools.partial(replica_states.combined, rule), packed, rows)
    return totals.unpack({name: result}, values)


def _is_inside():
    return GlobalBatch.active() is not None or getattr(_THREAD, "assigned", None) is not None


def _note(variable):
    assigned = getattr(_THREAD, "assigned", None)
    if assigned is not None:
        assigned[id(variable)] = True


def _value(variable):
    return tf.identity(private.local_copy(variable))


def _warn(assigned):
    for state in assigned:
        if state.is_declared or state.layer in _WARNED:
            continue
        _WARNED.add(state.layer)
        kept = "the mean over the rows" if state.rule == "mean" else "the first replica's value"
        warnings.warn(
            f"Layer {state.layer.name!r} updates {state.variable.name!r} in `call` without saying what several "
            f"replicas make of it: after every step it is {kept}.\nWhat to do: self.add_weight(..., trainable=False, "
            'aggregation="sum") for what adds up over rows, "mean" for averages over rows, "only_first_replica" '
            "for what is the same on every replica.",
            stacklevel=2,
        )
