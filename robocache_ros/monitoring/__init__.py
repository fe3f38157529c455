"""Whether a training keeps its GPU busy: `GPUUtilizationMonitor` and `DataWaitMeter`. Both work without the rest."""

from robocache_ros.monitoring.data_wait import DataWait, DataWaitMeter
from robocache_ros.monitoring.gpu_utilization import GPUUtilization, GPUUtilizationMonitor

__all__ = ["DataWait", "DataWaitMeter", "GPUUtilization", "GPUUtilizationMonitor"]
