"""The demo's modules need confluent-kafka, which has no wheel for Python 3.15 yet."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("confluent_kafka") else ["test_demo.py", "test_weeks_picture.py"]
