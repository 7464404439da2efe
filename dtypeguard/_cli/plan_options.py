"""The options of `dtypeguard plan`."""

import argparse
from collections.abc import Callable

from .values import ARGUMENTS, add_report, error, file, positive


def add_plan(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Adds the command."""
    plan = add_parser(
        "plan",
        help="which lines stay float32 where the rest computes in bfloat16, as a file",
        description="Searches which lines of a function have to stay wide where the rest "
        "is narrow, within a tolerance, and writes them into a file for "
        "dtypeguard.autocast. Every figure is from a run. With --check, measures the "
        "function by the plan of a file. Exits 1 if it is not within the tolerance, 2 if "
        "it cannot run, else 0.",
        epilog="Examples: dtypeguard plan train.py:step --inputs train.py:inputs --narrow "
        "bfloat16 --tolerance 0.02 --out train.plan; dtypeguard plan train.py:step "
        "--inputs train.py:inputs --check train.plan",
    )
    add = plan.add_argument
    target = "a function of arrays, FILE.py:NAME or MODULE:NAME: a gradient, a train step"
    add("target", metavar="TARGET", help=target)
    add("--inputs", metavar="INPUTS", required=True, help=ARGUMENTS)
    more = "more arguments, of the same types and shapes, for which it has to be right as "
    more += "well; may be repeated"
    add("--also", metavar="INPUTS", action="append", default=[], help=more)
    unseen = "arguments that the search does not see: their errors stand beside; may be "
    unseen += "repeated"
    add("--held-out", metavar="INPUTS", action="append", default=[], help=unseen)
    narrow = "what is narrow, bfloat16 or float16; with --check, the plan says so"
    add("--narrow", metavar="DTYPE", help=narrow)
    bound = "the relative error that is allowed (with --check, by default that of the plan)"
    add("--tolerance", metavar="X", type=error, help=bound)
    budget = "how many runs the search may make (default: 300)"
    add("--budget", metavar="N", type=positive, default=300, help=budget)
    form = plan.add_mutually_exclusive_group().add_argument
    form("--out", metavar="FILE", type=file, help="write the plan (default: print it)")
    check = (
        "measure the function by this plan, and exit 1 if it is not within the tolerance"
    )
    form("--check", metavar="FILE", type=file, help=check)
    add_report(plan, "json")
