"""Client quotas: how much of a broker one user or client id may take.

    client_quotas.py  the three kinds of a broker, which follow the metadata
    metered.py        a request that is measured, and answered with its throttle time
    limited_fetch.py  a consumer's fetch that does not exceed what is left of the budget
    installation.py   puts the meters around the handlers while there is a quota for them, and only then
    connections.py    how many connections an address may open
    metrics.py        who was throttled for how long

A client that exceeds its quota is answered at once, with the throttle time in the response. Then its connection is muted for that
time (KIP-219). Followers, and requests that only brokers may send, are never counted.
"""
