"""A function for each primitive with floating results that a program may contain."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

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
length = lambda a, b: lax.sqrt(a * a + b * b)


def scattered(scatter, x, y):
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    return scatter(x, jnp.asarray(ORDER)[:, None] // 2, y, numbers)


@jax.custom_batching.custom_vmap
def batched(x):
    return lax.sin(x) * x


@batched.def_vmap
def _(size, is_batched, x):
    return batched(x), True


# The names of primitives, each with a function and its arguments.
UNARY = (
    "abs acos asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf "
    "erf_inv erfc exp exp2 expm1 floor lgamma log log1p logistic neg round rsqrt sign sin "
    "sinh sqrt square tan tanh is_finite integer_pow real_imag"
)
PRIMITIVES = {name: (getattr(lax, name), X) for name in UNARY.split() if hasattr(lax, name)}
BINARY = "add sub mul div rem pow atan2 max min nextafter igamma igammac"
SCATTERS = "scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max"
LARGE = "cos sin tanh exp logistic erf erfc sinh asinh expm1"
PRIMITIVES |= {
    f"{name} of large numbers": (getattr(lax, name), WIDE_RANGE) for name in LARGE.split()
}
PRIMITIVES |= {name: (getattr(lax, name), X, Y) for name in BINARY.split()}
PRIMITIVES |= {
    f"cum{name}": (lambda x, name=name: getattr(lax, f"cum{name}")(x, 1), X)
    for name in ("sum", "prod", "max", "min", "logsumexp")
}
PRIMITIVES |= {
    f"reduce_{name}": (lambda x, f=f: f(x, (1,)), WIDE_RANGE)
    for name, f in {
        "sum": lax.reduce_sum,
        "prod": lax.reduce_prod,
        "max": lax.reduce_max,
        "min": lax.reduce_min,
    }.items()
    if hasattr(lax, "reduce_sum")
}
PRIMITIVES |= {
    name: (functools.partial(scattered, getattr(lax, name.replace("-", "_"))), X, Y)
    for name in SCATTERS.split()
    if hasattr(lax, name.replace("-", "_"))
}
PRIMITIVES |= {
    "acosh": (lambda x: lax.acosh(1 + x), X),
    "add_any": (jax.grad(lambda x: jnp.sum(lax.sin(x) * lax.cos(x))), X),
    "argmax": (lambda x: lax.argmax(x, 1, np.int32), X),
    "argmin": (lambda x: lax.argmin(x, 1, np.int32), X),
    "broadcast_in_dim": (lambda x: lax.broadcast(x, (2,)), X),
    "clamp": (lambda x: lax.clamp(zero(x), x, jnp.asarray(0.5, x.dtype)), X),
    "complex": (lambda x: lax.complex(x, x * x), X),
    "complex numbers": (
        lambda x: lax.exp(lax.complex(x, x)) * lax.complex(x, -x),
        X,
    ),
    "concatenate": (lambda x, y: lax.concatenate([x, y], 0), X, Y),
    "conv_general_dilated": (lambda x, w: lax.conv(x, w, (1, 2), "SAME"), IMAGE, KERNEL),
    "convert_element_type": (lambda x: x.astype(jnp.float16).astype(x.dtype), WIDE_RANGE),
    "convert_element_type to whole numbers": (lambda x: x.astype(np.int32), WIDE_RANGE),
    "copy": (lambda x: jnp.array(x, copy=True), X),
    "dot_general": (lambda x, y: lax.dot(x, y.T), X, Y),
    "dot_general in float32": (
        lambda x, y: lax.dot(x, y.T, preferred_element_type=jnp.float32),
        *(X, Y),
    ),
    "dot_general of a batch": (
        lambda x, y: jnp.einsum("bij,bjk->bik", x, y),
        *(draw(6, 3, 4, 5), draw(7, 3, 5, 6)),
    ),
    "dynamic_slice": (lambda x: lax.dynamic_slice(x, (1, 2), (2, 3)), X),
    "dynamic_update_slice": (lambda x: lax.dynamic_update_slice(x, x[:2], (1, 0)), X),
    "eigh": (lambda x: jnp.abs(jnp.linalg.eigh(x)[0]), POSITIVE),
    "eq": (lambda x, y: (x == y, x != y, x < y, x <= y, x > y, x >= y), X, Y),
    "fft": (lambda x: jnp.fft.rfft(x), X),
    "fft of complex numbers": (lambda x: jnp.fft.fft(lax.complex(x, -x)), X),
    "fft backwards": (lambda x: jnp.fft.irfft(lax.complex(x, -x)), X),
    "gather": (lambda x: x[ORDER, ORDER[::-1]], X),
    "householder_product": (lambda x: jnp.linalg.qr(x), SQUARE),
    "igamma_grad_a": (lambda x, y: lax.igamma_grad_a(x, y), X, Y),
    "integer_pow": (lambda x: (x**2, x**3, x**-1, x**7), X),
    "iota": (lambda x: lax.iota(x.dtype, 9) * x[0, 0], X),
    "lu": (lambda x: jax.scipy.linalg.lu(x), SQUARE),
    "cholesky": (lambda x: jnp.linalg.cholesky(x), POSITIVE),
    "optimization_barrier": (lambda x: lax.optimization_barrier(x * x), X),
    "pad": (lambda x: lax.pad(x, x[0, 0], ((1, 1, 0), (0, 2, 1))), X),
    "polygamma": (lambda x: lax.polygamma(jnp.ones_like(x), x), X),
    "reduce": (lambda x: lax.reduce(x, zero(x), length, (1,)), X),
    "reduce_and": (lambda x, y: (jnp.all(x > y, 0), jnp.any(x > y, 0)), X, Y),
    "reduce_precision": (lambda x: lax.reduce_precision(x * x, 8, 7), X),
    "reduce_window": (lambda x: pool(x, 0.0, length), X),
    "reduce_window_sum": (lambda x: pool(x, 0.0, lax.add), WIDE_RANGE),
    "reduce_window_max": (lambda x: pool(x, -np.inf, lax.max), X),
    "reduce_window_min": (lambda x: pool(x, np.inf, lax.min), X),
    "regularized_incomplete_beta": (lambda x, y: lax.betainc(x, y, x), X, Y),
    "reshape": (lambda x: x.reshape(3, 8), X),
    "rev": (lambda x: lax.rev(x, (0,)), X),
    "select_and_gather_add": (
        lambda x, y: jax.jvp(lambda x: pool(x, -np.inf, lax.max), (x,), (y,)),
        *(X, Y),
    ),
    "select_and_scatter_add": (
        jax.grad(lambda x: jnp.sum(pool(x, -np.inf, lax.max) ** 2)),
        X,
    ),
    "select_n": (lambda x, y: jnp.where(x > y, x, y), X, Y),
    "slice": (lambda x: lax.slice(x, (1, 0), (3, 5), (1, 2)), X),
    "sort": (lambda x, y: lax.sort([x, y], num_keys=2), X, Y),
    "split": (lambda x: jnp.split(x, 2), X),
    "squeeze": (lambda x: lax.squeeze(x[:1], (0,)), X),
    "svd": (lambda x: jnp.linalg.svd(x, compute_uv=False), X),
    "top_k": (lambda x: lax.top_k(x, 3), X),
    "transpose": (lambda x: x.T, X),
    "triangular_solve": (
        lambda x, y: jax.scipy.linalg.solve_triangular(x, y),
        *(POSITIVE, SQUARE),
    ),
    "tridiagonal_solve": (
        lambda x, y: lax.linalg.tridiagonal_solve(x[0], 2 + x[1], x[2], y),
        *(SQUARE, SQUARE),
    ),
    "real": (lambda x: (lax.real(lax.complex(x, x)), lax.imag(lax.complex(x, x))), X),
    "conj": (lambda x: lax.conj(lax.complex(x, x)), X),
    "zeta": (lambda x, y: lax.zeta(1.5 + x, y), X, Y),
    # What rules of derivatives and functions of JAX make of these.
    "gradient of logistic": (jax.grad(lambda x: jnp.sum(jax.nn.sigmoid(x))), X),
    "gradient of tanh": (jax.grad(lambda x: jnp.sum(jnp.tanh(x) ** 2)), X),
    "gradient of a norm": (jax.grad(lambda x: jnp.sqrt(jnp.sum(x * x))), X),
    "gradient of softmax": (jax.grad(lambda x: jnp.sum(jax.nn.softmax(x) ** 2)), X),
    "gradient of conv": (
        jax.grad(lambda x, w: jnp.sum(lax.conv(x, w, (1, 2), "SAME") ** 2), (0, 1)),
        *(IMAGE, KERNEL),
    ),
    "norm": (lambda x: jnp.linalg.norm(x, axis=1), X),
    "variance": (lambda x: jnp.var(x, axis=1), X),
    "logsumexp": (lambda x: special.logsumexp(x, 1), X),
    "gelu": (jax.nn.gelu, X),
    "exact gelu": (lambda x: jax.nn.gelu(x, approximate=False), X),
    "xlogy": (special.xlogy, X, Y),
    "composite": (
        lambda x: lax.composite(lambda x: x * jnp.asarray(1.3, x.dtype), "my.op")(x),
        X,
    ),
    "custom_vmap_call": (lambda x: batched(x), X),
    "remat2": (jax.grad(jax.checkpoint(lambda x: jnp.sum(lax.sin(x * x)))), X),
    "custom_jvp_call": (jax.nn.silu, X),
    "log2": (jnp.log2, X),
    "polynomial": (lambda x: jnp.polyval(x[0], x), X),
}

# What asks for a dtype, or makes a constant in it, is another program on wide inputs.
OF_A_DTYPE = frozenset(
    {
        *("convert_element_type", "dot_general in float32", "reduce_precision"),
        *("gelu", "exact gelu"),
    }
)
