"""Where claims come from: this command line, a server, GitHub."""
