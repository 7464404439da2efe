"""Two programs of physics, whole and small: what an audit of precision of them takes.

    python benchmarks/physics.py monte_carlo particle_mesh

The first is a variational Monte Carlo: a Metropolis loop that samples the square of a
network, local energies with the Laplacian of its logarithm, and a step on the energy. The
second is a particle mesh: a leapfrog of particles under the gravity that FFTs on a grid of
32^3 give. Prints the report of each, the processor time and the greatest memory.
"""

import argparse
import resource
import time

import jax
import jax.numpy as jnp
import optax
from jax import lax

import dtypeguard

ELECTRONS, WALKERS, SWEEPS, WIDTH = 4, 64, 30, 32
GRID, SIDE, STEPS = 32, 16, 10


def log_psi(params, electrons):
    """The logarithm of a wave function of electrons around one nucleus of their charge."""
    distances = jnp.linalg.norm(electrons, axis=-1)
    pairs = electrons[:, None] - electrons[None, :]
    others = ~jnp.eye(ELECTRONS, dtype=bool)
    between = jnp.sqrt(jnp.sum(pairs**2, -1) + jnp.where(others, 1e-6, 1.0))
    features = jnp.concatenate([electrons, distances[:, None]], axis=-1)
    hidden = features
    for layer in params["layers"]:
        mixed = jnp.concatenate(
            [hidden, jnp.broadcast_to(hidden.mean(0), hidden.shape)], axis=-1
        )
        hidden = jnp.tanh(mixed @ layer["w"] + layer["b"])
    envelope = jnp.exp(-params["decay"] * distances)
    orbitals = (hidden @ params["orbitals"]) * envelope[:, None]
    _, logarithm = jnp.linalg.slogdet(orbitals + jnp.eye(ELECTRONS))
    jastrow = -jnp.sum(jnp.where(others, 0.25 / (1 + between), 0.0))
    return logarithm + jastrow


def local_energy(params, electrons):
    """The kinetic and the potential energy at one place of all electrons."""
    flat = electrons.reshape(-1)
    gradient = jax.grad(lambda x: log_psi(params, x.reshape(electrons.shape)))
    eye = jnp.eye(flat.size, dtype=flat.dtype)

    def add(number, total):
        first, second = jax.jvp(gradient, (flat,), (eye[number],))
        return total + second[number] + first[number] ** 2

    laplacian = lax.fori_loop(0, flat.size, add, jnp.zeros((), flat.dtype))
    attraction = -jnp.sum(ELECTRONS / jnp.linalg.norm(electrons, axis=-1))
    upper = jnp.triu_indices(ELECTRONS, 1)
    pairs = jnp.linalg.norm(electrons[upper[0]] - electrons[upper[1]], axis=-1)
    return -0.5 * laplacian + attraction + jnp.sum(1 / pairs)


def sampled(params, walkers, key):
    """Walkers after a number of Metropolis steps."""
    logs = jax.vmap(log_psi, (None, 0))

    def sweep(state, key):
        walkers, before = state
        move, accept = jax.random.split(key)
        proposed = walkers + 0.3 * jax.random.normal(move, walkers.shape, walkers.dtype)
        after = logs(params, proposed)
        uniform = jax.random.uniform(accept, after.shape, after.dtype)
        is_taken = jnp.log(uniform) < 2 * (after - before)
        walkers = jnp.where(is_taken[:, None, None], proposed, walkers)
        return (walkers, jnp.where(is_taken, after, before)), is_taken.mean()

    state = walkers, logs(params, walkers)
    (walkers, _), rates = lax.scan(sweep, state, jax.random.split(key, SWEEPS))
    return walkers, rates.mean()


def monte_carlo():
    """A step of a variational Monte Carlo, and its arguments."""
    keys = jax.random.split(jax.random.key(0), 5)
    draw = lambda key, *shape: jax.random.normal(key, shape) / shape[0] ** 0.5
    params = {
        "layers": [
            {"w": draw(keys[0], 8, WIDTH), "b": jnp.zeros(WIDTH)},
            {"w": draw(keys[1], 2 * WIDTH, WIDTH), "b": jnp.zeros(WIDTH)},
        ],
        "orbitals": draw(keys[2], WIDTH, ELECTRONS),
        "decay": jnp.ones(()),
    }
    walkers = jax.random.normal(keys[3], (WALKERS, ELECTRONS, 3))
    optimizer = dtypeguard.guard(optax.adam(1e-3))

    def step(params, state, walkers, key):
        walkers, rate = sampled(params, walkers, key)
        energies = jax.vmap(local_energy, (None, 0))(params, walkers)
        middle = jnp.median(energies)
        spread = jnp.mean(jnp.abs(energies - middle))
        clipped = jnp.clip(energies, middle - 5 * spread, middle + 5 * spread)

        def loss(params):
            logs = jax.vmap(log_psi, (None, 0))(params, walkers)
            return 2 * jnp.mean(lax.stop_gradient(clipped - clipped.mean()) * logs)

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state, walkers, energies.mean(), rate

    return step, (params, optimizer.init(params), walkers, keys[4])


def corners(positions):
    """The eight cells of the grid around each particle, and its share in each."""
    base = jnp.floor(positions).astype(jnp.int32)
    inside = positions - base
    offsets = jnp.stack(jnp.meshgrid(*[jnp.arange(2)] * 3, indexing="ij"), -1).reshape(8, 3)
    cells = (base[:, None] + offsets) % GRID
    shares = jnp.where(offsets == 1, inside[:, None], 1 - inside[:, None]).prod(-1)
    return cells, shares


def forces(positions):
    """The gravity on particles: their density to its potential by FFT, and back."""
    cells, shares = corners(positions)
    x, y, z = cells[..., 0], cells[..., 1], cells[..., 2]
    density = jnp.zeros((GRID,) * 3, positions.dtype).at[x, y, z].add(shares)
    waves = 2 * jnp.pi * jnp.fft.fftfreq(GRID).astype(positions.dtype)
    last = 2 * jnp.pi * jnp.fft.rfftfreq(GRID).astype(positions.dtype)
    vectors = jnp.meshgrid(waves, waves, last, indexing="ij")
    squares = vectors[0] ** 2 + vectors[1] ** 2 + vectors[2] ** 2
    squares = squares.at[0, 0, 0].set(1.0)
    potential = -jnp.fft.rfftn(density / density.mean() - 1) / squares
    potential = potential * jnp.exp(-0.5 * squares)
    fields = [jnp.fft.irfftn(-1j * k * potential, s=(GRID,) * 3) for k in vectors]
    return jnp.stack([jnp.sum(field[x, y, z] * shares, -1) for field in fields], -1)


def particle_mesh():
    """A leapfrog of particles on a grid, and its arguments."""
    keys = jax.random.split(jax.random.key(0))
    places = jnp.stack(jnp.meshgrid(*[jnp.arange(SIDE)] * 3, indexing="ij"), -1)
    lattice = places.reshape(-1, 3) * (GRID / SIDE)
    positions = (lattice + 0.3 * jax.random.normal(keys[0], lattice.shape)) % GRID
    velocities = 0.01 * jax.random.normal(keys[1], lattice.shape)

    def leapfrog(positions, velocities, pace):
        def step(state, scale):
            positions, velocities = state
            velocities = velocities + 0.5 * pace * scale * forces(positions)
            positions = (positions + pace * velocities / scale**2) % GRID
            velocities = velocities + 0.5 * pace * scale * forces(positions)
            return (positions, velocities), jnp.mean(velocities**2)

        scales = jnp.linspace(0.1, 1.0, STEPS)
        (positions, velocities), kinetic = lax.scan(step, (positions, velocities), scales)
        return positions, velocities, kinetic

    return leapfrog, (positions, velocities, jnp.asarray(0.1))


PROGRAMS = {"monte_carlo": monte_carlo, "particle_mesh": particle_mesh}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PROGRAMS], default=[*PROGRAMS])
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    for name in options.names:
        program, arguments = PROGRAMS[name]()
        started, clock = time.process_time(), time.perf_counter()
        print(dtypeguard.audit_precision(program, *arguments, seconds=options.seconds))
        used, waited = time.process_time() - started, time.perf_counter() - clock
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{name}: {used:.1f} s of processor time, {waited:.1f} s, {memory:.2f} GB\n")


if __name__ == "__main__":
    main()
