"""Prints the table of `docs/messages.md`: a row for each row of the table in the code.

python tests/follow_pages.py --write docs/messages.md   # writes it
"""

import re

from dtypeguard._explain.messages import ROLES, Role
from tests.support.pages import DOCS

_PART = re.compile(r"^## (?P<section>.*)$|^```text\n(?P<message>.*)$", re.MULTILINE)
_LONGEST = 72


def main() -> None:
    """Prints the first message of the page that has a role, and the type JAX takes."""
    section, rows = "", {}
    for part in _PART.finditer((DOCS / "messages.md").read_text()):
        section = part["section"] or section
        role = role_of(part["message"] or "")
        if role is not None:
            rows.setdefault(role, f"| {link(part['message'], section)} | {taken(role)} |")
    print("| the message says | JAX takes |\n|---|---|")
    for role in ROLES:
        print(rows.get(role, f"| no message on this page: {role.pattern} | |"))


def role_of(message: str) -> Role | None:
    """The first role that fits a message."""
    for role in ROLES:
        if re.search(role.pattern, message):
            return role
    return None


def link(message: str, section: str) -> str:
    """The beginning of a message, as a link to its section."""
    short = message if len(message) <= _LONGEST else message[:_LONGEST].rstrip() + "..."
    anchor = section.lower().replace(" ", "-")
    return f"[{re.sub('[][`|]', '', short)}](#{anchor})"


def taken(role: Role) -> str:
    """The type that JAX takes in place of the one that it refuses."""
    if role.wanted == "alike":
        return "arguments of one type"
    return f"`{role.wanted}`" if role.wanted else "the type that the message names"


if __name__ == "__main__":
    main()
