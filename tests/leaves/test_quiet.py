"""Warnings that are ignored for a time are heard again, also where threads overlap."""

import contextlib
import warnings

from dtypeguard._leaves.quiet import warnings_ignored


def test_two_that_overlap_leave_no_filter():
    before = list(warnings.filters)
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    for stack in (first, second):
        stack.enter_context(warnings_ignored())
        warnings.warn("nobody hears it", stacklevel=1)
    for stack in (first, second):
        stack.close()
    assert list(warnings.filters) == before
