"""Refuses to go on from the state of another training."""

import os
from typing import Any

from mirrored_keras.checkpoint.sources import Source
from mirrored_keras.checkpoint.state_files import State
from mirrored_keras.errors import CheckpointError, message


def check_agreement(state: State, *, model: dict[str, Any], data: dict[str, Any], source: Source) -> None:
    """Compares a state with the `fit` that is to go on from it.

    Args:
        state: The state.
        model: Description of the model.
        data: Description of the data.
        source: The data.

    Raises:
        CheckpointError: They differ.
    """
    header = state.header
    in_epoch = header["step"] > 0
    names = ("layers", "weights", "optimizer", "optimizer_variables", *(("metrics",) if in_epoch else ()))
    found = [(name, model[name], header["model"][name]) for name in names]
    found += [(name, value, header["data"].get(name)) for name, value in data.items() if name != "seeds"]
    if "seeds" in data and "seeds" in header["data"]:
        found.append(("seeds", data["seeds"], header["data"]["seeds"]))
    differences = [difference(*parts) for parts in found if parts[1] != parts[2]]
    if in_epoch and source.problem:
        differences.append(f"data={source.problem}, but one that can be entered in the middle of an epoch")
    if differences:
        _refuse(state, "; ".join(differences))


def check_steps_per_execution(state: State, steps_per_execution: int) -> None:
    """Refuses executions that do not begin where the last process ended.

    Args:
        state: The state.
        steps_per_execution: Of the model.

    Raises:
        CheckpointError: The number of steps done in the epoch is no multiple of it, and it is another one than then.
    """
    then = state.header["steps_per_execution"]
    if steps_per_execution != then and state.header["step"] % steps_per_execution:
        _refuse(state, f"steps_per_execution={steps_per_execution}, but {then}, after {state.header['step']} steps")


def _refuse(state, differences):
    raise CheckpointError(
        message(
            "Training goes on from a state of the same training: the same architecture, optimizer, data, batch size "
            "and steps per epoch.",
            f"{differences} in {os.fspath(state.path)!r}",
            'the model and the arguments of then; or, for another training, another folder: Resume("another_folder")',
        )
    )


def difference(name: str, now: Any, then: Any) -> str:
    """Says how a value differs from another one.

    Args:
        name: Its name.
        now: The value.
        then: The other one; of lists, the first entries that differ are named.
    """
    if isinstance(now, list) and isinstance(then, list):
        if len(now) != len(then):
            return f"{len(now)} {name}, but {len(then)}"
        index = next(i for i, pair in enumerate(zip(now, then, strict=True)) if pair[0] != pair[1])
        return f"{name}[{index}]={now[index]}, but {then[index]}"
    return f"{name}={now!r}, but {then!r}"
