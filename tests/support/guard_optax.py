"""A pytest plugin: every optax factory that returns a transformation returns it guarded.

Loaded with `-p guard_optax` to run optax's own tests on guarded optimizers. The factories
are replaced wherever optax's modules hold them, so parts of a chain are guarded as well.
"""

import inspect
import sys
import types

import optax
import optax.contrib

import dtypeguard


def is_factory(value) -> bool:
    """Whether a function says that it returns a gradient transformation."""
    if not isinstance(value, types.FunctionType):
        return False
    returns = inspect.signature(value).return_annotation
    return inspect.isclass(returns) and issubclass(returns, optax.GradientTransformation)


modules = [m for name, m in sys.modules.items() if name.split(".")[0] == "optax"]
found = {value for m in modules for value in vars(m).values() if is_factory(value)}
guarded = {x: dtypeguard.guard(x) for x in found - {optax.with_extra_args_support}}
for module in modules:
    for name, value in list(vars(module).items()):
        if isinstance(value, types.FunctionType) and value in guarded:
            setattr(module, name, guarded[value])
print(f"guarded {len(guarded)} optax factories")
