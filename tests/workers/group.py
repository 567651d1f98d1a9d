"""Starts a group of worker processes on 127.0.0.1, and ends it whatever happens."""

import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import mirrored_keras

TESTS = pathlib.Path(__file__).resolve().parents[1]
WORKERS = TESTS / "workers"


@dataclasses.dataclass
class Ended:
    """What a worker left behind."""

    code: int
    output: str
    errors: str

    @property
    def lines(self):
        """The JSON lines that it printed."""
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]


def free_ports(count):
    """Returns ports of 127.0.0.1 that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def environment(**more):
    """Returns the environment of a process that finds the helpers of `tests/` and the package under test."""
    package = pathlib.Path(mirrored_keras.__file__).resolve().parents[1]
    path = os.pathsep.join([str(TESTS), str(package), os.environ.get("PYTHONPATH", "")])
    fixed = {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}
    return os.environ | fixed | more


class Group:
    """Workers that run one script, each with its `TF_CONFIG`."""

    def __init__(self, workers, script, *arguments, **variables):
        self.folder = tempfile.TemporaryDirectory()
        addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
        self.processes, self.files = [], []
        for index in range(workers):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            files = [open(pathlib.Path(self.folder.name) / f"{index}.{end}", "w+b") for end in ("out", "err")]  # noqa: SIM115
            process = subprocess.Popen(
                [sys.executable, str(WORKERS / script), *map(str, arguments)],
                env=environment(TF_CONFIG=json.dumps(task), **variables),
                stdout=files[0],
                stderr=files[1],
                start_new_session=True,
            )
            self.processes.append(process)
            self.files.append(files)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for file in [file for files in self.files for file in files]:
            file.close()
        self.folder.cleanup()

    def text(self, index, stream=0):
        """Returns what a worker has printed so far."""
        return pathlib.Path(self.files[index][stream].name).read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text, *, index=0, timeout=90):
        """Waits until a worker has printed a text."""
        end = time.monotonic() + timeout
        while text not in self.text(index):
            assert self.processes[index].poll() is None, self.text(index) + self.text(index, 1)[-3000:]
            assert time.monotonic() < end, f"{text!r} was not printed in {timeout} s"
            time.sleep(0.05)

    def ended(self, timeout, *, workers=None):
        """Waits for workers, all if none is named, and returns what they left behind."""
        end = time.monotonic() + timeout
        chosen = range(len(self.processes)) if workers is None else workers
        for index in chosen:
            try:
                self.processes[index].wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(self.processes[index].pid, signal.SIGABRT)  # faulthandler prints where it hangs
                self.processes[index].wait(10)
        return [Ended(self.processes[i].returncode, self.text(i), self.text(i, 1)) for i in chosen]


def run(workers, script, *arguments, timeout=240, **variables):
    """Runs a group to its end; every worker must exit with 0."""
    with Group(workers, script, *arguments, **variables) as group:
        ended = group.ended(timeout)
    for index, one in enumerate(ended):
        assert one.code == 0, f"worker {index}: code {one.code}\n{one.output[-2000:]}\n{one.errors[-4000:]}"
    return ended
