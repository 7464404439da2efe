"""Verdicts on references of which it is known whether they only round, over seeds.

    python benchmarks/references.py --seeds 4

Prints a line for each case, and how often rounding is called another computation, and the
other way round. docs/reference.md has the table of one seed.
"""

import argparse
import collections
import importlib
import pathlib
import sys
import tempfile

import jax

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
r = importlib.import_module("tests.support.references")


def inexactly(x):
    return 1.03 * r.MINE.act(x)


MORE = [
    r.of_array("float32, float64", r.MINE, of=r.F64, wrong=()),
    r.of_array("float32, bfloat16", r.MINE, of=r.BF16, wrong=()),
    r.of_array("bfloat16, fused", r.MINE, r.BF16, wrong=(), is_jitted=True),
    r.of_outputs("all outputs, bfloat16 and float32", r.MINE, (), r.BF16, r.F32),
    r.of_outputs("all outputs, other casts", r.WIDER, (), r.BF16),
    r.of_outputs("all outputs, another order of sums", r.Model(parts=2), ()),
    r.of_gradient("gradients, bfloat16 and float32", r.MINE, (), r.BF16, r.F32),
    r.of_gradient("gradients, another order of sums", r.Model(parts=4), ()),
    r.of_gradient("gradients, fast variance", r.Model(is_fast=True), ()),
    r.of_function("float32, a function that splits", r.Model(parts=4), wrong=()),
    r.of_function("eps 1e-6 for 1e-5, functions in bfloat16", r.Model(eps=1e-6), r.BF16),
    r.of_function("relu for gelu, functions", r.Model(act=jax.nn.relu)),
    r.of_array(
        "eps 1e-3 for 1e-5, float32 beside bfloat16", r.Model(eps=1e-3), r.BF16, r.F32
    ),
    r.of_array(
        "erf for tanh, float32 beside bfloat16", r.Model(act=r.exactly), r.BF16, r.F32
    ),
    r.of_array("erf for tanh, bfloat16", r.Model(act=r.exactly), r.BF16),
    r.of_array("3% in an activation, bfloat16", r.Model(act=inexactly), r.BF16),
    r.of_array(
        "3% in an activation, float32 beside bfloat16",
        r.Model(act=inexactly),
        r.BF16,
        r.F32,
    ),
]


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
        for case in (*r.ROUNDING, *r.DIFFER, *r.OUTPUTS, *MORE):
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
        for each in r.compared(f, args, reference)["differences"]:
            truth = "differs" if each.output in case.wrong else "rounding"
            found[truth, each.verdict] += 1
    return found


if __name__ == "__main__":
    main()
