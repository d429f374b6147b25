from collections import namedtuple

MetricData = namedtuple("MetricData", "timestamp group_name name value")
