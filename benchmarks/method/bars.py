"""What the figures are held against; every bar was fixed before the first run."""

from collections.abc import Mapping

from benchmarks.method import suites
from benchmarks.method.comparison import Paired, Runs, best_constant, paired
from benchmarks.run_log import RunLog

GOAL = suites.GOALS[suites.PHANTOM]
GOAL_METRICS = ("auc", "acc", "r1", "cnr")
MOST_WIN = ">= 7 of 8"
CROSS_METRICS = ("auc", "acc", "r1", "r5", "map", "cnr")
PIXELS_METRICS = (*CROSS_METRICS, "point", "miou")
GROUNDING = ("cnr", "miou", "point")
ASSERTING_METRICS = ("auc", "r5", "cnr")
"""What relations of asserting sentences alone must win on every seed to become a setting: the
metrics that gained on the seed that suggested them. In no other of `PIXELS_METRICS` may they
lose in the mean."""
THE_PAPER = "pll, floor"
DEMO_BARS: Mapping[str, float] = {"auc": 0.82, "cnr": 1.3, "r1": 0.10, "r5": 0.45}
"""What a pipeline that learns and localises reaches on generated images of 64 pixels."""

Figures = dict[str, float]
Bars = dict[str, str]


class _Findings:
    """Figures by name, and the bars that some of them are held against."""

    def __init__(self) -> None:
        self.figures: Figures = {}
        self.bars: Bars = {}

    def mean(self, name: str, found: Paired | None, *, wins: bool = True) -> None:
        """Note a mean difference and, unless told otherwise, how many seeds won."""
        if found is not None:
            self.figures[name] = found.mean
            if wins:
                self.figures[f"{name}, wins"] = found.wins

    def hold(self, name: str, bar: str, value: float | None = None) -> None:
        """Hold a figure against a bar."""
        if value is not None:
            self.figures[name] = value
        self.bars[name] = bar


def held_against(run_log: RunLog) -> tuple[Figures, Bars]:
    """Compare what has been run with its bars; one whose runs are missing is left out."""
    findings = _Findings()
    for suite in (suites.PHANTOM, suites.STUDIES):
        _goal(suite, suites.runs_of(run_log, suite, ""), findings)
    _cross(suites.runs_of(run_log, suites.CROSS_PHANTOM, suites.STOPPED), findings)
    _pixels(suites.runs_of(run_log, suites.CROSS_STUDIES, ""), findings)
    _asserting(suites.runs_of(run_log, suites.ASSERTING_STUDIES, ""), findings)
    _tradeoff(run_log, findings)
    paper = suites.runs_of(run_log, suites.STUDIES, "").get(THE_PAPER, {})
    for metric, least in DEMO_BARS.items() if paper else ():
        mean = sum(run[metric] for run in paper.values()) / len(paper)
        findings.hold(f"studies the paper {metric}", f">= {least}", mean)
    return findings.figures, findings.bars


def _goal(suite: str, runs: Runs, findings: _Findings) -> None:
    """The fewest wins of the goal row over its three rivals, metric by metric."""
    for metric in GOAL_METRICS:
        best = best_constant(runs, suites.CONSTANTS[suite], metric)
        baselines = {"infonce": "infonce", "infonce, early": "infonce, early"}
        baselines |= {"best constant": best} if best else {}
        wins = []
        for name, baseline in baselines.items():
            found = paired(runs, GOAL, baseline, metric)
            findings.mean(f"{suite} goal {metric} over {name}", found)
            if found is not None and len(found.differences) == len(suites.PHANTOM_SEEDS):
                wins.append(found.wins)
        found = paired(runs, f"{GOAL}, early", "infonce, early", metric)
        findings.mean(f"{suite} goal {metric}, both early", found)
        if suite == suites.PHANTOM and len(wins) == 3:
            findings.hold(f"phantom goal {metric}, fewest wins", MOST_WIN, min(wins))


def _cross(runs: Runs, findings: _Findings) -> None:
    """Wins of `cross` over the best rival of each metric, all rows stopped alike."""
    suite, wins = suites.CROSS_PHANTOM, []
    for metric in CROSS_METRICS:
        best = best_constant(runs, suites.CONSTANTS[suite], metric)
        found = paired(runs, suites.GOALS[suite], best, metric) if best else None
        findings.mean(f"{suite} {metric} over {best}", found, wins=False)
        if found is not None and len(found.differences) == len(suites.CROSS_SEEDS):
            wins.append(found.wins)
    if len(wins) == len(CROSS_METRICS):
        findings.hold("phantom_cross_wins_min", MOST_WIN, min(wins))
    for metric in ("auc", "acc"):
        found = paired(runs, "cross, shuffled", "infonce", metric)
        if found is not None:
            name = f"{suite} shuffled reports {metric} over infonce"
            findings.hold(name, "< 0", found.mean)


def _pixels(runs: Runs, findings: _Findings) -> None:
    """Wins of `cross, place` over the better rival of each metric and seed; its controls."""
    suite, goal = suites.CROSS_STUDIES, suites.GOALS[suites.CROSS_STUDIES]
    rivals = [runs.get(row, {}) for row in suites.CONSTANTS[suite]]
    seeds = sorted(runs.get(goal, {}).keys() & rivals[0].keys() & rivals[1].keys())
    if not seeds:
        return
    wins = []
    for metric in PIXELS_METRICS:
        better = {seed: max(rival[seed][metric] for rival in rivals) for seed in seeds}
        found = Paired(tuple(runs[goal][seed][metric] - better[seed] for seed in seeds))
        findings.mean(f"{suite} {metric} over the better rival", found)
        wins.append(found.wins)
    findings.figures[f"{suite} seeds"] = len(seeds)
    if len(seeds) == len(suites.PIXELS_SEEDS):
        findings.hold("pixels_cross_place_wins_min", MOST_WIN, min(wins))
    for row in runs:
        for metric in suites.METRICS[suite] if row != goal else ():
            findings.mean(f"{suite} {metric} over {row}", paired(runs, goal, row, metric))
    controls = [
        (f"{goal}, shuffled", "infonce, both", ("auc", "acc")),
        (f"{goal}, shuffled", "infonce, both, place", ("auc", "acc")),
        (f"{goal}, shuffled", goal, ("auc", "acc", "map")),
        (f"{goal}, places shuffled", goal, GROUNDING),
    ]
    for row, baseline, asked in controls:
        for metric in asked:
            delta, name = (
                paired(runs, row, baseline, metric),
                f"{suite} {row} {metric} over {baseline}",
            )
            findings.mean(name, delta, wins=False)
            if delta is not None and len(delta.differences) == len(suites.PIXELS_SEEDS):
                findings.hold(name, "< 0")


def _asserting(runs: Runs, findings: _Findings) -> None:
    """Wins of relations of asserting sentences alone over those of all sentences."""
    suite = suites.ASSERTING_STUDIES
    (rival,), seeds = suites.CONSTANTS[suite], len(suites.ASSERTING_SEEDS)
    for metric in suites.METRICS[suite]:
        name, found = (
            f"{suite} {metric} over {rival}",
            paired(runs, suites.GOALS[suite], rival, metric),
        )
        findings.mean(name, found)
        if found is None or len(found.differences) < seeds:
            continue
        if metric in ASSERTING_METRICS:
            findings.hold(f"{name}, wins", f">= {seeds} of {seeds}")
        elif metric in PIXELS_METRICS:
            findings.hold(name, ">= 0")


def _tradeoff(run_log: RunLog, findings: _Findings) -> None:
    """Medians and wins of one constant against InfoNCE on the phantom of one class an image."""
    asked = (
        ("gamma^2 = 2", "const 0.1", "auc", ">= 0.008", 8),
        ("gamma^2 = 2", "const 0.1", "acc", ">= 0.02", 8),
        ("gamma^2 = 14", "const 0.05", "r1", ">= 0.005", 7),
        ("gamma^2 = 5", "const 0.1", "r1 rare", "< 0", None),
        ("gamma^2 = 5", "const 0.1", "cnr", "< 0", None),
    )
    for setting, row, metric, bar, wins in asked:
        runs = suites.runs_of(run_log, suites.TRADEOFF, setting)
        found, name = paired(runs, row, "infonce", metric), f"tradeoff {setting} {row} {metric}"
        if found is None:
            continue
        findings.hold(name, bar, found.median)
        if wins is not None:
            findings.figures[f"{name}, wins"] = found.wins
            if len(found.differences) == len(suites.TRADEOFF_SEEDS):
                findings.hold(f"{name}, wins", f">= {wins} of 10")
