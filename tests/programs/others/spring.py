"""Springs by Diffrax, fitted by Optimistix; after `coupled_odes` of Diffrax's examples."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx


class Springs(eqx.Module):
    stiffness: jax.Array
    damping: float = eqx.field(static=True)

    def __call__(self, t, y, args):
        place, speed = y
        force = -self.stiffness * place - self.damping * speed
        return speed, force


def measured(path="springs.csv"):
    times = np.linspace(0, 1, 4, dtype=np.float32)
    return jnp.asarray(times), jnp.asarray(np.cos(times))


def solve(model, times):
    start = jnp.ones(()), jnp.zeros(())
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(model),
        diffrax.Heun(),
        t0=times[0],
        t1=times[-1],
        dt0=0.25,
        y0=start,
        saveat=diffrax.SaveAt(ts=times),
        max_steps=64,
        adjoint=diffrax.ForwardMode(),
    )
    return solution.ys[0]


def residual(stiffness, args):
    times, places = args
    return solve(Springs(stiffness, 0.1), times) - places


@eqx.filter_jit
def energy(model, times):
    place = solve(model, times)
    return jnp.sum(model.stiffness * place**2)


def euler(model, steps):
    def move(carry, _):
        place, speed = carry
        change, force = model(0.0, carry, None)
        return (place + 0.1 * change, speed + 0.1 * force), place

    start = jnp.ones(()), jnp.zeros(())
    return jax.lax.scan(move, start, None, length=steps)


times, places = measured()
found = optx.least_squares(
    residual, optx.LevenbergMarquardt(1e-2, 1e-2), jnp.ones(()), (times, places)
)
for damping in (0.1, 0.1):
    energy(Springs(found.value, damping), times)
euler(Springs(found.value, 0.1), 3)
