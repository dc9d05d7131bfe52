"""State that operators and controllers change at run time: breakers, knobs, ladders, lanes, cordons."""
