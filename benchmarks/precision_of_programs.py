"""Audits public programs as they stand: see docs/how-precision-is-measured.md.

    python benchmarks/precision_of_programs.py train_rnn.ipynb examples/gemma

The first is Equinox's `docs/examples/train_rnn.ipynb`, the second the folder of Flax's
`examples/gemma`. Prints each report.
"""

import argparse
import ast
import importlib
import json
import pathlib
import sys
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax

from dtypeguard import audit_precision

STEPS = 50


class Called(Exception):
    """The arguments of the first step of a program."""


def cast(tree, dtype):
    is_float = lambda x: eqx.is_inexact_array(x)
    return jax.tree.map(lambda x: x.astype(dtype) if is_float(x) else x, tree)


def rnn(notebook: pathlib.Path):
    """The notebook's own step, its own first arguments, and what it uses besides."""
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    text = "\n".join(x for x in code if not x.startswith("main()"))
    path = pathlib.Path("train_rnn.py").absolute()
    found: dict = {"__name__": "train_rnn"}

    def capture(step):
        def call(*args):
            raise Called(step, args)

        return call

    import linecache

    linecache.cache[str(path)] = (len(text), None, text.splitlines(True), str(path))
    exec(compile(text, str(path), "exec"), found)
    found["eqx"] = types.SimpleNamespace(**{**vars(eqx), "filter_jit": capture})
    try:
        found["main"]()
    except Called as called:
        return called.args
    raise SystemExit("the notebook makes no step")


def equinox_reports(notebook: pathlib.Path) -> None:
    step, (model, x, y, state) = rnn(notebook)
    dynamic, static = eqx.partition((model, state), eqx.is_array)

    def train(dynamic, x, y):
        def one(dynamic, _):
            model, state = eqx.combine(dynamic, static)
            _, model, state = step(model, x, y, state)
            new = eqx.filter((model, state), eqx.is_array)
            return jax.tree.map(lambda n, o: n.astype(o.dtype), new, dynamic), None

        return lax.scan(one, dynamic, None, STEPS)[0][0]

    print("## train_rnn.ipynb, one step, as it stands")
    print(audit_precision(step, model, x, y, state))
    print("\n## the same in bfloat16")
    narrow = (cast(tree, jnp.bfloat16) for tree in (model, x, y, state))
    print(audit_precision(step, *narrow))
    print(f"\n## {STEPS} steps in bfloat16")
    narrow = (cast(tree, jnp.bfloat16) for tree in (dynamic, x, y))
    print(audit_precision(train, *narrow))


def gemma_reports(folder: pathlib.Path) -> None:
    sys.path.insert(0, str(folder))
    transformer, transformer_cfg = map(
        importlib.import_module, ("transformer", "transformer_cfg")
    )
    # The rest of this file reads data with packages that are not needed here.
    source = (folder / "train.py").read_text()
    wanted = "compute_weighted_cross_entropy"
    body = [n for n in ast.parse(source).body if getattr(n, "name", "") == wanted]
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, "nnx": nnx}
    exec(compile(ast.Module(body, []), str(folder / "train.py"), "exec"), names)
    kinds = transformer_cfg.AttentionType
    config = transformer_cfg.TransformerConfig(
        num_layers=2,
        num_embed=128,
        embed_dim=64,
        hidden_dim=128,
        num_heads=4,
        head_dim=16,
        num_kv_heads=2,
        final_logit_softcap=30.0,
        use_post_attn_norm=True,
        use_post_ffw_norm=True,
        attention_types=(kinds.LOCAL_SLIDING, kinds.GLOBAL),
        sliding_window_size=64,
        attn_logits_soft_cap=50.0,
        dtype=jnp.bfloat16,
        weight_dtype=jnp.bfloat16,
    )
    model = transformer.Transformer(config, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    tokens = jax.random.randint(jax.random.key(1), (2, 129), 1, 128)

    def loss(model, tokens):
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        mask = inputs > 0
        logits, _ = model(
            inputs,
            positions=transformer.build_positions_from_mask(mask),
            attention_mask=transformer.make_causal_attn_mask(mask),
            cache=None,
            rngs=nnx.Rngs(0),
        )
        return names[wanted](logits, targets, mask.astype(jnp.float32)).mean()

    def step(model, optimizer, tokens):
        optimizer.update(model, nnx.grad(loss)(model, tokens))

    print("\n## examples/gemma, two layers in bfloat16, the gradient")
    print(audit_precision(lambda m, x: nnx.grad(loss)(m, x), model, tokens))
    print("\n## and one step of AdamW")
    print(audit_precision(step, model, optimizer, tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=pathlib.Path)
    parser.add_argument("gemma", type=pathlib.Path)
    options = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}\n")
    equinox_reports(options.notebook)
    gemma_reports(options.gemma)


if __name__ == "__main__":
    main()
