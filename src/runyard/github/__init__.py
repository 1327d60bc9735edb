"""GitHub's wire formats: types, flows, codec."""
