"""The controller's decisions about access rules, SCRAM credentials and client quotas, and who may ask for which."""
