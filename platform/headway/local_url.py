"""Addresses of this machine as URLs. Pure: the settings are made with it."""


def local_url(host: str, port: int) -> str:
    """How a process of this machine reaches what listens on `host`: brackets for IPv6, loopback for "any address"."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
