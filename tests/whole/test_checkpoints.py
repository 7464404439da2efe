"""Runs killed and resumed with the guard and without it, and checkpoints that drifted."""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import digits
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import training_run
from helpers import assert_same, child_variables, need, set_x64, types
from jax import tree_util

from dtypeguard import DtypeDriftError, guard, record, restore

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
SCRIPT = pathlib.Path(training_run.__file__)
STEPS = 24  # where all is slow, a kill comes some steps late
LIMIT = 300  # seconds for one process


# Killed and resumed ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def digests():
    """Of an uninterrupted run without the guard, after every step."""
    carry, step = training_run.make(lambda opt: opt, lambda number, value: None)
    found = [training_run.digest(carry)]
    for number in range(STEPS):
        carry = step(carry, *training_run.batch(number), number)
        found.append(training_run.digest(carry))
    return found


class Training:
    """The script in a process of its own, and what it has told."""

    def __init__(self, folder, wrap, log):
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), wrap, str(STEPS)],
            env=child_variables(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self.told = {}
        self.timer = threading.Timer(LIMIT, self.process.kill)  # which ends all waiting
        self.timer.start()

    def until(self, *words):
        """Reads what it tells, until it has told that."""
        if not self.has_told(*words):
            log = pathlib.Path(self.log.name).read_text()
            pytest.fail(f"it has not told {words}: {log}")

    def has_told(self, *words):
        """Whether it tells that before it ends."""
        for line in self.process.stdout:
            word, *rest = line.split()
            self.told[word] = rest
            if [word, *rest][: len(words)] == list(words):
                return True
        return False

    def until_half_written(self, folder):
        """Stops it while a checkpoint is half written, also on a machine that is slow."""
        while self.process.poll() is None:
            if is_half_written(folder):
                self.process.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                if is_half_written(folder):
                    return
                self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        assert not self.has_told("nothing more")
        assert self.process.wait(60) == -signal.SIGKILL

    def end(self):
        """Leaves nothing behind, on any path."""
        self.timer.cancel()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def is_half_written(folder):
    """Orbax renames a checkpoint when it is complete."""
    return any(".orbax-checkpoint-tmp" in path.name for path in folder.glob("*"))


KILLS = [
    ("bare", "half written"),
    ("guarded", "within"),
    ("bare", "within"),
    ("guarded", "half written"),
    ("bare", "saving"),
    ("guarded", None),
]


@pytest.mark.exhaustive
def test_killed_and_resumed_with_the_guard_and_without(digests, tmp_path):
    """Each run goes on from what the last one left, guarded or not."""
    need("orbax.checkpoint")
    folder = tmp_path / "checkpoints"
    saved = 0
    with open(tmp_path / "log", "w") as log:
        for wrap, moment in KILLS:
            training = Training(folder, wrap, log)
            try:
                training.until("resumed")
                first, found = training.told["resumed"]
                first = int(first)
                assert saved <= first <= saved + 1  # nothing that was complete is lost
                assert found == digests[first], (wrap, first)
                if moment is None:
                    training.until("done")
                    assert training.told["done"] == [digests[STEPS]]
                    assert training.process.wait(60) == 0
                    break
                training.until("saved", str(first + 1))
                if moment == "half written":
                    training.until_half_written(folder)
                else:
                    training.until(moment)
                training.kill()
                assert is_half_written(folder) or moment != "half written"
                saved = int(training.told["saved"][0])
                assert first < saved < STEPS
            finally:
                training.end()


# Checkpoints that drifted ---------------------------------------------------------------


def train(opt, carry, steps):
    """Params of any dtype, gradients in float32."""

    @jax.jit
    def step(carry, images, labels):
        params, state = carry
        wide = tree_util.tree_map(lambda leaf: leaf.astype(F32), params)
        grads = jax.grad(digits.loss)(wide, images, labels)
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for number in steps:
        carry = step(carry, *training_run.batch(number))
    return carry


def through_orbax(folder, saved, fresh):
    """A checkpoint in the dtypes it was saved with, and in those of a fresh carry."""
    orbax = need("orbax.checkpoint")
    with orbax.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder, saved)
        as_saved = tree_util.tree_map(
            lambda _: orbax.RestoreArgs(restore_type=np.ndarray), fresh
        )
        loaded = checkpointer.restore(folder, item=fresh, restore_args=as_saved)
    with orbax.StandardCheckpointer() as checkpointer:
        return loaded, checkpointer.restore(folder, fresh)


@pytest.mark.parametrize("name", ["adam", "chain"])
def test_a_run_that_drifted_is_healed(name, tmp_path):
    """A bare run with bfloat16 params leaves float32 in its state."""
    opt = training_run.OPTIMIZERS[name]
    params = training_run.make_params(BF16)
    fresh = params, guard(opt).init(params)
    drifted = train(opt, (params, opt.init(params)), range(6))
    loaded, _ = through_orbax(tmp_path / "saved", drifted, fresh)
    assert_same(loaded, tree_util.tree_map(np.asarray, drifted))
    assert types(loaded[1]) != types(fresh[1])
    healed = restore(loaded[1], record(opt, params))
    assert types(healed) == types(fresh[1])
    rounded = tree_util.tree_map(lambda x, y: x.astype(y.dtype), drifted[1], fresh[1])
    assert_same(healed, rounded)
    ended = train(guard(opt), (loaded[0], healed), range(6, 12))
    assert types(ended) == types(fresh)
    # Without `restore` the guard keeps the state that it is given, as wide as it is.
    kept = train(guard(opt), (drifted[0], drifted[1]), range(6, 12))
    assert types(kept) == types(drifted)


def test_a_wide_counter_is_healed_or_refused(tmp_path):
    opt, params = optax.adam(3e-3), training_run.make_params()
    with set_x64(True):
        (adam, rest) = opt.init(params)
        for count in (7, 2**40):
            saved = adam._replace(count=jnp.asarray(count, jnp.int64)), rest
            folder = tmp_path / str(count)
            loaded, _ = through_orbax(folder, saved, (adam, rest))
            assert loaded[0].count.dtype == np.int64
            if count == 7:
                assert_same(restore(loaded, record(opt, params))[0].count, np.int32(7))
                continue
            with pytest.raises(DtypeDriftError, match=f"int32 cannot hold {count}"):
                restore(loaded, record(opt, params))


def test_what_cannot_be_healed_is_refused_with_every_leaf_named(tmp_path):
    """Orbax, given a target, truncates a counter without a word."""
    opt, params = optax.adam(3e-3), training_run.make_params(jnp.float16)
    (adam, rest) = fresh = guard(opt).init(params)
    beyond = tree_util.tree_map(lambda leaf: jnp.full(leaf.shape, 1e30, F32), adam.nu)
    saved = adam._replace(count=np.float32(2.5), nu=beyond), rest
    loaded, silently = through_orbax(tmp_path / "saved", saved, fresh)
    assert silently[0].count == 2
    assert np.isinf(silently[0].nu["w1"]).all()
    with pytest.raises(DtypeDriftError, match="5 leaves cannot be restored") as error:
        restore(loaded, record(opt, params))
    lines = str(error.value).splitlines()[1:-1]
    assert [row.path for row in error.value.rows] == [
        "state[0].count",
        *(f"state[0].nu['{name}']" for name in ("b1", "b2", "w1", "w2")),
    ]
    assert "int32 cannot hold 2.5" in lines[0]
    assert "float16 cannot hold 1.0000000150474662e+30" in lines[1]
