"""Who a peer is: principals, TLS, and SASL, for both ends of a connection."""
