"""`dtypeguard run`: scripts as under `python`, their errors with the lines behind them."""

import os
import re
import signal

import pytest

from tests.support.advice import short_path
from tests.support.helpers import IS_RECORDED, SUPPORT, needs_record, run_python

SCRIPTS = SUPPORT / "scripts"

pytestmark = pytest.mark.third_party

CASES = [
    "scan",
    "while_loop",
    "fori_loop",
    "fori_loop traced",
    "cond",
    "switch",
    "operands",
]
CASES += [f"equinox_loops scan {kind}" for kind in ("lax", "checkpointed")]
CASES += [f"equinox_loops while_loop {kind}" for kind in ("lax", "checkpointed", "bounded")]
# Programs that were reported to the packages they name.
CASES += ["energy", "types_and_shapes", "time_axis", "descent", "flux", "metrics"]


@pytest.mark.parametrize("words", CASES)
def test_failing_scripts(run, words):
    """The note has the rows that a script tells, and the lines that it marks."""
    name, *arguments = words.split()
    file = SCRIPTS / f"{name}.py"
    code, out, err = run(file, *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("Traceback (most recent call last):\n")
    assert os.path.join("jax", "_src") not in err
    note, text = re.sub(" +", " ", err[err.index("dtypeguard: ") :]), file.read_text()
    told = re.findall(r"^# told: (\w+): (.*)", text, re.MULTILINE)
    assert told
    promoted = set(re.findall(r"# promotion: (\w+)$", text, re.MULTILINE))
    for name, row in told:
        assert re.sub(" +", " ", row) in note
        for number, line in enumerate(text.splitlines(), 1):
            mark = re.search(rf"# ([^ :]+): {name}$", line)
            # Of a branch, what made a value may stand in another place.
            if mark and (mark[1] != "operand" or (IS_RECORDED and name in promoted)):
                assert f"{short_path(str(file))}:{number} " in note, note


def test_a_cond_of_optax(run):
    code, _, err = run(SCRIPTS / "apply_if_finite.py")
    note = re.sub(" +", " ", err[err.index("dtypeguard: ") :])
    assert code == 1
    assert " result[1][0].trace['w']\n true_fun gives float32[3] " in note
    assert re.search(r"false_fun gives bfloat16\[3\] \(.*closed over\)", note)
    assert "Wrap the optimizer: dtypeguard.guard(opt)." in note


def _python(*arguments, **kwargs):
    """Status, output and errors of Python in a process of its own."""
    done = run_python(*arguments, timeout=600, **kwargs)
    return done.returncode, done.stdout, done.stderr


def _command(*arguments, **kwargs):
    return _python("-m", "dtypeguard", "run", *arguments, **kwargs)


SHOW = """
import os, sys
g = dict(globals())
for name in ("__name__", "__file__", "__cached__", "__package__", "__doc__"):
    print(name, g.get(name, "(absent)"))
print(getattr(__spec__, "name", None), type(__loader__).__name__)
print(sorted({*g} - {"__annotations__"}))
print(sys.argv, os.path.abspath(sys.path[0]), vars(sys.modules["__main__"]) is globals())
"""


@pytest.mark.parametrize("words", ["show.py -x --help a", "-m pkg.show -v", "pkg/sub a"])
def test_main_is_as_under_python(run, script, words, monkeypatch):
    for name in ("show.py", "pkg/show.py", "pkg/sub/__main__.py"):
        script(SHOW, name)
    for name in ("pkg/__init__.py", "pkg/sub/__init__.py"):
        script("", name)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    bare = _python(*words.split())
    assert bare[0] == 0, bare[2]
    assert run(*words.split()) == bare


@pytest.mark.parametrize(
    ("statement", "code", "err"),
    [
        ("sys.exit()", None, ""),
        ("sys.exit('no data')", "no data", ""),
        ("import argparse; argparse.ArgumentParser(prog='p').parse_args()", 2, "usage: p"),
    ],
)
def test_exit_codes(run, script, capsys, statement, code, err):
    with pytest.raises(SystemExit) as info:
        run(script(f"import sys\n{statement}"), "--epochs")
    assert info.value.code == code
    assert capsys.readouterr().err.startswith(err)


@pytest.mark.parametrize("hook", ["", "lambda kind, *_: print(kind)"])
def test_other_errors_are_shown_as_under_python(run, script, hook):
    set_hook = f"import sys\nsys.excepthook = {hook}\n" if hook else ""
    file = script(f"{set_hook}def f():\n    raise KeyError('a')\nf()")
    assert run(file) == _python(file)


@pytest.mark.skipif(os.name != "posix", reason="ends by a signal")
def test_interrupted(script):
    file = script("print('ready', flush=True)\nraise KeyboardInterrupt")
    code, out, err = _command(file)
    assert (code, out) == (-signal.SIGINT, "ready\n")
    assert err == _python(file)[2]


def test_an_option_that_jax_refuses(script):
    """So often as JAX is imported; a script may set it before it does."""
    file = script("""
        import os, sys
        os.environ["JAX_ENABLE_CHECKS"] = "lax"
        try:
            import optax
        except ValueError as error:
            print(error, "jax" in sys.modules, "optax" in sys.modules)
        import jax
    """)
    ours = _command(file)
    assert ours == _python(file)
    assert ours[:2] == (
        1,
        "invalid truth value 'lax' for environment 'JAX_ENABLE_CHECKS' False False\n",
    )


RECOMPILES = """
import jax, jax.numpy as jnp

@jax.jit
def step(state):
    return state * jnp.float32(2)

step(step(1.0))
raise """


def test_the_list_comes_after_an_error_and_before_an_exit(run, script, capsys):
    code, _, err = run(script(f"{RECOMPILES}ValueError('v')"))
    assert code == 1
    assert 0 < err.index("ValueError: v") < err.index("dtypeguard run: step")
    with pytest.raises(SystemExit):
        run(script(f"{RECOMPILES}SystemExit(3)"))
    assert "dtypeguard run: step" in capsys.readouterr().err


# What `python` and `dtypeguard run` print alike: in threads, processes and at exit.
ITSELF = """
import atexit, concurrent.futures, multiprocessing, os, pickle, sys, threading, time
from dataclasses import dataclass

@dataclass
class Thing:
    n: int

def made(n):
    return Thing(n + 1), __name__

def late():
    time.sleep(0.2)
    print("late", vars(sys.modules["__main__"]) is globals(), flush=True)

if __name__ == "__main__":
    print("jax" in sys.modules, __file__, sys.argv, input())
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
    import jax, jax.numpy as jnp
    print(jax.device_count(), pickle.loads(pickle.dumps(Thing(2))), flush=True)
    count = jax.jit(lambda n: print("traced", flush=True) or n + 1)
    count(count(0))
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        print(list(pool.map(made, [1, 2])))
    atexit.register(lambda: print("end", Thing(3), Thing.__module__, flush=True))
    threading.Thread(target=late).start()
    sys.exit("no data")
"""


def test_runs_as_under_python(script, folder):
    script(ITSELF, "itself.py")
    given = {"cwd": folder, "input": "typed\n"}
    bare = _python("itself.py", "-x", **given)
    assert bare[0] == 1
    assert _command("itself.py", "-x", **given) == bare


def test_the_list_comes_after_the_last_thread(script):
    """In a process of its own, where the script is the first to import JAX."""
    file = script("""
        import threading, jax, jax.numpy as jnp

        @jax.jit
        def step(state):
            return state * jnp.float32(2)

        def late():
            threading.main_thread().join()
            step(step(1.0))

        threading.Thread(target=late).start()
    """)
    code, out, err = _command(file)
    assert (code, out) == (0, "")
    assert err.startswith("dtypeguard run: step"), err


@needs_record
def test_a_script_that_imports_jax_itself_is_recorded(script, folder):
    """In a process of its own, where JAX is not there yet when the command begins."""
    environment = """
        import jax, jax.numpy as jnp

        def setup():
            return {"x": jnp.zeros(3, jnp.bfloat16)}  # inside
    """
    text = """
        import jax, jax.numpy as jnp
        from environment import setup

        step = lambda state, x: ({"x": state["x"] * x}, None)
        jax.lax.scan(step, setup(), jnp.ones(2, jnp.float32))
    """
    script(environment, "environment.py")
    code, _, err = _command(script(text), cwd=folder)
    assert code == 1
    assert re.search(r"begins as \w+ +environment\.py:5 ", err), err
