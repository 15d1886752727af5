"""Checks PromQL queries against exported metrics: names, labels and label values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

TARGET_LABELS = ("job", "instance")
_WORDS = re.compile(r"[\w.-]*(\|[\w.-]*)*")
_SETS = {"and", "unless"}

Labels = frozenset[str]


class Exports:
    """Exported metrics by name, with their labels and the label values seen so far."""

    def __init__(self) -> None:
        self._labels: dict[str, set[str]] = {}
        self._words: dict[tuple[str, str], set[str]] = {}
        self._vocabulary: dict[str, set[str]] = {}

    @property
    def names(self) -> set[str]:
        return set(self._labels)

    def labels(self, name: str) -> set[str]:
        """Return the labels of an exported metric."""
        return self._labels[name]

    def add(self, name: str, labels: Iterable[str]) -> None:
        """Add a metric that no process exports, such as that of a recording rule."""
        self._labels.setdefault(name, set()).update(labels)

    def add_words(self, label: str, words: Iterable[str]) -> None:
        """Add values that a label may have on any metric."""
        self._vocabulary.setdefault(label, set()).update(words)

    def add_scrape(self, text: str, **target: str) -> None:
        """Add the metrics that a process exports; `target`: labels that Prometheus adds."""
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {**sample.labels, **target}
                self.add(sample.name, labels)
                for label, word in labels.items():
                    self._words.setdefault((sample.name, label), set()).add(word)

    def add_rule(self, name: str, expr: str) -> list[str]:
        """Check a recording rule and add its metric; return its problems."""
        problems: list[str] = []
        self.add(name, self._visit(promql.parse(expr), problems) or ())
        return problems

    def problems(self, expr: str) -> list[str]:
        """Return the problems of a query, syntax errors included."""
        found: list[str] = []
        try:
            self._visit(promql.parse(expr), found)
        except ValueError as error:
            return [f"{error}: {expr}"]
        return [f"{problem}: {expr}" for problem in found]

    def _visit(self, node: Any, problems: list[str]) -> Labels | None:
        """Return the labels of a node's series; None for a number."""
        if isinstance(node, promql.VectorSelector):
            return self._select(node, problems)
        if isinstance(node, promql.MatrixSelector):
            return self._select(node.vector_selector, problems)
        if isinstance(node, promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
            return self._visit(node.expr, problems)
        if isinstance(node, promql.AggregateExpr):
            return self._aggregate(node, problems)
        if isinstance(node, promql.BinaryExpr):
            return self._combine(node, problems)
        if isinstance(node, promql.Call):
            return self._call(node, problems)
        return None

    def _select(self, node: Any, problems: list[str]) -> Labels:
        labels = frozenset(self._labels.get(node.name, ()))
        if node.name not in self._labels:
            problems.append(f"nothing exports {node.name}")
            return labels
        for matcher in node.matchers.matchers:
            if matcher.name not in labels:
                problems.append(f"{node.name} has no label {matcher.name}")
            elif _WORDS.fullmatch(matcher.value):  # otherwise a regular expression
                known = self._words.get((node.name, matcher.name), set())
                known = known | self._vocabulary.get(matcher.name, set())
                problems += [
                    f"{matcher.name} of {node.name} is never {word!r}"
                    for word in set(matcher.value.split("|")) - known
                ]
        return labels

    def _aggregate(self, node: Any, problems: list[str]) -> Labels:
        inner = self._visit(node.expr, problems) or frozenset()
        if node.modifier is None:
            return inner if node.op in {"topk", "bottomk"} else frozenset()
        named = frozenset(node.modifier.labels)
        _missing(named, inner, node.op, problems)
        by = node.modifier.type == promql.AggModifierType.By
        return named if by else inner - named

    def _call(self, node: Any, problems: list[str]) -> Labels | None:
        inner = [self._visit(argument, problems) for argument in node.args]
        if node.func.name == "histogram_quantile":
            assert inner[1] is not None
            _missing(frozenset({"le"}), inner[1], "histogram_quantile", problems)
            return inner[1] - {"le"}
        if node.func.name == "vector":
            return frozenset()
        return next((labels for labels in inner if labels is not None), None)

    def _combine(self, node: Any, problems: list[str]) -> Labels | None:
        left, right = self._visit(node.lhs, problems), self._visit(node.rhs, problems)
        if left is None or right is None:
            return right if left is None else left
        modifier = node.modifier
        matching = modifier.matching if modifier is not None else None
        if str(node.op) == "or":
            return left | right
        if matching is None:
            on, same = left, left == right
        else:
            named = frozenset(matching.labels)
            if matching.type == promql.LabelModifierType.Include:
                _missing(named, left & right, f"{node.op} on", problems)
                on, same = named, True
            else:
                on, same = left - named, left - named == right - named
        if not same:
            problems.append(f"never match: {sorted(left)} and {sorted(right)}")
        if str(node.op) in _SETS:
            return left
        if modifier is not None and modifier.card != promql.VectorMatchCardinality.OneToOne:
            many = modifier.card == promql.VectorMatchCardinality.ManyToOne
            most, one = (left, right) if many else (right, left)
            extra = frozenset(modifier.group_labels or ())
            _missing(extra, one, "group_left" if many else "group_right", problems)
            return most | extra
        return on


def _missing(wanted: Labels, there: Labels, where: str, problems: list[str]) -> None:
    problems += [f"{where}: there is no label {label}" for label in sorted(wanted - there)]


def fill_in(expr: str, variables: Mapping[str, str]) -> str:
    """Replace Grafana's variables in a dashboard's query."""
    for name, value in variables.items():
        expr = expr.replace(f"${name}", value)
    return expr
