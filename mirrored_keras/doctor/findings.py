"""A finding, and a report of findings: text to paste into an issue, or JSON."""

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

#: The worst first.
SEVERITIES = ("error", "warning", "note", "ok")
_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        severity: "error": training is refused, or gives another result than one replica. "warning": it may. "note":
            worth knowing, for speed or for comparing runs. "ok": looked at, and right.
        subject: What it is about, in a few words.
        reason: Why.
        fix: What to do, as code or a command; empty where there is nothing to do.

    Example:
        >>> from mirrored_keras.doctor import Finding
        >>> print(Finding("note", "matplotlib", "It is not installed.", "pip install matplotlib"))
        [note] matplotlib
            It is not installed.
            What to do: pip install matplotlib
    """

    severity: str
    subject: str
    reason: str
    fix: str = ""

    def __str__(self) -> str:
        lines = [f"[{self.severity}] {self.subject}"]
        for paragraph in self.reason.splitlines():
            lines += textwrap.wrap(paragraph, _WIDTH, initial_indent="    ", subsequent_indent="    ")
        if self.fix:
            first, *others = self.fix.splitlines()
            # code stays as it is, so that it can be pasted
            lines += [f"    What to do: {first}", *(f"    {line}" for line in others)]
        return "\n".join(lines)


def finding_of_message(severity: str, subject: str, text: str) -> Finding:
    """Turns the text of an error or a warning of this package into a finding.

    Args:
        severity: Of the finding.
        subject: Of the finding.
        text: A reason, perhaps a line `Received: ...`, and `What to do: ...`.

    Returns:
        The finding; without a fix where the text has none.
    """
    reason, _, fix = text.partition("\nWhat to do: ")
    return Finding(severity, subject, reason, fix)


@dataclasses.dataclass(frozen=True)
class Report:
    """Facts about an environment, and findings about it and about a model.

    Attributes:
        facts: Name -> value.
        findings: In the order in which they were found.
    """

    facts: Mapping[str, Any]
    findings: tuple[Finding, ...]

    def of(self, severity: str) -> list[Finding]:
        """Returns the findings of one severity.

        Args:
            severity: One of "error", "warning", "note" and "ok".
        """
        return [finding for finding in self.findings if finding.severity == severity]

    @property
    def passed(self) -> bool:
        """Whether there is no error."""
        return not self.of("error")

    def __str__(self) -> str:
        width = max(map(len, self.facts), default=0)
        lines = [f"{name.ljust(width)}  {_text(value)}" for name, value in self.facts.items()]
        counts = [_count(len(self.of(severity)), severity) for severity in SEVERITIES]
        blocks = [str(finding) for severity in SEVERITIES[:-1] for finding in self.of(severity)]
        right = [f"[ok] {finding.subject}: {finding.reason}" for finding in self.of("ok")]
        return "\n\n".join(filter(None, ["\n".join(lines), ", ".join(counts), *blocks, "\n".join(right)]))

    def to_json(self) -> str:
        """Returns facts, findings and `passed` as JSON."""
        found = [dataclasses.asdict(finding) for finding in self.findings]
        return json.dumps({"passed": self.passed, "facts": dict(self.facts), "findings": found}, indent=2, default=str)


def joined(parts: Iterable[str], *, most: int = 8) -> str:
    """Returns names as one text, the first of them where there are many.

    Args:
        parts: The names.
        most: How many are named.
    """
    parts = list(parts)
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more


def _text(value):
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "not set" if value is None else str(value)


def _count(number, severity):
    plural = "" if number == 1 or severity == "ok" else "s"
    return f"{number} {severity}{plural}"
