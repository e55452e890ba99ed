"""What every thread of a member needs: deadlines, waits that signals interrupt, metrics, and the guard of forks."""
