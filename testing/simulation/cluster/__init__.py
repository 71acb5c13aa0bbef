"""The processes of the simulated world: the production servers, the clients of a run, and clients that attack it."""
