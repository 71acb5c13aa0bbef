"""The identity of peers: principals, TLS, and SASL, for both ends of a connection."""
