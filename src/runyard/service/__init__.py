"""What a job may call: cache, artifacts, results, OIDC, git."""
