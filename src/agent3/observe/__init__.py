"""What can be seen from outside: metrics, traces, logs and the documented performance monitors."""
