"""The table of cases: losses x reductions x weights x masks x tails, optimizers, clipping, styles.

`ALL_CASES` drives every suite that trains. Tokens and rows come from covering arrays; the other tables
name one thing each and vary tail and weights beside it.
"""

from invariance import matrix, styles, updates

ALL_CASES = (
    *matrix.token_cases(),
    *matrix.row_cases(),
    *updates.optimizer_cases(),
    *updates.clipping_cases(),
    *updates.sparse_cases(),
    *styles.output_cases(),
    *styles.style_cases(),
    *styles.execution_cases(),
)
