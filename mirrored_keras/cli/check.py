"""Train a model of yours on 1 and on N replicas, and name the first number that differs, and why.

The function named by MODULE:BUILD takes nothing and returns a compiled DistributedModel, or a stock keras.Model to
see what that would do. It is trained on one replica, on each number of replicas, and by an independent loop, on the
same batches, with CPU devices that the command makes itself. Without --data, data are made from the model's own inputs
and losses.

Exits with 0 if all trainings are one (PASS), with 1 if they differ, and with 2 if the arguments are wrong.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys

from mirrored_keras.cli.named_functions import NotFoundError, function_name, function_of

SUMMARY = "train your own model on 1 and N replicas, and name what differs and why"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `mirrored-keras check`.

    Args:
        parser: The parser of this subcommand.
    """
    parser.add_argument(
        "build", metavar="MODULE:BUILD", type=function_name, help="function that returns a compiled model"
    )
    parser.add_argument("--replicas", type=_numbers, default=(2, 4), metavar="N,N", help="default: 2,4")
    parser.add_argument(
        "--data", type=function_name, metavar="MODULE:MAKE", help="function that returns a dataset of global batches"
    )
    parser.add_argument("--steps", type=_number, default=20, metavar="N", help="batches to train; default: 20")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument(
        "--picture", type=pathlib.Path, metavar="FILE", help="draw losses and differences; needs matplotlib"
    )


def _number(text: str) -> int:
    return _numbers(text)[0]


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(
            "must be whole numbers, 1 or more, with commas between.\n"
            f"Received: {text!r}\nWhat to do: mirrored-keras check train:build_fn --replicas 2,4 --steps 20"
        )
    return tuple(int(part) for part in parts)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand.

    Args:
        arguments: What `add_arguments` parsed.

    Returns:
        The exit code.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # start-up lines would hide what this command has to say
    from mirrored_keras.errors import MirroredKerasError
    from mirrored_keras.parity.checking import check
    from mirrored_keras.parity.runs import strategy_of

    try:
        # before the user's modules, whose import may start TensorFlow
        strategy_of(max(arguments.replicas))
        build = function_of(arguments.build)
        data = function_of(arguments.data) if arguments.data else None
        report = check(build, replicas=arguments.replicas, data=data, steps=arguments.steps)
        print(report)
        if arguments.json:
            arguments.json.write_text(report.to_json() + "\n", encoding="utf-8")
        if arguments.picture:
            report.plot(arguments.picture)
    except (MirroredKerasError, NotFoundError, OSError) as error:
        print(f"mirrored-keras check: {error}", file=sys.stderr)
        return 2
    return 0 if report.passed else 1
