"""Starts a training script once per worker on this machine, and all of them again when one has failed.

Every worker gets a `TF_CONFIG` with free ports, the group ends as a whole, and the worker that failed first is
named. Options for the script stand behind its name.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from mirrored_keras.cli.worker_group import Failure, WorkerGroup

SUMMARY = "start a script on several workers of this machine, and again when one fails"
#: What a failed group has to end by itself; its collectives fail by then.
_SECONDS_AFTER_FAILURE = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `mirrored-keras launch`.

    Args:
        parser: The parser of the subcommand.
    """
    parser.add_argument("--workers", type=_positive, default=2, help="processes that train together (default: 2)")
    parser.add_argument(
        "--devices-per-worker",
        type=_positive,
        metavar="N",
        help="GPUs of each worker: CUDA_VISIBLE_DEVICES is cut into parts of N; on the CPU a worker is one replica",
    )
    parser.add_argument("--max-restarts", type=_count, default=0, help="how often the whole group starts again")
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long a worker may take until TensorFlow listens (default: 300)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="what workers have to save and end after SIGTERM or Ctrl-C of the launcher (default: 30)",
    )
    parser.add_argument("script", help="the training script")
    parser.add_argument("script_arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")


def run(arguments: argparse.Namespace) -> int:
    """Runs the group until it has succeeded, or failed once more than it may.

    Args:
        arguments: Of the command line.

    Returns:
        0, the exit code of the worker that failed first (128 + n if signal n ended it), or 128 + n after signal n.
    """
    asked: list[int] = []
    code = 0
    handlers = {
        number: signal.signal(number, lambda number, frame: asked.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        for attempt in range(arguments.max_restarts + 1):
            start = time.monotonic()
            failure = _attempt(arguments, attempt, asked)
            if asked:
                _say(f"ended after signal {signal.Signals(asked[0]).name}")
                return 128 + asked[0]
            if failure is None:
                _say(f"all {arguments.workers} workers have ended well, after {attempt} restarts")
                return 0
            seconds = time.monotonic() - start
            attempts = f"attempt {attempt + 1} of {arguments.max_restarts + 1}"
            _say(f"{failure.text} after {seconds:.1f} s, first of all ({attempts})")
            code = failure.exit_code
        return code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _attempt(arguments, attempt, asked) -> Failure | None:
    command = [sys.executable, "-u", arguments.script, *arguments.script_arguments]
    group = WorkerGroup(
        command, workers=arguments.workers, devices_per_worker=arguments.devices_per_worker, attempt=attempt
    )
    try:
        failure = group.wait(start_timeout=arguments.start_timeout, stop=lambda: bool(asked))
        group.end(arguments.grace if asked else _SECONDS_AFTER_FAILURE, stop=lambda: len(asked) > 1)
    finally:
        group.kill()
    return failure


def _say(text):
    print(f"[launch] {text}", file=sys.stderr, flush=True)


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("a positive number is needed")
    return number


def _count(text):
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("0 or a positive number is needed")
    return number
