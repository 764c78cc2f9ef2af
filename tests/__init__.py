"""The tests, as a package: a library of theirs brings a package of this name, too, and ours must come first."""
