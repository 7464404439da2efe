"""What `import dtypeguard` and each of its names import, in a process of their own."""

import ast
import pathlib
import re

import pytest

import dtypeguard
from dtypeguard import testing
from tests.support.helpers import run_python

OTHERS = {"equinox", "flax", "matplotlib", "pandas", "rich"}
AUDITS = {"_audit", "_blame", "_cli", "_costs", "_explain", "_numbers", "_precision"}
AUDITS |= {"_program", "_recompilation", "_recording", "_sweep", "_tracebacks"}


def _run(code, *options):
    """What a new process prints on standard output."""
    done = run_python(*options, "-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _loaded(*stages):
    """What is imported after each stage: packages, and the rooms of dtypeguard."""
    shown = "\nprint('MODULES', *sys.modules)\n"
    printed = _run("import sys\n" + shown.join([*stages, ""]))
    for line in (x for x in printed.splitlines() if x.startswith("MODULES")):
        names = line.split()
        rooms = {name.split(".")[1] for name in names if name.startswith("dtypeguard.")}
        yield {name.partition(".")[0] for name in names}, rooms


def test_dtypeguard_alone_imports_nothing_else():
    """Nor where a warning is filtered, nor for its help."""
    filtered = "import warnings; warnings.simplefilter('error', dtypeguard.{})"
    helped = "from dtypeguard._cli.main import main; main(['audit', '--help'])"
    alone, warned, helping = _loaded(
        "import dtypeguard", filtered.format("DtypeGuardWarning"), helped
    )
    assert alone[1] == set()
    for packages, _ in (alone, warned, helping):
        assert not packages & {"jax", "jaxlib", "numpy", "optax", "equinox"}
    assert "rich" not in warned[0]


USES = """
import dtypeguard
dtypeguard.guard(optax.adam(1e-3)).init(jnp.ones(3))
dtypeguard.guard_step(lambda x: 2 * x)(dtypeguard.strong(1.0))
dtypeguard.multi_steps(dtypeguard.prodigy(), 2).init(jnp.ones(3))
"""


def test_guards_import_no_audit_and_an_audit_no_terminal_and_no_plots():
    """Of `OTHERS` JAX 0.4 has rich."""
    audit = "dtypeguard.audit(optax.sgd(1.0), jnp.ones(3))"
    bare, guarded, audited = _loaded("import jax.numpy as jnp, optax", USES, audit)
    assert not guarded[1] & AUDITS
    assert "_audit" in audited[1]
    assert not audited[1] & {"_explain", "_precision", "_sweep", "_cli"}
    assert bare[0] & OTHERS == guarded[0] & OTHERS == audited[0] & OTHERS


def test_type_checkers_and_python_see_the_same_names():
    file = pathlib.Path(dtypeguard.__file__)
    checked, at_run_time = (
        node for node in ast.parse(file.read_text()).body if isinstance(node, ast.If)
    )
    files = {}
    for node in checked.body:
        assert isinstance(node, ast.ImportFrom)
        assert all(alias.name == alias.asname for alias in node.names)
        files[node.module] = tuple(alias.name for alias in node.names)
    assert files == dtypeguard._FILES
    assert isinstance(at_run_time.test, ast.UnaryOp)


def test_dir_and_a_star_import_have_every_name():
    assert {*dtypeguard.__all__} <= {*dir(dtypeguard)}
    assert not {"importlib", "sys", "warnings", "TYPE_CHECKING"} & {*dir(dtypeguard)}
    names = {}
    exec("from dtypeguard import *", names)
    assert {name for name in names if not name.startswith("_")} == {*dtypeguard.__all__}


def test_a_name_of_0_1_says_what_serves_in_its_place():
    assert "audit_step" not in {*dtypeguard.__all__, *dir(dtypeguard)}
    with pytest.warns(
        DeprecationWarning,
        match=r"dtypeguard.audit_step is deprecated. Use dtypeguard.audit\(step",
    ) as warned:
        assert dtypeguard.audit_step.__name__ == "audit_step"
    assert warned[0].filename == __file__


@pytest.mark.parametrize("name", dtypeguard._GONE)
def test_a_name_that_is_gone_says_where_the_same_is_found(name):
    assert name not in {*dtypeguard.__all__, *dir(dtypeguard)}
    with pytest.raises(
        AttributeError,
        match=f"dtypeguard.{name} is gone. Use {re.escape(dtypeguard._GONE[name])}",
    ):
        getattr(dtypeguard, name)


def test_the_deprecated_names_of_testing_warn():
    for name in testing._DEPRECATED:
        with pytest.warns(DeprecationWarning, match=f"testing.{name} is deprecated. Use"):
            assert getattr(testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = testing.chekc


def test_names_may_be_used_first_while_jax_traces():
    """Under every flag: no file keeps an array or an option of the time of its import."""
    code = """
import dtypeguard, jax, jax.numpy as jnp

@jax.jit
def first(x):
    for name in dtypeguard.__all__:
        getattr(dtypeguard, name)
    return dtypeguard.strong(x)

jax.config.update("jax_enable_x64", True)
with jax.checking_leaks(), jax.numpy_dtype_promotion("strict"):
    first(jnp.ones(3, jnp.float32))
jax.config.update("jax_enable_x64", False)
print(dtypeguard.strong(1.0).dtype, dtypeguard.strong(jnp.ones(2, jnp.bfloat16)).dtype)
"""
    assert _run(code, "-W", "error") == "float32 bfloat16\n"
