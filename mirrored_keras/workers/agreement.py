"""Before workers train, they compare what they are about to do: a difference is an error that names the worker."""

import types
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.errors import BatchError, SetupError, message
from mirrored_keras.replica import private, workers
from mirrored_keras.replica.dataset_order import order_of
from mirrored_keras.workers.same_order import SameOrder, draws_rows

_METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
_COUNTS = ("epochs", "initial_epoch", "steps_per_epoch", "validation_steps", "steps", "batch_size", "validation_freq")


def before_run(model: keras.Model, method: str, arguments: dict[str, Any]) -> None:
    """Compares a call of `fit`, `evaluate` or `predict` between workers, and lets all of them shuffle alike.

    One small reduction; none for the methods of single batches, and none on one worker.

    Args:
        model: The model.
        method: The method's name.
        arguments: Its arguments by name; what shuffles is changed to shuffle alike.

    Raises:
        SetupError: Workers call other methods, with other numbers, or shuffle with other seeds.
        BatchError: A dataset is shuffled without a seed, or workers have data of other lengths.
        CollectiveError: Another worker does not come along.
    """
    strategy = model.distribute_strategy
    if not workers.are_several(strategy) or method.endswith("_on_batch") or arguments.get("_use_cached_eval_dataset"):
        return
    data = arguments.get("x")
    order = 0
    if isinstance(data, tf.data.Dataset):
        order = _order(data, method)
    seed = private.global_seed()
    shuffles = method == "fit" and arguments.get("shuffle", True) is not False
    facts: dict[str, float] = {
        "method": _METHODS.index(method),
        **{name: _number(arguments.get(name)) for name in _COUNTS},
        "rows or batches of x": _size(data),
        "seeds and order of the dataset": order,
        "tf.random.set_seed": -1 if seed is None else seed,
        "weights": 0,
    }
    if method != "fit":
        facts["weights"] = _checksum(model)
    # drawn from the system, as Python's own generator may be seeded alike or not
    drawn = int.from_bytes(np.random.SeedSequence().generate_state(1).tobytes(), "little") % 2**31
    table = workers.gathered(strategy, [*facts.values(), drawn], what=f"the start of `{method}` on every worker")
    names = list(facts)
    seeds = table[:, names.index("tf.random.set_seed")]
    agreed = int(table[0, -1])
    if shuffles and draws_rows(data):
        if np.any(seeds != seeds[0]):
            raise _difference(strategy, "tf.random.set_seed", seeds, "keras.utils.set_random_seed(1) on every worker")
        if seed is None:
            # as if every worker had called it: arrays are shuffled by this seed
            tf.random.set_seed(agreed)
    elif shuffles and isinstance(data, keras.utils.PyDataset):
        arguments["x"], arguments["shuffle"] = SameOrder(data, seed=agreed), False
    table[:, names.index("tf.random.set_seed")] = 0
    for index, name in enumerate(names):
        column = table[:, index]
        if name != "weights" and np.any(column != column[0]):
            raise _difference(strategy, name, column, _fix(name))
    _check_weights(model, strategy, table[:, names.index("weights")])


def before_steps(model: keras.Model, epoch_iterator: Any) -> None:
    """Compares lengths of data, and every weight, between workers, once model and data are there.

    Args:
        model: The model, built.
        epoch_iterator: Keras' iterator over the batches of `fit` or `evaluate`; nothing is compared without one.

    Raises:
        SetupError: Weights or steps differ.
        BatchError: Lengths differ.
    """
    strategy = model.distribute_strategy
    if epoch_iterator is None or not workers.are_several(strategy):
        return
    facts = {
        "batches": _number(epoch_iterator.num_batches),
        "steps_per_execution": _number(model.steps_per_execution),
        "micro_batches": _number(getattr(model, "micro_batches", 1)),
        "shapes of the data": zlib.crc32(str(private.element_spec_of(epoch_iterator)).encode()),
        "optimizer": zlib.crc32(type(getattr(model, "optimizer", None)).__name__.encode()),
        "weights": _checksum(model),
    }
    table = workers.gathered(strategy, list(facts.values()), what="the start of training or evaluation on every worker")
    for index, name in enumerate(facts):
        if name != "weights" and np.any(table[:, index] != table[0, index]):
            raise _difference(strategy, name, table[:, index], _fix(name))
    _check_weights(model, strategy, table[:, -1])


def _difference(strategy, name, column, fix):
    other = int(np.flatnonzero(column != column[0])[0])
    kind = BatchError if name in ("batches", "rows or batches of x", "shapes of the data") else SetupError
    hashed = name in ("seeds and order of the dataset", "shapes of the data", "optimizer", "weights")
    shown = {index: _shown(name, column[index]) for index in (0, other)}
    received = (
        f"{name} of {workers.name_of(strategy, other)} differs from that of {workers.name_of(strategy, 0)}"
        if hashed
        else f"{name}={shown[0]} on {workers.name_of(strategy, 0)}, "
        f"{shown[other]} on {workers.name_of(strategy, other)}"
    )
    return kind(
        message(
            "All workers run the same program on the same global batches, of which each trains its rows; they would "
            "wait for each other, or train on rows twice.",
            received,
            fix,
        )
    )


def _shown(name, value):
    if name == "method":
        return _METHODS[int(value)]
    return "None" if value < 0 else f"{value:g}"


def _fix(name):
    if name in ("batches", "rows or batches of x", "shapes of the data"):
        return (
            "give every worker the whole dataset, not a share of it: model.fit(dataset, ...) takes each worker's rows"
        )
    if name == "seeds and order of the dataset":
        return "dataset.shuffle(buffer, seed=1) with the same numbers on every worker"
    if name == "method":
        return "the same calls in the same order on every worker; only files are left to the chief"
    return f"the same {name} on every worker"


def _number(value):
    return -1 if value is None or isinstance(value, (str, list, tuple, set)) else float(value)


def _size(data):
    if isinstance(data, tf.data.Dataset):
        return float(data.cardinality())
    if isinstance(data, (keras.utils.PyDataset, types.GeneratorType, tf.distribute.DistributedDataset)):
        return -1
    shapes = [leaf.shape for leaf in keras.tree.flatten(data) if getattr(leaf, "shape", ())]
    return _number(shapes[0][0]) if shapes else -1


def _order(dataset, method):
    order = order_of(dataset)
    if method == "fit" and order.draws_differ:
        raise BatchError(
            message(
                "Workers must read the same global batches: an order that each draws for itself gives rows twice, and "
                "others never.",
                f"a dataset with {order.problem}",
                "dataset.shuffle(buffer, seed=1), and no `deterministic=False`",
            )
        )
    return zlib.crc32(repr((order.seeds, order.batch_sizes)).encode())


# -- weights -------------------------------------------------------------------------------------


def _variables(model):
    optimizer = getattr(model, "optimizer", None)
    own = list(optimizer.variables) if optimizer is not None else []
    return [variable for variable in [*model.weights, *own] if variable.synchronization != "on_read"]


def _checksum(model):
    if not model.built:
        return 0
    found = 0
    for variable in _variables(model):
        found = zlib.crc32(_bytes(variable), found)
    return found


def _bytes(variable):
    return np.ascontiguousarray(private.copy_of(variable)).reshape(-1).view(np.uint8)


def _check_weights(model, strategy, column):
    if not np.any(column != column[0]):
        return
    variables = _variables(model)
    count = int(workers.gathered(strategy, [len(variables)], what="comparing weights").min())
    sums = [zlib.crc32(_bytes(variable)) for variable in variables[:count]]
    table = workers.gathered(strategy, sums, what="comparing weights")
    places = np.argwhere(table != table[0])
    worker, place = (places[0][0], places[0][1]) if len(places) else (int(np.flatnonzero(column != column[0])[0]), -1)
    raise SetupError(
        message(
            "Weights and optimizer must be the same on all workers; nothing would ever make them equal again.",
            f"{variables[place].path!r} of {workers.name_of(strategy, int(worker))} differs from that of "
            f"{workers.name_of(strategy, 0)}",
            "load the same file on every worker, not on the chief alone: load_weights(model, path)",
        )
    )
