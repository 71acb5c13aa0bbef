"""Security on a broker: describes ACLs, credentials and quotas, and checks the rights of each request's sender."""
