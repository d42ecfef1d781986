"""The ways in, over the search: `plan` and its kin, the staged form `trace`, the decorator `auto`, and `load`."""
