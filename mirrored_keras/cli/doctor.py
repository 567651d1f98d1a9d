"""Examine the environment and, if it is named, a model: what is wrong, what is slow, and what to do about it.

Prints versions, variables, devices and findings, as text to paste into an issue or, with --json, as JSON. The model is
what build_fn returns when it is called without arguments inside the scope of a strategy over N replicas. Nothing is
trained.

Exits with 0, with 1 if there is an error among the findings, and with 2 if the arguments are wrong.
"""

from __future__ import annotations

import argparse
import os
import sys

from mirrored_keras.cli.named_functions import NotFoundError, function_name, function_of

SUMMARY = "examine environment and model: what is wrong, what is slow, what to do"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `mirrored-keras doctor`.

    Args:
        parser: The parser of this subcommand.
    """
    parser.add_argument(
        "target",
        nargs="?",
        metavar="MODULE:BUILD_FN",
        type=function_name,
        help="a function that returns a compiled model",
    )
    parser.add_argument(
        "--data", metavar="MODULE:MAKE_DATASET", type=function_name, help="a function that returns the dataset of `fit`"
    )
    parser.add_argument("--replicas", type=_positive, metavar="N", help="default: every GPU, or 2 parts of the CPU")
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="of the self-check; default: 120"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, not {text!r}")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand.

    Args:
        arguments: What `add_arguments` parsed.

    Returns:
        The exit code.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from mirrored_keras.doctor import Report, environment_findings

    report = environment_findings(replicas=arguments.replicas, timeout=arguments.timeout)
    if (arguments.target or arguments.data) and report.passed:
        try:
            build, make_data = (name and function_of(name) for name in (arguments.target, arguments.data))
        except (NotFoundError, ImportError) as error:
            print(f"mirrored-keras doctor: error: {error}", file=sys.stderr)
            return 2
        from mirrored_keras.doctor.building import findings_of_functions

        found = findings_of_functions(build, make_data, replicas=arguments.replicas)
        report = Report(report.facts, (*report.findings, *found))
    print(report.to_json() if arguments.json else report)
    return 0 if report.passed else 1
