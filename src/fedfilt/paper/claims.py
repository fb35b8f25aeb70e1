"""Which of the paper's claims hold."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedfilt._types import Array
from fedfilt.filters import Ideal, Tikhonov
from fedfilt.graph import Graph
from fedfilt.graph.building import Building
from fedfilt.mixing import mix, mixing_matrix
from fedfilt.paper import (
    f1,
    fedavg_limit,
    limits,
    local_test,
    other_model,
    populations,
    sparsification,
    two_setups,
)
from fedfilt.paper import system_heterogeneity as schedules
from fedfilt.paper._cases import PART, POPULATIONS, SCHEDULES, SETS, STRENGTHS, Case, Scope
from fedfilt.paper._costs import BYTES, population, round_of
from fedfilt.paper._items import Item
from fedfilt.paper._printed import ACCURACY, AFTER, BEFORE, HIGHEST_FREQUENCY, LESS_COMPUTATION, SCORES, WORDS
from fedfilt.paper._results import Results
from fedfilt.paper._tables import Interval, differences, gains, printed_gain, sizes, strengths, table
from fedfilt.populations import Paper

place = "abstract, text, conclusion"
order = 5
SKEWED = ("mnist_2", "mnist_4")
HOLDS, SIGN, UNCLEAR, FAILS = "holds", "**sign only**", "unclear", "**does not hold**"
# Of the size that the verdict is not of
OTHERWISE = {HOLDS: "holds", SIGN: "has the sign only", UNCLEAR: "is unclear", FAILS: "does not hold"}
UNMEASURED = "not yet measured"
EXACT = "arithmetic: exact"


class Claim(NamedTuple):
    """A claim of the paper, where it is, the verdict, our number and the paper's, and how sure that is."""

    name: str
    words: str
    place: str
    verdict: str
    ours: str
    theirs: str
    sure: str

    @property
    def holds(self) -> bool | None:
        """None: not measured."""
        return None if self.verdict == UNMEASURED else self.verdict == HOLDS


def cases(scope: Scope) -> list[Case]:
    """The runs of the items behind the claims."""
    items = (local_test, fedavg_limit, two_setups, schedules, sparsification, limits, other_model)
    links = Case("setup_1", "mu=10", scope.small, scope.rounds, shuffled=True)
    return [*(case for item in items for case in item.cases(scope)), *scope.seeds(links)]


def claims(results: Results) -> list[Claim]:
    """All claims in the order of the paper, each by a stated criterion."""
    parts = (_limit, _trade_off, _spreads, _mathematics, _local, _global, _curves, _scores, _setups, _savings)
    return [claim for part in (*parts, _accuracy, _others) for claim in part(results)]


# --- verdicts ---------------------------------------------------------------------------------------------------


def above(found: Interval, printed: float = 1.0) -> str:
    """Whether a difference has the paper's sign: by the 95 % interval over seeds; below 0.1 points it is none."""
    low, high = sorted((found.low, found.high) if printed >= 0 else (-found.low, -found.high))
    return FAILS if high < 0.1 else HOLDS if low > 0 else UNCLEAR


def as_large(found: Interval, printed: float) -> str:
    """Whether a difference is also as large as printed: the printed one is within the interval, or below it."""
    sign = above(found, printed)
    far = found.high if printed >= 0 else -found.low
    return sign if sign != HOLDS or far >= abs(printed) else SIGN


def within(found: Interval, most: float) -> str:
    """Whether a difference is at most so large, either way."""
    return HOLDS if max(-found.low, found.high) < most else FAILS if max(found.low, -found.high) > most else UNCLEAR


def ordered(by_rule: Sequence[Mapping[int, float]], way: int, slack: float = 0.0) -> tuple[str, str]:
    """(verdict, how sure) on scores by seed that rise (way 1) or fall (-1) from rule to rule, up to some slack.

    Holds if they do in every seed, does not if they do in none.
    """
    steps: Array = way * np.diff([list(one.values()) for one in by_rule], axis=0)  # (rules - 1, seeds)
    agree = np.all(steps >= -slack, axis=0).tolist()
    verdict = HOLDS if all(agree) else UNCLEAR if any(agree) else FAILS
    return verdict, f"means over {len(agree)} seeds; holds in {sum(agree)} of them separately"


def _claim(
    name: str,
    words: str,
    where: str,
    theirs: str,
    found: Mapping[int, Interval | None],
    judge: Callable[[Interval], str],
    command: str = "claims",
    unit: str = " points",
) -> Claim:
    """A claim about a number over seeds, at each size; the verdict is that of the size with the most seeds (or 45)."""
    known = {size: one for size, one in found.items() if one is not None}
    if not known:
        return Claim(name, words, where, UNMEASURED, f"`fedfilt paper {command}`", theirs, "no run yet")
    best = max(known, key=lambda size: known[size].seeds)
    ours = "; ".join(f"{one.mean:+.2f}{unit} at {size} samples" for size, one in known.items())
    verdict, said = judge(known[best]), []
    for size, one in known.items():
        if size == best or one.seeds > 2:
            other = judge(one)
            differs = f", which {OTHERWISE[other]}" if other != verdict else ""
            said.append(f"{size} samples: {one.said()}{differs}")
    return Claim(name, words, where, verdict, ours, theirs, "; ".join(said))


def _settled(name: str, words: str, where: str, holds: bool | str, ours: str, theirs: str, sure: str = EXACT) -> Claim:
    verdict = holds if isinstance(holds, str) else HOLDS if holds else FAILS
    return Claim(name, words, where, verdict, ours, theirs, sure)


def _missing(name: str, words: str, where: str, theirs: str, command: str) -> Claim:
    return Claim(name, words, where, UNMEASURED, f"`fedfilt {command}`", theirs, "no run yet")


# --- the filter -------------------------------------------------------------------------------------------------


def _limit(results: Results) -> list[Claim]:
    found = []
    for data in fedavg_limit.SETS:
        far, part = (fedavg_limit.largest(results, data, often) for often in (False, True))
        words = (
            f"{WORDS[data]}: μ = 10⁴ acts like FedAvg, to within {fedavg_limit.MOST} points on the global test "
            f"({fedavg_limit.MOST_OF_PART:.2f} on the {PART:,} pictures of curves, for chance is larger there)"
        )
        where, theirs = "abstract; fig. AvgvsG-FedFilt", "almost the same accuracy during each round"
        if far is None:
            found.append(_missing(f"limit {data}", words, where, theirs, "paper fedavg_limit"))
            continue
        seeds = len(results.seeds(Case(data, "mu=1e4", results.scope.small, results.scope.rounds)))
        sure = f"largest difference over all tested rounds of {seeds} seeds"
        ours = f"{far:.2f} points apart" + ("" if part is None else f"; {part:.2f} on the pictures of curves")
        holds = fedavg_limit.verdict(far, part)
        found.append(_settled(f"limit {data}", words, where, holds, ours, theirs, sure))
    return found


def _trade_off(results: Results) -> list[Claim]:
    found = []
    for size, data, test in itertools.product(sizes(results), SETS, ("local", "global")):
        if data == "mnist_10" and test == "local":
            continue  # the paper claims nothing: there is no heterogeneity
        way = "falls" if test == "local" else "rises"
        words = (
            f"{WORDS[data]}, {size} samples: {test} accuracy {way} with μ = 0.1 / 1 / 10 / 100, to within 0.1 points"
        )
        where = f"abstract; tab. {test}_test, fig. R2"
        theirs = " / ".join(f"{ACCURACY[test][data, rule][0]:.1f}" for rule in STRENGTHS)
        name = f"trade-off {data} {test} {size}"
        by_rule = strengths(results, Case(data, "", size, results.scope.rounds), test)
        if not all(by_rule):
            found.append(_missing(name, words, where, theirs, "paper local_test"))
            continue
        verdict, sure = ordered(by_rule, -1 if test == "local" else 1, slack=0.1)
        found.append(_settled(name, words, where, verdict, _means(by_rule), theirs, sure))
    return found


def _spreads(results: Results) -> list[Claim]:
    found = []
    for size, data in itertools.product(sizes(results), SETS):
        words = f"{WORDS[data]}, {size} samples: the spread between devices on the global test falls with μ"
        theirs = " / ".join(f"{ACCURACY['global'][data, rule][1]:.2f}" for rule in STRENGTHS)
        by_rule = strengths(results, Case(data, "", size, results.scope.rounds), "global", "std")
        if not all(by_rule):
            found.append(_missing(f"spread {data} {size}", words, "tab. global_test", theirs, "paper global_test"))
            continue
        verdict, sure = ordered(by_rule, -1)
        ours = _means(by_rule, 2)
        found.append(_settled(f"spread {data} {size}", words, "tab. global_test", verdict, ours, theirs, sure))
    return found


def _mathematics(results: Results) -> list[Claim]:
    graph = Graph.paper()
    count = graph.count
    between = float(graph.frequencies[1]) / 2
    low = abs(mixing_matrix(graph, Ideal(between)) - 1 / count).max()
    every = abs(mixing_matrix(graph, Ideal(100.0)) - np.eye(count)).max()
    rooms, faster = Building.generate(rooms=18, devices=100, seed=1), []
    signals = np.random.default_rng(0).standard_normal((100, 50))
    filtered = mix(rooms.graph(reach=7.5), Tikhonov(1.0), signals)
    for values in (signals, filtered):
        inside = np.sqrt(np.mean([values[rooms.rooms == room].var(axis=0) for room in range(18)], axis=0))
        faster.append(np.stack([inside, values.std(axis=0)]))
    kept = faster[1] / faster[0]  # (2, signals) of the spread within rooms, and over all devices
    every_graph = _graphs(rooms.graph(reach=7.5))
    mus = np.geomspace(0.1, 100, 25).round(2).tolist()
    off = {name: [(*_off(each, mu)[:2], mu) for mu in mus] for name, each in every_graph.items()}
    nearest = {name: min(found) for name, found in off.items()}
    both = {name: min(found, key=lambda one: max(one[:2])) for name, found in off.items()}
    places, sure = "sec. Graph filter design; fig. Gfiltering", f"50 random signals on each of {len(off)} graphs"
    own = {name: _off(each, 1e-3)[2] for name, each in every_graph.items()}
    cutoffs = np.unique(graph.frequencies.round(9))
    personal = [float(mixing_matrix(graph, Ideal(cutoff + 1e-6)).diagonal().mean()) for cutoff in cutoffs]
    rounded = [1 / (int(0.3 * size) + 1) for size in (450, 45)]
    flat = float(mix(rooms.graph(reach=7.5), Tikhonov(1e4), signals).std(axis=0).max())
    drawn, literal = populations.drawn()[:, 0], populations.drawn(1, sent=1)[:, 0]
    seconds = Paper().draw(np.full(20, 450), BYTES, np.random.default_rng(0))
    slowest = 200 * float((3 * seconds.compute_seconds() + seconds.send_seconds(BYTES)).max())
    return [
        _settled(
            "clusters",
            "filtering clusters devices by the graph alone: spread within rooms falls faster than over all",
            "abstract; fig. Gfiltering",
            bool((kept[0] < kept[1]).mean() > 0.95),
            f"μ = 1 leaves {kept[0].mean():.0%} within rooms, {kept[1].mean():.0%} over all",
            "each section appears as a cluster",
            f"50 random signals on one drawn building; in {np.mean(kept[0] < kept[1]):.0%} of them",
        ),
        _settled(
            "sections",
            "filtered with H₁, the value of a device is the average of its section (to within a tenth of the spread "
            "before), at some μ",
            places,
            _on_all(room < 0.1 for room, _, _ in nearest.values()),
            "; ".join(f"{room:.2f} of the spread {name} (μ = {mu:g})" for name, (room, _, mu) in nearest.items()),
            "appears as if",
            f"{sure}, at the best μ; depends on the graph, which the paper does not give",
        ),
        _settled(
            "close",
            "and it is still very close to the average of all: to within a tenth of the spread before from both, at "
            "some μ",
            places,
            _on_all(max(room, whole) < 0.1 for room, whole, _ in both.values()),
            "; ".join(f"{room:.2f} and {whole:.2f} {name} (μ = {mu:g})" for name, (room, whole, mu) in both.items()),
            "still very close, no number",
            f"{sure}, at the best μ; depends on the graph",
        ),
        _settled(
            "all-pass",
            "H₂ behaves as an all-pass filter: a device keeps its own value (to within a tenth of the spread before), "
            "here with μ = 0.001",
            places,
            _on_all(value < 0.1 for value in own.values()),
            f"{min(own.values()):.3f} to {max(own.values()):.3f} of the spread from the own value",
            "behaves as; no number",
            f"{sure}; for μ → 0 exact, the μ of H₂ is not given",
        ),
        _settled(
            "average",
            "filtered with H₀, μ = 10⁴, every device has the average of all (to within 1 % of the spread before)",
            "sec. Graph filter design; fig. Gfiltering",
            flat < 0.01,
            f"at most {flat:.1e} of spread is left",
            "the average will be calculated",
            "50 random signals on one drawn building",
        ),
        _settled(
            "low-pass",
            "a low-pass filter with its cut-off between λ₀ and λ₁ is FedAvg, an all-pass filter is local training",
            "sec. GFIoTL updates",
            bool(low < 1e-9 and every < 1e-9),
            f"largest error {max(low, every):.0e}; with the printed weights κ = 1/K, K times too small",
            "stated",
        ),
        _settled(
            "cut-off",
            "the higher the cut-off of an ideal low-pass filter, the more domain-specific: the more of a device's own "
            "update is in what it gets",
            "sec. GFIoTL updates, in italics",
            bool((np.diff(personal) > 0).all()),
            f"{personal[0]:.0%} → {personal[-1]:.0%}, rising at each of {len(personal)} frequencies",
            "stated",
        ),
        _settled(
            "frequency",
            "the highest frequency of the experiment graph",
            "sec. Experimental setup",
            abs(float(graph.frequencies[-1]) - HIGHEST_FREQUENCY) < 0.005,
            f"{float(graph.frequencies[-1]):.3f}",
            f"{HIGHEST_FREQUENCY}",
        ),
        _settled(
            "convex",
            "problem P'' is convex",
            "sec. Parameter optimization",
            False,
            "α q <= 1 holds for (1, 1) and (3, 1/3), not for their midpoint: 2 · 2/3 = 1.33; trying every α is exact",
            "convex, solved by CVX",
        ),
        _settled(
            "flooring",
            "[q D] ≈ q D: rounding down leaves out less than 1 % of the samples (450 samples, q >= 0.3)",
            "sec. Parameter optimization",
            rounded[0] < 0.01,
            f"less than {rounded[0]:.2%} at 450 samples; {rounded[1]:.2%} at 45 samples",
            "q D >> 1, no number",
            f"{EXACT}; 45 samples: {rounded[1]:.2%}, which {OTHERWISE[FAILS]}",
        ),
        _settled(
            "random H",
            "H = 0.31, 0.54, 0.65 come from random values of the parameter table, with the latencies of this one",
            "sec. Communication desynchronization",
            populations.ceiling() >= max(POPULATIONS.values()),
            f"H {_middle(drawn)} if devices do everything, {_middle(literal)} for one sample and one byte, as H is "
            f"defined; but latencies have a ratio of at most {populations.ceiling():.2f}",
            "0.31, 0.54, 0.65; ratios 1.92, 3.17, 6.83",
            f"the largest ratio is exact; H: 99.9 % of {len(drawn):,} draws",
        ),
        _settled(
            "seconds",
            "latency of 200 rounds without a schedule, with the printed parameters",
            "tab. sysHetResults",
            slowest > 100,
            f"{slowest:.1f} s",
            f"{BEFORE[0.31][0][2]} s",
            "one draw; others differ by a few percent",
        ),
    ]


def _graphs(building: Graph) -> dict[str, Graph]:
    """The paper gives no graph for its figure: that of the picture, that of its experiments, and two of sections."""
    found = {}
    for bridges in (1, 3):
        links = [(25 * room + i, 25 * room + j) for room in range(4) for i in range(25) for j in range(i)]
        links += [(25 * room + 24 - i, 25 * room + 25 + i) for room in range(3) for i in range(bridges)]
        words = f"on four communities of 25 in a row, {bridges} bridge{'s' * (bridges > 1)} between neighbours"
        found[words] = replace(Graph.from_edges(100, links), rooms=np.repeat(np.arange(4), 25))
    rooms = np.asarray(building.rooms)
    across = sum(bool(rooms[a] != rooms[b]) for a, b in building.edges)
    words = f"on a drawn building, {across} of {len(building.edges)} links between rooms"
    return found | {"on the graph of the experiments": Graph.paper(), words: building}


def _off(graph: Graph, mu: float) -> tuple[float, float, float]:
    """How far filtered values are from the average of their room, of all, and from themselves, as shares of the spread.

    Of random signals.
    """
    signals = np.random.default_rng(0).standard_normal((graph.count, 50))
    filtered, rooms = mix(graph, Tikhonov(mu), signals), np.asarray(graph.rooms)
    within = np.stack([signals[rooms == room].mean(axis=0) for room in rooms])
    room, whole, own = (
        float(np.sqrt(np.mean((filtered - one) ** 2)) / signals.std())
        for one in (within, signals.mean(axis=0), signals)
    )
    return room, whole, own


def _on_all(found: Iterable[bool]) -> str:
    """A verdict on several graphs, of which the paper does not say which it means."""
    known = list(found)
    return HOLDS if all(known) else UNCLEAR if any(known) else FAILS


# --- the tables -------------------------------------------------------------------------------------------------


def _gain(results: Results, data: str, test: str, rule: str) -> dict[int, Interval | None]:
    return {size: Interval.of(gains(results, data, test, size).get(rule, [])) for size in sizes(results)}


def _local(results: Results) -> list[Claim]:
    found = []
    for name, data, rule, where, printed, words in (
        (
            "gain 3.99",
            "mnist_2",
            "mu=10",
            "abstract",
            3.99,
            "up to 3.99 % better than FedAvg on local data, with μ = 10",
        ),
        ("gain 6.12", "mnist_2", "mu=0.1", "sec. Effect of μ", 6.12, "at its best, μ = 0.1, 6.12 % above FedAvg"),
        (
            "gain mnist_2",
            "mnist_2",
            "mu=0.1",
            "tab. local_test",
            0.0,
            "at its best, μ = 0.1, above FedAvg as in the table",
        ),
        ("gain mnist_4", "mnist_4", "mu=0.1", "tab. local_test", 0.0, "at its best, μ = 0.1, above FedAvg"),
        ("gain writers", "writers", "mu=1", "sec. Effect of μ", 0.0, "at its best, μ = 1, above FedAvg"),
    ):
        wanted = printed or printed_gain(data, "local", rule)
        words, gain = f"{WORDS[data]}, local test: {words}", _gain(results, data, "local", rule)
        found.append(_claim(name, words, where, f"{wanted:+.2f} points", gain, _sized(wanted)))
    best = {}
    for size in sizes(results):
        some = gains(results, "mnist_10", "local", size)
        best[size] = Interval.of(max(some.values(), key=lambda one: sum(one, 0.0), default=[]))
    theirs = f"{max(printed_gain('mnist_10', 'local', rule) for rule in STRENGTHS):+.2f} points at its best"
    words = "MNIST_10, no heterogeneity: no strength is above FedAvg on the local test (by 0.1 points)"

    def none(one: Interval) -> str:
        return HOLDS if one.high < 0.1 else FAILS if one.low >= 0.1 else UNCLEAR

    found.append(_claim("no gain mnist_10", words, "sec. Effect of μ", theirs, best, none))
    return [*found, _largest(results, "local"), _tuned(results)]


def _tuned(results: Results) -> Claim:
    """The conclusion, which claims no size: at the best strength, more is gained locally than lost globally."""
    words = (
        "well tuned: personal on the local test, and a decent generalisation (by our criterion: at the best strength, "
    )
    words += "more is gained on MNIST_2's local test than lost on its global one, against FedAvg)"
    balance: dict[int, Interval | None] = {}
    ours = []
    for size in sizes(results):
        local, everybody = (gains(results, "mnist_2", test, size) for test in ("local", "global"))
        sums = {rule: [sum(pair) for pair in zip(local[rule], everybody[rule], strict=True)] for rule in local}
        if sums:
            best = max(sums, key=lambda rule: float(np.mean(sums[rule])))
            balance[size] = Interval.of(sums[best])
            for rule in dict.fromkeys((best, "mu=1")):
                both = f"{np.mean(local[rule]):+.2f} local and {np.mean(everybody[rule]):+.2f} global"
                ours.append(f"{WORDS[rule]}: {both} at {size} samples")
    printed = [f"{printed_gain('mnist_2', 'local', rule):+.2f}" for rule in ("mu=10", "mu=1")]
    theirs = f"decent, no number; μ = 10: {printed[0]} local"
    claim = _claim("tuned", words, "conclusion", theirs, balance, above)
    return claim._replace(ours="; ".join(ours)) if ours else claim


def _largest(results: Results, test: str) -> Claim:
    """The abstract's "up to", taken by its words: the largest gain of any strength on any data set."""
    some: dict[int, Interval | None] = {}
    rules = []
    for size in sizes(results):
        known = {
            f"{WORDS[data]}, {WORDS[rule]}": one
            for data in SETS
            for rule, numbers in gains(results, data, test, size).items()
            if (one := Interval.of(numbers)) is not None
        }
        if known:
            best = max(known, key=lambda name: known[name].mean)
            some[size] = known[best]
            rules.append(best)
    printed = printed_gain("mnist_2", test, "mu=10")
    words = f"{test} test: up to {printed:.2f} % better than FedAvg, the largest gain of any data set and strength"
    most = max(printed_gain(data, test, rule) for data in SETS for rule in STRENGTHS)
    theirs = f"{printed:+.2f} points; its table: {most:+.2f}"
    claim = _claim(f"largest gain {test}", words, "abstract", theirs, some, _sized(printed))
    return claim._replace(ours=f"{claim.ours} ({'; '.join(dict.fromkeys(rules))})") if rules else claim


def _sized(printed: float) -> Callable[[Interval], str]:
    return lambda one: as_large(one, printed)


def _global(results: Results) -> list[Claim]:
    found = []
    for data in SETS:
        printed = printed_gain(data, "global", "mu=10")
        claimed = " (the abstract's 2.41 %)" if data == "mnist_2" else ""
        words = f"{WORDS[data]}: μ = 10 above FedAvg on the global test{claimed}"
        where = "abstract; tab. global_test" if claimed else "tab. global_test"
        some = _gain(results, data, "global", "mu=10")
        found.append(_claim(f"global gain {data}", words, where, f"{printed:+.2f} points", some, _sized(printed)))
    return [*found, _largest(results, "global")]


def _curves(results: Results) -> list[Claim]:
    scope, found = results.scope, []
    lower, later = {}, {}
    for size in sizes(results):
        both = [Case(data, "fedavg", size, scope.rounds) for data in ("mnist_2", "mnist_10")]
        lower[size] = Interval.of(differences(*(results.values(case, "global", "mean") for case in both)))
        later[size] = Interval.of(differences(*(_until(results, case, 70.0) for case in both)))
    printed = ACCURACY["global"]["mnist_2", "fedavg"][0] - ACCURACY["global"]["mnist_10", "fedavg"][0]
    words = "statistical heterogeneity lowers FedAvg's accuracy: global test, MNIST_2 against MNIST_10"
    theirs = f"{printed:+.2f} points"
    found.append(_claim("heterogeneity", words, "introduction", theirs, lower, _sized(printed)))
    words = "and slows it down: rounds until FedAvg reaches 70 % on the global test, MNIST_2 against MNIST_10"
    theirs = "slower, no number"
    found.append(_claim("slower", words, "introduction", theirs, later, above, unit=" rounds"))
    for rule in ("mu=1", "mu=10"):
        gaps = []
        for when in (scope.rounds // 2, 0):
            one, other = (
                _at(results, Case("mnist_2", which, scope.small, scope.rounds), when) for which in (rule, "fedavg")
            )
            gaps.append({seed: one[seed] - other[seed] for seed in one if seed in other})
        closer = Interval.of(differences(gaps[1], gaps[0]))
        words = f"MNIST_2, {WORDS[rule]}: the global accuracy comes closer to FedAvg's in the second half of the rounds"
        theirs = "keeps improving close to FedAvg"
        claim = _claim(f"closer {rule}", words, "fig. R2 b", theirs, {scope.small: closer}, above)
        if gaps[1]:
            claim = claim._replace(ours=f"{claim.ours}; at the end {_mean(gaps[1]):+.2f}")
        found.append(claim)
    for test in ("local", "global"):
        wide = {size: [_width(results, data, test, size) for data in ("mnist_4", "mnist_2")] for size in sizes(results)}
        less = {size: Interval.of(differences(*both)) for size, both in wide.items()}
        spans = [np.ptp([ACCURACY[test][data, rule][0] for rule in STRENGTHS]) for data in ("mnist_4", "mnist_2")]
        words = f"the strengths differ less on MNIST_4 than on MNIST_2 ({test} test, largest minus smallest)"
        theirs = f"{spans[0]:.1f} against {spans[1]:.1f} points"
        claim = _claim(f"width {test}", words, "fig. R2", theirs, less, lambda one: above(one, -1))
        means = [
            f"{_mean(one):.1f} against {_mean(other):.1f} points at {size} samples"
            for size, (one, other) in wide.items()
            if less[size] is not None
        ]
        found.append(claim._replace(ours="; ".join(means)) if means else claim)
    return found


def _scores(results: Results) -> list[Claim]:
    found = []
    for size, test in itertools.product(sizes(results), ("local", "global")):
        way = "better" if test == "local" else "worse"
        words = f"MNIST_2, {size} samples: precision, recall and F1 on the {test} test all get {way} as μ gets smaller"
        theirs = "F1 " + " / ".join(f"{SCORES[test, rule][2]:.1f}" for rule in STRENGTHS)
        case = Case("mnist_2", "", size, results.scope.rounds)
        series = [strengths(results, case, test, key) for key in f1.KEYS]
        name = f"scores {test} {size}"
        if not all(map(all, series)):
            found.append(_missing(name, words, "tab. F1", theirs, "paper f1"))
            continue
        verdicts = [ordered(by_rule, -1 if test == "local" else 1) for by_rule in series]
        verdict, sure = next((one for bad in (FAILS, UNCLEAR) for one in verdicts if one[0] == bad), verdicts[2])
        found.append(_settled(name, words, "tab. F1", verdict, f"F1 {_means(series[2])}", theirs, sure))
    return found


def _setups(results: Results) -> list[Claim]:
    size, rounds, found = results.scope.small, results.scope.rounds, []
    gained = {setup: two_setups.setup_gains(results, setup) for setup in two_setups.SETUPS}
    where = "fig. twosetups"
    for setup, by_seed in gained.items():
        words = f"{setup}: μ = 10 above FedAvg on the local test"
        found.append(_claim(setup, words, where, "better, no number", {size: Interval.of(by_seed.values())}, above))
    more = Interval.of(differences(gained["Setup 1"], gained["Setup 2"]))
    words = "the graph matters: the gain is larger in Setup 1, where neighbours are similar"
    found.append(_claim("graph", words, where, "plays an important role", {size: more}, above))
    real = Case("setup_1", "mu=10", size, rounds)
    with_, without = (results.values(case, "local", "mean") for case in (real, replace(real, shuffled=True)))
    words = "the graph matters: in Setup 1, μ = 10 is better with the graph than with its links given to other devices"
    theirs = "plays an important role; no control"
    linked = {size: Interval.of(differences(with_, without))}
    found.append(_claim("links", words, where, theirs, linked, above, "controls"))
    found.append(_consistently(results, real))
    both = [results.values(Case(data, "fedavg", size, rounds), "local", "mean") for data in ("setup_1", "mnist_4")]
    words = "FedAvg performs the same in both setups (to within a point)"
    last = {size: Interval.of(differences(*both))}
    return [*found, _claim("setups fedavg", words, where, "the same", last, lambda one: within(one, 1.0))]


def _consistently(results: Results, case: Case) -> Claim:
    """Whether Setup 1 is ahead of Setup 2 at every test, each by its interval over seeds."""
    name, words = "setups mu=10", "μ = 10 is better in Setup 1 than in Setup 2, at every tested round"
    where, theirs = "fig. twosetups", "consistently better"
    one, two = (results.curve(each, "local") for each in (case, replace(case, data="mnist_4")))
    if not len(one) or one.shape != two.shape:
        return _missing(name, words, where, theirs, "paper two_setups")
    gaps = [Interval.of(each) for each in (one - two)[:, 2:]]
    seen = [above(gap) for gap in gaps if gap is not None]
    verdict = HOLDS if set(seen) == {HOLDS} else FAILS if FAILS in seen else UNCLEAR
    ahead = (one[:, 1] > two[:, 1]).sum()
    ours = f"{one[-1, 1] - two[-1, 1]:+.2f} points at the end; ahead in the mean at {ahead} of {len(seen)} tests"
    last = gaps[-1].said() if gaps[-1] is not None else ""
    sure = f"{seen.count(HOLDS)} of {len(seen)} tests hold by their interval; the last: {last}"
    return _settled(name, words, where, verdict, ours, theirs, sure)


# --- the schedule -----------------------------------------------------------------------------------------------


def _as_far(cut: Iterable[float], printed: Iterable[float]) -> str:
    """Whether every reduction, in percent and below 0, is as large as printed."""
    pairs = list(zip(cut, printed, strict=True))
    return HOLDS if all(one <= other for one, other in pairs) else SIGN if max(pairs)[0] < 0 else FAILS


def _at_both_sizes(verdicts: Mapping[int, str]) -> tuple[str, str]:
    """The verdict at 450 samples, the paper's number, and how sure, which names that at 45 if it is another."""
    of, other = verdicts[450], verdicts[45]
    return of, EXACT if of == other else f"{EXACT}; 45 samples: {OTHERWISE[other]}"


def less_work(heterogeneity: float, schedule: str, samples: int = 450) -> float:
    """What a schedule changes of the computation, as a share."""
    return float(round_of(population(heterogeneity, samples), schedule).work.mean()) / 3 - 1


def _savings(results: Results) -> list[Claim]:
    found = []
    for schedule in SCHEDULES:
        for at, key in enumerate(("desync", "latency")):
            printed = [100 * (AFTER[h][0][at + 1] / BEFORE[h][0][at + 1] - 1) for h in POPULATIONS]
            cut = {n: [100 * schedules.changes(h, schedule, n)[at] for h in POPULATIONS] for n in (450, 45)}
            word = "desynchronisation" if at == 0 else "latency"
            words = f"{schedule}: cuts {word} at least as far as printed, at H = 0.31 / 0.54 / 0.65 (450 samples)"
            said = "; ".join(f"{' / '.join(f'{value:.2f}' for value in cut[n])} % at {n} samples" for n in cut)
            theirs = " / ".join(f"{value:.1f}" for value in printed) + " %"
            theirs += " (abstract: up to 99.65; text: 99.63)" if at == 0 else " (abstract: 44.61; text: 47.91)"
            where = "abstract; tab. sysHetResults"
            verdict, sure = _at_both_sizes({n: _as_far(cut[n], printed) for n in cut})
            found.append(_settled(f"{key} {schedule}", words, where, verdict, said, theirs, sure))
    worst = [round_of(population(h)) for h in POPULATIONS]
    up = [200 * one.desync for one in worst]
    words = "the more heterogeneity, the more desynchronisation without a schedule (200 rounds)"
    theirs = " / ".join(f"{BEFORE[h][0][1]:.0f}" for h in POPULATIONS) + " s"
    ours = " / ".join(f"{value:.0f}" for value in up) + " s"
    found.append(_settled("more H", words, "introduction; tab. sysHetResults", up == sorted(up), ours, theirs))
    least = [200 * round_of(population(h), schedules.PRINTED).desync for h in POPULATIONS]
    words = f"with H, desynchronisation grows less after the schedule than before ({schedules.PRINTED}, 200 rounds)"
    theirs = " → ".join(f"{AFTER[h][0][1]:.1f}" for h in POPULATIONS) + f" s after, {theirs} before"
    ours = " → ".join(f"{value:.2f}" for value in least) + f" s after, {ours} before"
    grown = max(least) - least[0] < up[-1] - up[0]
    found.append(_settled("less affected", words, "sec. Communication desynchronization", grown, ours, theirs))
    late = [[200 * round_of(population(h), schedule).end for h in POPULATIONS] for schedule in ("", schedules.PRINTED)]
    words = f"with H, latency grows less after the schedule than before ({schedules.PRINTED}, 200 rounds)"
    spans = [" → ".join(f"{value:.0f}" for value in one) for one in late]
    paper = [" → ".join(f"{one[h][0][2]:.0f}" for h in POPULATIONS) for one in (BEFORE, AFTER)]
    theirs, ours = (f"{one[1]} s after, {one[0]} before" for one in (paper, spans))
    grown = late[1][-1] - late[1][0] < late[0][-1] - late[0][0]
    found.append(_settled("latency less affected", words, "sec. Communication desynchronization", grown, ours, theirs))
    for schedule in SCHEDULES:
        share = {n: [100 * less_work(h, schedule, n) for h in POPULATIONS] for n in (450, 45)}
        words = f"{schedule}: computation falls by up to 70.21 %"
        ours = "; ".join(f"{' / '.join(f'{value:.1f}' for value in share[n])} % at {n} samples" for n in share)
        theirs = f"up to -{LESS_COMPUTATION} %"
        verdict, sure = _at_both_sizes({n: _as_far([min(share[n])], [-LESS_COMPUTATION]) for n in share})
        found.append(_settled(f"computation {schedule}", words, "abstract; fig. bargraph", verdict, ours, theirs, sure))
    fractions = [round_of(population(h), schedules.PRINTED).fractions.mean() for h in POPULATIONS]
    ours = " / ".join(f"{value:.0%}" for value in fractions) + " of the data in a round, mean over devices"
    where = "sec. Communication desynchronization"
    words = f"devices train on a subset of their data in a round ({schedules.PRINTED}, 450 samples)"
    found.append(_settled("subset", words, where, max(fractions) < 1, ours, "a subset"))
    words = "and that is why the accuracy with a schedule increases at a faster pace"
    ours = "the pace is in the rows on the second half of the rounds"
    found.append(_settled("cause", words, where, UNCLEAR, ours, "due to the fact", "the cause is not tested"))
    return found


def effects(results: Results, case: Case) -> dict[str, Interval | None]:
    """What a schedule changes of the accuracy: after half the rounds and all, at equal seconds, in the second half."""
    one, base = (_halves(results, each) for each in (case, schedules.before(results.scope, case.samples)))
    early, late, pace = (differences(*both) for both in (*zip(one, base, strict=True), (_grown(one), _grown(base))))
    found = {name: Interval.of(some) for name, some in (("early", early), ("late", late), ("pace", pace))}
    return {**found, "long": found["late"], "equal": _at_equal_seconds(results, case)}


def judges(heterogeneity: float) -> dict[str, Callable[[Interval], str]]:
    """How they are judged: a cost by the printed one, in the long run by a point."""
    early, late = (_no_worse(_cost(heterogeneity, at)) for at in (0, 1))
    return {"early": early, "late": late, "long": _no_worse(-1.0), "pace": above, "equal": above}


def _by_size(results: Results, heterogeneity: float, schedule: str) -> dict[str, dict[int, Interval | None]]:
    """All effects of a schedule at every size."""
    cases = {size: schedules.after(results.scope, heterogeneity, schedule, size) for size in sizes(results)}
    found = {size: effects(results, case) for size, case in cases.items()}
    return {key: {size: one[key] for size, one in found.items()} for key in judges(heterogeneity)}


def _cost(heterogeneity: float, at: int) -> float:
    """What the schedule changes of the printed accuracy, after 200 rounds (at 0) or 400 (at 1)."""
    return AFTER[heterogeneity][at][0] - BEFORE[heterogeneity][at][0]


def _accuracy(results: Results) -> list[Claim]:
    scope, found = results.scope, []
    half, whole = scope.rounds, 2 * scope.rounds
    where, command = "sec. Communication desynchronization", "system_heterogeneity"
    joined = []  # what of the computation is saved at which cost
    for schedule in SCHEDULES:
        changed = {h: _by_size(results, h, schedule) for h in POPULATIONS}
        for h in POPULATIONS:
            for at, key, rounds in ((1, "late", whole), (0, "early", half)):
                printed = _cost(h, at)
                words = f"{schedule}, H = {h}: costs {-printed:.2f} points after {rounds} rounds, not more"
                place = "tab. sysHetResults" if h != 0.31 else "abstract" if at else where
                theirs = f"{printed:+.2f} points"
                name, judge = f"cost {rounds} {h} {schedule}", judges(h)[key]
                found.append(_claim(name, words, place, theirs, changed[h][key], judge, command))
            late = changed[h]["late"][scope.small]
            joined += [(schedule, h, 100 * less_work(h, schedule, scope.small), late)] if late else []
        words = f"{schedule}, H = 0.31: better than no schedule at the same simulated seconds, after {whole} rounds"
        theirs = "+0.99 points (87.65 at 356 s, 86.66 at 349 s)"
        found.append(_claim(f"equal {schedule}", words, where, theirs, changed[0.31]["equal"], above, command))
        found.append(_by_heterogeneity(results, schedule))
        for h in POPULATIONS:
            words = f"{schedule}, H = {h}: gains more in the second half of the rounds than no schedule"
            rises = [late[0] - early[0] for early, late in (AFTER[h], BEFORE[h])]
            theirs = f"{rises[0]:+.2f} against {rises[1]:+.2f} points"
            found.append(
                _claim(f"second half {schedule} {h}", words, where, theirs, changed[h]["pace"], above, command)
            )
        words = f"{schedule}, H = 0.31: comparable to no schedule in the long run (within a point after {whole} rounds)"
        some, judge = changed[0.31]["long"], judges(0.31)["long"]
        claim = _claim(f"long run {schedule}", words, where, "-0.36 points", some, judge, command)
        more = f"{claim.ours}; later: `fedfilt paper system_heterogeneity --rounds 1000`"
        found.append(claim if claim.verdict == UNMEASURED else claim._replace(ours=more))
    return [*found, _together(joined, scope.small)]


def _together(joined: Iterable[tuple[str, float, float, Interval]], size: int) -> Claim:
    """The abstract's 70.21 % and 0.36 points, which its own table has at different heterogeneities."""
    known = list(joined)
    words = f"{LESS_COMPUTATION} % less computation at the cost of {-_cost(0.31, 1):.2f} points, at one H"
    theirs = f"one sentence; its table: {_cost(0.31, 1):+.2f} at H = 0.31, {_cost(0.65, 1):+.2f} at 0.65"
    if not known:
        return _missing("together", words, "abstract", theirs, "paper system_heterogeneity")
    cheap = [_no_worse(_cost(0.31, 1))(cost) for _, _, less, cost in known if less <= -LESS_COMPUTATION]
    verdict = HOLDS if HOLDS in cheap else UNCLEAR if UNCLEAR in cheap else FAILS
    ours = "; ".join(f"{less:.1f} % for {cost.mean:+.2f} ({name}, H = {h})" for name, h, less, cost in known)
    sure = f"every schedule and H at {size} samples; costs by their interval over seeds"
    return _settled("together", words, "abstract", verdict, ours, theirs, sure)


def _no_worse(least: float) -> Callable[[Interval], str]:
    """Whether a difference is at least so much: a loss no larger than that."""
    return lambda one: HOLDS if one.low >= least else FAILS if one.high < least else UNCLEAR


Halves = Sequence[Mapping[int, float]]  # accuracy by seed after half the rounds and after all


def _halves(results: Results, case: Case) -> Halves:
    return [_at(results, case, rounds) for rounds in (case.rounds // 2, case.rounds)]


def _by_heterogeneity(results: Results, schedule: str) -> Claim:
    """Whether accuracy falls with H; where it rises, the reason: how much work a deadline leaves time for."""
    words = f"{schedule}: accuracy falls with H, 0.31 to 0.65, after {2 * results.scope.rounds} rounds"
    theirs = " / ".join(f"{AFTER[h][1][0]:.1f}" for h in POPULATIONS)
    ends = {
        size: [_halves(results, schedules.after(results.scope, h, schedule, size))[1] for h in POPULATIONS]
        for size in sizes(results)
    }
    falls = {size: Interval.of(differences(last, first)) for size, (first, _, last) in ends.items()}
    where = "sec. Communication desynchronization"
    command = "system_heterogeneity"
    claim = _claim(f"with H {schedule}", words, where, theirs, falls, lambda one: above(one, -1), command)
    ours, why = [], ""
    for size, fall in falls.items():
        if fall is not None:
            work = [round_of(population(h, size), schedule).work.mean() / 3 for h in POPULATIONS]
            shares = " / ".join(f"{value:.0%}" for value in work)
            ours.append(f"{_means(ends[size])} at {size} samples (work done {shares})")
            if fall.mean > 0 and schedule == "`slowest_minimum`":
                why = ": T is a tenth of the slowest device's time, so the slower that device, the more time for others"
    return claim._replace(ours="; ".join(ours) + why) if ours else claim


def _others(results: Results) -> list[Claim]:
    size, found = results.scope.small, []
    for kind in ("a tenth", "a tenth, without error feedback"):
        cost = Interval.of(sparsification.costs(results, kind).values())
        words = (
            f"sending {kind.replace('a tenth', 'a tenth of the update')} costs nearly nothing (at most half a point)"
        )
        where = "sec. Communication desynchronization, citing others"
        theirs = "nearly no loss"
        found.append(_claim(f"sparse {kind}", words, where, theirs, {size: cost}, _no_worse(-0.5), "sparsification"))
    return [*found, _work_and_bytes(results), _other_model(results), *_limits(results), *_at_home()]


def _work_and_bytes(results: Results) -> Claim:
    """Why μ₃ is the smallest weight of P'': what sending less costs against what working less costs."""
    schedule, size = "`fastest_full`, <= T", results.scope.small
    less, every = (
        _halves(results, case)[0]
        for case in (schedules.after(results.scope, 0.31, schedule), schedules.before(results.scope))
    )
    work = {seed: less[seed] - every[seed] for seed in less if seed in every}
    bytes_ = sparsification.costs(results, "a tenth")
    share = round_of(population(0.31, size), schedule).work.mean() / 3
    words = (
        f"more data and epochs matter more than more bytes: {share:.0%} of the work costs more than 10% of the bytes"
    )
    where, theirs = "sec. Communication desynchronization", "participate more to higher accuracy; no number"
    gap = {size: Interval.of(differences(bytes_, work))}
    claim = _claim("work and bytes", words, where, theirs, gap, above, "sparsification")
    if claim.verdict == UNMEASURED:
        return claim
    ours = f"{_mean(work):+.2f} points by less work ({schedule}, H = 0.31), {_mean(bytes_):+.2f} by fewer bytes"
    return claim._replace(ours=ours)


def _other_model(results: Results) -> Claim:
    """Whether a perceptron orders the strengths as the CNN does, on both tests."""
    name, words = (
        "other model",
        "a perceptron: local accuracy falls and global rises with μ on MNIST_2 too, to 0.1 points",
    )
    where, theirs = "sec. Experimental setup", "the relative results can still apply"
    case, ours, verdicts = other_model.case_of(results.scope, ""), [], []
    for test, way in (("local", -1), ("global", 1)):
        by_rule = strengths(results, case, test)
        if not all(by_rule):
            return _missing(name, words, where, theirs, "paper other_model")
        ours.append(f"{test} {_means(by_rule)}")
        verdicts.append(ordered(by_rule, way, slack=0.1))
    verdict, sure = next((one for bad in (FAILS, UNCLEAR) for one in verdicts if one[0] == bad), verdicts[0])
    verdict = verdict if len(by_rule[0]) > 1 else UNCLEAR
    return _settled(name, words, where, verdict, "; ".join(ours), theirs, sure.replace(" 1 seeds", " one seed"))


def _limits(results: Results) -> list[Claim]:
    """Varying speeds, and batteries, which no table of the paper exercises."""
    size, found = results.scope.small, []
    words = "T and all plans recomputed in each round: desynchronisation falls by 90 % or more though speeds vary"
    where, theirs = "sec. Parameter optimization", "T is subject to change in each round; no number"

    def nine_tenths(one: Interval) -> str:
        return HOLDS if one.high <= -90 else FAILS if one.low > -90 else UNCLEAR

    cut = {size: limits.cut(results, "desync")}
    found.append(_claim("varying", words, where, theirs, cut, nine_tenths, "limits", unit=" %"))
    words = f"a device never spends more than its energy limit, here {limits.JOULES} J a round"
    where, theirs, used = "problem P, C2", "a constraint; no table uses it", limits.spent(results)
    if used is None:
        return [*found, _missing("energy", words, where, theirs, "paper limits")]
    most = limits.most(results.scope)
    ours = f"at most {most:.4f} J, {used:.4f} J on average; accuracy {np.mean(limits.saved(results)):+.2f} points"
    seeds = len(results.seeds(limits.limited(results.scope)))
    sure = f"all devices and rounds of {seeds} seeds".replace(" 1 seeds", " one seed")
    return [*found, _settled("energy", words, where, most <= limits.JOULES * (1 + 1e-9), ours, theirs, sure)]


# Daily and Sports Activities, percent by seed, measured by experiments/smart_home.py; results/smart_home has the files
VOTE = {"single": (93.72, 93.09, 93.96), "mean": (97.72, 98.07, 98.07)}
BEHIND_ENCODERS = {
    "purely personal": {"own": (79.79, 78.98, 79.65), "unseen": (35.79, 35.98, 35.12)},
    "each kind alone": {"own": (81.58, 81.19, 81.26), "unseen": (47.77, 47.28, 46.47)},
    "the rest over the graph": {"own": (80.32, 80.91, 80.14), "unseen": (49.89, 47.4, 46.18)},
}


def _at_home() -> list[Claim]:
    """Two sentences on smart homes, which MNIST cannot check: see docs/smart_home.md."""

    def gap(one: Sequence[float], other: Sequence[float]) -> Interval:
        found = Interval.of([a - b for a, b in zip(one, other, strict=True)])
        assert found is not None
        return found

    voted = gap(VOTE["mean"], VOTE["single"])
    shared, personal, alone = (
        BEHIND_ENCODERS[name] for name in ("the rest over the graph", "purely personal", "each kind alone")
    )
    own, new = (gap(shared[test], personal[test]) for test in ("own", "unseen"))
    kinds = [gap(shared[test], alone[test]).mean for test in ("own", "unseen")]
    return [
        _settled(
            "vote",
            "the devices of a home decide together better than each alone (recordings of activities, μ = 1)",
            "introduction; sec. Experimental setup",
            above(voted),
            f"{voted.mean:+.2f} points by [the vote](smart_home.md#the-vote) of five devices",
            "more accurately, no number",
            voted.said(),
        ),
        _settled(
            "Remark 1",
            "behind encoders, devices of unequal inputs learn together over the graph: on new people better than "
            "purely personal",
            "Remark 1",
            above(new),
            f"{new.mean:+.2f} points ([three shapes, two rates](smart_home.md#unlike-inputs)); {own.mean:+.2f} on "
            f"their own test; than each kind alone {kinds[1]:+.2f} and {kinds[0]:+.2f}",
            "can equalize the dimensions",
            f"{new.said()}; own test: {own.said()}",
        ),
    ]


# --- numbers ----------------------------------------------------------------------------------------------------


def _means(by_rule: Iterable[Mapping[int, float]], digits: int = 1) -> str:
    """Means over seeds, a number per rule."""
    return " / ".join(f"{_mean(by_seed):.{digits}f}" for by_seed in by_rule)


def _mean(by_seed: Mapping[int, float]) -> float:
    return float(np.mean(list(by_seed.values())))


def _middle(values: Array) -> str:
    """Where 99.9 % of some numbers are."""
    low, high = np.percentile(values, [0.05, 99.95])
    return f"{low:.2f} to {high:.2f}"


def _at(results: Results, case: Case, rounds: int) -> dict[int, float]:
    """Global accuracy by seed after so many rounds (0: the last), or at the first test after them."""
    found = {}
    for record in results.seeds(case):
        later = [point for point in record["curve"] if point["round"] >= (rounds or case.rounds)]
        if later:
            found[record["seed"]] = 100 * later[0]["global"]["mean"]
    return found


def _grown(halves: Halves) -> dict[int, float]:
    """What the second half of the rounds gains, by seed."""
    early, late = halves
    return {seed: late[seed] - early[seed] for seed in late if seed in early}


def _width(results: Results, data: str, test: str, size: int) -> dict[int, float]:
    """Largest minus smallest accuracy over the strengths, by seed."""
    by_rule = strengths(results, Case(data, "", size, results.scope.rounds), test)
    return {seed: float(np.ptp([one[seed] for one in by_rule])) for seed in by_rule[0]}


def _until(results: Results, case: Case, accuracy: float) -> dict[int, float]:
    """The first tested round at which a run reaches an accuracy on the global test, by seed."""
    found = {}
    for record in results.seeds(case):
        reached = [point["round"] for point in record["curve"] if 100 * point["global"]["mean"] >= accuracy]
        if reached:
            found[record["seed"]] = float(reached[0])
    return found


def _at_equal_seconds(results: Results, case: Case) -> Interval | None:
    """A schedule at its end against no schedule at the same simulated time, by seed."""
    records = results.seeds(case)
    if not records:
        return None
    seconds = records[0]["curve"][-1]["totals"]["latency"]
    ours = schedules.at_seconds(results, case, seconds)
    base = schedules.at_seconds(results, schedules.before(results.scope, case.samples), seconds, case.heterogeneity)
    return Interval.of(differences(ours, base))


HOW = f"""Verdicts on differences over seeds use the 95 % Student interval, on the same data, initial model and batches:
*{HOLDS}* if the interval has the paper's sign and reaches the printed size (where a size is claimed), *sign only* if it
falls short of the size, *does not hold* if it has the other sign or is below 0.1 points, *{UNCLEAR}* otherwise. A
verdict on both sizes is that of the one with more seeds, and of 45 samples, which give the paper's level, if they have
as many (arithmetic: of 450, which the paper states); if the other size has another verdict, the basis says which. An
order of several rules *{HOLDS}* if it does in every seed, and *does not hold* if it does in none. The table leaves out
statements without a number to check (that nobody did it before, that data stays private, what is left to future work),
and that a more complex model can be more accurate: none was trained."""


def make(results: Results) -> Item:
    """Every claim with its verdict."""
    found = claims(results)
    rows = [[one.words, one.place, one.verdict, one.ours, one.theirs, one.sure] for one in found]
    text = table(["claim, as a criterion", "where", "verdict", "ours", "theirs", "basis"], rows)
    counted = ", ".join(f"{word}: {sum(one.verdict == word for one in found)}" for word in _verdicts(found))
    return Item(f"{HOW}\n\n{text}\n\nVerdicts on {len(found)} claims: {counted}.")


def _verdicts(found: Iterable[Claim]) -> Sequence[str]:
    return [word for word in (HOLDS, SIGN, UNCLEAR, FAILS, UNMEASURED) if any(one.verdict == word for one in found)]
