"""`mirrored-keras launch` with scripts that need no TensorFlow."""

import json
import signal
import subprocess
import sys
import time

import pytest

from workers.group import environment

TASK = "import json, os, sys, time; task = json.loads(os.environ['TF_CONFIG']); index = task['task']['index']\n"


def command(tmp_path, text, *options, arguments=()):
    script = tmp_path / "script.py"
    script.write_text(TASK + text, encoding="utf-8")
    return [sys.executable, "-m", "mirrored_keras", "launch", *map(str, options), str(script), *arguments]


def launch(tmp_path, text, *options, arguments=(), **variables):
    return subprocess.run(
        command(tmp_path, text, *options, arguments=arguments),
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_worker_has_its_place_and_the_arguments(tmp_path):
    text = "print(json.dumps([index, len(set(task['cluster']['worker'])), sys.argv[1:]]))"
    result = launch(tmp_path, text, "--workers", 3, arguments=("--epochs", "2"))
    assert result.returncode == 0
    lines = sorted(result.stdout.splitlines())
    assert [line[:4] for line in lines] == ["[0] ", "[1] ", "[2] "]
    assert [json.loads(line[4:]) for line in lines] == [[i, 3, ["--epochs", "2"]] for i in range(3)]
    assert "all 3 workers have ended well" in result.stderr


def test_first_failure_is_named_and_its_exit_code_returned(tmp_path):
    text = "time.sleep(0.2 if index == 1 else 60); sys.exit(7)"
    start = time.monotonic()
    result = launch(tmp_path, text)
    assert result.returncode == 7
    assert "worker 1 failed with exit code 7" in result.stderr
    assert time.monotonic() - start < 30


def test_signal_of_a_worker(tmp_path):
    result = launch(tmp_path, "os.kill(os.getpid(), 9) if index == 0 else time.sleep(60)")
    assert result.returncode == 128 + 9
    assert "worker 0 was ended by SIGKILL" in result.stderr


def test_group_starts_again_as_a_whole_with_other_ports(tmp_path):
    text = (
        "attempt = int(os.environ['MIRRORED_KERAS_ATTEMPT']); print(attempt, task['cluster']['worker'][0])\n"
        "sys.exit(3 if index == 1 and attempt < 2 else 0)"
    )
    result = launch(tmp_path, text, "--max-restarts", 3)
    assert result.returncode == 0
    assert result.stderr.count("failed with exit code 3") == 2
    assert "after 2 restarts" in result.stderr
    printed = [line[4:].split() for line in result.stdout.splitlines() if line.startswith("[0]")]
    assert [attempt for attempt, _ in printed] == ["0", "1", "2"]
    assert len({address for _, address in printed}) > 1


def test_too_many_failures(tmp_path):
    result = launch(tmp_path, "sys.exit(5)", "--max-restarts", 1)
    assert result.returncode == 5
    assert "attempt 2 of 2" in result.stderr


def test_worker_that_never_listens(tmp_path):
    text = (
        "import socket; one = socket.socket(); address = task['cluster']['worker'][index].split(':')\n"
        "if index == 0: one.bind((address[0], int(address[1]))); one.listen()\n"
        "time.sleep(60)"
    )
    result = launch(tmp_path, text, "--start-timeout", 2)
    assert result.returncode == 1
    assert "worker 1 has opened no port in 2 s" in result.stderr


def test_worker_that_ignores_sigterm_is_killed(tmp_path):
    text = "import signal; signal.signal(15, signal.SIG_IGN)\nif index: time.sleep(1); sys.exit(2)\ntime.sleep(60)"
    start = time.monotonic()
    result = launch(tmp_path, text)
    assert result.returncode == 2
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_of_the_launcher_reaches_the_workers(tmp_path, number):
    text = (
        "import signal\n"
        "def end(*_):\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(15, end); print('ready', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        command(tmp_path, text, "--max-restarts", 2),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ready = [process.stdout.readline() for _ in range(2)]
    assert all("ready" in line for line in ready), ready
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert output.count("saved") == 2
    assert f"ended after signal {number.name}" in errors


def test_launcher_that_is_killed_leaves_nobody_behind(tmp_path):
    text = "print(os.getpid(), flush=True); time.sleep(60)"
    process = subprocess.Popen(command(tmp_path, text), env=environment(), stdout=subprocess.PIPE, text=True)
    pids = [int(process.stdout.readline()[4:]) for _ in range(2)]
    process.kill()
    process.communicate(timeout=30)
    end = time.monotonic() + 30
    while time.monotonic() < end and any(_runs(pid) for pid in pids):
        time.sleep(0.1)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_gpus_of_each_worker(tmp_path):
    text = "print(os.environ['CUDA_VISIBLE_DEVICES'])"
    result = launch(tmp_path, text, "--devices-per-worker", 2, CUDA_VISIBLE_DEVICES="3, 1,0,2")
    assert sorted(result.stdout.splitlines()) == ["[0] 3,1", "[1] 0,2"]
    result = launch(tmp_path, text, "--devices-per-worker", 3, CUDA_VISIBLE_DEVICES="3,1,0,2")
    assert result.returncode != 0
    assert "need 6 GPUs" in result.stderr


def test_wrong_arguments(tmp_path):
    result = launch(tmp_path, "", "--workers", 0)
    assert result.returncode == 2
    assert "a positive number is needed" in result.stderr


def test_script_that_is_not_there(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "mirrored_keras", "launch", str(tmp_path / "none.py")],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert "No such file" in result.stdout
