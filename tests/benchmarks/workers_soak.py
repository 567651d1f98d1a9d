"""Kills, stops and terminates workers at random steps, many times over; the weights must be those of no fault.

    python tests/benchmarks/workers_soak.py --rounds 50 --seed 1

A round is one fault: of a training of 18 steps one worker is hit after a random step; the launcher starts the group
again, and `Resume` goes on. Prints a line per training, and fails with the first whose weights or logs are not exact.
"""

import argparse
import pathlib
import random
import re
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from workers.group import WORKERS
from workers.test_faults import launch

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--faults", type=int, default=5, help="in one training; a round is one fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    numbers = random.Random(arguments.seed)
    done = 0
    while done < arguments.rounds:
        count = min(arguments.faults, arguments.rounds - done)
        steps = sorted(numbers.sample(range(1, 18), count))
        faults = [f"{numbers.randrange(arguments.workers)}:{int(numbers.choice(SIGNALS))}:{step}" for step in steps]
        with tempfile.TemporaryDirectory() as folder:
            start = time.monotonic()
            options = ("--workers", arguments.workers, "--max-restarts", count, WORKERS / "resumed.py")
            result = launch(*options, f"{folder}/run", ",".join(faults), timeout=600 * (count + 1))
        found = re.search(r'\{"error": ([^,]+), "error_of_logs": ([^,]+),', result.stdout)
        restarts = result.stderr.count("first of all")  # a fault that a late state has overtaken did not happen
        done += restarts
        print(
            f"{done:4d} faults, {time.monotonic() - start:6.1f} s: {','.join(faults)} "
            f"restarts={restarts} error={found and found[1]} logs={found and found[2]}",
            flush=True,
        )
        if result.returncode or not found or not restarts:
            print(result.stdout[-5000:], result.stderr[-5000:])
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
