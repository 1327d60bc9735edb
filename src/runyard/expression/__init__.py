"""GitHub's expressions: text to syntax to value; conditions; templates."""
