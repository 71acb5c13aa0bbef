"""One partition on this broker: its role, the leader's state with its replicas and ISR, and ISR proposals to the controller."""
