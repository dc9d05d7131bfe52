"""State that operators and controllers change at run time: breakers, knobs, escalation, lanes, drained replicas."""
