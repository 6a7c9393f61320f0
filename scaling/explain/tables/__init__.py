"""The keys that launchers know, as data: made once from the installed packages by `scaling.explain.generate`."""
