"""Covering arrays: few combinations of many factors in which every pair of levels occurs."""

import itertools


def cover_pairs(factors):
    """Returns dicts, one level per factor, so that every pair of levels of two factors is in one.

    Greedy and deterministic: each new row takes, factor by factor, the level that covers most pairs
    that are still missing, starting from the first missing pair.
    """
    names = list(factors)
    missing = {
        frozenset(((a, i), (b, j))) for a, b in itertools.combinations(names, 2) for i in factors[a] for j in factors[b]
    }
    rows = []
    while missing:
        row = dict(min(missing, key=lambda pair: sorted(map(repr, pair))))
        for name in names:
            if name not in row:
                row[name] = max(factors[name], key=lambda level: _gain(row, name, level, missing))
        missing -= set(map(frozenset, itertools.combinations(row.items(), 2)))
        rows.append(row)
    return rows


def _gain(row, name, level, missing):
    """Counts the missing pairs that a level would cover in an unfinished row."""
    return sum(frozenset(((name, level), item)) in missing for item in row.items())
