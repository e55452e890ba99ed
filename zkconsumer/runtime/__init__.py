"""Tools for every thread of a member: deadlines, waits that signals interrupt, metrics, and the guard of forks."""
