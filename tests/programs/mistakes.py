"""Mistakes that people make, each as a change to the text of a program.

The line at fault ends with the comment `# the mistake`. `fix` does to the changed text what
dtypeguard advises, to the letter.
"""

from typing import NamedTuple

Change = tuple[tuple[str, str], ...]


class Mistake(NamedTuple):
    """A program that fails or drifts.

    Attributes:
        program: the name of its file.
        name: of the mistake, for people.
        configuration: where it shows.
        change: old text and new text, one after the other. Empty for a program that fails
            as it is.
        remedy: "guard" or "guard_step" where that mends it best, and "source" where only
            an edit of the program does.
        advice: what dtypeguard is to print.
        fix: old text and new text, as the advice says.
        not_named: why no note names the line at fault; empty if one does.
        not_advised: why what is printed does not lead to `fix`; empty if it does.
    """

    program: str
    name: str
    configuration: str
    change: Change
    remedy: str
    advice: str
    fix: Change
    not_named: str = ""
    not_advised: str = ""

    @property
    def is_planted(self) -> bool:
        """Whether the program runs without it."""
        return bool(self.change)

    @property
    def id(self) -> str:
        """The name of its test."""
        return f"{self.program}-{self.configuration}-{self.name.replace(' ', '_')}"


# Programs whose outermost step may be guarded outside of `jit` as well as inside: why that
# does not leave them as they are; empty if it does.
OUTSIDE_OF_JIT = {
    "dqn": "",
    "equinox_mnist": "",
    "equinox_rnn": "",
    "nnx_classifier": "",
    "haiku_rnn": "",
    "linen_lm": "",
    "svi": "",
    "optax_wrappers": "",
    "gan": "",
    "neural_ode": "",
    "mixed_precision": "",
}

BEGUN = "the note names the line of the body, and not where the carry was begun"
GIVEN = "what the loop is given is wide, and nothing names the line that made it"
IN_OPTAX = "what forces it was given to Optax, and the note names lines of Optax"
MADE_BY_NUMPY = "NumPy makes `dt / 2` of `dt`, and the line that does is named for it"
NUMPY_FLOAT64 = "the line that makes a np.float64 is not found, since JAX has it as float32"


MISTAKES = (
    Mistake(
        "ppo",
        "values that stay in bfloat16",
        "bfloat16",
        change=(
            (
                "value = nn.Dense(1, dtype=self.dtype)(x).astype(jnp.float32)",
                "value = nn.Dense(1, dtype=self.dtype)(x)  # the mistake",
            ),
        ),
        remedy="guard_step",
        advice="Write lax.scan(dtypeguard.guard_step(backwards), init, xs)",
        fix=(("lax.scan(step(backwards)", "lax.scan(dtypeguard.guard_step(backwards)"),),
        not_named=BEGUN,
    ),
    Mistake(
        "ppo",
        "a return that begins as an int",
        "float32",
        change=(
            (
                "LogState(env, 0, 0, 0, 0, 0)",
                "LogState(env, jnp.zeros((), int), 0, 0, 0, 0)  # the mistake",
            ),
        ),
        remedy="source",
        advice="Start runner.env.running_return as float32",
        fix=(("jnp.zeros((), int), 0", "jnp.zeros((), jnp.float32), 0"),),
        not_named=BEGUN,
    ),
    Mistake(
        "ppo",
        "time that becomes a float",
        "float32",
        change=(
            ("jnp.zeros(()), jnp.array(0))", "jnp.zeros(()), jnp.zeros((), int))"),
            ("velocity, state.time + 1)", "velocity, state.time + 1.0)  # the mistake"),
        ),
        remedy="source",
        advice="Start runner.env.env.time as float32",
        fix=(("jnp.zeros((), int))", "jnp.zeros((), jnp.float32))"),),
    ),
    Mistake(
        "ppo",
        "rewards in float64",
        "x64",
        change=(),
        remedy="guard_step",
        advice="Write lax.scan(dtypeguard.guard_step(backwards), init, xs)",
        fix=(("lax.scan(step(backwards)", "lax.scan(dtypeguard.guard_step(backwards)"),),
    ),
    Mistake(
        "dqn",
        "a float32 rate of the target network",
        "bfloat16",
        change=(
            (
                "target = optax.incremental_update(state.params, state.target_params, TAU)",
                "tau = jnp.float32(TAU)  # the mistake\n"
                "        mix = lambda p, t: tau * p + (1 - tau) * t\n"
                "        target = jax.tree.map(mix, state.params, state.target_params)",
            ),
        ),
        remedy="guard_step",
        advice="Let true_fun return x.astype(jnp.bfloat16)",
        fix=(
            (
                "target_params=target,",
                "target_params=jax.tree.map(lambda x: x.astype(jnp.bfloat16), target),",
            ),
        ),
    ),
    Mistake(
        "dqn",
        "a float32 loss where nothing is learnt",
        "bfloat16",
        change=(
            (
                "target = reward + GAMMA * (1 - done) * best",
                "target = (reward + GAMMA * (1 - done) * best).astype(dtype)",
            ),
            ("return state, jnp.array(0.0)", "return state, jnp.zeros(())  # the mistake"),
        ),
        remedy="source",
        advice="Let true_fun return x.astype(jnp.float32)",
        fix=(("updates + 1), loss", "updates + 1), loss.astype(jnp.float32)"),),
    ),
    Mistake(
        "dqn",
        "a decay from NumPy",
        "x64",
        change=(
            (
                "epsilon = jnp.maximum(0.1, epsilon * 0.95)",
                "decay = np.exp(-1 / 20)  # the mistake\n"
                "        epsilon = jnp.maximum(0.1, epsilon * decay)",
            ),
            ("obs, 0, 0, 1.0, key)", "obs, 0, 0, jnp.ones((), jnp.float32), key)"),
        ),
        remedy="guard_step",
        advice="or cast on the line that is named: x.astype(jnp.float32)",
        fix=(("(0.1, epsilon * decay)", "(0.1, epsilon * decay).astype(jnp.float32)"),),
    ),
    Mistake(
        "dqn",
        "a return that begins as an int",
        "float32",
        change=(
            ("obs, 0, 0, 1.0, key)", "obs, jnp.int32(0), 0, 1.0, key)  # the mistake"),
        ),
        remedy="source",
        advice="Start carry.running_return as float32",
        fix=(("obs, jnp.int32(0),", "obs, jnp.float32(0),"),),
        not_named=BEGUN,
    ),
    Mistake(
        "equinox_mnist",
        "a float32 decay in an average",
        "bfloat16",
        change=(("decay = 0.9", "decay = np.float32(0.9)  # the mistake"),),
        remedy="guard_step",
        advice="Wrap the step: dtypeguard.guard_step(make_step, "
        "carry=('model', 'average', 'opt_state'))",
        fix=(("functools.partial(step, ", "functools.partial(dtypeguard.guard_step, "),),
        not_named="`decay` and `1 - decay` stand on one line, and neither is chosen",
    ),
    Mistake(
        "equinox_mnist",
        "one minus a decay in float32",
        "bfloat16",
        change=(
            (
                "lambda a, p: decay * a + (1 - decay) * p if eqx.is_array(p) else p,",
                "lambda a, p: (\n"
                "                a + (jnp.float32(1.0) - decay) * (p - a)  # the mistake\n"
                "                if eqx.is_array(p)\n"
                "                else p\n"
                "            ),",
            ),
        ),
        remedy="guard_step",
        advice="Wrap the step: dtypeguard.guard_step(make_step, "
        "carry=('model', 'average', 'opt_state'))",
        fix=(("functools.partial(step, ", "functools.partial(dtypeguard.guard_step, "),),
    ),
    Mistake(
        "equinox_mnist",
        "a float32 learning rate",
        "bfloat16",
        change=(
            (
                "optim = opt(optax.adamw(schedule))",
                "optim = opt(optax.sgd(np.float32(0.05), momentum=0.9))  # the mistake",
            ),
        ),
        remedy="guard",
        advice="Wrap the step: dtypeguard.guard_step(make_step, "
        "carry=('model', 'average', 'opt_state'))",
        fix=(("functools.partial(step, ", "functools.partial(dtypeguard.guard_step, "),),
        not_named=IN_OPTAX,
    ),
    Mistake(
        "equinox_rnn",
        "sequences left in float32",
        "bfloat16",
        change=(("xs = jnp.asarray(xs, dtype)", "xs = jnp.asarray(xs)  # the mistake"),),
        remedy="guard_step",
        advice="Write lax.scan(dtypeguard.guard_step(unroll), init, xs)",
        fix=(("self.wrap(unroll)", "dtypeguard.guard_step(unroll)"),),
        not_named=GIVEN,
    ),
    Mistake(
        "equinox_rnn",
        "a loss that is averaged in float32",
        "bfloat16",
        change=(
            ("optim.init(params), 0.0", "optim.init(params), jnp.zeros((), dtype)"),
            ("+ 0.1 * loss", "+ 0.1 * loss.astype(jnp.float32)  # the mistake"),
        ),
        remedy="guard_step",
        advice="or cast on the line that is named: x.astype(jnp.bfloat16)",
        fix=(
            (
                "0.9 * smooth + 0.1 * loss.astype(jnp.float32)",
                "(0.9 * smooth + 0.1 * loss.astype(jnp.float32)).astype(jnp.bfloat16)",
            ),
        ),
    ),
    Mistake(
        "equinox_rnn",
        "a float32 learning rate",
        "bfloat16",
        change=(
            (
                "optim = opt(optax.chain(optax.clip(1.0), optax.adam(0.05)))",
                "adam = optax.adam(np.float32(0.05))  # the mistake\n"
                "    optim = opt(optax.chain(optax.clip(1.0), adam))",
            ),
        ),
        remedy="guard",
        advice="Write lax.scan(dtypeguard.guard_step(make_step), init, xs)",
        fix=(("lax.scan(step(make_step)", "lax.scan(dtypeguard.guard_step(make_step)"),),
        not_named=IN_OPTAX,
    ),
    Mistake(
        "nnx_classifier",
        "gradients times a float32 number in a loop",
        "bfloat16",
        change=(
            (
                "        metrics.update",
                "        halved = lambda g: g * np.float32(0.5)  # the mistake\n"
                "        grads = jax.tree.map(halved, grads)\n"
                "        metrics.update",
            ),
            ("range(2)", "range(0)"),
        ),
        remedy="guard",
        advice="Wrap the step: dtypeguard.guard_step(train_step)",
        fix=(("@step\n    def train_step", "@dtypeguard.guard_step\n    def train_step"),),
    ),
    Mistake(
        "nnx_classifier",
        "gradients times a float32 number in a scan",
        "bfloat16",
        change=(
            (
                "        metrics.update",
                "        halved = lambda g: g * np.float32(0.5)  # the mistake\n"
                "        grads = jax.tree.map(halved, grads)\n"
                "        metrics.update",
            ),
            ("in zip(xs, ys)", "in ()"),
        ),
        remedy="guard",
        advice="Wrap the optimizer: dtypeguard.guard(opt)",
        fix=(("opt(optax.adam(1e-2))", "dtypeguard.guard(optax.adam(1e-2))"),),
    ),
    Mistake(
        "nnx_classifier",
        "a running spread in float32 in a loop",
        "bfloat16",
        change=(
            ("0.1 * x.std(0)", "0.1 * x.astype(jnp.float32).std(0)  # the mistake"),
            ("range(2)", "range(0)"),
        ),
        remedy="guard_step",
        advice="Wrap the step: dtypeguard.guard_step(train_step)",
        fix=(("@step\n    def train_step", "@dtypeguard.guard_step\n    def train_step"),),
    ),
    Mistake(
        "nnx_classifier",
        "a running spread in float32 in a scan",
        "bfloat16",
        change=(
            (
                "spread = 0.9 * self.spread.get_value() + 0.1 * x.std(0)",
                "wide = x.astype(jnp.float32)  # the mistake\n"
                "        spread = 0.9 * self.spread.get_value() + 0.1 * wide.std(0)",
            ),
            ("in zip(xs, ys)", "in ()"),
        ),
        remedy="guard_step",
        advice="Guard what you give to flax: dtypeguard.guard_step(scanned)",
        fix=(("@step\n        def", "@dtypeguard.guard_step\n        def"),),
        not_named="the line of `std` is named, and not the one that widens its operand",
    ),
    Mistake(
        "haiku_rnn",
        "weights that shrink by a number from NumPy",
        "bfloat16",
        change=(
            (
                "params = optax.apply_updates(params, updates)",
                "shrink = np.exp(-0.01)  # the mistake\n"
                "        params = optax.apply_updates(params, updates)\n"
                "        params = jax.tree.map(lambda p: p * shrink, params)",
            ),
        ),
        remedy="guard_step",
        advice="Write lax.scan(dtypeguard.guard_step(update), init, xs)",
        fix=(("lax.scan(step(update)", "lax.scan(dtypeguard.guard_step(update)"),),
        not_named=NUMPY_FLOAT64,
    ),
    Mistake(
        "haiku_rnn",
        "inputs that fade in float32",
        "bfloat16",
        change=(
            (
                "        outs, _ =",
                "        fading = jnp.linspace(1, 0, LENGTH)  # the mistake\n"
                "        xs = xs * fading[:, None, None]\n"
                "        outs, _ =",
            ),
        ),
        remedy="guard_step",
        advice="dtypeguard.guard_step(core, carry=1, returned=1)",
        fix=(("step(core,", "dtypeguard.guard_step(core,"),),
        not_named=GIVEN,
        not_advised="the scan is Haiku's, and the advice is to cast on a line of Haiku's",
    ),
    Mistake(
        "haiku_rnn",
        "waves in float64",
        "x64",
        change=(
            (
                "[:, None, None]).astype(np.float32)",
                "[:, None, None])  # the mistake",
            ),
            ("waves = jnp.asarray(data(), dtype)", "waves = jnp.asarray(data())"),
            ("x.astype(xs.dtype)", "x.astype(dtype)"),
        ),
        remedy="guard_step",
        advice="dtypeguard.guard_step(core, carry=1, returned=1)",
        fix=(("step(core,", "dtypeguard.guard_step(core,"),),
        not_named=GIVEN,
        not_advised="the scan is Haiku's, and the advice is to cast on a line of Haiku's",
    ),
    Mistake(
        "linen_lm",
        "a loss that begins as an int",
        "float32",
        change=(
            ("smooth_loss=jnp.zeros(()),", "smooth_loss=jnp.int32(0),  # the mistake"),
        ),
        remedy="source",
        advice="Start state.smooth_loss as float32",
        fix=(("jnp.int32(0)", "jnp.float32(0)"),),
        not_named=BEGUN,
        not_advised="audit_step advises to round, and not another start as explain does",
    ),
    Mistake(
        "linen_lm",
        "a count of tokens that becomes a float",
        "float32",
        change=(
            (
                "state.seen + tokens.size,",
                "state.seen + tokens.size / BATCH,  # the mistake",
            ),
            ("seen=0", "seen=jnp.zeros((), int)"),
        ),
        remedy="source",
        advice="return jnp.round(x).astype(jnp.int32)",
        fix=(
            (
                "state.seen + tokens.size / BATCH,",
                "jnp.round(state.seen + tokens.size / BATCH).astype(jnp.int32),",
            ),
        ),
    ),
    Mistake(
        "linen_lm",
        "weights that shrink by a float32 number",
        "bfloat16",
        change=(
            (
                "state = state.apply_gradients(grads=grads)",
                "shrink = np.float32(0.999)  # the mistake\n"
                "        state = state.apply_gradients(grads=grads)\n"
                "        params = jax.tree.map(lambda p: p * shrink, state.params)\n"
                "        state = state.replace(params=params)",
            ),
        ),
        remedy="guard_step",
        advice="Wrap the step: dtypeguard.guard_step(train_step)",
        fix=(("@step\n", "@dtypeguard.guard_step\n"),),
    ),
    Mistake(
        "svi",
        "a best loss that begins as an int",
        "float32",
        change=(("jnp.array(jnp.inf, jnp.float32)", "jnp.int32(10**6)  # the mistake"),),
        remedy="source",
        advice="Start carry[1] as float32",
        fix=(("jnp.int32(10**6)", "jnp.float32(10**6)"),),
        not_named=BEGUN,
    ),
    Mistake(
        "svi",
        "a best loss that begins in bfloat16",
        "bfloat16",
        change=(
            ("jnp.array(jnp.inf, jnp.float32)", "jnp.array(jnp.inf, dtype)  # the mistake"),
        ),
        remedy="guard_step",
        advice="Write lax.scan(dtypeguard.guard_step(update_some), init, xs)",
        fix=(
            ("lax.scan(step(update_some)", "lax.scan(dtypeguard.guard_step(update_some)"),
        ),
        not_named=BEGUN,
    ),
    Mistake(
        "svi",
        "a float32 bound on gradients",
        "bfloat16",
        change=(
            (
                "optimizer = opt(optax.chain(optax.clip(10.0), optax.adam(0.1)))",
                "clip = optax.clip(np.float32(10.0))  # the mistake\n"
                "    optimizer = opt(optax.chain(clip, optax.adam(0.1)))",
            ),
        ),
        remedy="guard",
        advice="Wrap the optimizer: dtypeguard.guard(opt)",
        fix=(("optimizer = opt(", "optimizer = dtypeguard.guard("),),
        not_named=IN_OPTAX,
    ),
    Mistake(
        "svi",
        "a loss in float64",
        "x64",
        change=(),
        remedy="guard_step",
        advice="Write lax.scan(dtypeguard.guard_step(update_some), init, xs)",
        fix=(
            ("lax.scan(step(update_some)", "lax.scan(dtypeguard.guard_step(update_some)"),
        ),
    ),
    Mistake(
        "optax_wrappers",
        "a loss in float32",
        "bfloat16",
        change=(
            (
                "return jnp.mean((predict(params, x) - y) ** 2)",
                "error = (predict(params, x) - y).astype(jnp.float32)  # the mistake\n"
                "    return jnp.mean(error**2)",
            ),
        ),
        remedy="guard_step",
        advice="or cast on the line that is named: x.astype(jnp.bfloat16)",
        fix=(
            (
                "jnp.where(finite & (value < best), value, best)",
                "jnp.where(finite & (value < best), value, best).astype(jnp.bfloat16)",
            ),
        ),
    ),
    Mistake(
        "optax_wrappers",
        "a float32 bound on the norm",
        "bfloat16",
        change=(
            (
                "    optimizer = opt(",
                "    bound = np.float32(1.0)  # the mistake\n    optimizer = opt(",
            ),
            ("clip_by_global_norm(1.0)", "clip_by_global_norm(bound)"),
        ),
        remedy="guard",
        advice="dtypeguard.guard(",
        fix=(("optimizer = opt(", "optimizer = dtypeguard.guard("),),
        not_named=IN_OPTAX,
        not_advised="no loop raises; audit_step says that guard_step does not mend it, and "
        "does not say that guard does",
    ),
    Mistake(
        "optax_wrappers",
        "data in float64",
        "x64",
        change=(
            (
                "return x.astype(np.float32), y.astype(np.float32)",
                "return x, y  # the mistake",
            ),
            ("lambda a: jnp.asarray(a, dtype), data()", "jnp.asarray, data()"),
        ),
        remedy="guard_step",
        advice="Write lax.scan(dtypeguard.guard_step(update), init, xs)",
        fix=(("lax.scan(step(update)", "lax.scan(dtypeguard.guard_step(update)"),),
        not_named=GIVEN,
    ),
    Mistake(
        "gan",
        "a rate from NumPy",
        "bfloat16",
        change=(
            (
                "margin = 0.9 * gan.margin + 0.1 * margin",
                "pace = np.exp(-2.0)  # the mistake\n"
                "        margin = gan.margin + pace * (margin - gan.margin)",
            ),
        ),
        remedy="guard_step",
        advice="or cast on the line that is named: x.astype(jnp.bfloat16)",
        fix=(
            (
                "gan.margin + pace * (margin - gan.margin)",
                "(gan.margin + pace * (margin - gan.margin)).astype(jnp.bfloat16)",
            ),
        ),
        not_named=NUMPY_FLOAT64,
    ),
    Mistake(
        "gan",
        "a float32 rate in an average",
        "bfloat16",
        change=(("rate = 0.1", "rate = jnp.array(0.1, jnp.float32)  # the mistake"),),
        remedy="guard_step",
        advice="Write lax.scan(dtypeguard.guard_step(step_gan), init, xs)",
        fix=(("lax.scan(step(step_gan)", "lax.scan(dtypeguard.guard_step(step_gan)"),),
    ),
    Mistake(
        "gan",
        "a count that becomes a share",
        "float32",
        change=(
            ("gan.rested + rests", "gan.rested + rests / STEPS  # the mistake"),
            ("rested=jnp.array(0)", "rested=jnp.zeros((), int)"),
        ),
        remedy="source",
        advice="Start gan.rested as float32",
        fix=(("jnp.zeros((), int)", "jnp.zeros((), jnp.float32)"),),
    ),
    Mistake(
        "gan",
        "gradients in float32",
        "bfloat16",
        change=(
            (
                "    def moved(player, grads):\n",
                "    def moved(player, grads):\n"
                "        wide = lambda g: g.astype(jnp.float32)  # the mistake\n"
                "        grads = jax.tree.map(wide, grads)\n",
            ),
        ),
        remedy="guard",
        advice="Wrap the optimizer: dtypeguard.guard(opt)",
        fix=(("optimizer = opt(", "optimizer = dtypeguard.guard("),),
    ),
    Mistake(
        "neural_ode",
        "a time step from NumPy",
        "x64",
        change=(
            (
                "dt = jnp.asarray(times[1] / SUBSTEPS, dtype)",
                "dt = times[1] / SUBSTEPS  # the mistake",
            ),
        ),
        remedy="guard_step",
        advice="Write eqx.internal.scan(dtypeguard.guard_step(body), init, xs)",
        fix=(("eqxi.scan(step(substep)", "eqxi.scan(dtypeguard.guard_step(substep)"),),
        not_named=MADE_BY_NUMPY,
    ),
    Mistake(
        "neural_ode",
        "weights that shrink by a float32 number",
        "bfloat16",
        change=(
            (
                "        return params, opt_state, losses",
                "        shrink = np.float32(0.999)  # the mistake\n"
                "        params = jax.tree.map(lambda p: p * shrink, params)\n"
                "        return params, opt_state, losses",
            ),
        ),
        remedy="guard_step",
        advice="Write lax.while_loop(cond_fun, dtypeguard.guard_step(make_step), init_val)",
        fix=(
            (
                "lax.while_loop(is_unfinished, step(make_step)",
                "lax.while_loop(is_unfinished, dtypeguard.guard_step(make_step)",
            ),
        ),
    ),
    Mistake(
        "mixed_precision",
        "an average that is not cast",
        "bfloat16",
        change=(
            (
                "lambda a, p: (0.9 * a + 0.1 * p).astype(dtype), state.average, params",
                "lambda a, p: 0.9 * a + 0.1 * p,  # the mistake\n"
                "                state.average,\n"
                "                params,",
            ),
        ),
        remedy="guard_step",
        advice="Let true_fun return x.astype(jnp.bfloat16)",
        fix=(("0.9 * a + 0.1 * p,", "(0.9 * a + 0.1 * p).astype(jnp.bfloat16),"),),
    ),
    Mistake(
        "mixed_precision",
        "a counter that is reset to a float",
        "float32",
        change=(("scale.good_steps + 1, 0)", "scale.good_steps + 1, 0.0)  # the mistake"),),
        remedy="source",
        advice="or return jnp.round(x).astype(jnp.int32)",
        fix=(
            ("good_steps = jnp.where(", "good_steps = jnp.round(jnp.where("),
            ("+ 1, 0.0)", "+ 1, 0.0)).astype(jnp.int32)"),
        ),
    ),
    Mistake(
        "mixed_precision",
        "a counter that is reset in 64 bits",
        "x64",
        change=(
            (
                "good_steps = jnp.where(finite & ~grows, scale.good_steps + 1, 0)",
                "none = jnp.zeros((), int)  # the mistake\n"
                "    good_steps = jnp.where(finite & ~grows, scale.good_steps + 1, none)",
            ),
        ),
        remedy="guard_step",
        advice="Write lax.scan(dtypeguard.guard_step(train_step), init, xs)",
        fix=(("lax.scan(step(train_step)", "lax.scan(dtypeguard.guard_step(train_step)"),),
    ),
    Mistake(
        "mixed_precision",
        "a branch in bfloat16",
        "bfloat16",
        change=(("return 0.5 * x", "return (0.5 * x).astype(dtype)  # the mistake"),),
        remedy="source",
        advice="branches[2] return x.astype(jnp.float32)",
        fix=(("(0.5 * x).astype(dtype)", "(0.5 * x).astype(dtype).astype(jnp.float32)"),),
    ),
)
