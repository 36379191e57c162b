"""Who stands behind a command, where that has to be a person: an operator's account, by its password."""

import getpass
import sys

from headway.command import actor
from headway.errors import InvalidInput
from tenants.selectors import operator_by_password


def acting_operator(name: str) -> str:
    """As the audit log names whoever does it; `name` blank: the machine's user. The password is asked for, or read from a pipe.

    Raises InvalidInput.
    """
    if not name:
        return actor()
    password = getpass.getpass(f"password of {name}: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    found = operator_by_password(username=name, password=password)
    if found is None:
        raise InvalidInput(f"that is not the password of an operator called {name}", param="operator")
    return f"operator:{found}"
