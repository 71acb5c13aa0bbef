"""What runs in the simulated world: the production servers, the clients of a run, and one client that lies."""
