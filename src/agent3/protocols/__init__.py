"""One folder for each protocol: its doors, its connector, how its things are recognised, its commands."""
