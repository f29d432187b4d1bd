"""A file for each module, and files for what cuts across. Some are long: the tests of a module stay together."""
