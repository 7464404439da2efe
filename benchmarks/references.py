"""Verdicts on references of which it is known whether they only round, over seeds.

    python benchmarks/references.py --seeds 4

Prints a line for each case, and how often rounding is called another computation, and the
other way round. docs/how-precision-is-measured.md has the table of one seed.
"""

import argparse
import collections
import importlib
import pathlib
import sys
import tempfile

import jax

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
references = importlib.import_module("references")

GROUPS = ("ROUNDING", "DIFFER", "OUTPUTS", "MORE")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    total = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:  # all seeds have the same programs
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        for group in GROUPS:
            for case in getattr(references, group):
                found = verdicts(case, seeds)
                total += found
                told = ", ".join(f"{n} {a} -> {b}" for (a, b), n in sorted(found.items()))
                print(f"{case.name:48} {told}", flush=True)
    for truth in ("rounding", "differs"):
        rows = {verdict: total[truth, verdict] for verdict in VERDICTS}
        count = sum(rows.values())
        shares = ", ".join(f"{v} {n} ({100 * n / count:.2g}%)" for v, n in rows.items())
        print(f"{count} outputs that are {truth}: {shares}")


VERDICTS = ("rounding", "undecidable", "differs")


def verdicts(case, seeds):
    found = collections.Counter()
    for seed in seeds:
        f, args, reference = case.make(seed)
        for each in references.compared(f, args, reference)["differences"]:
            truth = "differs" if each.output in case.wrong else "rounding"
            found[truth, each.verdict] += 1
    return found


if __name__ == "__main__":
    main()
