"""Client quotas: limits on what one user or client id may use of a broker.

    client_quotas.py  the three kinds of quotas of a broker, which follow the metadata
    metered.py        measures requests, and adds the throttle time to their responses
    limited_fetch.py  a consumer's fetch, limited to the rest of its budget
    installation.py   puts the meters around the handlers while there is a quota for them, and only then
    connections.py    how many connections a listener and an address may have
    metrics.py        which users and client ids were throttled, and for how long

A client that exceeds its quota is answered at once, with the throttle time in the response. Then its connection is muted for that
time (KIP-219). Followers, and requests that only brokers may send, are never counted.
"""
