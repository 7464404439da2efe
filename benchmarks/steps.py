"""Steps of public packages, bare and guarded: which give back the types they were given.

    python -m venv .steps
    .steps/bin/pip install -e . brax gymnax six jumanji jaxopt blackjax evosax flashbax \
        numpyro mujoco-mjx
    .steps/bin/pip install --no-deps gymnax==1.0.1  # which asks for an older JAX
    .steps/bin/python benchmarks/steps.py

Each step is evaluated abstractly, once, on the first carry that its own package makes, in
float32: with x64 off, with x64 on throughout, and with x64 on where the carry was made with
it off (loaded, say, or made before somebody turned the flag on). It fails if it raises, or
gives any leaf of its carry back in another type. Guarded it is `guard_step(step)` on
`strong(carry)`; a second table asks of the carry as made, bare and guarded, what a loop of
JAX asks. A step that is stable on `strong(carry)` bare, with x64 off, has to compile
to the same program guarded: what XLA is given is compared, and where that differs the
optimized HLO. The script exits 1 if that is not so, or if a step fails that does not bare.

How many steps fail, bare -> guarded, with x64 off, on throughout, and on for a carry made
with it off (jax 0.12.0.1, Python 3.13; as with jax 0.10.2):

    gymnax 1.0.1, 24 steps: 11 -> 0, 12 -> 8, 21 -> 0
    jumanji 1.1.2, 27 steps: 0 -> 0, 10 -> 7, 16 -> 0
    jaxopt 0.8.5, 13 steps: 5 -> 1, 5 -> 1, 13 -> 1
    blackjax 1.7.1, 12 steps: 0 -> 0, 0 -> 0, 4 -> 0
    evosax 0.3.2, 34 steps: 27 -> 0, 27 -> 0, 34 -> 0
    flashbax 0.1.3, 5 steps: 0 -> 0, 0 -> 0, 5 -> 0
    numpyro 0.22.0, 9 steps: 1 -> 1, 1 -> 1, 9 -> 2
    mujoco-mjx 3.17.0, 10 steps: 0 -> 0, 4 -> 0, 10 -> 0
    brax 0.14.2, 20 steps: 11 -> 1, 12 -> 1, 20 -> 1

Of all 154: 55 -> 3, 71 -> 18, 132 -> 4. All 129 that are stable bare compile to the same
program guarded.

A loop of JAX asks less of the carry as it is made: a strongly typed leaf has to come back
in its dtype, weakly typed or not, and a weakly typed one, a Python number say, takes the
type to which it and what comes back promote. How many steps `lax.while_loop` refuses, bare
-> guarded, neither on `strong(carry)`:

    gymnax 1.0.1: 0 -> 0, 8 -> 6, 20 -> 0
    jumanji 1.1.2: 0 -> 0, 10 -> 7, 15 -> 0
    jaxopt 0.8.5: 0 -> 0, 0 -> 0, 3 -> 0
    blackjax 1.7.1: 0 -> 0, 0 -> 0, 4 -> 0
    evosax 0.3.2: 0 -> 0, 1 -> 0, 15 -> 0
    flashbax 0.1.3: 0 -> 0, 0 -> 0, 0 -> 0
    numpyro 0.22.0: 1 -> 1, 1 -> 1, 5 -> 1
    mujoco-mjx 3.17.0: 0 -> 0, 4 -> 0, 10 -> 0
    brax 0.14.2: 1 -> 1, 2 -> 1, 19 -> 1

Of all 154: 2 -> 2, 26 -> 15, 91 -> 2. All 152 that a loop takes bare with x64 off compile
to the same program guarded.

What is missing or does not import is named below the tables, and so is each step that fails
guarded.

All environments of brax are in it, of those two with every physics there is and as they are
trained in, and all of jumanji, with Sokoban's toy levels, since its own are downloaded. MJX
steps whatever model it is given: ten files of its own tests stand for all.
"""

import argparse
import importlib
import importlib.metadata
import inspect
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import tree_util

import dtypeguard
from dtypeguard._audit.subjects import StepCall
from dtypeguard._carry.carry import Carry, carry_of
from dtypeguard._carry.split import SplitTree
from dtypeguard._leaves.compat import set_x64
from dtypeguard._sweep import checks
from dtypeguard._sweep.checks import StepTrial, one_line

sys.path.append(str(pathlib.Path(__file__).parents[1]))

from tests.support.hlo import optimized_hlo


class Step(NamedTuple):
    """A step, what it is called with first, and what of it is carried."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    carry: Any = 0
    returned: Any = None


Steps = Iterator[tuple[str, Callable[[], Step]]]
SETTINGS = {
    "x64 off": (False, False),
    "x64 on": (True, True),
    "made off, on": (False, True),
}


# Joints, contacts of meshes, tendons, actuators, sensors, a walker and a hand. The others
# are variants of these, or do not load, or have nothing that moves.
MJX_MODELS = (
    "actuator/arm21.xml",
    "actuator/general_dyntype.xml",
    "barkour_v0/assets/barkour_v0_mjx.xml",
    "convex.xml",
    "humanoid/humanoid.xml",
    "pendula.xml",
    "quadratic_frictionloss.xml",
    "sensor/sensor.xml",
    "shadow_hand/scene_right.xml",
    "tendon/tendon.xml",
)


def brax() -> Steps:
    """Every environment, two of them with each physics and as they are trained in."""
    envs = importlib.import_module("brax.envs")

    def make(name, build=envs.get_environment, **options):
        env = build(name, **options)
        # Shapes alone: nobody resets one that is not jitted, and compiling takes minutes.
        state = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
        batch = state.reward.shape
        return Step(env.step, (state, jnp.zeros((*batch, env.action_size))))

    for name in envs._envs:
        yield name, lambda name=name: make(name)
    for name in ("ant", "halfcheetah"):
        for backend in ("spring", "positional", "mjx"):
            yield f"{name}[{backend}]", lambda n=name, b=backend: make(n, backend=b)
        # What its trainers and its tutorial step: batched, counted and reset when done.
        yield f"{name}[create]", lambda n=name: make(n, envs.create, batch_size=2)


def gymnax() -> Steps:
    """Every environment: `env.step(key, state, action, params)`."""
    module = importlib.import_module("gymnax")

    def make(name):
        env, params = module.make(name)
        key = jax.random.PRNGKey(0)
        _, state = env.reset(key, params)
        action = env.action_space(params).sample(key)
        return Step(env.step, (key, state, action, params), 1, 1)

    for name in module.registered_envs:
        yield name, lambda name=name: make(name)


def jumanji() -> Steps:
    """Every environment, one of them as it is trained in: `env.step(state, action)`."""
    module, wrappers = map(importlib.import_module, ("jumanji", "jumanji.wrappers"))
    sokoban = importlib.import_module("jumanji.environments.routing.sokoban.generator")
    # By default it downloads its levels.
    options = {"Sokoban-v0": {"generator": sokoban.ToyGenerator()}}

    def make(name, wrap=lambda env: env):
        env = wrap(module.make(name, **options.get(name, {})))
        state, _ = jax.eval_shape(env.reset, jax.random.PRNGKey(0))  # as its docs jit it
        return Step(env.step, (state, env.action_spec.generate_value()))

    for name in sorted(module.registered_environments()):
        yield name, lambda name=name: make(name)
    yield "Snake-v1[auto reset]", lambda: make("Snake-v1", wrappers.AutoResetWrapper)


def jaxopt() -> Steps:
    """Solvers of a least-squares problem: `solver.update(params, state, ...)`."""
    module = importlib.import_module("jaxopt")
    residual = lambda w, x, y: x @ w - y
    loss = lambda w, x, y: jnp.mean(residual(w, x, y) ** 2)
    contraction = lambda w, x, y: w - 0.1 * x.T @ (x @ w - y)
    made = {
        "GradientDescent": lambda: module.GradientDescent(loss),
        "LBFGS": lambda: module.LBFGS(loss),
        "LBFGS[backtracking]": lambda: module.LBFGS(loss, linesearch="backtracking"),
        "BFGS": lambda: module.BFGS(loss),
        "NonlinearCG": lambda: module.NonlinearCG(loss),
        "ArmijoSGD": lambda: module.ArmijoSGD(loss),
        "PolyakSGD": lambda: module.PolyakSGD(loss),
        "OptaxSolver": lambda: module.OptaxSolver(
            loss, importlib.import_module("optax").adam(0.1)
        ),
        "GaussNewton": lambda: module.GaussNewton(residual),
        "LevenbergMarquardt": lambda: module.LevenbergMarquardt(residual),
        "FixedPointIteration": lambda: module.FixedPointIteration(contraction),
        "AndersonAcceleration": lambda: module.AndersonAcceleration(contraction),
        "Broyden": lambda: module.Broyden(lambda w, x, y: x.T @ residual(w, x, y)),
    }

    def make(build):
        data = jnp.eye(4) + 0.5, jnp.arange(4.0)
        solver, params = build(), jnp.ones(4)
        state = solver.init_state(params, *data)
        return Step(solver.update, (params, state, *data), (0, 1))

    for name, build in made.items():
        yield name, lambda build=build: make(build)


def blackjax() -> Steps:
    """Samplers of a normal distribution: `kernel.step(key, state)`."""
    module = importlib.import_module("blackjax")
    logdensity = lambda x: -0.5 * jnp.sum(x**2)
    matrix, keyed = jnp.ones, {"rng_key": jax.random.PRNGKey(0)}
    made = {
        "hmc": lambda: module.hmc(logdensity, 0.1, matrix(3), 5),
        "nuts": lambda: module.nuts(logdensity, 0.1, matrix(3)),
        "mala": lambda: module.mala(logdensity, 0.1),
        "ghmc": lambda: module.ghmc(logdensity, 0.1, matrix(3), 0.1, 0.1),
        "barker": lambda: module.barker_proposal(logdensity, 0.1),
        "mclmc": lambda: module.mclmc(logdensity, 1.0, 0.1, inverse_mass_matrix=matrix(3)),
        "random_walk": lambda: module.additive_step_random_walk(
            logdensity, module.mcmc.random_walk.normal(0.1 * jnp.ones(3))
        ),
        "elliptical_slice": lambda: module.elliptical_slice(
            logdensity, mean=jnp.zeros(3), cov=jnp.eye(3)
        ),
        "rmhmc": lambda: module.rmhmc(logdensity, 0.1, matrix(3), 5),
        "dynamic_hmc": lambda: module.dynamic_hmc(logdensity, 0.1, matrix(3)),
        "meanfield_vi": lambda: module.meanfield_vi(logdensity, _adam(), 5),
        "fullrank_vi": lambda: module.fullrank_vi(logdensity, _adam(), 5),
    }

    def make(build):
        kernel = build()
        position = jnp.zeros(3)
        try:
            state = kernel.init(position, **keyed)
        except TypeError:
            state = kernel.init(position)
        return Step(kernel.step, (keyed["rng_key"], state), 1)

    for name, build in made.items():
        yield name, lambda build=build: make(build)


def evosax() -> Steps:
    """Every strategy: `es.tell(key, population, fitness, state, params)`."""
    module = importlib.import_module("evosax.algorithms")

    def make(name):
        key, solution = jax.random.PRNGKey(0), jnp.zeros(3)
        kind = getattr(module, name)
        es = kind(population_size=8, solution=solution)
        params = es.default_params
        if "population" in inspect.signature(es.init).parameters:
            population = jnp.zeros((8, 3))
            state = es.init(key, population, jnp.zeros(8), params)
        else:
            state = es.init(key, solution, params)
        population, state = es.ask(key, state, params)
        fitness = jnp.arange(8.0)
        return Step(es.tell, (key, population, fitness, state, params), "state")

    for name in dir(module):
        if isinstance(getattr(module, name), type):
            yield name, lambda name=name: make(name)


def flashbax() -> Steps:
    """Buffers: `buffer.add(state, batch)`."""
    module = importlib.import_module("flashbax")
    item = {"obs": jnp.zeros(3), "reward": jnp.zeros(()), "done": jnp.zeros((), bool)}
    several = lambda *n: tree_util.tree_map(
        lambda x: jnp.zeros((*n, *x.shape), x.dtype), item
    )
    made = {
        "flat": lambda: (module.make_flat_buffer(32, 4, 2), item),
        "flat[batches]": lambda: (
            module.make_flat_buffer(32, 4, 2, add_batch_size=2),
            several(2),
        ),
        "item": lambda: (module.make_item_buffer(32, 4, 2), item),
        "trajectory": lambda: (
            module.make_trajectory_buffer(
                add_batch_size=2,
                sample_batch_size=2,
                sample_sequence_length=2,
                period=1,
                min_length_time_axis=4,
                max_length_time_axis=16,
            ),
            several(2, 1),
        ),
        "prioritised": lambda: (
            module.make_prioritised_flat_buffer(32, 4, 2),
            item,
        ),
    }

    def make(build):
        buffer, batch = build()
        return Step(buffer.add, (buffer.init(item), batch))

    for name, build in made.items():
        yield name, lambda build=build: make(build)


def numpyro() -> Steps:
    """Kernels, `kernel.sample(state, ...)`, and inference by `svi.update(state)`."""
    module, infer = (importlib.import_module(f"numpyro{name}") for name in ("", ".infer"))
    guide = importlib.import_module("numpyro.infer.autoguide")
    optim = importlib.import_module("numpyro.optim")

    def model():
        x = module.sample(
            "x", module.distributions.Normal(0.0, 1.0).expand([3]).to_event(1)
        )
        module.sample("y", module.distributions.Normal(x.sum(), 1.0), obs=jnp.asarray(0.5))

    def kernel(kind, **options):
        made = kind(model, **options)
        state = made.init(jax.random.PRNGKey(0), 10, None, (), {})
        return Step(made.sample, (state, (), {}))

    def svi(optimizer):
        made = infer.SVI(model, guide.AutoNormal(model), optimizer, infer.Trace_ELBO())
        return Step(made.update, (made.init(jax.random.PRNGKey(0)),))

    for name in ("HMC", "NUTS", "SA", "BarkerMH"):
        yield name, lambda name=name: kernel(getattr(infer, name))
    for name in ("Adam", "ClippedAdam", "Momentum", "RMSProp", "SM3", "Adagrad"):
        yield f"SVI[{name}]", lambda name=name: svi(getattr(optim, name)(0.1))


def mjx() -> Steps:
    """`mjx.step(model, data)` of some of the models that its own tests step."""
    mujoco, module = (importlib.import_module(name) for name in ("mujoco", "mujoco.mjx"))
    folder = pathlib.Path(str(module.__file__)).parent / "test_data"

    def make(file):
        model = module.put_model(mujoco.MjModel.from_xml_path(str(folder / file)))
        return Step(module.step, (model, module.make_data(model)), 1)

    for file in MJX_MODELS:
        yield file, lambda file=file: make(file)


PACKAGES = {
    "gymnax": gymnax,
    "jumanji": jumanji,
    "jaxopt": jaxopt,
    "blackjax": blackjax,
    "evosax": evosax,
    "flashbax": flashbax,
    "numpyro": numpyro,
    "mujoco-mjx": mjx,
    "brax": brax,
}


class Result(NamedTuple):
    """What became of one step, by setting: None, or why it failed.

    `bare` and `guarded` ask for the very types that came in, guarded of `strong(carry)`;
    `loop` and `guarded_loop` ask of the carry as made what a loop of JAX asks.
    """

    package: str
    name: str
    bare: dict[str, str | None]
    guarded: dict[str, str | None]
    other_program: bool | None  # None: it is not stable bare
    loop: dict[str, str | None]
    guarded_loop: dict[str, str | None]
    other_loop: bool | None


def main() -> int:
    """Runs what is installed; 1 if the guard broke or changed what ran."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[*PACKAGES], choices=[*PACKAGES])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    left_out: list[str] = []
    results = []
    try:
        for result in _results(options.only, left_out):
            results.append(result)
    except KeyboardInterrupt:
        left_out.append("stopped: the steps after these are not counted")
    _print_tables(results)
    broken = [*_broken(results)]
    sides = [[r.other_program for r in results], [r.other_loop for r in results]]
    stable, in_loop = ([x for x in side if x is not None] for side in sides)
    print(
        f"\n{len(results)} steps. Stable bare on strong(carry), x64 off: {len(stable)}, of "
        f"which {stable.count(False)} compile to the same program guarded; taken by a loop "
        f"on the carry as made: {len(in_loop)}, of which {in_loop.count(False)} (jax "
        f"{jax.__version__})"
    )
    for line in (*left_out, *broken, *_guarded_failures(results)):
        print(f"- {line}")
    return 1 if broken else 0


def _results(chosen: list[str], left_out: list[str]) -> Iterator[Result]:
    for package, name, make in _steps(chosen, left_out):
        steps = {}
        try:
            for flag in (False, True):
                with set_x64(flag):
                    steps[flag] = make()
        except Exception as error:
            left_out.append(f"{package} {name} makes no first carry: {one_line(error)}")
            continue
        bare, guarded, loop, guarded_loop = {}, {}, {}, {}
        for setting_name, (made_with, run_with) in SETTINGS.items():
            step = steps[made_with]
            with set_x64(run_with):
                bare[setting_name] = _failure(step)
                guarded[setting_name] = _failure(step, guard=True, strong=True)
                loop[setting_name] = _failure(step, checks.while_loop)
                guarded_loop[setting_name] = _failure(step, checks.while_loop, guard=True)
        with set_x64(False):
            step, first = steps[False], _strong(steps[False])
            other = None if _failure(first) else _has_other_program(first)
            other_loop = None if loop["x64 off"] else _has_other_program(step)
        print(f"{package} {name}", file=sys.stderr, flush=True)
        yield Result(package, name, bare, guarded, other, loop, guarded_loop, other_loop)


def _steps(chosen: list[str], left_out: list[str]) -> Iterator[tuple[str, str, Any]]:
    for package, steps in PACKAGES.items():
        if package not in chosen:
            continue
        try:
            version = importlib.metadata.version(package)
            for name, make in steps():
                yield f"{package} {version}", name, make
        except importlib.metadata.PackageNotFoundError:
            left_out.append(f"{package} is not installed: pip install {package}")
        except Exception as error:
            left_out.append(f"{package} does not import: {one_line(error)}")


def _failure(
    step: Step,
    check: checks.Check = checks.compilations,
    *,
    guard: bool = False,
    strong: bool = False,
) -> str | None:
    """Why an abstract step, or a loop of JAX around it, does not keep its carry's types."""
    try:
        call = _call(step, guard), step.args, {}, step.carry, step.returned
        step_call = StepCall(*call, owner="guard_step")
        StepTrial(step_call.with_strong_carry() if strong else step_call).trace(check)
    except checks.Fault as fault:
        return str(fault)
    except Exception as error:
        return f"raises {one_line(error)}"
    return None


def _carry(step: Step) -> Carry:
    return carry_of("guard_step", step.call, step.carry, step.returned)


def _call(step: Step, guard: bool) -> Any:
    options = {"carry": step.carry, "returned": step.returned}
    return dtypeguard.guard_step(step.call, **options) if guard else step.call


def _strong(step: Step) -> Step:
    """A step that is called with `strong(carry)`."""
    carry = _carry(step)
    first = dtypeguard.strong(carry.take(step.args, {}))
    return step._replace(args=carry.put(step.args, {}, first)[0])


def _has_other_program(step: Step) -> bool:
    """Whether a stable step compiles to another program guarded."""
    sides = _sides(step)
    texts = [jax.jit(run).lower(arrays).as_text() for run, arrays in sides]
    if texts[0] == texts[1]:  # what XLA is given
        return False
    return optimized_hlo(*sides[0]) != optimized_hlo(*sides[1])


def _sides(step: Step) -> list[tuple[Any, list[Any]]]:
    """The step, bare and guarded, as a function of array leaves, and these."""
    args = SplitTree(step.args)

    def of_arrays(call: Any) -> Any:
        return lambda arrays: SplitTree(call(*args.merged(arrays))).arrays

    return [(of_arrays(_call(step, guard)), args.arrays) for guard in (False, True)]


def _print_tables(results: list[Result]) -> None:
    _print_table(results, "steps that fail", "bare", "guarded")
    for name in SETTINGS:
        raising = [
            r.bare[name] for r in results if (r.bare[name] or "").startswith("raises")
        ]
        print(f"{name}: {len(raising)} of those that fail bare do not trace")
    _print_table(results, "steps that a loop refuses", "loop", "guarded_loop")


def _print_table(results: list[Result], title: str, bare: str, guarded: str) -> None:
    heads = [f"{side}, {name}" for name in SETTINGS for side in ("bare", "guarded")]
    print(f"\n| {title} | steps | {' | '.join(heads)} |")
    print("|---" * (2 + len(heads)) + "|")
    packages = [*dict.fromkeys(r.package for r in results)]
    for package in [*packages, "all"]:
        rows = [r for r in results if package in (r.package, "all")]
        counts = [
            str(sum(getattr(row, side)[name] is not None for row in rows))
            for name in SETTINGS
            for side in (bare, guarded)
        ]
        print(f"| {package} | {len(rows)} | {' | '.join(counts)} |")


def _broken(results: list[Result]) -> Iterator[str]:
    for row in results:
        step = f"{row.package} {row.name}"
        if row.other_program:
            yield f"another program: {step}"
        if row.other_loop:
            yield f"another program on the carry as made: {step}"
        for name in SETTINGS:
            if row.guarded[name] is not None and row.bare[name] is None:
                yield f"broken by the guard: {step}, {name}: {row.guarded[name]}"
            if row.guarded_loop[name] is not None and row.loop[name] is None:
                yield (
                    f"broken by the guard on the carry as made: {step}, {name}: "
                    f"{row.guarded_loop[name]}"
                )


def _guarded_failures(results: list[Result]) -> Iterator[str]:
    for row in results:
        step = f"{row.package} {row.name}"
        for name, reason in row.guarded.items():
            if reason is not None and row.bare[name] is not None:
                yield f"fails bare and guarded: {step}, {name}: {reason}"
        for name, reason in row.guarded_loop.items():
            is_told = reason == row.guarded[name]
            if reason is not None and row.loop[name] is not None and not is_told:
                yield f"fails bare and guarded, carry as made: {step}, {name}: {reason}"


def _adam() -> Any:
    return importlib.import_module("optax").adam(0.1)


if __name__ == "__main__":
    sys.exit(main())
