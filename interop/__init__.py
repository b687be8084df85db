"""Other people's SDKs against ours, in both directions: the long matrix that ``./scripts/interop`` runs."""
