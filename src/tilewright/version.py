"""The version of the package, for those who may not import the package's root: it names all layers."""

__version__ = "0.2.0"
