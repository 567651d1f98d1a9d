"""Whether a `tf.data` pipeline gives its batches in the same order again: read from its graph."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError

_IGNORE_STATE = 1  # of random seeds, which are read from the graph, and of Python functions
_DRAWS = re.compile(r"(Shuffle\w*|Random|Sampling)Dataset(V\d)?")
_RANDOM_OPERATION = re.compile(r"(Random|Truncated|ParameterizedTruncated|Multinomial|Stateful)\w*")
_NOT_RANDOM = re.compile(r"RandomDataset\w*|StatefulPartitionedCall|RandomSeed\w*")
_RESHUFFLES = re.compile(r"Shuffle\w*Dataset(V\d)?|RandomDataset(V\d)?")


class Order(NamedTuple):
    """What a graph says about the order of a dataset.

    Attributes:
        problem: Why the order cannot be had again; empty if it can.
        seeds: The seeds in it, in the order of the graph.
        batch_sizes: Sizes that elements are batched by.
        repeats: Whether one pass draws several orders, so that all of a pass must be read to know the next.
        draws_differ: Whether two processes would read other rows, or in another order: a shuffle or a choice of rows
            without a seed, or elements in the order in which they are ready.
    """

    problem: str = ""
    seeds: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    repeats: bool = False
    draws_differ: bool = False


def order_of(dataset: tf.data.Dataset) -> Order:
    """Reads the graph of a dataset.

    Args:
        dataset: The dataset.

    Returns:
        What it says.
    """
    if dataset.options().deterministic is False:
        return Order("`options.deterministic` is False", draws_differ=True)
    try:
        text = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset), external_state_policy=_IGNORE_STATE
        )
        graph = tf.compat.v1.GraphDef.FromString(text.numpy())
    except (tf.errors.OpError, DecodeError, ValueError) as error:  # tensors in it end at 2 GB, for example
        return Order(f"a graph that cannot be read ({str(error).splitlines()[0][:200]})")
    nodes = list(_nodes(graph))
    seeds: list[int] = []
    sizes: list[int] = []
    for node, constants in nodes:
        if _DRAWS.fullmatch(node.op):
            seeds.extend(_seeds_of(node, constants))
        elif "Batch" in node.op and "Dataset" in node.op:
            sizes.extend(value for name in node.input[1:2] if (value := _value(name, constants)) is not None)
    problem = _problem(nodes)
    # random functions of rows may differ: every row is read by one process
    differ = bool(problem) and "a function with" not in problem
    return Order(problem, tuple(seeds), tuple(sizes), _repeats(nodes), differ)


def _nodes(graph) -> Iterator[tuple[Any, dict[str, Any]]]:
    for group in (graph.node, *(function.node_def for function in graph.library.function)):
        constants = {node.name: node for node in group if node.op == "Const"}
        yield from ((node, constants) for node in group)


def _value(name, constants):
    node = constants.get(name.split(":")[0].lstrip("^"))
    if node is None:
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return int(value) if value.ndim == 0 and value.dtype.kind in "iu" else None


def _seeds_of(node, constants):
    # (dataset, buffer_size, seed, seed2, ...) of a shuffle; (seed, seed2) of random numbers; the last two of sampling
    start = 0 if node.op.startswith("Random") else 2
    return [_value(name, constants) for name in node.input[start : start + 2]]


def _problem(nodes):
    parallel = any(node.op.startswith(("Parallel", "MapAndBatch")) for node, _ in nodes)
    for node, constants in nodes:
        if _DRAWS.fullmatch(node.op):
            seeds = _seeds_of(node, constants)
            if seeds == [0, 0]:
                what = "shuffle" if node.op.startswith("Shuffle") else "random numbers"
                return f"a {what} without a seed" if what == "shuffle" else f"{what} without a seed"
        if "deterministic" in node.attr and node.attr["deterministic"].s == b"false":
            return f"`deterministic=False` of {node.op}"
        if "sloppy" in node.attr and node.attr["sloppy"].b:
            return f"`deterministic=False` of {node.op}"
        if _RANDOM_OPERATION.fullmatch(node.op) and not _NOT_RANDOM.fullmatch(node.op) and "Dataset" not in node.op:
            seeded = any(node.attr[name].i for name in ("seed", "seed2") if name in node.attr)
            if not seeded:
                return f"a function with the random operation {node.op}, without a seed"
            if parallel:
                return f"a function with the random operation {node.op}, whose calls run in parallel"
    return ""


def _repeats(nodes):
    # a `repeat` somewhere, and an order that is drawn anew each time: one pass may draw several
    operations = [node.op for node, _ in nodes]
    return any("Repeat" in op and "Dataset" in op for op in operations) and any(map(_RESHUFFLES.fullmatch, operations))
