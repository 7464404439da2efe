"""A traced program in the dtypes of a plan, as a program of its own."""

from collections import OrderedDict

import jax

from .._leaves.types import Jaxpr
from .held import HeldRules
from .matching import Matcher
from .plan import Plan
from .values import cast, is_float


def narrowed(jaxpr: Jaxpr, plan: Plan) -> Jaxpr:
    """The closed jaxpr that `autocast` makes of one by a plan.

    Raises:
        ValueError: if an entry of the plan matches nothing in it.
    """
    matcher = Matcher(plan)

    def function(*arrays):
        emitter = HeldRules(OrderedDict(), plan, matcher, {})
        reached = emitter.reached(jaxpr, (), [False] * len(jaxpr.out_avals))
        given = emitter.given(jaxpr, [*jaxpr.consts, *arrays])
        made = emitter.run(jaxpr, given, (), reached)
        pairs = zip(made, jaxpr.out_avals)
        return [cast(x.array, v.dtype) if is_float(v) else x.array for x, v in pairs]

    made = jax.make_jaxpr(function)(*jaxpr.in_avals)
    matcher.check()
    return made
