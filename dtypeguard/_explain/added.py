"""Cotangents of different types: a rule of `custom_vjp` returns another than it is to.

JAX lets a rule return float32 for a bfloat16 argument, and cannot add it to others then.
"""

from collections.abc import Collection, Iterator, Sequence
from types import CodeType, FrameType

from .._leaves.dtypes import dtype_of, is_array
from .._leaves.rows import cast_text
from .._lines.provenance import TypeProvenance
from .._source.files import is_installed, is_users
from .._source.origin import Why, origin_at
from .._source.syntax import returned
from .finding import Finding, RefusedCall, RefusedLeaf
from .read import Failure
from .remedies import Remedy, Way, untried


def find_added(
    failure: Failure, types: Collection[str], provenance: TypeProvenance
) -> Finding | None:
    """The cotangent that a rule of the user's returned in another type than it is to."""
    rules = _rules(failure.frames)
    rule = next((x for x in rules if not is_installed(x.co_filename)), None)
    node = returned(rule) if rule else None
    for frame in reversed(failure.frames) if rule and node else ():
        added = [x for x in list(frame.f_locals.values()) if is_array(x)]
        added = [x for x in added if str(dtype_of(x)) in types]
        whys = [(x, provenance.of_value(x)) for x in added]
        of_rule = [(x, why) for x, why in whys if why.is_promoted]
        if {str(dtype_of(x)) for x in added} == {*types} and of_rule and rule and node:
            value, why = of_rule[0]
            (other,) = {*map(dtype_of, added)} - {dtype_of(value)}
            line = origin_at(rule.co_filename, node.lineno, rule.co_qualname)
            about = 0, "a cotangent", (value,), Why(why.origin, line)
            call = RefusedCall(rule.co_filename, node, other, is_added=True)
            head = f"{rule.co_name} returns a cotangent in another dtype than its argument."
            return Finding(head, [RefusedLeaf(*about)], call)
    return None


def added_remedies(call: RefusedCall, finding: Finding) -> Iterator[Remedy]:
    """To return each cotangent in the dtype of its argument."""
    (leaf,) = finding.leaves
    text = f"at {leaf.why.cause} return each cotangent in the dtype of its argument, as "
    yield Remedy([Way(f"{text}{cast_text(call.wanted)}", untried)], [leaf])


def _rules(frames: Sequence[FrameType]) -> Iterator[CodeType]:
    """The functions of the user's that JAX has called as rules, inside out."""
    for frame in reversed(frames):
        params = getattr(frame.f_locals.get("eqn"), "params", None)
        queue = [params.get("bwd")] if isinstance(params, dict) else []
        for each in queue:
            code = getattr(each, "__code__", None)
            if code is not None and is_users(code.co_filename):
                yield code
            queue += [getattr(each, name, None) for name in ("f", "__wrapped__")]
            for _, given in getattr(each, "transforms", ()):
                queue += given
            queue = queue if len(queue) < 50 else []
