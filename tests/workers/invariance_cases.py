"""Run by `test_invariance.py` in every worker: cases of the table, on several workers and on one replica.

python invariance_cases.py REPLICAS_PER_WORKER NAME ...
"""

import json
import sys
import time
import traceback

from workers.strategies import worker_strategy

STRATEGY = worker_strategy(int(sys.argv[1]), timeout_seconds=60)

from invariance.case import train
from invariance.cases import ALL_CASES
from invariance.compare import assert_same
from mirrored_keras import DistributedModel


def main():
    cases = {case.name: case for case in ALL_CASES}
    names = sys.argv[2:] or list(cases)
    for name in names:
        start = time.monotonic()
        found = {"case": name}
        try:
            assert_same(
                cases[name], train(cases[name], DistributedModel), train(cases[name], DistributedModel, STRATEGY)
            )
        except Exception:
            found["error"] = traceback.format_exc()[-1500:]
        print(json.dumps(found | {"seconds": round(time.monotonic() - start, 2)}), flush=True)


if __name__ == "__main__":
    main()
