"""The controller's decisions about access rules, SCRAM credentials and client quotas, and the authorization of its requests."""
