"""Plans and frontiers as data, in files, tables, plots and words."""
