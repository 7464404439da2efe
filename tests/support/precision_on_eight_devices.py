"""Audits programs on eight simulated devices; run by test_reach.py in its own process.

Its arguments are names of programs. Prints as JSON, by program: the error, the error of the
compiled program against float32, the lines, what was not examined, and on how many devices
each output of the audit's runs lies; the error of rounding alone, and how many decisions
flipped of how many.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import dtypeguard
from dtypeguard._numbers.measure import Measures

MESH = Mesh(np.array(jax.devices()), ("data",))
SPLIT = NamedSharding(MESH, P("data"))


def reduced(x, w):
    h = jnp.tanh(x @ w)
    return 1.7 * lax.psum(h, "data")


def average(x):
    def step(mean, _):
        return 0.999 * mean, lax.ppermute(mean, "data", [(i, 7 - i) for i in range(8)])

    return lax.scan(step, x, None, 100)


def layers(x, ws):
    step = lambda x, w: (jnp.where((h := x @ w) > 0, h, -1), None)
    return lax.scan(step, x, ws)[0]


def decided(x, ws):
    """Each device decides by itself, then all alike."""
    total = lax.psum(layers(x, ws), "data")
    return jnp.where(total > 0, total, 1 - total)


def decided_at_once(x, ws):
    total = layers(x, ws).reshape(8, -1, x.shape[-1]).sum(0)
    return jnp.where(total > 0, total, 1 - total)


def overflow(x):
    return lax.pmean(jnp.exp(x), "data") - x


def mapped(f, inputs, outputs, **options):
    return jax.shard_map(f, mesh=MESH, in_specs=inputs, out_specs=outputs, **options)


def main():
    normal = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)
    x, w = normal(0, 16, 4).astype(jnp.bfloat16), normal(1, 4, 4).astype(jnp.bfloat16)
    x = jax.device_put(x, SPLIT)
    both = P("data"), P()
    deep = normal(2, 512, 16).astype(jnp.bfloat16), normal(3, 5, 16, 16) / 2
    deep = jax.device_put(deep[0], SPLIT), deep[1].astype(jnp.bfloat16)
    by_rows = mapped(reduced, both, P())
    loss = lambda w, x: jnp.sum(by_rows(x, w).astype(jnp.float32) ** 2)
    programs = {
        "shard_map": (by_rows, x, w),
        "unchecked": (mapped(reduced, both, P(), check_vma=False), x, w),
        "gradient": (jax.jit(jax.grad(loss)), w, x),
        "scan inside": (mapped(average, P("data"), (P("data"), P(None, "data"))), x),
        "decided": (mapped(decided, both, P()), *deep),
        "decided at once": (decided_at_once, *deep),
        "overflow": (mapped(overflow, P("data"), P("data")), jnp.arange(8.0)[:, None] + 6),
        "jit": (jax.jit(lambda x, w: jnp.sort(jnp.tanh(x @ w), axis=0)), x, w),
    }
    on = []
    measured = Measures.__init__

    def init(self, *args):
        measured(self, *args)
        on.append([len(x.sharding.device_set) for x in (*self.written, *self.exact)])

    Measures.__init__ = init  # pyright: ignore[reportAttributeAccessIssue]
    told = {}
    for name in sys.argv[1:]:
        f, *args = programs[name]
        options = {"narrow": jnp.float16} if name == "overflow" else {}
        report = dtypeguard.audit_precision(f, *args, **options)
        wide = jax.tree.leaves(f(*(each.astype(jnp.float32) for each in args)))
        off = [
            np.linalg.norm(n.astype(np.float32) - e) / np.linalg.norm(e)
            for n, e in zip(jax.tree.leaves(jax.device_get(f(*args))), wide)
        ]
        told[name] = {
            "error": report.error,
            "expected": float(np.sqrt(np.mean(np.square(off)))),
            "lines": [loss.origin.code for loss in report.losses if loss.origin],
            "first": report.not_finite and report.not_finite.code,
            "not_examined": report.not_examined,
            "devices": on.pop(),
            "rounding": report.error * (1 - report.flipped) ** 0.5,
            "decisions": [(x.flipped, x.count) for x in report.decisions],
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
