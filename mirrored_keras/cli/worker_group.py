"""The processes of one attempt: started together, watched, and ended together."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_TO_PRINT = 2.0


class Failure(NamedTuple):
    """The worker that failed first, and how."""

    worker: int
    code: int  # as `subprocess` has it: -n where signal n ended it
    text: str

    @property
    def exit_code(self) -> int:
        """The exit code of a shell."""
        return self.code if self.code > 0 else 128 - self.code


class WorkerGroup:
    """Starts the workers.

    Args:
        command: What each of them runs.
        workers: How many.
        devices_per_worker: GPUs of each; `None` leaves `CUDA_VISIBLE_DEVICES` alone.
        attempt: How often the group was started before.
    """

    def __init__(self, command: Sequence[str], *, workers: int, devices_per_worker: int | None, attempt: int):
        self._ports = _free_ports(workers)
        addresses = [f"127.0.0.1:{port}" for port in self._ports]
        gpus = _parts_of_gpus(workers, devices_per_worker)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._started = [False] * workers
        self._start = time.monotonic()
        for index in range(workers):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            variables = {**os.environ, "TF_CONFIG": json.dumps(task), "MIRRORED_KERAS_ATTEMPT": str(attempt)}
            if gpus is not None:
                variables["CUDA_VISIBLE_DEVICES"] = gpus[index]
            process = subprocess.Popen(
                command,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that it can be ended with all that it has started
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
            thread = threading.Thread(target=_print_lines, args=(index, process), daemon=True)
            thread.start()
            self._processes.append(process)
            self._threads.append(thread)

    def wait(self, *, start_timeout: float, stop: Callable[[], bool]) -> Failure | None:
        """Waits until all workers have ended well, or one has not.

        Args:
            start_timeout: Seconds until each worker's port must be open.
            stop: Returns whether to give up waiting.

        Returns:
            The first failure, `None` if there was none.
        """
        while not stop():
            codes = [process.poll() for process in self._processes]
            failed = [(index, code) for index, code in enumerate(codes) if code]
            if failed:
                # who was ended by a signal has not failed because of another
                index, code = min(failed, key=lambda pair: (pair[1] > 0, pair[0]))
                return Failure(index, code, f"worker {index} {_described(code)}")
            if None not in codes:
                return None
            late = self._not_started(codes) if time.monotonic() - self._start > start_timeout else []
            if late:
                text = f"worker {late[0]} has opened no port in {start_timeout:g} s, and the others wait for it,"
                return Failure(late[0], 1, text)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return None

    def _not_started(self, codes):
        for index, port in enumerate(self._ports):
            if not self._started[index]:
                with socket.socket() as one:
                    one.settimeout(1.0)
                    self._started[index] = codes[index] is not None or one.connect_ex(("127.0.0.1", port)) == 0
        return [index for index, started in enumerate(self._started) if not started]

    def end(self, seconds: float, *, stop: Callable[[], bool]) -> None:
        """Sends SIGTERM to the workers that still run, and SIGKILL to what is left after a while.

        Args:
            seconds: The while.
            stop: Returns whether not to wait any longer.
        """
        for process in self._processes:
            if process.poll() is None:
                _send(process, signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while any(process.poll() is None for process in self._processes):
            if stop() or time.monotonic() > deadline:
                break
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        self.kill()

    def kill(self) -> None:
        """Ends all that is left, with what the workers have started, and prints what they had to say."""
        for process in self._processes:
            _send(process, signal.SIGKILL)
            process.wait()
        for thread in self._threads:
            thread.join(_SECONDS_TO_PRINT)


def _send(process, number):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _end_with_parent():
    # a launcher that is killed leaves nobody behind; 1 is PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _described(code):
    if code > 0:
        return f"failed with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"


def _print_lines(index, process):
    for line in iter(process.stdout.readline, b""):
        text = line.decode(errors="replace").rstrip("\n").rpartition("\r")[2]
        sys.stdout.write(f"[{index}] {text}\n")
        sys.stdout.flush()


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _parts_of_gpus(workers, devices_per_worker):
    if devices_per_worker is None:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.replace(" ", "").split(",") if visible else [str(i) for i in range(workers * devices_per_worker)]
    if len(gpus) < workers * devices_per_worker:
        raise SystemExit(
            f"mirrored-keras launch: {workers} workers with {devices_per_worker} GPUs each need "
            f"{workers * devices_per_worker} GPUs. Received: CUDA_VISIBLE_DEVICES={visible}"
        )
    return [",".join(gpus[i * devices_per_worker : (i + 1) * devices_per_worker]) for i in range(workers)]
