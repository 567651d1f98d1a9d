"""Workers that are killed, stopped or asked to end: the group goes on where it was, and nobody waits for ever."""

import signal
import subprocess
import sys

from workers.group import WORKERS, environment


def launch(*arguments, timeout, **variables):
    return subprocess.run(
        [sys.executable, "-m", "mirrored_keras", "launch", *map(str, arguments)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_killed_terminated_and_stopped_workers_resume_exactly(tmp_path):
    """SIGTERM of the chief, SIGKILL of a worker, SIGSTOP of a worker, each in the middle of an epoch."""
    faults = ",".join(
        f"{worker}:{int(number)}:{step}"
        for worker, number, step in ((0, signal.SIGTERM, 4), (1, signal.SIGKILL, 9), (1, signal.SIGSTOP, 13))
    )
    arguments = ("--workers", 2, "--max-restarts", 3, WORKERS / "resumed.py", tmp_path / "run", faults)
    result = launch(*arguments, timeout=600)
    text = result.stdout[-3000:] + result.stderr[-6000:]
    assert result.returncode == 0, text
    lines = [line for line in result.stderr.splitlines() if line.startswith("[launch]")]
    assert "was ended by SIGTERM" in lines[0], text
    assert "worker 1 was ended by SIGKILL" in lines[1], text
    assert "worker 0 failed" in lines[2], text
    assert "after 3 restarts" in lines[3], text
    assert "worker 0 was asked to end (signal 15)" in result.stdout, text
    assert '"attempt": 3' in result.stdout, text
