"""The version of this package, for who may not import the package itself."""

VERSION = "0.1.0"
