"""The command answers fast, without TensorFlow, and says what is wrong with an argument."""

import subprocess
import sys
import time

import pytest

import mirrored_keras
from mirrored_keras.cli.__main__ import main, make_parser

# Prints what a call of the command has imported of what takes seconds to import.
IMPORTED = """
import sys
from mirrored_keras.cli.__main__ import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("IMPORTED", sorted({"keras", "keras_tuner", "numpy", "sklearn", "tensorflow"} & set(sys.modules)))
"""


def run(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        [],
        ["demo", "--help"],
        ["demo", "--replicas", "0"],
        ["inspect", "--help"],
        ["doctor", "--help"],
        ["check", "--help"],
    ],
)
def test_answers_without_importing_tensorflow(arguments):
    assert run("-c", IMPORTED, *arguments).stdout.splitlines()[-1] == "IMPORTED []"


def test_help_answers_within_a_second():
    def seconds():
        start = time.perf_counter()
        assert run("-m", "mirrored_keras", "--help").returncode == 0
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 1


@pytest.mark.parametrize("module", ["mirrored_keras", "mirrored_keras.cli"])
def test_is_a_module_too(module):
    result = run("-m", module, "--version")
    assert (result.returncode, result.stdout) == (0, f"mirrored-keras {mirrored_keras.__version__}\n")


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "demo" in capsys.readouterr().out


def test_no_command_shows_the_help_and_is_an_error(capsys):
    assert main([]) == 2
    assert "usage: mirrored-keras" in capsys.readouterr().out


def test_defaults_of_the_demo():
    arguments = make_parser().parse_args(["demo"])
    assert (arguments.replicas, arguments.epochs, arguments.batch_size, arguments.seed) == (2, 12, 100, 1)
    assert arguments.output is None


@pytest.mark.parametrize(
    ("option", "value", "smallest"),
    [
        ("--replicas", "0", 1),
        ("--replicas", "two", 1),
        ("--epochs", "-3", 1),
        ("--batch-size", "1.5", 1),
        ("--seed", "-1", 0),
    ],
)
def test_a_number_out_of_range_is_refused(option, value, smallest, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["demo", f"{option}={value}"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(
        f"mirrored-keras demo: error: argument {option}: must be a whole number, {smallest} or more.\n"
        f"Received: '{value}'\n"
        "What to do: mirrored-keras demo --help\n"
    )


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train"])
    assert ended.value.code == 2
    assert "invalid choice: 'train'" in capsys.readouterr().err
