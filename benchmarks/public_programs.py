"""Whole programs of public packages, small, with what their users would guard in them.

A function for each package yields the names of its programs, and what runs one and returns
its results: it is given `Guards`, and asks that for what a user would guard. Scripts and
notebooks of repositories are in `public_scripts.py`.
"""

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import public_scripts

Programs = Iterator[tuple[str, Callable[[Any], Any]]]


class _FiveItems:
    """An environment of gymnax 1.0 whose step returns what that of gymnax 0.0.9 did."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        if name.startswith("__") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def step(self, *args):
        """The observation, state, reward, whether it is done, and what else there is."""
        observation, state, reward, ended, cut, info = self.env.step(*args)
        return observation, state, reward, ended | cut, info


def rejax() -> Programs:
    """Reinforcement learning in gymnax; its user guards `train_iteration`."""
    module, gymnax = map(importlib.import_module, ("rejax", "gymnax"))
    small = {"total_timesteps": 64, "eval_freq": 32, "learning_rate": 1e-3}
    small |= {"skip_initial_evaluation": True}
    on_policy = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "num_epochs": 2}
    off_policy = {"num_envs": 2, "buffer_size": 64, "fill_buffer": 8, "batch_size": 4}

    def train(guards, name, env, options):
        kind = getattr(module, name)
        with guards.replaced(kind, "train_iteration"):
            algo = kind.create(env=_FiveItems(gymnax.make(env)[0]), **small, **options)
            return jax.jit(algo.train)(jax.random.PRNGKey(0))

    made = {
        "PPO": ("PPO", "CartPole-v1", on_policy),
        "PPO[normalized]": (
            "PPO",
            "MountainCarContinuous-v0",
            on_policy | {"normalize_observations": True, "normalize_rewards": True},
        ),
        "PQN": ("PQN", "CartPole-v1", on_policy),
        "DQN": ("DQN", "CartPole-v1", off_policy),
        "IQN": ("IQN", "CartPole-v1", off_policy),
        "SAC": ("SAC", "MountainCarContinuous-v0", off_policy),
        "TD3": ("TD3", "MountainCarContinuous-v0", off_policy),
    }
    for name, options in made.items():
        yield name, lambda guards, options=options: train(guards, *options)


def brax() -> Programs:
    """The training of brax's agents; its user guards the step of the environment."""
    envs = importlib.import_module("brax.envs")

    def train(guards, name, env, **options):
        agent = importlib.import_module(f"brax.training.agents.{name}.train")
        if not hasattr(jax, "device_put_replicated"):  # JAX 0.10 no longer has it
            stack = lambda x, n: jnp.stack([jnp.asarray(x)] * n)
            jax.device_put_replicated = lambda tree, devices: jax.tree.map(
                lambda x: stack(x, len(devices)), tree
            )
        environment = envs.get_environment(env)
        environment.step = guards.step(environment.step)
        _, params, metrics = agent.train(
            environment, episode_length=8, num_eval_envs=2, **options
        )
        timed = ("walltime", "sps", "time")
        return params, {k: v for k, v in metrics.items() if not k.endswith(timed)}

    ppo = {"num_timesteps": 64, "num_envs": 4, "unroll_length": 4, "batch_size": 2}
    ppo |= {"num_minibatches": 2, "num_evals": 2, "normalize_observations": True}
    made = {
        "ppo": ("ppo", "fast", ppo),
        "ppo[adaptive_kl]": (
            "ppo",
            "fast",
            ppo | {"learning_rate_schedule": "ADAPTIVE_KL"},
        ),
        "sac": (
            "sac",
            "fast",
            {"num_timesteps": 64, "num_envs": 4, "batch_size": 4, "min_replay_size": 8}
            | {"max_replay_size": 64, "normalize_observations": True},
        ),
        "es": ("es", "fast", {"num_timesteps": 64, "population_size": 4}),
        "ars": (
            "ars",
            "fast",
            {"num_timesteps": 64, "number_of_directions": 4, "top_directions": 2},
        ),
        "apg": (
            "apg",
            "inverted_pendulum",
            {"policy_updates": 2, "horizon_length": 4, "num_envs": 2},
        ),
    }
    for name, (agent, env, options) in made.items():
        yield name, functools.partial(train, name=agent, env=env, **options)


def navix() -> Programs:
    """PPO in a grid world; its user guards the two methods that a scan calls."""
    module = importlib.import_module("navix")
    ppo = importlib.import_module("navix.agents.ppo")
    models = importlib.import_module("navix.agents.models")

    def train(guards):
        env = module.make(
            "Navix-Empty-5x5-v0",
            observation_fn=lambda *a: jnp.ravel(module.observations.symbolic(*a)),
            observation_space=module.spaces.Discrete.create(64, (75,), jnp.uint8),
        )
        hparams = ppo.PPOHparams(budget=64, num_envs=2, num_steps=16, num_minibatches=2)
        network = models.ActorCritic(action_dim=len(env.action_set))
        with guards.replaced(ppo.PPO, "sgd_step"), guards.replaced(ppo.PPO, "update"):
            agent = ppo.PPO(hparams, network, env)
            state, logs = agent.train(jax.random.PRNGKey(0))
        return state, {k: v for k, v in logs.items() if k != "iter/fps"}

    yield "PPO", train


def _sparse_quadratic():
    matrix = jnp.diag(jnp.arange(1.0, 4.0)) + 0.1
    return lambda x: 0.5 * x @ matrix @ x - x.sum()


def _rosenbrock(x, *_):
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def numpyro() -> Programs:
    """Inference of a normal mean; its user guards the optimizer, or a kernel's `sample`."""
    module, infer = (importlib.import_module(f"numpyro{name}") for name in ("", ".infer"))
    autoguide = importlib.import_module("numpyro.infer.autoguide")
    hmc = importlib.import_module("numpyro.infer.hmc")
    optax = importlib.import_module("optax")
    distributions = module.distributions
    data = jnp.linspace(-1.0, 2.0, 8)

    def model(data=None):
        x = module.sample("x", distributions.Normal(0.0, 1.0).expand([3]).to_event(1))
        scale = module.sample("scale", distributions.HalfNormal(1.0))
        with module.plate("data", 8):
            module.sample("y", distributions.Normal(x.sum(), scale), obs=data)

    def svi(guards, guide, optimizer, **options):
        made = infer.SVI(model, guide(model), optimizer(guards), infer.Trace_ELBO())
        result = made.run(
            jax.random.PRNGKey(0), 5, data=guards.data(data), progress_bar=False, **options
        )
        return result.params, result.losses

    def mcmc(guards, kind, owner=None, chains=1, **options):
        kind = getattr(infer, kind)
        with guards.replaced(owner or kind, "sample"):
            method = "vectorized" if chains > 1 else "sequential"
            made = infer.MCMC(
                kind(model, **options),
                num_warmup=6,
                num_samples=4,
                num_chains=chains,
                chain_method=method,
                progress_bar=False,
            )
            made.run(jax.random.PRNGKey(0), data=guards.data(data))
        return made.get_samples(), made.get_extra_fields()

    normal = autoguide.AutoNormal
    yield "SVI[adam]", lambda g: svi(g, normal, lambda g: g.optimizer(optax.adam(0.1)))
    yield (
        "SVI[numpyro Adam]",
        lambda g: svi(g, normal, lambda g: module.optim.Adam(0.1), stable_update=True),
    )
    yield (
        "SVI[flow]",
        lambda g: svi(
            g,
            functools.partial(autoguide.AutoIAFNormal, num_flows=1),
            lambda g: g.optimizer(optax.contrib.prodigy()),
        ),
    )
    yield "MCMC[NUTS]", lambda g: mcmc(g, "NUTS", hmc.HMC)
    yield "MCMC[HMC]", lambda g: mcmc(g, "HMC", dense_mass=True)
    yield "MCMC[NUTS, chains]", lambda g: mcmc(g, "NUTS", hmc.HMC, chains=2)
    yield "MCMC[SA]", lambda g: mcmc(g, "SA")
    yield "MCMC[BarkerMH]", lambda g: mcmc(g, "BarkerMH")
    ensemble = importlib.import_module("numpyro.infer.ensemble").EnsembleSampler
    yield "MCMC[AIES]", lambda g: mcmc(g, "AIES", ensemble, chains=8)
    yield "MCMC[ESS]", lambda g: mcmc(g, "ESS", ensemble, chains=8)


def blackjax() -> Programs:
    """Samplers of a normal distribution; its user guards `step(key, state)`."""
    module = importlib.import_module("blackjax")
    util = importlib.import_module("blackjax.util")
    optax = importlib.import_module("optax")
    logdensity = lambda x: -0.5 * jnp.sum(x**2)
    key, start = jax.random.PRNGKey(0), jnp.ones(3)

    def run(guards, algorithm):
        step = guards.step(algorithm.step, carry="state", returned=0)
        algorithm = algorithm._replace(step=step)
        try:
            first = algorithm.init(guards.data(start), key)
        except TypeError:
            first = algorithm.init(guards.data(start))
        return util.run_inference_algorithm(key, algorithm, 4, initial_state=first)

    made = {
        "nuts": lambda g: module.nuts(logdensity, 0.1, jnp.ones(3)),
        "mclmc": lambda g: module.mclmc(
            logdensity, 1.0, 0.1, inverse_mass_matrix=jnp.ones(3)
        ),
        "barker": lambda g: module.barker_proposal(logdensity, 0.1),
        "meanfield_vi": lambda g: module.meanfield_vi(
            logdensity, g.optimizer(optax.adam(0.1)), 5
        ),
    }
    for name, build in made.items():
        yield name, lambda g, build=build: run(g, build(g))

    def adapted(guards, kind):
        warmup = module.window_adaptation(kind, logdensity)
        return warmup.run(key, guards.data(start), num_steps=30)

    yield "window_adaptation[nuts]", lambda g: adapted(g, module.nuts)
    yield (
        "pathfinder_adaptation[hmc]",
        lambda g: module.pathfinder_adaptation(
            module.hmc, logdensity, num_integration_steps=2
        ).run(key, g.data(start), num_steps=10),
    )
    yield (
        "chees_adaptation",
        lambda g: module.chees_adaptation(logdensity, 4).run(
            key, g.data(jnp.ones((4, 3))), 0.1, g.optimizer(optax.adam(0.1)), 5
        ),
    )
    yield (
        "meads_adaptation",
        lambda g: module.meads_adaptation(logdensity, 4).run(
            key, g.data(jnp.ones((4, 3))), num_steps=5
        ),
    )

    def smc(guards):
        smc = module.adaptive_tempered_smc(
            logdensity,
            lambda x: -jnp.sum((x - 2.0) ** 2),
            module.hmc.build_kernel(),
            module.hmc.init,
            {"step_size": jnp.full(1, 0.1), "inverse_mass_matrix": jnp.ones((1, 3))}
            | {"num_integration_steps": jnp.full(1, 2)},
            importlib.import_module("blackjax.smc.resampling").systematic,
            0.5,
            num_mcmc_steps=2,
        )
        step = guards.step(smc.step, carry="state", returned=0)

        def one(carry):
            state, number, key = carry
            key, subkey = jax.random.split(key)
            state, _ = step(subkey, state)
            return state, number + 1, key

        first = smc.init(guards.data(jax.random.normal(key, (8, 3))))
        more = lambda carry: (carry[0].tempering_param < 1) & (carry[1] < 20)
        return jax.jit(lambda c: jax.lax.while_loop(more, one, c))((first, 0, key))

    yield "adaptive_tempered_smc", smc


def flowjax() -> Programs:
    """Fits of normalizing flows; its user hands in a guarded optimizer."""
    train = importlib.import_module("flowjax.train")
    flows = importlib.import_module("flowjax.flows")
    losses = importlib.import_module("flowjax.train.losses")
    normal = importlib.import_module("flowjax.distributions").Normal
    optax = importlib.import_module("optax")
    key = jax.random.key(0)
    tiny = {"flow_layers": 1, "nn_width": 4, "nn_depth": 1}

    def to_data(guards, build, opt):
        dist = guards.data(build(key, base_dist=normal(jnp.zeros(2)), **tiny))
        x = guards.data(jax.random.normal(key, (40, 2)))
        return train.fit_to_data(
            key,
            dist,
            x,
            optimizer=guards.optimizer(opt()),
            max_epochs=2,
            batch_size=10,
            show_progress=False,
        )

    def variational(guards):
        dist = guards.data(flows.coupling_flow(key, base_dist=normal(jnp.zeros(2)), **tiny))
        loss = losses.ElboLoss(lambda x: -jnp.sum(x**2), num_samples=4)
        return train.fit_to_key_based_loss(
            key,
            dist,
            loss_fn=loss,
            steps=3,
            optimizer=guards.optimizer(optax.adam(1e-2)),
            show_progress=False,
        )

    adam = lambda: optax.adam(1e-2)
    yield "fit_to_data[coupling]", lambda g: to_data(g, flows.coupling_flow, adam)
    yield (
        "fit_to_data[autoregressive]",
        lambda g: to_data(g, flows.masked_autoregressive_flow, optax.contrib.prodigy),
    )
    yield "fit_to_key_based_loss", variational


def gpjax() -> Programs:
    """Fits of a Gaussian process; its user hands in a guarded optimizer."""
    module = importlib.import_module("gpjax")
    optax = importlib.import_module("optax")

    def fit(guards, fit, **options):
        x = guards.data(jnp.linspace(0.0, 1.0, 8).reshape(-1, 1))
        data = module.Dataset(X=x, y=jnp.sin(6 * x))
        prior = module.gps.Prior(
            mean_function=module.mean_functions.Constant(),
            kernel=module.kernels.RBF(),
        )
        posterior = guards.data(prior * module.likelihoods.Gaussian())
        loss = lambda p, d: -module.objectives.conjugate_mll(p, d)
        return fit(model=posterior, objective=loss, train_data=data, **options)

    yield (
        "fit",
        lambda g: fit(
            g, module.fit, optim=g.optimizer(optax.adam(0.01)), num_iters=4, verbose=False
        ),
    )
    yield (
        "fit[batches, verbose]",
        lambda g: fit(
            g,
            module.fit,
            optim=g.optimizer(optax.sgd(0.01, momentum=0.9)),
            num_iters=4,
            batch_size=4,
            log_rate=2,
        ),
    )
    yield "fit_lbfgs", lambda g: fit(g, module.fit_lbfgs, max_iters=4)


def optimistix() -> Programs:
    """Solves of small problems; its user guards the `step` of the solver's class."""
    module = importlib.import_module("optimistix")
    optax = importlib.import_module("optax")
    least = lambda x, args: (x[1:] - x[:-1] ** 2, 1 - x)
    start = jnp.array([0.5, -0.5, 1.5])
    tol = {"rtol": 1e-3, "atol": 1e-3}

    def solver(guards, kind, *args, **options):
        step = guards.step(kind.step, carry=("y", "state"), returned=(0, 1))
        return type(kind.__name__, (kind,), {"step": step})(*args, **options)

    def solve(guards, how, fn, y, kind, *args, **options):
        made = solver(guards, getattr(module, kind), *args, **options)
        run = lambda y: getattr(module, how)(fn, made, y, max_steps=12, throw=False)
        solution = jax.jit(lambda y: (lambda s: (s.value, s.stats))(run(y)))(guards.data(y))
        return solution

    for kind in ("BFGS", "DFP", "LBFGS", "NelderMead", "GradientDescent", "NonlinearCG"):
        args = (0.01,) if kind == "GradientDescent" else ()
        yield (
            kind,
            lambda g, kind=kind, args=args: solve(
                g, "minimise", _rosenbrock, start, kind, *args, **tol
            ),
        )
    yield (
        "OptaxMinimiser",
        lambda g: solve(
            g,
            "minimise",
            _rosenbrock,
            start,
            "OptaxMinimiser",
            g.optimizer(optax.adam(0.1)),
            **tol,
        ),
    )
    for kind in ("LevenbergMarquardt", "Dogleg", "GaussNewton"):
        yield (
            kind,
            lambda g, kind=kind: solve(g, "least_squares", least, start, kind, **tol),
        )
    root = lambda x, args: jnp.cos(x) - x
    for kind in ("Newton", "Chord"):
        yield (
            kind,
            lambda g, kind=kind: solve(g, "root_find", root, jnp.ones(3), kind, **tol),
        )
    yield (
        "FixedPointIteration",
        lambda g: solve(
            g,
            "fixed_point",
            lambda x, args: jnp.cos(x),
            jnp.ones(3),
            "FixedPointIteration",
            **tol,
        ),
    )

    def gradient(guards):
        made = solver(guards, module.BFGS, **tol)
        fn = lambda x, a: _rosenbrock(a * x)
        run = lambda a: module.minimise(
            fn, made, guards.data(start), a, max_steps=30, throw=False
        )
        return jax.grad(lambda a: run(a).value.sum())(guards.data(jnp.asarray(1.5)))

    yield "BFGS[gradient]", gradient


def diffrax() -> Programs:
    """Solves of small equations; its user guards the `step` of the solver's class."""
    module = importlib.import_module("diffrax")
    field = lambda t, y, args: (y[1], -y[0] - 0.1 * y[1] * args)
    start = (jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0]))

    def solver(guards, kind, *args):
        step = guards.step(kind.step, carry=("y0", "solver_state"), returned=(0, 3))
        return type(kind.__name__, (kind,), {"step": step})(*args)

    def solve(guards, kind, terms=None, adaptive=True, start=start, **options):
        controller = module.PIDController(rtol=1e-3, atol=1e-3)
        if not adaptive:
            controller = module.ConstantStepSize()
        kind = kind if isinstance(kind, tuple) else (kind,)
        run = lambda y: module.diffeqsolve(
            terms or module.ODETerm(field),
            solver(guards, getattr(module, kind[0]), *kind[1:]),
            0.0,
            1.0,
            0.1,
            y,
            1.0,
            stepsize_controller=controller,
            max_steps=64,
            throw=False,
            **options,
        )
        return run

    def values(guards, *args, start=start, **options):
        run = solve(guards, *args, **options)
        first = guards.data(start)
        return jax.jit(lambda y: (lambda s: (s.ts, s.ys, s.stats))(run(y)))(first)

    def slope(guards, *args, **options):
        run = solve(guards, *args, **options)
        return jax.jit(jax.grad(lambda y: jax.tree.leaves(run(y).ys)[0].sum()))(
            guards.data(start)
        )

    def brownian():
        noise = module.VirtualBrownianTree(
            0.0, 1.0, tol=1e-2, shape=(2,), key=jax.random.key(0)
        )
        drift = module.ODETerm(lambda t, y, args: -y)
        diffusion = module.ControlTerm(
            lambda t, y, args: lineax().DiagonalLinearOperator(0.1 * jnp.ones(2)), noise
        )
        return module.MultiTerm(drift, diffusion)

    lineax = lambda: importlib.import_module("lineax")
    save = lambda: module.SaveAt(ts=jnp.linspace(0.0, 1.0, 4))
    steps = lambda: module.SaveAt(steps=True)
    yield "Tsit5", lambda g: values(g, "Tsit5", saveat=save())
    yield "Euler", lambda g: values(g, "Euler", adaptive=False, saveat=steps())
    yield "Dopri8[dense]", lambda g: values(g, "Dopri8", saveat=steps())
    yield "Kvaerno5", lambda g: values(g, "Kvaerno5", saveat=save())
    yield "ReversibleHeun", lambda g: values(g, "ReversibleHeun", adaptive=False)
    yield (
        "SDE[Heun]",
        lambda g: values(g, "Heun", terms=brownian(), adaptive=False, start=jnp.ones(2)),
    )
    yield "Tsit5[gradient]", lambda g: slope(g, "Tsit5")
    yield (
        "Tsit5[direct adjoint]",
        lambda g: slope(g, "Tsit5", adjoint=module.DirectAdjoint()),
    )
    yield "Tsit5[backsolve]", lambda g: slope(g, "Tsit5", adjoint=module.BacksolveAdjoint())


def jaxopt() -> Programs:
    """Solves of a least-squares problem; its user guards `solver.update`."""
    module = importlib.import_module("jaxopt")
    optax = importlib.import_module("optax")
    residual = lambda w, x, y: x @ w - y
    loss = lambda w, x, y: jnp.mean(residual(w, x, y) ** 2)
    root = lambda w, x, y: x.T @ residual(w, x, y)
    prox = module.prox.prox_lasso
    made = {
        "GradientDescent": lambda g: module.GradientDescent(loss, maxiter=5),
        "ProximalGradient": lambda g: module.ProximalGradient(loss, prox, maxiter=5),
        "LBFGS": lambda g: module.LBFGS(loss, maxiter=5),
        "BFGS": lambda g: module.BFGS(loss, maxiter=5),
        "NonlinearCG": lambda g: module.NonlinearCG(loss, maxiter=5),
        "ArmijoSGD": lambda g: module.ArmijoSGD(loss, maxiter=5),
        "OptaxSolver": lambda g: module.OptaxSolver(
            loss, g.optimizer(optax.adam(0.1)), maxiter=5
        ),
        "GaussNewton": lambda g: module.GaussNewton(residual, maxiter=5),
        "AndersonAcceleration": lambda g: module.AndersonAcceleration(
            lambda w, x, y: w - 0.1 * root(w, x, y), maxiter=5
        ),
        "Broyden": lambda g: module.Broyden(root, maxiter=5),
    }

    def run(guards, build):
        solver = build(guards)
        if not isinstance(solver, module.OptaxSolver):
            solver.update = guards.step(
                solver.update, carry=("params", "state"), returned=(0, 1)
            )
        weight = (0.1,) if type(solver) is module.ProximalGradient else ()
        first, *data = guards.data((jnp.ones(4), jnp.eye(4) + 0.5, jnp.arange(4.0)))
        return solver.run(first, *weight, *data)

    for name, build in made.items():
        yield name, lambda g, build=build: run(g, build)


def penzai() -> Programs:
    """The stateful trainer; its user hands in a guarded optimizer."""
    module = importlib.import_module("penzai")
    training = importlib.import_module("penzai.toolshed.basic_training")
    mlp = importlib.import_module("penzai.models.simple_mlp")
    optax = importlib.import_module("optax")

    def train(guards, opt, **options):
        pz = module.pz
        model = mlp.MLP.from_config(
            name="mlp", init_base_rng=jax.random.key(0), feature_sizes=[2, 4, 1]
        )
        x = guards.data(jax.random.normal(jax.random.key(1), (4, 2)))
        x = pz.nx.wrap(x).tag("batch", "features")

        def loss(model, state, rng, x):
            out = model(x).untag("batch", "features").unwrap()
            return jnp.mean((out - 1.0) ** 2), state, {"out": out.mean()}

        trainer = training.StatefulTrainer.build(
            jax.random.key(2),
            model,
            optimizer_def=guards.optimizer(opt()),
            loss_fn=loss,
            **options,
        )
        outs = [trainer.step(x=x) for _ in range(3)]
        return outs, pz.unbind_params(trainer.model, freeze=True)[1]

    yield "StatefulTrainer[adam]", lambda g: train(g, lambda: optax.adam(0.1))
    yield (
        "StatefulTrainer[donated]",
        lambda g: train(g, lambda: optax.sgd(0.1, momentum=0.9), donate_states=True),
    )


def evosax() -> Programs:
    """Ask, evaluate, tell, in a scan as its examples do; its user guards that step."""
    module = importlib.import_module("evosax.algorithms")
    optax = importlib.import_module("optax")

    def run(guards, name, **options):
        kind = getattr(module, name)
        zeros = guards.data(jnp.zeros(3))
        strategy = kind(population_size=8, solution=zeros, **options)
        params = strategy.default_params

        def step(state, key):
            asked, told = jax.random.split(key)
            population, state = strategy.ask(asked, state, params)
            fitness = jax.vmap(lambda x: jnp.sum((x - 1.0) ** 2))(population)
            return strategy.tell(told, population, fitness, state, params)

        key = jax.random.key(0)
        state = strategy.init(key, zeros, params)
        return jax.lax.scan(guards.step(step), state, jax.random.split(key, 4))

    yield "CMA_ES", lambda g: run(g, "CMA_ES")
    yield "Open_ES", lambda g: run(g, "Open_ES", optimizer=g.optimizer(optax.adam(0.1)))
    yield "PGPE", lambda g: run(g, "PGPE", optimizer=g.optimizer(optax.sgd(0.1)))
    yield "SNES", lambda g: run(g, "SNES")
    yield "xNES", lambda g: run(g, "xNES")

    def population_based(guards):
        strategy = module.DifferentialEvolution(population_size=8, solution=jnp.zeros(3))
        params, key = strategy.default_params, jax.random.key(0)
        cost = jax.vmap(lambda x: jnp.sum((x - 1.0) ** 2))

        def step(state, key):
            asked, told = jax.random.split(key)
            population, state = strategy.ask(asked, state, params)
            return strategy.tell(told, population, cost(population), state, params)

        first = guards.data(jax.random.normal(key, (8, 3)))
        state = strategy.init(key, first, cost(first), params)
        return jax.lax.scan(guards.step(step), state, jax.random.split(key, 4))

    yield "DifferentialEvolution", population_based


def dynamax() -> Programs:
    """Fits of state space models; its user hands in a guarded optimizer."""
    hmm = importlib.import_module("dynamax.hidden_markov_model")
    ssm = importlib.import_module("dynamax.linear_gaussian_ssm")
    optax = importlib.import_module("optax")
    key = jax.random.PRNGKey(0)

    def made(kind):
        if kind is ssm.LinearGaussianSSM:
            model = kind(2, 1)
            params, props = model.initialize(key)
            emissions = jax.random.normal(key, (2, 10, 1))
        else:
            model = kind(2, 2)
            params, props = model.initialize(key)
            emissions = jax.random.normal(key, (2, 10, 2))
        return model, params, props, emissions

    def em(guards, kind):
        model, *args = guards.data(made(kind))
        return model.fit_em(*args, num_iters=3, verbose=False)

    def sgd(guards, kind):
        model, *args = guards.data(made(kind))
        opt = guards.optimizer(optax.adam(0.01))
        return model.fit_sgd(*args, optimizer=opt, batch_size=2, num_epochs=3)

    yield "GaussianHMM.fit_em", lambda g: em(g, hmm.GaussianHMM)
    yield "LogisticRegressionHMM.fit_em", lambda g: em_logistic(g)
    yield "GaussianHMM.fit_sgd", lambda g: sgd(g, hmm.GaussianHMM)
    yield "LinearGaussianSSM.fit_em", lambda g: em(g, ssm.LinearGaussianSSM)
    yield "LinearGaussianSSM.fit_sgd", lambda g: sgd(g, ssm.LinearGaussianSSM)

    def em_logistic(guards):
        opt = guards.optimizer(optax.adam(0.01))
        model = hmm.LogisticRegressionHMM(2, 2, m_step_optimizer=opt, m_step_num_iters=3)
        params, props = model.initialize(key)
        inputs = jax.random.normal(key, (2, 10, 2))
        emissions = (inputs.sum(-1) > 0).astype(int)
        return model.fit_em(
            params, props, emissions, inputs=inputs, num_iters=2, verbose=False
        )


def tfp() -> Programs:
    """Samplers and minimizers of TensorFlow Probability on JAX; all of its loops."""
    module = importlib.import_module("tensorflow_probability.substrates.jax")
    optax = importlib.import_module("optax")
    key, start = jax.random.PRNGKey(0), jnp.ones(3)
    logdensity = lambda x: -0.5 * jnp.sum(x**2, axis=-1)

    def sample(guards, kernel):
        return module.mcmc.sample_chain(
            4,
            current_state=guards.data(start),
            kernel=kernel,
            num_burnin_steps=3,
            trace_fn=lambda _, results: None,
            seed=key,
        )

    def guarded(guards, kernel):
        kind = type(kernel)
        step = guards.step(kind.one_step, carry=(0, 1), returned=(0, 1))
        kernel.__class__ = type(kind.__name__, (kind,), {"one_step": step})
        return kernel

    hmc = lambda: module.mcmc.HamiltonianMonteCarlo(logdensity, 0.1, 3)
    adapted = lambda g: module.mcmc.DualAveragingStepSizeAdaptation(
        guarded(g, hmc()), num_adaptation_steps=2
    )
    yield "HamiltonianMonteCarlo", lambda g: sample(g, guarded(g, hmc()))
    yield (
        "NoUTurnSampler",
        lambda g: sample(
            g, guarded(g, module.mcmc.NoUTurnSampler(logdensity, 0.1, max_tree_depth=3))
        ),
    )
    yield "DualAveraging", lambda g: sample(g, guarded(g, adapted(g)))
    yield (
        "SliceSampler",
        lambda g: sample(g, guarded(g, module.mcmc.SliceSampler(logdensity, 1.0, 3))),
    )
    optimizers = module.optimizer
    both = jax.value_and_grad(_rosenbrock)
    yield (
        "bfgs_minimize",
        lambda g: optimizers.bfgs_minimize(both, g.data(start), max_iterations=4),
    )
    yield (
        "lbfgs_minimize",
        lambda g: optimizers.lbfgs_minimize(both, g.data(start), max_iterations=4),
    )
    yield (
        "nelder_mead_minimize",
        lambda g: optimizers.nelder_mead_minimize(
            _rosenbrock, initial_vertex=g.data(start), max_iterations=6
        ),
    )
    yield (
        "differential_evolution_minimize",
        lambda g: optimizers.differential_evolution_minimize(
            lambda x: jnp.sum(x**2, axis=-1),
            initial_position=start,
            population_size=6,
            max_iterations=3,
            seed=key,
        ),
    )
    yield (
        "minimize_stateless",
        lambda g: module.math.minimize_stateless(
            lambda x, seed=None: _rosenbrock(x),
            init=(g.data(start),),
            num_steps=4,
            optimizer=g.optimizer(optax.adam(0.1)),
            seed=key,
        ),
    )

    def variational(guards):
        build = module.experimental.util.make_trainable_stateless
        init, apply = build(module.distributions.Normal, batch_and_event_shape=[3])
        return module.vi.fit_surrogate_posterior_stateless(
            target_log_prob_fn=lambda x: logdensity(x),
            build_surrogate_posterior_fn=lambda *p: module.distributions.Independent(
                apply(*p), 1
            ),
            initial_parameters=init(key),
            optimizer=guards.optimizer(optax.adam(0.1)),
            num_steps=3,
            sample_size=2,
            seed=key,
        )

    yield "fit_surrogate_posterior", variational

    def windowed(guards):
        d = module.distributions
        joint = d.JointDistributionSequential([d.Normal(0.0, 1.0), d.Normal(0.0, 2.0)])
        return module.experimental.mcmc.windowed_adaptive_nuts(
            3, joint, n_chains=2, num_adaptation_steps=30, seed=key, max_tree_depth=2
        )

    yield "windowed_adaptive_nuts", windowed


def flowmc() -> Programs:
    """A sampler that trains a flow on its own samples."""
    sampler = importlib.import_module("flowMC.Sampler").Sampler
    bundle = importlib.import_module("flowMC.resource_strategy_bundle.RQSpline_MALA")

    def run(guards):
        key = jax.random.PRNGKey(0)
        made = bundle.RQSpline_MALA_Bundle(
            key,
            4,
            2,
            lambda x, data: -0.5 * jnp.sum(x**2),
            n_local_steps=3,
            n_global_steps=3,
            n_training_loops=2,
            n_production_loops=1,
            n_epochs=2,
            rq_spline_hidden_units=[4],
            rq_spline_n_bins=3,
            rq_spline_n_layers=1,
            batch_size=4,
            n_max_examples=8,
        )
        run = sampler(
            n_dim=2, n_chains=4, rng_key=key, resource_strategy_bundles=made, outdir=""
        )
        run.sample(jax.random.normal(key, (4, 2)), {})
        names = ("positions_production", "log_prob_production", "loss_buffer")
        return [run.resources[n].data for n in names if n in run.resources]

    yield "RQSpline_MALA", run


def bayex() -> Programs:
    """Bayesian optimization: fits a Gaussian process and searches its acquisition."""
    module = importlib.import_module("bayex")

    def run(guards):
        domain = {"x": module.domain.Real(-2.0, 2.0)}
        cost = lambda x: -((x - 0.5) ** 2)
        made = module.Optimizer(domain=domain, acq="EI")
        given = {"x": [0.0, 1.0, -1.0]}
        state = made.init([cost(x) for x in given["x"]], given)
        for number in range(2):
            point = made.sample(jax.random.PRNGKey(number), state, size=10)
            state = made.fit(state, cost(point["x"]), point)
        return state

    yield "Optimizer", run


def ott() -> Programs:
    """Solves of optimal transport between clouds of points; all of its loops."""
    names = ("linear.sinkhorn", "linear.sinkhorn_lr", "linear.acceleration")
    sinkhorn, low_rank, acceleration, gromov = (
        importlib.import_module(f"ott.solvers.{name}")
        for name in (*names, "quadratic.gromov_wasserstein")
    )
    clouds = importlib.import_module("ott.geometry.pointcloud").PointCloud
    linear = importlib.import_module("ott.problems.linear.linear_problem").LinearProblem
    quadratic = importlib.import_module("ott.problems.quadratic.quadratic_problem")
    make, key = sinkhorn.Sinkhorn, jax.random.key(0)

    def points(guards):
        x, y = jax.random.normal(key, (6, 2)), jax.random.normal(key, (5, 2)) + 1.0
        return guards.data((x, y))

    def solve(guards, solver):
        out = jax.jit(solver)(linear(clouds(*points(guards), epsilon=0.1)))
        return out.matrix, out.errors

    def slope(guards, solver):
        x, y = points(guards)
        cost = lambda x: solver(linear(clouds(x, y, epsilon=0.1))).reg_ot_cost
        return jax.jit(jax.grad(cost))(x)

    def between_spaces(guards):
        x, y = points(guards)
        solver = gromov.GromovWasserstein(
            make(max_iterations=20), epsilon=0.1, max_iterations=3
        )
        problem = quadratic.QuadraticProblem(clouds(x), clouds(y))
        out = jax.jit(solver)(problem)
        return out.matrix, out.costs

    momentum = acceleration.Momentum(start=10)
    yield "Sinkhorn", lambda g: solve(g, make(max_iterations=30))
    yield (
        "Sinkhorn[momentum]",
        lambda g: solve(g, make(max_iterations=30, momentum=momentum)),
    )
    yield "Sinkhorn[gradient]", lambda g: slope(g, make(max_iterations=30))
    yield (
        "Sinkhorn[unrolled]",
        lambda g: slope(g, make(max_iterations=20, implicit_diff=None)),
    )
    yield "LRSinkhorn", lambda g: solve(g, low_rank.LRSinkhorn(rank=2, max_iterations=20))
    yield "GromovWasserstein", between_spaces


def mpax() -> Programs:
    """Linear and quadratic programs by primal-dual gradients; all of its loops."""
    module = importlib.import_module("mpax")

    def solve(guards, solver, quadratic=False):
        cost, matrix = jnp.array([1.0, 2.0]), jnp.array([[1.0, 1.0], [1.0, -1.0]])
        bounds = jnp.array([1.0, -2.0])
        constraints = matrix[:1], bounds[:1], matrix[1:], bounds[1:]
        problem = cost, *constraints, jnp.zeros(2), jnp.full(2, 4.0)
        make = module.create_qp if quadratic else module.create_lp
        problem = ((jnp.eye(2),) if quadratic else ()) + problem
        result = jax.jit(solver.optimize)(
            make(*guards.data(problem), use_sparse_matrix=False)
        )
        return result.primal_solution, result.dual_solution, result.iteration_count

    limits = {"eps_abs": 1e-3, "eps_rel": 1e-3, "verbose": False, "iteration_limit": 200}
    yield "raPDHG", lambda g: solve(g, module.raPDHG(**limits))
    yield "raPDHG[quadratic]", lambda g: solve(g, module.raPDHG(**limits), quadratic=True)
    yield "r2HPDHG", lambda g: solve(g, module.r2HPDHG(**limits))


def mctx() -> Programs:
    """Tree searches of a small game."""
    module = importlib.import_module("mctx")

    def search(guards, policy, **options):
        key = jax.random.PRNGKey(0)
        weights = guards.data(jax.random.normal(key, (3, 4)))

        def recurrent(params, key, action, embedding):
            embedding = jnp.tanh(embedding + params[action])
            out = module.RecurrentFnOutput(
                reward=embedding.sum(-1),
                discount=jnp.full(embedding.shape[:1], 0.9),
                prior_logits=embedding[:, :3],
                value=embedding.mean(-1),
            )
            return out, embedding

        step = guards.step(recurrent, carry="embedding", returned=1)
        root = module.RootFnOutput(
            prior_logits=jnp.zeros((2, 3)), value=jnp.zeros(2), embedding=jnp.ones((2, 4))
        )
        root = guards.data(root)
        run = functools.partial(
            policy, recurrent_fn=step, num_simulations=6, max_depth=4, **options
        )
        return jax.jit(run)(params=weights, rng_key=key, root=root)

    for name in ("muzero_policy", "gumbel_muzero_policy"):
        yield name, lambda g, name=name: search(g, getattr(module, name))


def mutax() -> Programs:
    """Differential evolution."""
    module = importlib.import_module("mutax")

    def run(guards, **options):
        bounds = guards.data(jnp.array([[-2.0, 2.0]] * 3))
        result = module.differential_evolution(
            _rosenbrock, bounds, key=jax.random.key(0), maxiter=4, popsize=3, **options
        )
        return jax.tree.leaves(result)

    yield "differential_evolution", run


def jax_md() -> Programs:
    """Minimizations and simulations of particles; its user guards the step."""
    space, energy, minimize, simulate = (
        importlib.import_module(f"jax_md.{name}")
        for name in ("space", "energy", "minimize", "simulate")
    )

    def run(guards, build, *args, **options):
        displacement, shift = space.periodic(3.0)
        potential = energy.soft_sphere_pair(displacement)
        init, apply = build(potential, shift, *args)
        step = guards.step(apply)
        positions = guards.data(jax.random.uniform(jax.random.key(1), (6, 2)) * 3.0)
        key = (jax.random.PRNGKey(0),) if options.pop("keyed", False) else ()
        state = init(*key, positions, **options)
        return jax.jit(lambda s: jax.lax.fori_loop(0, 4, lambda i, s: step(s), s))(state)

    yield "fire_descent", lambda g: run(g, minimize.fire_descent)
    yield "nve", lambda g: run(g, simulate.nve, 1e-2, keyed=True, kT=0.1)
    yield (
        "nvt_nose_hoover",
        lambda g: run(g, simulate.nvt_nose_hoover, 1e-2, 0.1, keyed=True),
    )
    yield "nvt_langevin", lambda g: run(g, simulate.nvt_langevin, 1e-2, 0.1, keyed=True)


def jumanji() -> Programs:
    """Its A2C agent in Snake; its user guards the optimizer and the environment."""
    module, optax = map(importlib.import_module, ("jumanji", "optax"))
    a2c = importlib.import_module("jumanji.training.agents.a2c")
    networks = importlib.import_module("jumanji.training.networks")
    wrappers = importlib.import_module("jumanji.wrappers")
    kinds = importlib.import_module("jumanji.training.types")

    def train(guards):
        env = wrappers.VmapAutoResetWrapper(module.make("Snake-v1", num_rows=6, num_cols=6))
        made = networks.make_actor_critic_networks_snake(
            snake=env.unwrapped, num_channels=4, policy_layers=[4], value_layers=[4]
        )
        agent = a2c.A2CAgent(
            env=env,
            n_steps=3,
            total_batch_size=2,
            actor_critic_networks=made,
            optimizer=guards.optimizer(optax.adam(1e-3)),
            normalize_advantage=True,
            discount_factor=0.9,
            bootstrapping_factor=0.9,
            l_pg=1.0,
            l_td=1.0,
            l_en=0.01,
        )
        key = jax.random.PRNGKey(0)
        state, step = env.reset(jax.random.split(key, 2))
        zero = jnp.zeros((), int)
        acting = kinds.ActingState(state, step, key, zero, zero)
        first = kinds.TrainingState(agent.init_params(key), acting)
        epoch = guards.step(agent.run_epoch)
        steps = lambda state: jax.lax.scan(lambda s, _: epoch(s), state, None, length=2)
        stack = jax.tree.map(lambda x: x[None], first)
        return jax.vmap(steps, axis_name="devices")(stack)

    yield "A2C", train


def dopamax() -> Programs:
    """Agents of Haiku in gymnax; its user guards `train_step`."""
    gymnax = importlib.import_module("gymnax")
    environment = importlib.import_module("dopamax.environments.gymnax").GymnaxEnvironment
    config = importlib.import_module("ml_collections").ConfigDict

    def train(guards, name, env="CartPole-v1", **options):
        agents = importlib.import_module(f"dopamax.agents.anakin.{name.lower()}")
        kind = getattr(agents, name)
        env, params = gymnax.make(env)
        env = environment(env=_FiveItems(env), env_params=params)
        with guards.replaced(kind, "train_step"):
            agent = kind(env, config(options))
            return agent.train(jax.random.PRNGKey(0), 2, callback_freq=1)

    small: dict[str, Any] = {"network_config": {"hidden_units": [4]}}
    yield (
        "PPO",
        lambda g: train(
            g, "PPO", rollout_fragment_length=8, minibatch_size=4, num_epochs=2, **small
        ),
    )
    yield (
        "DQN",
        lambda g: train(
            g,
            "DQN",
            rollout_fragment_length=4,
            batch_size=4,
            buffer_size=32,
            initial_uniform_steps=4,
            **small,
        ),
    )


def qdax() -> Programs:
    """Quality-diversity search in a scan, as its notebooks do; its user guards `update`."""
    elites = importlib.import_module("qdax.core.map_elites").MAPElites
    emitters = importlib.import_module("qdax.core.emitters.standard_emitters")
    operators = importlib.import_module("qdax.core.emitters.mutation_operators")
    cma = importlib.import_module("qdax.core.emitters.cma_opt_emitter")
    metrics = importlib.import_module("qdax.utils.metrics").default_qd_metrics
    key = jax.random.key(0)
    centroids = jax.random.uniform(key, (6, 2))

    def score(x, key):
        return -jnp.sum(x**2, axis=-1), jax.nn.sigmoid(x[:, :2]), {}

    def search(guards, emitter):
        made = elites(score, emitter, functools.partial(metrics, qd_offset=1.0))
        first = made.init(guards.data(jax.random.normal(key, (4, 3))), centroids, key)
        step = guards.step(made.scan_update)
        carry = (*first[:2], key)
        return jax.lax.scan(step, carry, None, length=3)

    def mixing():
        vary = functools.partial(operators.isoline_variation, iso_sigma=0.1, line_sigma=0.1)
        return emitters.MixingEmitter(lambda x, k: (x, k), vary, 1.0, 4)

    yield "MAPElites", lambda g: search(g, mixing())
    yield (
        "MAPElites[CMA-ES]",
        lambda g: search(g, cma.CMAOptimizingEmitter(4, 3, centroids, 0.1)),
    )


# What pip calls those that it calls otherwise.
PIP = {"tfp": "tfp-nightly", "flowmc": "flowMC", "ott": "ott-jax", "jax_md": "jax-md"}

PACKAGES: dict[str, Callable[[], Programs]] = {
    "rejax": rejax,
    "brax": brax,
    "navix": navix,
    "jumanji": jumanji,
    "dopamax": dopamax,
    "qdax": qdax,
    "numpyro": numpyro,
    "blackjax": blackjax,
    "flowjax": flowjax,
    "gpjax": gpjax,
    "optimistix": optimistix,
    "diffrax": diffrax,
    "jaxopt": jaxopt,
    "penzai": penzai,
    "evosax": evosax,
    "dynamax": dynamax,
    "tfp": tfp,
    "flowmc": flowmc,
    "bayex": bayex,
    "ott": ott,
    "mpax": mpax,
    "mctx": mctx,
    "mutax": mutax,
    "jax_md": jax_md,
    **public_scripts.PACKAGES,
}
