"""Security in the metadata: access rules, SCRAM credentials and client quotas, and the answers about them."""
