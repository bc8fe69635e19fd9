"""What can be known of a run in a minute or two, before it takes a night: each check gives findings with a remedy."""

from modeling_vanilla.training.doctor.diagnosis import diagnose
from modeling_vanilla.training.doctor.finding import Finding

__all__ = ["Finding", "diagnose"]
