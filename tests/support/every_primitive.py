"""A function for each primitive with floating results that a program may contain."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, scipy

ORDER = np.array([2, 0, 3, 1], np.int32)


def draw(seed, *shape):
    return np.random.default_rng(seed).uniform(0.1, 0.9, shape).astype(np.float32)


X, Y, SQUARE = draw(0, 4, 6), draw(1, 4, 6), draw(2, 5, 5)
IMAGE, KERNEL = draw(3, 2, 3, 8, 8), draw(4, 4, 3, 3, 3)
WIDE_RANGE = ((draw(5, 4, 64) - 0.5) * 40).astype(np.float32)
POSITIVE = (SQUARE @ SQUARE.T + 2 * np.eye(5)).astype(np.float32)
zero = lambda x: jnp.zeros((), x.dtype)
window = {"window_dimensions": (2, 3), "window_strides": (1, 2), "padding": "VALID"}
pool = lambda x, start, f: lax.reduce_window(x, np.asarray(start, x.dtype), f, **window)
greatest = lambda x: pool(x, -np.inf, lax.max)
length = lambda a, b: lax.sqrt(a * a + b * b)
both = lambda x: lax.complex(x, -x)


def scattered(scatter, x, y):
    return scatter(
        x,
        jnp.asarray(ORDER)[:, None] // 2,
        y,
        lax.ScatterDimensionNumbers((1,), (0,), (0,)),
    )


@jax.custom_batching.custom_vmap
def batched(x):
    return lax.sin(x) * x


@batched.def_vmap
def _(size, is_batched, x):
    return batched(x), True


UNARY = (
    "abs acos asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf "
    "erf_inv erfc exp exp2 expm1 floor lgamma log log1p logistic neg round rsqrt sign sin "
    "sinh sqrt square tan tanh is_finite"
)
LARGE = "cos sin tanh exp logistic erf erfc sinh asinh expm1"
BINARY = (
    "add sub mul div rem pow atan2 max min nextafter igamma igammac igamma_grad_a eq lt "
    "complex"
)
SCATTERS = "scatter scatter_add scatter_sub scatter_mul scatter_min scatter_max"
ALONG = "cumsum cumprod cummax cummin cumlogsumexp"
OF_ONE = {
    "acosh": lambda x: lax.acosh(1 + x),
    "add_any": jax.grad(lambda x: jnp.sum(lax.sin(x) * lax.cos(x))),
    "argmax": lambda x: (lax.argmax(x, 1, np.int32), lax.argmin(x, 1, np.int32)),
    "broadcast_in_dim": lambda x: lax.broadcast(x, (2,)),
    "clamp": lambda x: lax.clamp(zero(x), x, jnp.asarray(0.5, x.dtype)),
    "complex numbers": lambda x: lax.exp(both(x)) * lax.conj(both(x)),
    "composite": lambda x: lax.composite(lambda x: x * 1.5, "my.op")(x),
    "copy": lambda x: jnp.array(x, copy=True),
    "custom_jvp_call": jax.nn.silu,
    "custom_vmap_call": lambda x: batched(x),
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (1, 2), (2, 3)),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(x, x[:2], (1, 0)),
    "fft": lambda x: (jnp.fft.rfft(x), jnp.fft.fft(both(x)), jnp.fft.irfft(both(x))),
    "gather": lambda x: x[ORDER, ORDER[::-1]],
    "integer_pow": lambda x: (x**2, x**3, x**-1, x**7),
    "iota": lambda x: lax.iota(x.dtype, 9) * x[0, 0],
    "optimization_barrier": lambda x: lax.optimization_barrier(x * x),
    "pad": lambda x: lax.pad(x, x[0, 0], ((1, 1, 0), (0, 2, 1))),
    "polygamma": lambda x: lax.polygamma(jnp.ones_like(x), x),
    "real": lambda x: (lax.real(both(x)), lax.imag(both(x))),
    "reduce": lambda x: lax.reduce(x, zero(x), length, (1,)),
    "reduce_precision": lambda x: lax.reduce_precision(x * x, 8, 7),
    "reduce_window": lambda x: pool(x, 0.0, length),
    "reduce_window_max": greatest,
    "reduce_window_min": lambda x: pool(x, np.inf, lax.min),
    "remat2": jax.grad(jax.checkpoint(lambda x: jnp.sum(lax.sin(x * x)))),
    "reshape": lambda x: x.reshape(3, 8),
    "rev": lambda x: lax.rev(x, (0,)),
    "select_and_scatter_add": jax.grad(lambda x: jnp.sum(greatest(x) ** 2)),
    "slice": lambda x: lax.slice(x, (1, 0), (3, 5), (1, 2)),
    "split": lambda x: jnp.split(x, 2),
    "squeeze": lambda x: lax.squeeze(x[:1], (0,)),
    "svd": lambda x: jnp.linalg.svd(x, compute_uv=False),
    "top_k": lambda x: lax.top_k(x, 3),
    "transpose": lambda x: x.T,
}
OF_TWO = {
    "dot_general": lambda x, y: lax.dot(x, y.T),
    "dot_general in float32": lambda x, y: jnp.dot(
        x, y.T, preferred_element_type="float32"
    ),
    "reduce_and": lambda x, y: (jnp.all(x > y, 0), jnp.any(x > y, 0)),
    "regularized_incomplete_beta": lambda x, y: lax.betainc(x, y, x),
    "select_and_gather_add": lambda x, y: jax.jvp(greatest, (x,), (y,)),
    "select_n": lambda x, y: jnp.where(x > y, x, y),
    "sort": lambda x, y: lax.sort([x, y], num_keys=2),
    "concatenate": lambda x, y: lax.concatenate([x, y], 0),
    "zeta": lambda x, y: lax.zeta(1.5 + x, y),
}
OF_A_WIDE_RANGE = {
    "convert_element_type": lambda x: x.astype(jnp.float16).astype(x.dtype),
    "convert_element_type to whole numbers": lambda x: x.astype(np.int32),
    "reduce_sum": lambda x: (jnp.sum(x, 1), jnp.prod(x, 1)),
    "reduce_max": lambda x: (jnp.max(x, 1), jnp.min(x, 1)),
    "reduce_window_sum": lambda x: pool(x, 0.0, lax.add),
    **{f"{name} of large numbers": getattr(lax, name) for name in LARGE.split()},
}
OF_A_MATRIX = {
    "cholesky": jnp.linalg.cholesky,
    "eigh": lambda x: jnp.abs(jnp.linalg.eigh(x)[0]),
    "householder_product": jnp.linalg.qr,
    "lu": scipy.linalg.lu,
    "triangular_solve": lambda x: scipy.linalg.solve_triangular(x, x[::-1]),
    "tridiagonal_solve": lambda x: lax.linalg.tridiagonal_solve(x[0], 2 + x[1], x[2], x),
}
# The names of primitives, each with a function and its arguments.
PRIMITIVES = {
    **{name: (getattr(lax, name), X) for name in UNARY.split()},
    **{name: (getattr(lax, name), X, Y) for name in BINARY.split() if hasattr(lax, name)},
    **{
        name: (functools.partial(scattered, getattr(lax, name)), X, Y)
        for name in SCATTERS.split()
        if hasattr(lax, name)
    },
    **{name: (functools.partial(getattr(lax, name), axis=1), X) for name in ALONG.split()},
    **{name: (f, X) for name, f in OF_ONE.items()},
    **{name: (f, X, Y) for name, f in OF_TWO.items()},
    **{name: (f, WIDE_RANGE) for name, f in OF_A_WIDE_RANGE.items()},
    **{name: (f, POSITIVE) for name, f in OF_A_MATRIX.items()},
    "conv_general_dilated": (lambda x, w: lax.conv(x, w, (1, 2), "SAME"), IMAGE, KERNEL),
    "dot_general of a batch": (lambda x: jnp.einsum("bijk,bilk->bijl", x, x), IMAGE),
}

# What asks for a dtype, or makes a constant in it, is another program on wide inputs.
OF_A_DTYPE = "convert_element_type", "dot_general in float32", "reduce_precision"
