"""The plugin: notes on tests that fail over types, and nothing where it has no business."""

import re
import textwrap

import pytest

from tests.support.helpers import IS_RECORDED, run_python

# Of what is installed, no plugin is loaded; this one as a wheel registers it.
PLUGIN = "-p", "dtypeguard._hooks.pytest"
MODEL = """
import jax, jax.numpy as jnp

def step(carry, x):
    decay = jnp.asarray(0.9, jnp.float32)
    return decay * carry + x, None

x = jnp.ones(3, jnp.bfloat16)

def run():
    return jax.lax.scan(step, x, jnp.ones((4, 3), jnp.bfloat16))
"""
NOTE = r"^E +dtypeguard: 1 leaf of the carry of scan comes back in another type\.$"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Runs pytest in a folder with a model and a test, warnings being errors."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    words = "-m", "pytest", "-W", "error", "--tb=short", *PLUGIN

    def run(test, *options):
        (tmp_path / "model.py").write_text(MODEL)
        (tmp_path / "test_it.py").write_text(textwrap.dedent(test))
        done = run_python(*words, *options, cwd=tmp_path)
        assert done.stderr == ""
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize(
    "options", [[], ["--dtypeguard-record"], ["-o", "dtypeguard_record=true"]]
)
def test_what_fails_over_types_ends_with_the_note(project, options):
    """Lines are recorded where that is asked for, and a note names the option.

    Other failures and expected errors are as without.
    """
    is_recorded = IS_RECORDED and bool(options)
    tools = 1 if is_recorded else 0
    code, out = project(
        f"""
        import jax, model, pytest, sys, unittest

        def test_it():
            monitoring = getattr(sys, "monitoring", None)
            tools = map(monitoring.get_tool, range(6)) if monitoring else ()
            assert [*tools].count("dtypeguard") == {tools}
            model.run()

        @pytest.fixture
        def ran():
            model.run()

        def test_with_a_fixture(ran): ...

        class TestIt(unittest.TestCase):
            def test_it(self):
                model.run()

        def test_expected():
            with pytest.raises(TypeError, match="equal types") as caught:
                model.run()
            assert not hasattr(caught.value, "dtypeguard_rows")

        def test_other():
            assert jax.config.jax_traceback_filtering == "tracebackhide"
            raise TypeError("of another kind")
        """,
        *options,
    )
    assert code == 1
    assert "3 failed, 1 passed, 1 error" in out
    out, _, _ = out.partition("= short test summary info =")  # in CI it has the notes again
    out, other = out.split("_ test_other _")
    assert "TypeError: of another kind" in other
    assert "dtypeguard:" not in other
    assert len(re.findall(NOTE, out, re.MULTILINE)) == 3
    forced = r"^E +because of \w+ +model.py:5 .*\n" if is_recorded else ""
    assert len(re.findall(rf"{forced}^E +becomes \w+ +model.py:6 ", out, re.MULTILINE)) == 3
    advice = r"^E +\(pytest --dtypeguard-record records lines, and names more of them\.\)$"
    has_advice = IS_RECORDED and not options
    assert len(re.findall(advice, out, re.MULTILINE)) == 3 * has_advice
    assert "site-packages" not in out  # JAX's frames are hidden


def test_it_is_quiet_where_jax_is_not_imported(project):
    test = """
        import sys

        def test_it():
            assert not {"jax", "dtypeguard._explain"} & {*sys.modules}
            raise TypeError("without JAX")
    """
    code, out = project(test)
    assert code == 1
    assert "TypeError: without JAX" in out


def test_a_lock_is_written_and_an_option_that_is_set_stays(project, tmp_path):
    test = """
        import jax, model
        from dtypeguard.testing import check_lock
        jax.config.update("jax_traceback_filtering", "remove_frames")

        def test_it():
            check_lock(model.step, model.x, model.x, path="step.lock")
            assert jax.config.jax_traceback_filtering == "remove_frames"
    """
    assert project(test, "--dtypeguard-lock-update")[0] == 0
    assert '"model.py".step' in (tmp_path / "step.lock").read_text()
