"""`--database-only`: the tests that a database takes part in; the others are the same whichever there is.
Marked `on_postgresql`: what SQLite, where one who writes is alone, has no part in; it is left out there, not skipped.
Marked `any_database`: who may ask for what, which is decided before any query; `--database-only` leaves it out.

No example of hypothesis is failed for its time: machines are busy, and speed is measured in bench/.
"""

import logging
import os

import hypothesis
import pytest

hypothesis.settings.register_profile("headway", deadline=None)
hypothesis.settings.load_profile("headway")
# The tests' own client writes the headers it sends, keys and all: no log of ours, in which keys are looked for (leaks.py).
logging.getLogger("websockets.client").setLevel(logging.INFO)

_FIXTURES = frozenset({"db", "transactional_db", "django_db_reset_sequences", "django_db_serialized_rollback"})


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """On PostgreSQL the tests' database is a copy of one that is migrated once for all rings of a run."""
    from django.db import connection

    from tests.fakes.migrated import migrated_template

    if connection.vendor == "postgresql":
        connection.settings_dict["TEST"]["TEMPLATE"] = migrated_template(os.environ["DATABASE_URL"])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database-only", action="store_true", help="only tests that a database takes part in")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from django.db import connection  # settings are there by now

    is_postgresql, is_database_only = connection.vendor == "postgresql", config.getoption("--database-only")

    def is_wanted(item: pytest.Item) -> bool:
        if item.get_closest_marker("on_postgresql") is not None and not is_postgresql:
            return False
        if is_database_only:
            return item.get_closest_marker("any_database") is None and _meets_a_database(item)
        return True

    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    items[:] = [item for item in items if is_wanted(item)]


def _meets_a_database(item: pytest.Item) -> bool:
    """By what it asks for; or its module hands a database's address to processes that it starts."""
    if item.get_closest_marker("django_db") is not None or _FIXTURES & set(getattr(item, "fixturenames", ())):
        return True
    module = getattr(item, "module", None)
    return "database_url" in vars(module) if module is not None else False
