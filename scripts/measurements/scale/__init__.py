"""The cost of a change of a group, beside the original: counted in a simulation, and measured on real processes."""
