"""Optax's own tests, from its wheel, with every factory guarded (see guard_optax.py)."""

import os
import pathlib
from xml.etree import ElementTree

import optax
import pytest

from tests.support.helpers import run_python

OPTAX = pathlib.Path(optax.__file__).parent

# In parts, so that two workers share them: a file of Optax, and which of its tests.
PARTS = {
    "alias": ("_src/alias_test.py", "AliasTest and not wrapped and not optimization"),
    "alias_optimization": ("_src/alias_test.py", "AliasTest and optimization"),
    "alias_wrapped": ("_src/alias_test.py", "AliasTest and wrapped and not optimization"),
    "lbfgs": ("_src/alias_test.py", "not AliasTest"),
    "contrib": ("contrib/_common_test.py", "not stability"),
    "contrib_stability": ("contrib/_common_test.py", "stability"),
}


def run_pytest(report, *arguments, guarded):
    """The names of the tests that passed and that failed, run in a process of its own."""
    plugin = ["-p", "tests.support.guard_optax"] if guarded else []
    words = ["-m", "pytest", "-q", "-c", os.devnull, *plugin, *arguments]
    words += [f"--rootdir={OPTAX}", "-p", "no:cacheprovider", f"--junitxml={report}"]
    run = run_python(*words)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    if guarded:
        assert "optax factories" in run.stdout
    passed, failed = [], []
    for case in ElementTree.parse(report).iter("testcase"):
        outcomes = {child.tag for child in case}
        if "skipped" not in outcomes:
            name = f"{case.get('classname').split('.')[-1]}::{case.get('name')}"
            (failed if outcomes & {"failure", "error"} else passed).append(name)
    return passed, failed


@pytest.mark.skipif(not (OPTAX / "_src/alias_test.py").exists(), reason="not in this wheel")
@pytest.mark.exhaustive
@pytest.mark.parametrize("part", PARTS)
def test_what_passes_bare_passes_guarded(part, tmp_path):
    name, selection = PARTS[part]
    file = str(OPTAX / name)
    passed, failed = run_pytest(
        tmp_path / "guarded.xml", file, "-k", selection, guarded=True
    )
    assert len(passed) > 5
    if failed:
        nodes = [f"{file}::{test}" for test in failed]
        passed_bare, _ = run_pytest(tmp_path / "bare.xml", *nodes, guarded=False)
        assert not passed_bare
