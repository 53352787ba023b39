"""Mutants of a module by cosmic-ray's operators, and an even sample of them.

Annotations are left as they are: a mutant there fails at import and would flatter the score.
"""

import hashlib
import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FAMILIES = ("ReplaceBinaryOperator", "ReplaceComparisonOperator", "ReplaceUnaryOperator")
_ARGUMENTS_NEEDED = {"VariableReplacer", "VariableInserter"}


@dataclass(frozen=True)
class Mutant:
    """One changed place of a module; text instead of line numbers, which move."""

    module: str
    function: str
    """Qualified name; empty at module level."""
    before: str
    """The changed lines without their indent."""
    after: str
    nth: int
    """0 for the first place of this text and operator in the function."""
    operator: str
    source: str = field(repr=False, compare=False)
    """The whole mutated module."""

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        """What a kept judgement refers to."""
        return self.module, self.function, self.before, self.after, self.nth


@dataclass(frozen=True)
class _Candidate:
    module: str
    function: str
    line: str
    nth: int
    operator: str
    occurrence: int
    """Number among all that this operator can change in the module."""
    position: tuple[int, int]

    @property
    def family(self) -> str:
        return next((name for name in _FAMILIES if self.operator.startswith(name)), self.operator)

    def order(self, seed: int) -> str:
        text = f"{seed}|{self.module}|{self.function}|{self.line}|{self.operator}|{self.nth}"
        return hashlib.sha256(f"{text}|{self.occurrence % 2}".encode()).hexdigest()


def sample(
    root: Path, modules: Iterable[str], count: int, seed: int, without: Collection[Mutant] = ()
) -> tuple[list[Mutant], int]:
    """Draw mutants in turn from each module, and within it from each kind of operator.

    The order is a hash of seed and text: a change elsewhere in a module moves few of them. A place
    is mutated once. Mutants of `without` are left out. Gives at most `count`, and how many there
    are to draw from.
    """
    seen = {mutant.identity for mutant in without}
    sources = {name: (root / name).read_text(encoding="utf-8") for name in modules}
    queues, total = [], 0
    for name, source in sources.items():
        candidates = sorted(_candidates(name, source), key=lambda item: item.order(seed))
        total += len(candidates)
        queues.append(_in_turn(candidates))
    drawn: list[Mutant] = []
    places: set[tuple[Any, ...]] = set()
    while queues and len(drawn) < count:
        queue = queues.pop(0)
        for candidate in queue:
            place = (candidate.module, candidate.position, candidate.family)
            mutant = None if place in places else _apply(candidate, sources[candidate.module])
            if mutant is not None and mutant.identity not in seen:
                places.add(place)
                drawn.append(mutant)
                queues.append(queue)
                break
    return drawn, total


def _in_turn(candidates: Iterable[_Candidate]) -> Iterator[_Candidate]:
    """Take the families of operators in turn."""
    families: dict[str, list[_Candidate]] = {}
    for candidate in candidates:
        families.setdefault(candidate.family, []).append(candidate)
    while families:
        for family in list(families):
            yield families[family].pop(0)
            if not families[family]:
                del families[family]


def _operators() -> dict[str, Any]:
    from cosmic_ray.operators.provider import OperatorProvider

    provider = OperatorProvider()
    return {name: provider[name]() for name in provider if name not in _ARGUMENTS_NEEDED}


def _candidates(module: str, source: str) -> Iterator[_Candidate]:
    from cosmic_ray.ast import ast_nodes, get_ast

    operators, lines = _operators(), source.splitlines()
    counts: dict[Any, int] = {}
    for node in ast_nodes(get_ast(source)):
        for name, operator in operators.items():
            for position, _ in operator.mutation_positions(node):
                occurrence = counts[name] = counts.get(name, -1) + 1
                if _in_annotation(node):
                    continue
                function, line = _function(node), lines[position[0] - 1].strip()
                same = (function, line, name)
                nth = counts[same] = counts.get(same, -1) + 1
                yield _Candidate(module, function, line, nth, name, occurrence, position)


def _apply(candidate: _Candidate, source: str) -> Mutant | None:
    """Make the mutant, unless it is the same program, not Python, or such as a linter finds."""
    from cosmic_ray.mutating import mutate_code

    operator = _operators()[candidate.operator]
    try:
        mutated = mutate_code(source, operator, candidate.occurrence)
    except AttributeError:  # cosmic-ray cannot replace an exception whose name has a dot
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)  # `is` with a literal
            compile(mutated, candidate.module, "exec")
    except SyntaxError:
        return None
    before, after = _difference(source.splitlines(), mutated.splitlines())
    if before == after:
        return None
    key = (candidate.module, candidate.function, before, after, candidate.nth)
    return Mutant(*key, candidate.operator, mutated)


def _difference(old: list[str], new: list[str]) -> tuple[str, str]:
    while old and new and old[0] == new[0]:
        old, new = old[1:], new[1:]
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return " ".join(" ".join(old).split()), " ".join(" ".join(new).split())


def _function(node: Any) -> str:
    names = []
    while node.parent is not None:
        node = node.parent
        if node.type in {"funcdef", "classdef"}:
            names.append(node.name.value)
    return ".".join(reversed(names))


def _in_annotation(node: Any) -> bool:
    while node.parent is not None:
        parent = node.parent
        if parent.type == "annassign":
            return bool(node is parent.children[1])
        if parent.type == "tfpdef" or (parent.type == "funcdef" and node is parent.annotation):
            return True
        node = parent
    return False
