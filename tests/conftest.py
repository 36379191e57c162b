"""`--database-only`: the tests that a database takes part in; the others are the same whichever there is.

No example of hypothesis is failed for its time: machines are busy, and speed is measured in bench/.
"""

import logging

import hypothesis
import pytest

hypothesis.settings.register_profile("headway", deadline=None)
hypothesis.settings.load_profile("headway")
# The tests' own client writes the headers it sends, keys and all: no log of ours, in which keys are looked for (leaks.py).
logging.getLogger("websockets.client").setLevel(logging.INFO)

_FIXTURES = frozenset({"db", "transactional_db", "django_db_reset_sequences", "django_db_serialized_rollback"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database-only", action="store_true", help="only tests that a database takes part in")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--database-only"):
        return
    wanted = [item for item in items if _meets_a_database(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _meets_a_database(item)])
    items[:] = wanted


def _meets_a_database(item: pytest.Item) -> bool:
    """By what it asks for; or its module hands a database's address to processes that it starts."""
    if item.get_closest_marker("django_db") is not None or _FIXTURES & set(getattr(item, "fixturenames", ())):
        return True
    module = getattr(item, "module", None)
    return "database_url" in vars(module) if module is not None else False
