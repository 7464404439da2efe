"""Wrong usage of every command exits with 2, prints nothing, and says what to write.

So does what is named and ends the process: a status of 0 says that it was checked.
"""

import pytest

from dtypeguard._cli.main import main
from dtypeguard._cli.options import COMMANDS, parser

pytestmark = pytest.mark.third_party
SCRIPT = """
import functools, os, sys
import jax, jax.numpy as jnp, optax

class Fails:
    @property
    def step(self):
        raise ValueError("no such step")

fails, opt, three = Fails(), optax.sgd(0.1), 3
x, count = jnp.ones(3), (jnp.arange(3), 2)

def step(c, x):
    return c + x, None

def loss(c, x):
    return c * x

def breaks(c, x):
    return c @ x[:1]  # here

def raises():
    raise KeyError("data")  # data

def takes_some(rate, nesterov=None):
    assert nesterov is None

def settings(**given):
    assert given == {"a": 1e-3, "b": False, "c": "text", "d": None, "e": [1]}
    return opt

def exits(c=None, x=None):
    sys.exit(0)

def throws(c=None, x=None):
    raise GeneratorExit

def at_once():
    os._exit(0)

class Lazy:
    __getattr__ = exits

lazy = Lazy()
of_init = optax.GradientTransformation(exits, opt.update)
of_update = optax.GradientTransformation(opt.init, exits)

def with_a_key(f):
    @functools.wraps(f)
    def step(*args):
        return f(*args, key=jax.random.key(0))
    return step

@with_a_key
def carries(c, x, key):
    return jnp.sum(c), c, c

@with_a_key
def disagrees(c, x, key):
    return c + jnp.ones(4)

@with_a_key
def errs(c, x, key):
    raise TypeError("its own")

mapped = jax.vmap(lambda c, x, y: c)
inputs, shapes = lambda: (x, x), lambda: (x, jax.ShapeDtypeStruct((3,), x.dtype))
none, empty, no_array, static = lambda: None, lambda: {}, lambda: ([], ""), lambda: ([], x)
few, many, misnamed = lambda: x, lambda: (x, x, x), lambda: {"c": x, "y": x}
import dtypeguard
planned = dtypeguard.autocast(loss, {"mine.py:lost": "float32"})
"""
WRONG = """
 | required: command. Write for example: dtypeguard run train.py
sweeep | invalid choice: 'sweeep'
train.py | Write for example: dtypeguard run train.py
demo prodigi | Write for example: dtypeguard demo prodigy
docs no_such_page | no page 'no_such_page'. To list them: dtypeguard docs
run no_such_script.py | can't open file 'no_such_script.py': No such file
run -m | no script is named. Write for example: dtypeguard run train.py
run --x64 a.py | arguments: --x64. Write for example: dtypeguard run train.py
audit | required: TARGET. Write for example: dtypeguard audit
audit optax:adam --x65 | unrecognized arguments: --x65
audit optax:adam --format yaml | invalid choice: 'yaml'
audit optax.adam | or FILE.py:NAME. Write
audit optax:adm | module 'optax' has no attribute 'adm'
audit no_such_module:opt | no_such_module cannot be imported: ModuleNot
audit no_such_file.py:opt | cannot be imported: FileNotFoundError
audit optax:adam | optax:adam cannot be called: TypeError: adam() missing 1 required
audit optax:adam | write --set NAME=VALUE, or audit FILE
audit :takes_some --set nesterov=1 --set rate=1 | assert nesterov is None It takes rate
audit :step | it is a step: dtypeguard audit mine.py:step --inputs mine.py:inputs
audit optax:sgd --set 1 | '1' is not name=value
audit optax:sgd --set rate=1 | It takes learning_rate, momentum, nesterov,
audit :opt --set rate=1 | is an optimizer and takes no --set
audit optax:sgd --params f99 | 'f99' is not a dtype. Write for example
audit optax:sgd --params= | '' is not a dtype
audit optax:sgd --grads int32 | int32 is not floating or complex
audit optax:constant_schedule --set value=1 | which is not an optimizer
audit optax:__version__ | object is not callable
audit :fails.step | mine.py:fails.step cannot be read: ValueError: no such
audit :three.step | mine.py:three.step cannot be read: AttributeError
audit optax:adam --json no/such/a.json | 'no/such/a.json' cannot be written
audit :exits | mine.py:exits was not checked: what is named here ended the program, with
audit :exits | with SystemExit: 0 mine.py:33 sys.exit(0) Take that out, or name a
audit :throws | with GeneratorExit: mine.py:36 raise GeneratorExit Take that out
audit sys:exit | sys:exit was not checked: what is named here ended the program, with
audit :at_once | ended the program, with SystemExit: 0
audit :of_init --json new.json | with SystemExit: 0 mine.py:33
audit :of_update | with SystemExit: 0 mine.py:33
audit :lazy.opt | with SystemExit: 0 mine.py:33
audit :step --inputs :exits | with SystemExit: 0 mine.py:33
audit :throws --inputs :inputs | with GeneratorExit: mine.py:36
precision :throws --inputs :inputs | with GeneratorExit: mine.py:36
precision :loss --inputs :inputs --reference :exits | with SystemExit: 0 mine.py:33
precision :loss --inputs :inputs --reference :lazy.f | with SystemExit: 0 mine.py:33
lock :exits --inputs :inputs --check none.lock | with SystemExit: 0 mine.py:33
lock :planned --inputs :inputs | dtypeguard lock: 1 of 1 entries of the plan match
audit :step --inputs :inputs --params bf16 | --params is for an optimizer, without --inputs
audit :step --carry 1 | --carry is for a step
audit :step --inputs :inputs --carry stat | (c, x). Write the position or the name
audit :step --inputs :inputs --returned loss | Here these are --carry and --returned
audit :carries --inputs :inputs --returned 7 | Here these are --carry and --returned
audit :step --inputs inputs | Write for example: --inputs mine.py:inputs
audit :step --inputs :nope | module 'mine' has no attribute 'nope' Write for example
audit :step --inputs :raises | raises cannot be called: KeyError: 'data'
audit :step --inputs :few | mine.py:step takes: missing a required argument: 'x'. Let
audit :step --inputs :many | mine.py:many does not give what mine.py:step takes: too many
audit :step --inputs :misnamed | missing a required argument: 'x'. Let --inputs name
audit :mapped --inputs :inputs | mine.py:inputs does not give what mine.py:mapped takes
audit :step --inputs :static | mine.py:step carries no array: nothing would be
audit :step --inputs :none | mine.py:none gives no array: nothing would be checked. Let
precision :loss --inputs :empty | gives no array: nothing would be checked. Let --inputs
lock :step --inputs :no_array | mine.py:no_array gives no array: nothing would be checked.
audit :opt --inputs :inputs | without --inputs: dtypeguard audit mine.py:opt
lock :opt --inputs :inputs | For an optimizer there are
lock :step | --inputs. Write for example: dtypeguard lock my_script.py:step
lock :step --inputs :inputs --check no.lock | No such file or directory. Write it with --out
lock :step --inputs :inputs --out no/a.lock | 'no/a.lock' cannot be written
lock :breaks --inputs :inputs | mine.py:inputs gives: TypeError: dot_general requires
lock :breaks --inputs :inputs | mine.py:20 return c @ x[:1] # here
precision :loss | --inputs. Write for example: dtypeguard precision my_script.py:loss
precision :nothing --inputs :inputs | has no attribute 'nothing' Write for example
precision :three --inputs :inputs | audit_precision got
precision :loss --inputs :x | cannot be checked with what mine.py:x gives
precision :loss --inputs :raises | # data
precision :breaks --inputs :inputs | # here
precision :loss --inputs :count --narrow i8 | i8 is not floating or complex
precision :loss --inputs :inputs --tolerance -1 | '-1' is not a finite number from 0 up
precision :loss --inputs :inputs --tolerance foo | 'foo' is not a finite number
precision :loss --inputs :shapes --max-error 1 | arrays, or leave out --max-error
precision :loss --inputs :inputs --matmul-precision tpus | matmul_precision="tpu"
precision :loss --inputs :inputs --reference no.npz | numpy.savez(file, **{
precision :loss --inputs :inputs --reference :none | <lambda>() takes 0 positional
precision :loss --inputs :inputs --out a.plan | a search needs --narrow. Write for example
precision :loss --inputs :inputs --json no/such.json | 'no/such.json' cannot be written
precision :loss --inputs :inputs --check a --narrow bf16 | --narrow is for a search: a says
precision :loss --inputs :inputs --check a --out b | not allowed with argument
precision :loss --inputs :inputs --check none.plan | none.plan does not exist
"""
ROWS = [tuple(map(str.strip, x.split("|"))) for x in WRONG.strip("\n").split("\n")]


@pytest.mark.parametrize(("words", "message"), ROWS)
def test_wrong_usage(words, message, command, folder):
    code, out, err = command(words)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert [file.name for file in folder.glob("*") if file.is_file()] == ["mine.py"]


def test_a_suggested_command_quotes_a_path_with_a_space(folder, capsys):
    (folder / "my own.py").write_text(SCRIPT)
    assert main(["audit", "my own.py:step"]) == 2
    written = "dtypeguard audit 'my own.py:step' --inputs 'my own.py:inputs'"
    assert written in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (":disagrees", "incompatible shapes for broadcasting: (3,), (4,)"),
        (":errs", "TypeError: its own"),
    ],
)
def test_a_wrapper_may_add_arguments(target, message, command):
    """Then the inputs are not what is wrong, whatever the function inside takes."""
    code, out, err = command(f"audit {target} --inputs :inputs")
    assert (code, err) == (1, "")
    assert message in out


def test_help_shows_at_most_forty_options_and_every_status(capsys):
    (choices,) = (x.choices for x in parser()._actions if isinstance(x.choices, dict))
    shown = 1  # --version
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        words = capsys.readouterr().out.split()
        if name not in ("run", "demo", "docs"):
            assert ", 2 if it cannot run" in " ".join(words)
        known = {x for each in choices[name]._actions for x in each.option_strings}
        shown += len(known & {x.strip("[]") for x in words if x[-1] not in ".,;"})
        shown -= 2  # -h and --help
    assert 20 < shown <= 40
    assert main(["--version"]) == main(["--help"]) == 0
    assert "Runs a script" in capsys.readouterr().out


def test_an_option_of_0_1_still_works(command):
    code, out, err = command("audit :step --step --inputs :inputs")
    assert (code, "no leaf changed" in out, err) == (0, True, "")


def test_a_script_that_trains_when_imported(command, folder):
    (folder / "trains.py").write_text('opt = None\nraise TypeError("carry")')
    code, _, err = command("audit trains.py:opt")
    assert (code, "trains.py:2  raise TypeError" in err) == (2, True)
    assert 'Importing a script runs it: train under if __name__ == "__main__":' in err


def test_what_a_setting_is(command):
    """As in Python, and true, false and none as in other languages."""
    words = "--set a=1e-3 --set b=false --set c=text --set d=None --set e=[1]"
    assert command(f"audit :settings --params float32 {words}")[0] == 0


def test_what_stands_in_a_file_outlasts_wrong_usage(command, folder):
    file = folder / "old.json"
    file.write_text("old")
    assert command("audit optax:adam --json old.json")[0] == 2
    assert file.read_text() == "old"
    assert command("audit :opt --params float32 --json old.json")[0] == 0
    assert file.read_text().startswith("{")
    assert command("audit :opt --json /dev/null")[0] == 0
