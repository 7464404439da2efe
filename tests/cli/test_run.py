"""`dtypeguard run`: scripts as under `python`, their errors with the lines behind them."""

import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest
from helpers import SUPPORT, child_variables

from dtypeguard._source.files import short_path

SCRIPTS = SUPPORT / "scripts"

pytestmark = pytest.mark.third_party


CASES = [
    ("scan.py",),
    ("while_loop.py",),
    ("fori_loop.py",),
    ("fori_loop.py", "traced"),
    ("cond.py",),
    ("switch.py",),
    ("operands.py",),
    ("equinox_loops.py", "scan", "lax"),
    ("equinox_loops.py", "scan", "checkpointed"),
    ("equinox_loops.py", "while_loop", "lax"),
    ("equinox_loops.py", "while_loop", "checkpointed"),
    ("equinox_loops.py", "while_loop", "bounded"),
    # Programs that were reported to the packages they name.
    ("energy.py",),
    ("types_and_shapes.py",),
    ("time_axis.py",),
    ("descent.py",),
    ("flux.py",),
    ("metrics.py",),
]


RECORDED = sys.version_info >= (3, 12)  # where lines of values are


@pytest.mark.parametrize("arguments", CASES, ids=" ".join)
def test_failing_scripts(run, arguments):
    """The note has the rows that a script tells, and the lines that it marks."""
    file = SCRIPTS / arguments[0]
    code, out, err = run(file, *arguments[1:])
    assert (code, out) == (1, "")
    assert err.startswith("Traceback (most recent call last):\n")
    note, text = re.sub(" +", " ", err[err.index("dtypeguard: ") :]), file.read_text()
    told = re.findall(r"^# told: (\w+): (.*)", text, re.MULTILINE)
    assert told
    promoted = set(re.findall(r"# promotion: (\w+)$", text, re.MULTILINE))
    for name, row in told:
        assert re.sub(" +", " ", row) in note
        for number, line in enumerate(text.splitlines(), 1):
            mark = re.search(rf"# ([^ :]+): {name}$", line)
            # Of a branch, what made a value may stand in another place.
            if mark and (mark[1] != "operand" or (RECORDED and name in promoted)):
                assert f"{short_path(str(file))}:{number} " in note, note


def test_a_cond_of_optax(run):
    code, _, err = run(SCRIPTS / "apply_if_finite.py")
    assert code == 1
    note = err[err.index("dtypeguard: ") :]
    assert re.search(
        r"  result\[1\]\[0\]\.trace\['w'\]\n +true_fun gives float32\[3\] ", note
    )
    given = r"false_fun gives bfloat16\[3\] \(.*closed over\)"
    assert re.search(given, note)
    assert "Wrap the optimizer: dtypeguard.guard(opt)." in note


def _python(*arguments, **kwargs):
    return _run([sys.executable, *map(str, arguments)], **kwargs)


def _command(*arguments, **kwargs):
    return _run([sys.executable, "-m", "dtypeguard", "run", *map(str, arguments)], **kwargs)


def _run(command, **kwargs):
    env = child_variables() | kwargs.pop("env", {})
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=200, **kwargs
    )
    return done.returncode, done.stdout, done.stderr


SHOW = """
import os, sys
g = dict(globals())
for name in ("__name__", "__file__", "__cached__", "__package__", "__doc__"):
    print(name, g.get(name, "(absent)"))
print(getattr(__spec__, "name", None), type(__loader__).__name__)
print(sorted({*g} - {"__annotations__"}))
print(sys.argv, os.path.abspath(sys.path[0]), vars(sys.modules["__main__"]) is globals())
"""


@pytest.mark.parametrize(
    "arguments",
    [
        "show.py -x --help a",
        "-m pkg.show -v",
        "pkg/sub a",
    ],
)
def test_main_is_as_under_python(run, script, arguments, monkeypatch, tmp_path):
    for name in ("show.py", "pkg/show.py", "pkg/sub/__main__.py", "pkg/sub/__init__.py"):
        script("" if name.endswith("__init__.py") else SHOW, name)
    script("", "pkg/__init__.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    bare = _python(*arguments.split())
    assert bare[0] == 0, bare[2]
    assert run(*arguments.split()) == bare
    for name in [name for name in sys.modules if name.partition(".")[0] == "pkg"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("statement", "code", "err"),
    [
        ("sys.exit()", None, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no data')", "no data", ""),
        ("import argparse; argparse.ArgumentParser(prog='p').parse_args()", 2, "usage: p"),
        ("raise SystemExit(True)", True, ""),
    ],
)
def test_exit_codes(run, script, capsys, statement, code, err):
    with pytest.raises(SystemExit) as info:
        run(script(f"import sys\n{statement}"), "--epochs")
    assert info.value.code == code
    assert capsys.readouterr().err.startswith(err)


def test_other_errors_are_printed_as_python_does(run, script):
    file = script("def f():\n    raise KeyError('a')\nf()")
    code, _, err = run(file)
    assert (code, err) == (1, _python(file)[2])


def test_an_excepthook_of_the_script(run, script):
    file = script("""
        import sys
        sys.excepthook = lambda kind, error, trace: print("mine", kind.__name__, error)
        raise ValueError("v")
    """)
    assert run(file) == (1, "mine ValueError v\n", "")


@pytest.mark.skipif(os.name != "posix", reason="ends by a signal")
def test_interrupted(script):
    file = script("print('ready', flush=True)\nraise KeyboardInterrupt")
    code, out, err = _command(file)
    assert (code, out) == (-signal.SIGINT, "ready\n")
    assert err == _python(file)[2]


def test_an_option_that_jax_refuses(script):
    file = script("""
        import os, sys
        for kind in "lax", "strict":
            os.environ["JAX_ENABLE_CHECKS"] = kind
            try:
                import optax
            except ValueError as error:
                print(error, "jax" in sys.modules, "optax" in sys.modules)
        import jax
    """)
    ours = _command(file)
    assert ours == _python(file)
    refused = "invalid truth value '{}' for environment 'JAX_ENABLE_CHECKS'"
    assert ours[0] == 1
    assert ours[1] == "".join(
        f"{refused.format(x)} False False\n" for x in ("lax", "strict")
    )


RECOMPILES = """
    import jax, jax.numpy as jnp

    @jax.jit
    def step(state, x):
        return {"w": state["w"] * x, "n": state["n"] + 1}

    state = {"w": 1.0, "n": jnp.zeros((), jnp.int32)}
    for _ in range(3):
        state = step(state, jnp.float32(2))

"""


def test_the_list_comes_after_an_error_and_before_an_exit(run, script, capsys):
    text = textwrap.dedent(RECOMPILES)
    code, _, err = run(script(text + "\nraise ValueError('v')"))
    assert code == 1
    assert 0 < err.index("ValueError: v") < err.index("dtypeguard run: step")
    with pytest.raises(SystemExit):
        run(script(text + "\nraise SystemExit(3)"))
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


def test_runs_as_under_python(script, tmp_path):
    script(ITSELF, "itself.py")
    given = {"cwd": tmp_path, "input": "typed\n"}
    bare = _python("itself.py", "-x", **given)
    assert bare[0] == 1
    assert _command("itself.py", "-x", **given) == bare


def test_what_is_only_traced_is_not_listed(run, script):
    file = script("""
        import functools, operator
        import jax, jax.numpy as jnp
        import optax

        @jax.jit
        def f(x):
            return x * 2

        @jax.jit
        def outer(x):
            return f(x), f(x.astype(jnp.bfloat16)), jnp.where(x > 0, x, 1)

        x, half = jnp.zeros(3), jnp.zeros(3, jnp.bfloat16)
        for value in (x, half):
            jax.eval_shape(f, value), jax.make_jaxpr(f)(value), f.lower(value).compile()
            jax.lax.scan(lambda c, _: (f(c), None), value, None, 2)
            jnp.cumsum(value) + jax.nn.gelu(value)
            opt = optax.adam(1e-3, mu_dtype=value.dtype)  # has a `jit` of its own
            opt.update(x, opt.init(x))
        outer(x), f(x), f(x)

        @functools.partial(jax.jit, static_argnames="depth")
        def g(x, i, depth):
            return x * i * depth

        g(x, 0, depth=1), g(half, 1, depth=2)
    """)
    code, out, err = run(file)
    assert (code, out) == (0, "")
    (head, *_) = re.findall(r"dtypeguard run: (\S+)", err)
    assert (head, err.count("dtypeguard run:")) == ("g", 1), err
    assert "depth  1 -> 2" in err
    assert "guard_step" not in err  # with another constant it is another program


ENVIRONMENT = """
import jax, jax.numpy as jnp, numpy as np

def reset(key):
    position = jnp.zeros(3, jnp.bfloat16)  # inside
    return {"position": position, "time": jnp.zeros((), jnp.int32)}

def setup(count):
    keys = jax.random.split(jax.random.key(0), count)
    return jax.vmap(reset)(keys)
"""
FIRST = """
import jax, jax.numpy as jnp
from {name} import setup

def step(state, x):
    return {{**state, "position": state["position"] * x}}, None

def main(xs):
    state = setup(4)  # the call
    return jax.lax.scan(step, state, xs)

main(jnp.ones(2, jnp.float32))
"""


@pytest.mark.skipif(not RECORDED, reason="needs sys.monitoring")
def test_a_script_that_imports_jax_itself_is_recorded(script, tmp_path):
    """In a process of its own, where JAX is not there yet when the command begins."""
    script(ENVIRONMENT, "recorded_alone_.py")
    script(FIRST.format(name="recorded_alone_"), "alone.py")
    code, _, err = _command("alone.py", cwd=tmp_path, env={}, input="")
    assert code == 1
    assert re.search(r"begins as \w+ +recorded_alone_\.py:5 ", err), err
