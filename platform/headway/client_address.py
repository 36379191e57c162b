"""Who connected, behind proxies of ours. One rule for the gateway and the site."""


def client_address(peer: str, forwarded_for: str, trusted_hops: int) -> str:
    """Whoever connected, or who our own proxies say did: the last of `x-forwarded-for` but what they added themselves.

    `forwarded_for`: the header's values joined by commas. With no proxy configured (`trusted_hops` 0) it counts for nothing,
    and with one its last entry, which that proxy wrote, for all.
    """
    if trusted_hops:
        hops = [hop.strip() for hop in forwarded_for.split(",") if hop.strip()]
        if len(hops) >= trusted_hops:
            return hops[-trusted_hops][:64]
    return peer
