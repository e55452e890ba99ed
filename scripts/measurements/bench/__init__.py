"""The scenarios of ``scripts/bench``.

A scenario is a module with ``NAME``, ``HELP`` and ``run(plan) -> dict``, which returns the results for the JSON file
and prints its own table. Add it to ``__main__._SCENARIOS``. Every peer runs in its own process. Its cost is read from
outside, in the same way for all peers.

The JSON file of results:

- ``machine``: time, commit, processor, memory and every version; ``load_average_at_start``.
- ``scenarios``: a list; each has ``scenario`` (its name), ``took_seconds``, ``quick`` (no figure counts then), its
  settings, and ``cases``.
- a case has ``case`` (what was read), ``compared`` (the measure that ratios are of), ``more_is_better``, ``ours`` (the
  name of ours), ``turns``, ``load_average_before_each`` (turn of a peer, in the order of running) and ``peers``.
- ``peers`` has by name a dictionary of measures, each with ``median``, ``lowest``, ``highest`` and ``turns`` (all
  values), and ``ours_to_this``: how many times better ours is, by medians.
- measures of bulk reading: ``messages_per_second`` (from the peer's first message to its last),
  ``warm_messages_per_second`` (the second half of the messages; 0: not told), ``cpu_seconds_per_million`` (messages; of
  the peer's process, from ready to its end), ``broker_cpu_seconds_per_million``, ``peak_mib`` (resident).
- of latency: ``p50_ms``, ``p99_ms``, ``second_p99_ms`` (the median of the seconds' p99), ``p999_ms``, ``highest_ms``,
  ``cpu_percent_of_a_core``.
- of idle members: ``percent_of_a_core``, ``broker_percent_of_a_core``, ``resident_mib``.
- of Spark: ``rows_per_second``, ``seconds`` (of the whole query), ``trigger_ms`` (the median trigger), ``p90_ms``,
  ``cpu_seconds_per_million`` and ``peak_mib`` (all processes of the session), ``java_cpu_seconds_per_million`` (of its
  JVM).

Scenarios without cases: ``memory`` has ``loads`` (see ``memory.watch``), ``rebalance`` has ``steps`` and ``turns`` (see
``scripts.measurements.scale.real.measure``). ``profile`` has ``nanoseconds`` of CPU a message, by kind of messages and
part.
"""
