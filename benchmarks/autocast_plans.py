"""Seven plans for eight programs: see docs/mixed-precision.md.

    pip install jraph tinygp
    python benchmarks/autocast_plans.py

For each gradient, and all in bfloat16, jmp's policy at the boundary, products alone,
torch's lists with what flows between products, the first N lines wide, lines wide by what
they lose, and the plan of `dtypeguard`: the share of the multiply-adds that is narrow, what
is kept for the backward pass, the error that its search has measured, the errors by hand
under `jax.jit` on the inputs of the search and on two others, the entries, the runs and the
seconds. Prints Markdown.
"""

import argparse
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from autocast_programs import SUBJECTS, Subject

import dtypeguard
from dtypeguard import Plan
from dtypeguard._costs.work import wide_share
from dtypeguard._leaves.rows import percent
from dtypeguard._precision.candidates import Candidate, candidates_in
from dtypeguard._precision.planned import PlannedInputs, plannable
from dtypeguard._precision.trials import PlanTrials
from dtypeguard._program.graph import Graph

NARROW = jnp.dtype("bfloat16")
BUDGET = 300
# What `torch.autocast` runs in float32, as far as JAX has it.
_TORCH = frozenset(
    [
        *("acos", "asin", "cosh", "sinh", "tan", "exp", "exp2", "expm1", "log", "log1p"),
        *("logistic", "pow", "rsqrt", "cumsum", "cumprod", "reduce_sum", "reduce_prod"),
    ]
)


class Row(NamedTuple):
    """What a plan is and costs.

    Attributes:
        narrow: the share of the multiply-adds that is narrow.
        promised: the error that its search has measured; not a number without one.
        errors: those by hand, on the inputs of the search and on others.
        entries: how many.
        runs: how many its search made.
        seconds: how long it took.
    """

    narrow: float
    promised: float
    errors: tuple[float, float]
    entries: int
    runs: int
    seconds: float


Found = tuple[Plan | None, float]


class Bench:
    """A program, with the searches that are compared."""

    def __init__(self, subject: Subject):
        self.subject = subject
        seen, *unseen = (subject.batch(jax.random.key(n)) for n in (1, 2, 3))
        self.args = (subject.params, *seen)
        self.unseen = [(subject.params, *each) for each in unseen]
        self.quiet = lambda text: None
        call = subject.gradient, self.args, {}
        self.program = plannable(*call, NARROW, self.quiet)
        self.error_of = jax.jit(self._error)

    def trials(self) -> PlanTrials:
        return self.program.trials(PlannedInputs(budget=10**6))

    def rows(self) -> dict[str, Row]:
        """A row for each plan."""
        rows = {}
        for name, find in _PLANS.items():
            trials, started = self.trials(), time.monotonic()
            with self.program.running():
                plan, promised = find(self, trials)
            seconds = time.monotonic() - started
            runs = trials.count
            if name == "ours":
                runs = self.runs
            try:
                f = self.by_policy if plan is None else self.by_plan(plan)
                rows[name] = self._row(f, plan, promised, runs, seconds)
            except (TypeError, ValueError, NotImplementedError) as error:
                print(f"    {name} raises {type(error).__name__}: {str(error)[:80]}")
        return rows

    def _row(
        self,
        f: Callable[..., Any],
        plan: Plan | None,
        promised: float,
        runs: int,
        seconds: float,
    ) -> Row:
        graph = Graph(jax.make_jaxpr(f)(*self.args))
        by_hand = lambda *args: self._error(f(*args), self.subject.gradient(*args))
        inputs = self.args, *self.unseen
        try:
            errors = [float(jax.jit(by_hand)(*args)) for args in inputs]
        except jax.errors.JaxRuntimeError:  # `BF16 x BF16 = F32`, which a CPU does not have
            errors = [float(by_hand(*args)) for args in inputs]
        return Row(
            1 - wide_share(graph, NARROW),
            promised,
            (errors[0], max(errors[1:])),
            0 if plan is None else len(plan.entries),
            runs,
            seconds,
        )

    def _error(self, made: Any, exact: Any) -> jax.Array:
        """The root mean square of the relative errors of the gradients that count."""
        pairs = [*zip(jax.tree.leaves(made), jax.tree.leaves(exact))]
        counted = [
            x for n, x in enumerate(pairs) if n not in self.program.prepared.left_out
        ]
        norm = lambda x: jnp.linalg.norm(jnp.ravel(x).astype(jnp.float32))
        parts = [norm(m - e) / norm(e) for m, e in counted]
        return jnp.sqrt(jnp.mean(jnp.square(jnp.stack(parts))))

    def by_plan(self, plan: Plan) -> Callable[..., Any]:
        return dtypeguard.autocast(self.subject.gradient, plan)

    def by_policy(self, *args: Any) -> Any:
        """Params and inputs in bfloat16 at the boundary, and float32 outputs."""
        import jmp

        policy = jmp.Policy(jnp.float32, NARROW, jnp.float32)
        return policy.cast_to_output(self.subject.gradient(*policy.cast_to_compute(args)))

    # Plans

    def plan(self, default: str, wide: Collection[Candidate] = ()) -> Plan:
        entries = tuple(each.entry(np.dtype("float32")) for each in wide)
        tolerance = self.subject.tolerance
        return Plan(NARROW, default=default, entries=entries, tolerance=tolerance)

    def first(self, trials: PlanTrials) -> Found:
        """The fewest of the first lines that are enough, by bisection."""
        lines = candidates_in(trials.program)[0]
        low, high = 0, len(lines)
        while low < high:
            middle = (low + high) // 2
            if trials.error(self.plan("all", lines[:middle])) <= self.subject.tolerance:
                high = middle
            else:
                low = middle + 1
        plan = self.plan("all", lines[:high])
        return plan, trials.error(plan)

    def greedy(self, trials: PlanTrials) -> Found:
        """Lines by what they lose alone, until these are enough."""
        lines = candidates_in(trials.program)[0]
        lines = sorted(lines, key=lambda each: -trials.alone(each))
        plans = (self.plan("all", lines[:count]) for count in range(len(lines) + 1))
        tried = ((plan, trials.error(plan)) for plan in plans)
        return next(found for found in tried if found[1] <= self.subject.tolerance)

    def listed(self, trials: PlanTrials) -> Found:
        """Lines that have an operation of torch's list, and no product."""
        names = {node.number: node.name for node in trials.program.block.all_nodes()}
        lines = [
            each
            for each in candidates_in(trials.program)[0]
            if not each.has_products and any(names[n] in _TORCH for n in each.numbers)
        ]
        return self.plan("all", lines), math.nan

    def ours(self, trials: PlanTrials) -> Found:
        inputs = PlannedInputs(budget=BUDGET)
        found = self.program.search(self.subject.tolerance, inputs, self.quiet)
        self.runs = found.runs
        return found.plan, found.plan.error or 0.0


_PLANS: dict[str, Callable[[Bench, PlanTrials], Found]] = {
    "all narrow": lambda bench, _: (bench.plan("all"), math.nan),
    "jmp's policy": lambda bench, _: (None, math.nan),
    "products": lambda bench, _: (bench.plan("products"), math.nan),
    "torch's lists": Bench.listed,
    "first N lines": Bench.first,
    "greedy revert": Bench.greedy,
    "ours": Bench.ours,
}


def shown(value: float) -> str:
    return "" if math.isnan(value) else percent(value)


def is_better(ours: Row, other: Row, tolerance: float) -> str:
    """How ours compares: "better", "equal", "mixed" or "worse"."""
    if max(other.errors) > tolerance >= max(ours.errors):
        return "better"
    pairs = [(ours.narrow, other.narrow), (-ours.entries, -other.entries)]
    if max(ours.errors) > tolerance >= max(other.errors):
        pairs.append((0, 1))
    more = any(mine > its for mine, its in pairs)
    less = any(mine < its for mine, its in pairs)
    return "mixed" if more and less else "better" if more else "worse" if less else "equal"


def table(rows: dict[str, Row], tolerance: float) -> list[str]:
    lines = []
    for name, row in rows.items():
        first, other = (
            f"**{shown(x)}**" if x > tolerance else shown(x) for x in row.errors
        )
        verdict = "" if name == "ours" else is_better(rows["ours"], row, tolerance)
        cells = (
            name,
            shown(row.narrow),
            shown(row.promised),
            first,
            other,
            row.entries,
            row.runs or "",
        )
        seconds = f"{row.seconds:.0f}" if row.runs else ""
        lines.append(f"| {' | '.join(map(str, (*cells, seconds, verdict)))} |")
    return lines


def main(names: Sequence[str]) -> None:
    chosen = [x for x in SUBJECTS if not names or any(name in x for name in names)]
    versions = f"JAX {jax.__version__}, {jax.devices()[0].platform}"
    print(f"{versions}. Errors above the tolerance are bold.\n")
    for name in chosen:
        subject = SUBJECTS[name]()
        rows = Bench(subject).rows()
        print(f"**{name}**, within {shown(subject.tolerance)}\n")
        head = "plan", "narrow", "promised", "by hand", "held out", "entries"
        print(f"| {' | '.join((*head, 'runs', 's', 'ours is'))} |")
        print("|---" * (len(head) + 3) + "|")
        print("\n".join(table(rows, subject.tolerance)), "\n", flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("names", nargs="*", help="of programs, or parts of names")
    main(arguments.parse_args().names)
