"""A status of 0 means that what was named was checked, whatever that does."""

import os
import subprocess
import sys

import pytest
from helpers import child_variables

from dtypeguard._cli.main import main
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = pytest.mark.third_party

SCRIPT = """
import os, sys
import jax, jax.numpy as jnp, optax

x = jnp.ones(3)
ENDS = {"exit": lambda: sys.exit(0), "other": lambda: (_ for _ in ()).throw(GeneratorExit)}
end = ENDS["exit"]


def factory():
    end()


def init(params):
    end()


def update(updates, state, params=None):
    end()


of_init = optax.GradientTransformation(init, lambda u, s, p=None: (u, s))
of_update = optax.GradientTransformation(lambda p: (), update)


class Lazy:
    def __getattr__(self, name):
        end()


lazy, opt, three = Lazy(), optax.sgd(0.1), 3


def inputs():
    return x, x


def of_end():
    end()


none = lambda: None
empty = lambda: ()
of_name = lambda: {}
no_array = lambda: ([], "text")
few = lambda: x
many = lambda: (x, x, x)
misnamed = lambda: {"c": x, "y": x}
of_static = lambda: ([], x)


def at_once():
    os._exit(0)


def of_a_fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return opt


def step(c, x):
    return c + x, None


def f(c, x):
    return c + x


def identity(c, x=None):
    return c


def ends(c, x):
    end()
    return c, None


def unfit(c, x):
    return jnp.sum(c), c, c
"""


@pytest.fixture(autouse=True)
def mine(folder):
    (folder / "my_train.py").write_text(SCRIPT)
    return folder


def status(words):
    """That of a command, in which `:name` stands for what the script has of that name."""
    words = [f"my_train.py{x}" if x.startswith(":") else x for x in words.split()]
    if words[0] == "lock" and not HAS_NUMBERS:
        pytest.skip("needs JAX >= 0.8")
    return main(words)


ENDING = [
    "audit :factory",
    "audit sys:exit",
    "audit :of_init",
    "audit :of_update",
    "audit :lazy.opt",
    "audit :step --inputs :of_end",
    "audit :ends --inputs :inputs",
    "precision :f --inputs :of_end",
    "precision :ends --inputs :inputs",
    "precision :f --inputs :inputs --reference :ends",
    "precision :f --inputs :inputs --reference :lazy.f",
    "lock :step --inputs :of_end --check none.lock",
    "lock :ends --inputs :inputs --check none.lock",
    "lock :ends --inputs :inputs",
]


@pytest.mark.parametrize(
    ("words", "ends"),
    [*((words, "exit") for words in ENDING[::2]), *((x, "other") for x in ENDING[1::4])],
)
def test_what_ends_the_program_is_not_taken_for_clean(mine, words, ends, capsys):
    if ends == "other":
        text = SCRIPT.replace('end = ENDS["exit"]', 'end = ENDS["other"]')
        (mine / "my_train.py").write_text(text)
    assert status(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    named = words.split()[1]
    named = named if "sys" in named else f"my_train.py{named}"
    assert f"{named} was not checked: what is named here ended the" in captured.err
    is_system = ends == "exit" or "sys:" in words
    assert f"with {'SystemExit' if is_system else 'GeneratorExit'}" in captured.err
    line = "sys.exit(0)" if is_system else "throw(GeneratorExit)"
    assert (line in captured.err) == ("sys:" not in words)


def test_interrupting_a_command_ends_it(mine):
    text = SCRIPT.replace(
        'end = ENDS["exit"]', "def end():\n    raise KeyboardInterrupt(1)"
    )
    (mine / "my_train.py").write_text(text)
    with pytest.raises(KeyboardInterrupt, match="1"):
        status("audit :factory")


COMMANDS = ["audit", "precision", "lock"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("inputs", ["none", "empty", "of_name", "no_array"])
def test_inputs_without_an_array_are_wrong_usage(command, inputs, capsys):
    assert status(f"{command} :identity --inputs :{inputs}") == 2
    captured = capsys.readouterr()
    what = "None" if inputs == "none" else "no array"
    assert f"my_train.py:{inputs} gives {what}: nothing would be checked." in captured.err
    assert "Let --inputs name a tuple of the arguments" in captured.err
    assert captured.out == ""


def test_a_carry_without_an_array_is_wrong_usage(capsys):
    assert status("audit :identity --inputs :of_static") == 2
    err = capsys.readouterr().err
    assert "identity carries c, in which there is no array: nothing would be" in err
    assert "Here these are --carry and --returned" in err


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ("few", "missing a required argument: 'x'"),
        ("many", "too many positional arguments"),
        ("misnamed", "missing a required argument: 'x'"),
    ],
)
def test_other_arguments_than_a_step_takes_are_wrong_usage(inputs, reason, capsys):
    assert status(f"audit :step --inputs :{inputs}") == 2
    captured = capsys.readouterr()
    told = f"my_train.py:{inputs} does not give what my_train.py:step takes: {reason}."
    assert f"{told} Let --inputs name a tuple of the arguments" in captured.err
    assert captured.out == ""


WRAPPED = """
import functools
import jax, jax.numpy as jnp

def withkey(f):
    @functools.wraps(f)
    def step(*args):
        return f(*args, key=jax.random.key(0))
    return step

@withkey
def disagrees(c, x, key):
    return c + jnp.ones(4)

@withkey
def raises(c, x, key):
    raise TypeError("its own")

@withkey
def carries(c, x, key):
    return jnp.sum(c), c, c

mapped = jax.vmap(lambda c, x, y: c)
inputs = lambda: (jnp.ones(3), jnp.ones(3))
"""


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (":disagrees", 1, "(3,) and (4,) disagree"),
        (":raises", 1, "TypeError: its own"),
        (":carries --returned 7", 2, "Here these are --carry and --returned"),
        (":mapped", 2, "my_train.py:inputs does not give what my_train.py:mapped takes"),
    ],
)
def test_a_wrapper_may_add_arguments(mine, words, code, message, capsys):
    """Then the inputs are not what is wrong, whatever the function inside takes."""
    (mine / "my_train.py").write_text(WRAPPED)
    assert status(f"audit {words} --inputs :inputs") == code
    captured = capsys.readouterr()
    assert message in captured.out + captured.err
    assert ("does not give what" in captured.err) == ("mapped" in words)


def test_an_exit_that_nothing_catches(capsys):
    before = os._exit
    assert status("audit :at_once") == 2
    assert "ended the program, with SystemExit: 0" in capsys.readouterr().err
    assert os._exit is before


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("audit at_exit.py:step --inputs at_exit.py:inputs", 1),
        ("run at_exit.py", 0),
    ],
)
def test_an_exit_at_exit_does_not_change_the_status(mine, words, code):
    """That of a script which is run is its own: it ends as under `python`."""
    fails = "raise ValueError" if words.startswith("run") else ""
    (mine / "at_exit.py").write_text(
        f"import atexit, os\natexit.register(os._exit, 0)\n{fails}\n"
        "import jax.numpy as jnp, optax\n"
        "opt = optax.sgd(0.1)\n"
        "step = lambda c: c + jnp.float32(1)\n"
        "inputs = lambda: (jnp.ones(3, jnp.bfloat16),)\n"
    )
    command = [sys.executable, "-m", "dtypeguard", *words.split()]
    run = subprocess.run(command, env=child_variables(), capture_output=True, text=True)
    assert run.returncode == code, run.stderr
    assert ("in one step." in run.stdout) == (code == 1)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
def test_a_fork_of_the_target_ends_as_it_does(capsys):
    assert status("audit :of_a_fork --params float32") == 0
    captured = capsys.readouterr()
    assert "no leaf changed" in captured.out
    assert "was not checked" not in captured.err
