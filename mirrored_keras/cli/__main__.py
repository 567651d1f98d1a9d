"""Entry point of the command `mirrored-keras`: finds the subcommand and runs it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import mirrored_keras
from mirrored_keras.cli import check, demo, doctor, inspect, launch

# A subcommand is a module with `SUMMARY`, `add_arguments(parser)` and `run(arguments) -> exit code`.
COMMANDS = {"check": check, "demo": demo, "doctor": doctor, "inspect": inspect, "launch": launch}


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser of the whole command line.

    Returns:
        A parser whose result has `command`, the name of the subcommand or `None`, and its arguments.
    """
    parser = argparse.ArgumentParser(
        prog="mirrored-keras", description="Train Keras models on N replicas with the result of one."
    )
    parser.add_argument("--version", action="version", version=f"mirrored-keras {mirrored_keras.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, module in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=module.SUMMARY,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subparser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: Words after the name of the command. Defaults to those of this process.

    Returns:
        The exit code: 0 if all is as promised, 1 if not, 2 if the command line is wrong.

    Raises:
        SystemExit: After `--help` and `--version` (code 0) and after wrong arguments (code 2).
    """
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 2
    return COMMANDS[parsed.command].run(parsed)


if __name__ == "__main__":
    raise SystemExit(main())
