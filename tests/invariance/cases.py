"""The table of cases: losses x reductions x weights x masks x tails, optimizers, clipping, styles.

`ALL_CASES` drives every suite that trains. Tokens and rows come from covering arrays; the other tables
name one thing each and vary tail and weights beside it.
"""

import dataclasses

from invariance import matrix, styles, updates


def _with_replicas(cases):
    """Gives the cases 3, 2 and 4 replicas in turn, every eighth case 1 as well, every twelfth 8."""
    for index, case in enumerate(cases):
        counts = ((3, 2, 4)[index % 3],) + (1,) * (index % 8 == 0) + (8,) * (index % 12 == 5)
        yield dataclasses.replace(case, replicas=counts)


ALL_CASES = (
    *matrix.token_cases(),
    *matrix.row_cases(),
    *updates.optimizer_cases(),
    *_with_replicas(
        (
            *updates.clipping_cases(),
            *updates.sparse_cases(),
            *updates.accumulation_cases(),
            *styles.output_cases(),
            *styles.style_cases(),
            *styles.execution_cases(),
            *styles.micro_batch_cases(),
        )
    ),
)
