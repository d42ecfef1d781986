"""The `jaxplan` command."""
