"""The site's cache. One that is away is an empty one: what it counts goes uncounted, and nobody is kept from logging in."""

from typing import Any

from django.core.cache.backends.redis import RedisCache, RedisCacheClient
from redis.exceptions import RedisError

from headway.circuit import Circuit

circuit = Circuit("cache")
"""Of this process."""


class _Client(RedisCacheClient):
    def add(self, key: Any, value: Any, timeout: Any) -> Any:
        return self._asked("add", True, key, value, timeout)

    def get(self, key: Any, default: Any) -> Any:
        return self._asked("get", default, key, default)

    def set(self, key: Any, value: Any, timeout: Any) -> Any:
        return self._asked("set", None, key, value, timeout)

    def touch(self, key: Any, timeout: Any) -> Any:
        return self._asked("touch", False, key, timeout)

    def delete(self, key: Any) -> Any:
        return self._asked("delete", False, key)

    def get_many(self, keys: Any) -> Any:
        return self._asked("get_many", {}, keys)

    def has_key(self, key: Any) -> Any:
        return self._asked("has_key", False, key)

    def incr(self, key: Any, delta: Any) -> Any:
        return self._asked("incr", delta, key, delta)

    def set_many(self, data: Any, timeout: Any) -> Any:
        return self._asked("set_many", None, data, timeout)

    def delete_many(self, keys: Any) -> Any:
        return self._asked("delete_many", None, keys)

    def clear(self) -> Any:
        return self._asked("clear", False)

    def _asked(self, name: str, if_away: Any, *args: Any) -> Any:
        if not circuit.asks():
            return if_away
        try:
            found = getattr(super(), name)(*args)
        except (RedisError, OSError) as error:
            circuit.failed(error)
            return if_away
        circuit.answered()
        return found


class SiteCache(RedisCache):
    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._class = _Client
