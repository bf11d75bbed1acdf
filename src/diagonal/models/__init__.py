"""One file per model family: Config, modules, weight map, VARIANTS. Each has a `tiny` variant for tests."""
